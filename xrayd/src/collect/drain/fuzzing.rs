//! The entry point of a fuzz target: a drain over memory whose bytes the input chooses, also
//! between the drain's rounds. It exists with `--cfg fuzzing` only.
//!
//! The input is a list of steps. A step writes to the memory as a hostile target does, records an
//! event as a trampoline does, or makes the drain do a piece of its work or answer a request.

use std::{fs::File, os::unix::fs::FileExt as _, sync::Arc};

use nix::sys::memfd::{MFdFlags, memfd_create};
use shm_ring::{Content, Event, Geometry, Mapping, Table, Target};
use xray_trace::model::{CallKind, EventBody, FunctionId, ProcessId};

use super::*;
use crate::{
    collect::{
        CallSite, EventFilter, SiteKind, Window, profile_reader::AddUp, ring_copies::Moment,
        sample::Look, time_range::TimeRange,
    },
    inject::{Layout, RingsFile},
    target::RunClocks,
    types::{Mode, ThreadChoice},
};

/// No thread has such an id.
const ENDED: u32 = 0x3fff_ffff;
/// Functions, each with an entry, an exit and a user event.
const FUNCTIONS: u32 = 8;
/// The limit on retained blocks, in bytes.
const RETAINED: u64 = 1 << 20;

/// The rest of the input.
struct Input<'a>(&'a [u8]);

/// A drain and the memory that it reads.
struct Scene {
    drain: Drain,
    /// True if rings keep words until their blocks are retained.
    holds: bool,
    /// The rings and the table, as the target writes them.
    rings: File,
    table: File,
    geometry: Geometry,
    /// The slots in which trampolines record.
    slots: Table,
    clock: u64,
    /// True while every event goes into a block and stays there.
    keeps_all: bool,
    /// True once the rings' memory was taken away.
    is_broken: bool,
}

/// Drains rings and a table while the input changes them.
///
/// # Panics
/// A count does not agree with the blocks, or a block cannot be read.
pub fn drain_rings(input: &[u8]) {
    let mut input = Input(input);
    let mut scene = Scene::new(input.small() & 1 == 1);
    scene.begin();
    while let Some(step) = input.byte() {
        scene.step(step, &mut input);
    }
    scene.end();
}

// === impl Input ===

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn small(&mut self) -> u64 {
        self.byte().unwrap_or(0).into()
    }

    fn half(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte().unwrap_or(0)))
    }

    /// A word with a meaning in some place, in few bytes.
    fn word(&mut self) -> u64 {
        let shape = self.small();
        let low = match shape & 7 {
            0 => 0,
            // Sync, gap, filler, halves of an argument, size, type, payload, stack.
            tag @ 1..=5 if shape & 0x40 == 0 => tag * 2,
            tag @ 1..=5 => tag.min(4) * 2 + 10,
            // A site.
            6 => site(self.half()).into(),
            _ => self.half().into(),
        };
        let high = match shape >> 3 & 7 {
            0 => 0,
            1 => u64::from(u32::MAX),
            2 => self.small(),
            3 => u64::from(self.half()),
            // Whole words.
            4 => return u64::MAX,
            5 => return self.tid().into(),
            6 => return self.small(),
            _ => return self.small() << (self.small() & 63),
        };
        high << 32 | low
    }

    /// A slot, in most cases one with recorded events.
    fn slot(&mut self, g: Geometry) -> u32 {
        let number = u32::try_from(self.small()).unwrap_or(0);
        let mask = g.slots() - 1;
        match number {
            0..64 => nix::unistd::gettid().as_raw().cast_unsigned() & mask,
            64..192 => (ENDED - (number & 3)) & mask,
            _ => number & mask,
        }
    }

    /// A living thread, or any other.
    fn tid(&mut self) -> u32 {
        match self.small() {
            0..64 => nix::unistd::gettid().as_raw().cast_unsigned(),
            few @ 64..192 => ENDED - u32::try_from(few & 3).unwrap_or(0),
            192..208 => layout::slot::WITHDRAWN,
            208..224 => layout::slot::PAUSED,
            _ => self.half(),
        }
    }
}

/// The name of a site, from any number.
fn site(number: u32) -> u32 {
    8 * (number % (3 * FUNCTIONS)) + 7
}

fn sites() -> SiteTable {
    let mut sites = SiteTable::new();
    for number in 0..3 * FUNCTIONS {
        let kind = match (number % 3, number % 2) {
            (0, _) => SiteKind::Call(CallKind::Enter),
            (1, 0) => SiteKind::Call(CallKind::Exit),
            (1, _) => SiteKind::Call(CallKind::TailExit),
            (_, 0) => SiteKind::Custom,
            (_, _) => SiteKind::Typed,
        };
        let site = CallSite {
            name: site(number),
            function: FunctionId(number / 3),
            kind,
        };
        sites.insert(site, Ticks(0));
    }
    sites
}

/// A drain for which half of the slots are closed, whatever the table contains.
fn drain_of(memory: Arc<Memory>, slots: Slots, holds: bool) -> Drain {
    let geometry = slots.layout.geometry;
    let budget = RingBudget::unlimited(geometry, geometry.slots() / 2);
    let output = EventStore::new(ProcessId(0), FUNCTIONS as usize, RETAINED);
    if holds {
        output.hold_words();
    }
    Drain::new(
        Pid::this(),
        memory,
        slots,
        budget,
        sites(),
        Arc::new(output),
    )
}

// === impl Scene ===

impl Scene {
    fn new(holds: bool) -> Self {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 8).expect("the smallest rings");
        let file = |bytes| {
            let memfd = memfd_create(c"rings", MFdFlags::MFD_CLOEXEC);
            let file = File::from(memfd.expect("a file"));
            file.set_len(bytes).expect("a sparse file");
            file
        };
        let rings = file(geometry.rings_bytes());
        let table = file(geometry.table_bytes());
        let layout = Layout {
            table: 0,
            rings: 0,
            rings_map: (0, geometry.rings_bytes()),
            geometry,
            tid_offset: 0,
        };
        let copy = |file: &File| file.try_clone().expect("a descriptor");
        let mapping = Mapping::new(&rings, 0, geometry.rings_bytes()).expect("a mapping");
        let slots = Slots::new(layout, mapping, RingsFile::own(copy(&rings)));
        let memory = Arc::new(Memory::of_file(copy(&table)));
        Self {
            drain: drain_of(memory, slots, holds),
            holds,
            rings,
            table,
            geometry,
            slots: Table::new(geometry),
            clock: 1 << 40,
            keeps_all: true,
            is_broken: false,
        }
    }

    /// The first steps of the drain.
    fn begin(&mut self) {
        self.drain.settle_mode();
        self.drain.owners.discover();
        self.drain.owners.begun = true;
    }

    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        match step & 31 {
            0..4 => self.write(input),
            4..12 => self.record(input),
            12..16 => {
                self.drain.round();
            }
            16 | 17 => self.tend(),
            18 => self.drain.flush(),
            19 => {
                let modes = Mode::ALL;
                let mode = modes[usize::from(input.byte().unwrap_or(0)) % modes.len()];
                self.keeps_all &= mode == Mode::Stream;
                self.drain.owners.rings.output.set_mode(mode);
                self.drain.settle_mode();
            }
            20 => self.look(input),
            21 => {
                self.keeps_all = false;
                self.drain.begin_counts();
                self.drain.owners.rings.count();
            }
            29 => {
                self.keeps_all = false;
                match input.small() & 7 {
                    0 => {
                        self.drain.begin_profiles(AddUp::Anew);
                    }
                    1 => {
                        self.drain.begin_profiles(AddUp::GoOn);
                    }
                    2 => self.drain.owners.rings.add_up(Handover::Interim),
                    3 => self.drain.owners.rings.read_long_calls(),
                    beside @ 4..6 => {
                        let output = &self.drain.owners.rings.output;
                        output.records_beside.store(beside == 4, Relaxed);
                        self.drain.flush();
                    }
                    _ => self.drain.end_profiles(),
                }
            }
            22 => {
                self.drain.owners.discover();
                self.drain.owners.rings.renew_filters();
            }
            23 => self.keep(input),
            24 => self.choose(input),
            25 => self.profile(input),
            26 => {
                let window = Arc::new(Window::new(Arc::new(RunClocks::of(Pid::this(), &[]))));
                let sample = self.drain.sample(&Look::Begin(Arc::clone(&window)));
                let before = sample.rings.iter().map(|ring| (ring.ring, 0));
                let before = before.collect();
                let look = match input.small() & 1 {
                    0 => Look::Newest(before),
                    _ => Look::All(before, window),
                };
                let mut sample = self.drain.sample(&look);
                sample.tallies(Ticks(0), &(Ticks(0)..=Ticks(u64::MAX)));
            }
            // A session ends, and another one finds what it left; or a collector dies.
            27 => self.restart(input.small() & 1 == 0),
            28 => {
                if input.small() > 250 {
                    self.rings.set_len(0).expect("a file of its own");
                    self.is_broken = true;
                }
            }
            _ => self.record(input),
        }
    }

    /// Writes a word somewhere into the memory.
    fn write(&mut self, input: &mut Input<'_>) {
        let g = self.geometry;
        let slot = input.slot(g);
        let at = match input.small() & 15 {
            0 => {
                // A thread that found no slot.
                let bucket = g.bucket_offset(slot);
                self.put(layout::rings::BUCKETS_TAKEN, [1; 8]);
                let tid = u64::from(input.tid());
                for (at, word) in [(0, tid), (8, input.word()), (16, input.word())] {
                    self.put(bucket + at, word.to_le_bytes());
                }
                return;
            }
            1..5 => g.control_offset(slot) + 8 * (input.small() & 7),
            5 => 8 * (input.small() & 7),
            6 => g.bucket_offset(slot) + 8 * (input.small() & 3),
            7 => g.filter_offset(slot) + 8 * (input.small() & 15),
            8 => g.count_region().names_offset() + 8 * input.small(),
            9 => g.count_region().counts_offset(slot) + 8 * (input.small() & 15),
            11 => g.mark_offset(slot) + 8 * (input.small() & 3),
            12 => {
                let region = g.profile_region();
                let part = match input.small() & 3 {
                    0 => region.header_at(),
                    1 => 128 * (input.small() & 7),
                    2 => region.frames_at(),
                    _ => region.blocks_at(),
                };
                region.profile_offset(slot) + part + 8 * (input.small() & 31)
            }
            10 => {
                let word = input.tid().to_le_bytes();
                let place = g.slot_offset(slot);
                self.table.write_all_at(&word, place).expect("room");
                return;
            }
            place => {
                let from = u64::from(input.half()) % (g.ring_bytes() / 8) * 8;
                let words = 1 + input.small() % 32 * (place & 1);
                for word in 0..words {
                    let value = input.word().to_le_bytes();
                    let at = g.ring_offset(slot) + (from + 8 * word) % g.ring_bytes();
                    self.put(at, value);
                }
                return;
            }
        };
        let value = input.word().to_le_bytes();
        self.put(at, value);
    }

    fn put(&self, at: u64, word: [u8; 8]) {
        // A file that was cut stays as it is: its mapping is gone for good.
        if !self.is_broken {
            self.rings.write_all_at(&word, at).expect("room");
        }
    }

    /// Records an event as a trampoline does.
    fn record(&mut self, input: &mut Input<'_>) {
        let shape = input.small();
        self.clock += input.small() << (shape & 15);
        let site = site(u32::try_from(input.small()).unwrap_or(0));
        let content = match shape >> 4 & 3 {
            0 | 1 => Content::Nothing,
            2 => Content::Argument(input.small()),
            _ => {
                let kind = match input.small() {
                    255 => shm_ring::word::VALUES,
                    kind => u32::try_from(kind).unwrap_or(0),
                };
                let size = u32::try_from(input.small()).unwrap_or(0);
                let bytes = vec![7; size as usize & 63];
                Content::Payload { kind, size, bytes }
            }
        };
        let event = Event {
            site,
            sp: 0x7fff_0000 - 8 * input.small(),
            content,
        };
        let target = Target {
            table: &self.slots,
            rings: &self.drain.owners.rings.slots.rings,
            geometry: self.geometry,
        };
        let tid = match shape >> 6 {
            0 => nix::unistd::gettid().as_raw().cast_unsigned(),
            ended => ENDED - u32::try_from(ended).unwrap_or(0),
        };
        target.record(tid, event, self.clock);
    }

    /// Does all periodic work.
    fn tend(&mut self) {
        self.drain.times.make_due();
        self.drain.owners.open_slots();
        self.drain.chores();
    }

    /// Takes a snapshot and decodes it.
    fn look(&mut self, input: &mut Input<'_>) {
        let moment = match input.small() & 1 {
            0 => Moment::Past,
            _ => Moment::Next,
        };
        let bytes = input.small() << (input.small() & 31);
        let copies = self.drain.copy_rings(bytes, moment);
        let since = Ticks(input.word());
        let extent = TimeRange::between(since, copies.taken());
        let snapshot = copies.into_snapshot(ProcessId(0), FUNCTIONS as usize, extent, |_| {});
        read(&snapshot.blocks);
    }

    fn keep(&mut self, input: &mut Input<'_>) {
        self.keeps_all = false;
        let first = u32::try_from(input.small()).unwrap_or(0) % FUNCTIONS;
        let window = Ticks(input.word())..Ticks(input.word());
        let keep = match input.small() & 3 {
            0 => None,
            1 => Some(EventFilter::new(None, window)),
            _ => Some(EventFilter::new(Some(vec![first..first + 2]), window)),
        };
        self.drain.flush();
        self.drain.owners.rings.decoders.filter(keep.map(Arc::new));
    }

    fn choose(&mut self, input: &mut Input<'_>) {
        self.keeps_all = false;
        let tid = input.tid().to_string();
        let choice = ThreadChoice::new(&[tid, "no such thread".to_owned()]);
        self.drain.owners.chosen = match input.small() & 1 {
            0 => None,
            _ => choice.ok().map(Arc::new),
        };
        self.drain.owners.choose_threads();
    }

    fn profile(&mut self, input: &mut Input<'_>) {
        // The drain may read rings along for this.
        self.keeps_all = false;
        let number = input.small() & 3;
        let ask = match input.small() % 3 {
            0 => Ask::Begin(number),
            1 => Ask::End(number),
            _ => Ask::Kept,
        };
        self.drain.profile(ask);
    }

    fn restart(&mut self, in_order: bool) {
        if in_order {
            self.end();
        }
        let g = self.geometry;
        let copy = |file: &File| file.try_clone().expect("a descriptor");
        // A broken mapping stays broken. A new session has a new one.
        if self.is_broken {
            self.rings.set_len(g.rings_bytes()).expect("a sparse file");
            self.is_broken = false;
        }
        let mapping = Mapping::new(&self.rings, 0, g.rings_bytes()).expect("a mapping");
        let mut slots = Slots::new(
            self.drain.owners.rings.slots.layout,
            mapping,
            RingsFile::own(copy(&self.rings)),
        );
        slots.filtered = true;
        let memory = Arc::clone(&self.drain.owners.memory);
        self.drain = drain_of(memory, slots, self.holds);
        self.keeps_all = true;
        self.begin();
    }

    /// Ends the session, and checks what holds whatever is in the memory.
    fn end(&mut self) {
        self.drain.finish();
        let rings = &self.drain.owners.rings;
        assert!(rings.by_slot.len() <= self.geometry.slots() as usize);
        assert_eq!(rings.by_slot.len(), rings.order.len());
        let snapshot = rings.output.snapshot();
        let events = read(&snapshot.blocks);
        for block in &snapshot.blocks {
            let mut threads = snapshot.threads.iter();
            assert!(threads.any(|thread| thread.id == block.thread));
        }
        let counters = rings.output.counters();
        assert!(counters.retained_bytes <= RETAINED + (1 << 16));
        let whole = counters.overwritten_events == 0 && !rings.slots.rings.is_broken();
        if self.keeps_all && whole {
            assert_eq!(events, counters.events, "{counters:?}");
        }
    }
}

/// The number of events in these blocks. Checks that time does not run backwards in a block.
fn read(blocks: &[xray_trace::container::Block]) -> u64 {
    let mut events = 0;
    for block in blocks {
        let mut last = block.first;
        for event in block.events() {
            let event = event.expect("a block of our own");
            assert!(event.ticks >= last && event.ticks <= block.last);
            last = event.ticks;
            events += u64::from(matches!(
                event.body,
                EventBody::Call { .. } | EventBody::Data { .. }
            ));
        }
    }
    events
}
