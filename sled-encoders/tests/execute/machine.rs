//! A target in this process: table, rings, trampolines, and functions made of staged sleds. The
//! tests beside it run them.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    fs::File,
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use shm_ring::{
    Consumer, Data, Geometry, Item, Mapping, Producer, SharedMemory,
    layout::{INSIDE_NAMES, LINE_BYTES, NAME_SHIFT, control, filter, profile, rings, slot, table},
    newest::{self, RingCopy},
    profile::{Limits, LongCalls, Profile},
    view::TICKS,
    word,
};
use sled_encoders::x86_64::{
    DispatchMode, Enable, EventArguments, Stub, TrampolineSpec, Trampolines, call_site, sled_bytes,
    stage, switch, tail_jump,
};

use crate::{area::Area, function::Function, registers::Registers, tid_offset::tid_offset};

/// Functions of one kind, and so the number of sites of it.
pub(crate) const COPIES: u32 = 8;
/// The offset of the functions in the code.
const FUNCTIONS: u64 = 4 * 4096;
const FUNCTION_BYTES: u64 = 128;
const CODE_BYTES: usize = 64 << 10;
/// The payload of numbered events, in bytes: their number, the next number, and half of the one
/// behind that.
pub(crate) const DATA_BYTES: u32 = 20;
/// The numbers of events. The last one stands for all greater ones.
const NUMBERS: u64 = 4096;

/// The machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) geometry: Geometry,
    pub(crate) trampolines: Trampolines,
    table: Area,
    rings: Area,
    code: Area,
    view: Mapping,
    /// The payloads of events: numbers, 8 bytes each.
    answer: Area,
    tid: u32,
    /// The time of consumers, in milliseconds. Each look adds so much that it is as thorough as
    /// any.
    clock: Cell<u64>,
    /// Sites that were called, with the places on the stack. Emptied by `reset`.
    called: RefCell<BTreeSet<(u32, u64)>>,
}

/// The state of the home ring.
#[derive(Debug)]
pub(crate) struct Saved {
    slot: Vec<u8>,
    control: Vec<u8>,
    ring: Vec<u8>,
}

/// The counter.
pub(crate) fn now() -> u64 {
    // SAFETY: reads the counter; part of x86-64.
    unsafe { core::arch::x86_64::_rdtsc() }
}

// === impl Saved ===

impl Saved {
    /// The words of the control line, then those of the ring.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let control = self.control.as_chunks().0.iter();
        let words = control.chain(self.ring.as_chunks().0);
        words.map(|word| u64::from_le_bytes(*word))
    }

    /// True if control line and ring are the same. The slot may differ.
    pub(crate) fn is_same_ring(&self, other: &Self) -> bool {
        (&self.control, &self.ring) == (&other.control, &other.ring)
    }
}

// === impl Machine ===

impl Machine {
    /// A machine without profiles, which take most of the memory that each test empties.
    pub(crate) fn new() -> Self {
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        Self::with(geometry.without_profiles())
    }

    /// A machine whose threads have profiles.
    pub(crate) fn with_profiles() -> Self {
        Self::with(Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap())
    }

    fn with(geometry: Geometry) -> Self {
        let file = File::from(memfd_create(c"rings", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(geometry.rings_bytes()).unwrap();
        let rings_bytes = usize::try_from(geometry.rings_bytes()).unwrap();
        let chunk = usize::try_from(geometry.chunk_bytes()).unwrap();
        let rings = Area::shared(&file, rings_bytes, chunk);
        let table = Area::private(usize::try_from(geometry.table_bytes()).unwrap());
        let code = Area::private(CODE_BYTES);
        let spec = TrampolineSpec {
            origin: code.address(),
            tid_offset: tid_offset(),
            table: table.address(),
            rings: rings.address(),
            geometry,
        };
        let trampolines = Trampolines::assemble(&spec).unwrap();
        code.write(0, &trampolines.code);
        let view = Mapping::new(&file, 0, geometry.rings_bytes()).unwrap();
        let tid = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
        let answer = Area::private(usize::try_from(8 * NUMBERS + 16).unwrap());
        for number in 0..NUMBERS + 2 {
            answer.write64(8 * number, number);
        }
        let machine = Self {
            answer,
            geometry,
            trampolines,
            table,
            rings,
            code,
            view,
            tid,
            clock: Cell::default(),
            called: RefCell::default(),
        };
        for function in Function::PLAIN
            .into_iter()
            .chain([Function::Custom, Function::Typed, Function::Result])
            .chain((1..=6).map(Function::Arguments))
            .chain((0..16).map(Function::Conditional))
        {
            for copy in 0..COPIES {
                machine.place(function, copy);
            }
        }
        machine.code.make_executable();
        machine.reset();
        machine
    }

    /// Writes a staged function that is on.
    fn place(&self, function: Function, copy: u32) {
        let kind = function.kind();
        let address = self.address(function, copy);
        let tail = function.tail();
        let mut bytes = function.sled();
        let switch = switch(kind);
        let at = address + FUNCTION_BYTES / 2;
        let stub = match function {
            Function::Conditional(_) => {
                let target = self.trampolines.stub_target();
                Some(Stub::for_jump(address, tail_jump(&tail), at, target).unwrap())
            }
            Function::Custom | Function::Typed => {
                let arguments = EventArguments::decode(kind, &bytes).unwrap();
                let target = self.trampolines.target(kind);
                Some(Stub::for_event(kind, address, arguments, at, target).unwrap())
            }
            _ => None,
        };
        let staging = match stub {
            Some(stub) => {
                self.code.write(at - self.code.address(), &stub.code);
                stub.staging
            }
            None => {
                let target = self.trampolines.target_for(kind, function.capture());
                stage(kind, address, target).unwrap()
            }
        };
        assert_eq!(bytes.len(), sled_bytes(kind));
        let from = usize::from(staging.offset);
        bytes[from..from + staging.bytes().len()].copy_from_slice(staging.bytes());
        bytes[usize::from(switch.offset)] = switch.on;
        bytes.extend(tail);
        self.code.write(address - self.code.address(), &bytes);
    }

    pub(crate) fn address(&self, function: Function, copy: u32) -> u64 {
        assert!(copy < COPIES, "so many copies exist");
        let index = function.number() * u64::from(COPIES) + u64::from(copy);
        self.code.address() + FUNCTIONS + index * FUNCTION_BYTES
    }

    /// Sets the dispatch mode of all flavours.
    pub(crate) fn set_dispatch_mode(&self, dispatch_mode: DispatchMode) {
        for dispatch_mode in [DispatchMode::None, dispatch_mode] {
            for gate in &self.trampolines.gates {
                self.exchange_code(gate.address, gate.byte(dispatch_mode, Enable::On));
            }
        }
    }

    /// Disables all flavours, or enables them in `dispatch_mode`, which they had before.
    pub(crate) fn set_enable(&self, dispatch_mode: DispatchMode, enable: Enable) {
        for gate in self
            .trampolines
            .gates
            .iter()
            .filter(|gate| gate.is_enable())
        {
            self.exchange_code(gate.address, gate.byte(dispatch_mode, enable));
        }
    }

    /// The low half of the word that an event of the function leaves.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low half names the site"
    )]
    pub(crate) fn site(&self, function: Function, copy: u32) -> u32 {
        call_site(function.kind(), self.address(function, copy)) as u32
    }

    /// Sets a u32 in the table's header.
    pub(crate) fn set_header(&self, field: u64, value: u32) {
        self.table.write32(field, value);
    }

    /// Sets the shortest duration of a recorded call.
    pub(crate) fn set_shortest(&self, ticks: u64) {
        self.table.write64(table::MIN_TICKS, ticks);
    }

    /// Makes a list, 1 or 2, of sites inside which events are recorded.
    pub(crate) fn set_inside(&self, list: u32, sites: &[u32]) {
        let begin = self.geometry.inside_offset(u64::from(list - 1));
        self.table.clear(begin, INSIDE_NAMES * 4);
        for site in sites {
            let mut place = u64::from(site >> NAME_SHIFT) % INSIDE_NAMES;
            let at = |place: u64| begin + place * 4;
            while self.table.read64(at(place) & !7) >> (at(place) % 8 * 8) & 0xffff_ffff != 0 {
                place = (place + 1) % INSIDE_NAMES;
            }
            self.table.write32(at(place), *site);
        }
        self.set_header(table::INSIDE, list);
    }

    /// A field of a filter page.
    pub(crate) fn page(&self, index: u32, field: u64) -> u64 {
        self.view.load(self.geometry.filter_offset(index) + field)
    }

    pub(crate) fn set_page(&self, index: u32, field: u64, value: u64) {
        self.view
            .store(self.geometry.filter_offset(index) + field, value);
    }

    /// The counts in a slot by site. 0 stands for all sites that have no number.
    pub(crate) fn counted(&self, index: u32) -> BTreeMap<u32, u64> {
        let region = self.geometry.count_region();
        let at_name = |entry| region.names_offset() + 8 * entry;
        let names = (0..region.names()).map(|entry| self.view.load(at_name(entry)));
        let names: BTreeMap<u64, u32> = names
            .filter(|entry| *entry != 0)
            .map(|entry| (entry >> 32, u32::try_from(entry & 0xffff_ffff).unwrap()))
            .collect();
        let at_count = |id| region.counts_offset(index) + 8 * id;
        let counts = (0..region.ids()).map(|id| self.view.load(at_count(id)));
        let counts = (0..).zip(counts).filter(|(_, count)| *count != 0);
        counts
            .map(|(id, count)| (names.get(&id).copied().unwrap_or_default(), count))
            .collect()
    }

    /// Sets the number of sites that were given a number.
    pub(crate) fn set_numbered(&self, ids: u64) {
        self.view.store(rings::COUNT_IDS, ids);
    }

    /// All the code: trampolines, sleds, stubs.
    pub(crate) fn code(&self) -> std::ops::Range<u64> {
        self.code.address()..self.code.address() + CODE_BYTES as u64
    }

    /// Writes a byte of the code, and returns the byte before.
    pub(crate) fn exchange_code(&self, address: u64, byte: u8) -> u8 {
        let offset = address - self.code.address();
        let before = self.code.copy(offset, 1)[0];
        self.code.write(offset, &[byte]);
        before
    }

    /// Calls a function with arbitrary registers, which must all come back. Returns the place on
    /// the stack at its sled.
    pub(crate) fn call(&self, function: Function, copy: u32, argument: u64) -> u64 {
        self.call_with(function, copy, self.registers(function, argument))
    }

    /// Arbitrary registers, with a number for the function to record.
    pub(crate) fn registers(&self, function: Function, number: u64) -> Registers {
        let registers = Registers::arbitrary();
        let (answer, size) = (self.answer(number), u64::from(DATA_BYTES));
        match function {
            Function::Custom => registers.with_arguments(size, answer, 0),
            Function::Typed => registers.with_arguments(answer, size, 7),
            Function::Result => registers.with_result(number),
            _ => registers.with_argument(number),
        }
    }

    /// The address of the number in an event's payload.
    fn answer(&self, number: u64) -> u64 {
        self.answer.address() + 8 * number.min(NUMBERS - 1)
    }

    /// The number in an event's payload, the greatest one for all greater numbers; or the first of
    /// a call's values.
    pub(crate) fn number_of(data: &Data) -> u64 {
        if data.kind == word::VALUES {
            assert_eq!((data.size as usize, data.size % 8), (data.bytes.len(), 0));
            return u64::from_le_bytes(data.bytes[..8].try_into().unwrap());
        }
        assert_eq!((data.size, data.bytes.len()), (DATA_BYTES, 20), "{data:?}");
        let number = u64::from_le_bytes(data.bytes[..8].try_into().unwrap());
        let behind = u64::from_le_bytes(data.bytes[8..16].try_into().unwrap());
        assert_eq!(behind, number + 1, "{data:?}");
        if number == NUMBERS - 1 {
            u64::MAX
        } else {
            number
        }
    }

    /// Calls a function, and compares every register and, where they are alive, the flags. Returns
    /// the place on the stack.
    pub(crate) fn call_with(&self, function: Function, copy: u32, registers: Registers) -> u64 {
        // SAFETY: the address is that of a function of this machine, which keeps the calling
        // convention's stack.
        let after = unsafe { registers.call(self.address(function, copy)) };
        let flags = match function {
            Function::Entry
            | Function::Argument
            | Function::Arguments(_)
            | Function::Exit
            | Function::Result => 0,
            Function::Tail | Function::Custom | Function::Typed | Function::Conditional(_) => {
                Registers::STATUS_FLAGS
            }
        };
        registers.assert_kept(&after, flags, function);
        if function.kind().is_event() {
            registers.assert_red_zone_kept(&after);
        }
        let called = (self.site(function, copy), after.stack());
        self.called.borrow_mut().insert(called);
        after.stack()
    }

    /// True if this site was called at this place on the stack.
    pub(crate) fn was_called(&self, site: u32, sp: u64) -> bool {
        self.called.borrow().contains(&(site, sp))
    }

    pub(crate) fn set_live(&self, live: u64) {
        self.table.write64(table::LIVE, live);
    }

    /// The counter when recording was closed.
    pub(crate) fn closed_at(&self) -> u64 {
        self.table.read64(table::CLOSED_AT)
    }

    pub(crate) fn set_closed_at(&self, value: u64) {
        self.table.write64(table::CLOSED_AT, value);
    }

    pub(crate) fn live(&self) -> u64 {
        self.table.read64(table::LIVE)
    }

    pub(crate) fn home(&self) -> u32 {
        self.tid & (self.geometry.slots() - 1)
    }

    pub(crate) fn tid(&self) -> u32 {
        self.tid
    }

    pub(crate) fn slot(&self, index: u32, field: u64) -> u64 {
        self.table.read64(self.geometry.slot_offset(index) + field)
    }

    pub(crate) fn set_slot(&self, index: u32, field: u64, value: u64) {
        self.table
            .write64(self.geometry.slot_offset(index) + field, value);
    }

    pub(crate) fn set_slot_owner(&self, index: u32, tid: u32) {
        self.table
            .write32(self.geometry.slot_offset(index) + slot::TID, tid);
    }

    /// Makes the home slot's view seem to have begun a moment ago, so that the next event is not
    /// too late for it. Times are wrong then.
    pub(crate) fn refresh_view(&self) {
        self.set_slot(self.home(), slot::SINCE, now() - TICKS / 4);
    }

    /// The number of views begun in the home slot.
    pub(crate) fn views(&self) -> u64 {
        self.slot(self.home(), slot::TID) >> 32
    }

    /// Words of the home ring before its head, since it was new.
    fn written(&self) -> u64 {
        let (home, g) = (self.home(), self.geometry);
        let Some(before) = self.control(home, control::STARTED).checked_sub(1) else {
            return 0;
        };
        let chunk = self.ring_address(home) + before % g.chunks() * g.chunk_bytes();
        before * g.chunk_bytes() / 8 + (self.slot(home, slot::HEAD) - chunk) / 8
    }

    /// Renews everything, and records `Tail` events until chunk number `chunk`, from 1, has `left`
    /// words left. Reads all events but those in the last `undrained` words. Returns the number of
    /// unread events.
    pub(crate) fn fill(&self, chunk: u64, left: u64, undrained: u64) -> (Consumer, u64) {
        let wanted = (chunk * self.geometry.chunk_bytes() / 8).saturating_sub(left);
        loop {
            self.reset();
            let mut consumer = self.consumer(self.home());
            let mut waiting = 0;
            while self.written() < wanted {
                self.call(Function::Tail, 0, 0);
                waiting += 1;
                if self.written() + undrained <= wanted {
                    self.drain(&mut consumer);
                    waiting = 0;
                }
            }
            // One view more than expected, since time has passed, can lead past the place, or find
            // a full ring.
            if self.written() == wanted && self.control(self.home(), control::LOST) == 0 {
                return (consumer, waiting);
            }
        }
    }

    pub(crate) fn control(&self, index: u32, field: u64) -> u64 {
        self.view.load(self.geometry.control_offset(index) + field)
    }

    pub(crate) fn set_control(&self, index: u32, field: u64, value: u64) {
        self.view
            .store(self.geometry.control_offset(index) + field, value);
    }

    /// Sets a word of the rings' header.
    pub(crate) fn set_rings_word(&self, field: u64, value: u64) {
        self.view.store(field, value);
    }

    pub(crate) fn no_slot(&self) -> u64 {
        self.view.load(rings::NO_SLOT)
    }

    pub(crate) fn buckets_taken(&self) -> u64 {
        self.view.load(rings::BUCKETS_TAKEN)
    }

    pub(crate) fn bucket(&self, index: u32, field: u64) -> u64 {
        self.view.load(self.geometry.bucket_offset(index) + field)
    }

    pub(crate) fn set_bucket(&self, index: u32, field: u64, value: u64) {
        self.view
            .store(self.geometry.bucket_offset(index) + field, value);
    }

    pub(crate) fn word(&self, index: u32, word: u64) -> u64 {
        self.view.load(self.geometry.ring_offset(index) + 8 * word)
    }

    pub(crate) fn ring_address(&self, index: u32) -> u64 {
        self.rings.address() + self.geometry.ring_offset(index)
    }

    /// Renews everything.
    pub(crate) fn reset(&self) {
        self.called.borrow_mut().clear();
        self.table.clear(0, self.geometry.table_bytes());
        self.rings.clear(0, self.geometry.rings_bytes());
        self.set_live(1);
        self.table.write64(table::MINE, 1);
        self.limit_profiles(Limits::most(self.geometry));
        self.set_long_call(u64::MAX);
    }

    /// Sets the ticks from which on a call is long.
    pub(crate) fn set_long_call(&self, ticks: u64) {
        self.table.write64(table::LONG_CALL, ticks);
    }

    /// The long calls that the home profile has notes of, and the number of the last one.
    pub(crate) fn long_calls(&self) -> (LongCalls, u64) {
        let mut seen = 0;
        let calls = LongCalls::read(&self.view, self.geometry, self.home(), &mut seen);
        (calls, seen)
    }

    /// The number of long calls that threads have told of.
    pub(crate) fn told_long_calls(&self) -> u64 {
        self.view.load(rings::LONG_CALLS)
    }

    /// Sets the limits on a profile.
    pub(crate) fn limit_profiles(&self, limits: Limits) {
        for (field, most) in limits.words() {
            self.set_header(field, most);
        }
    }

    /// Marks the functions of these sites as switched now, or `all` functions.
    pub(crate) fn mark_switched(&self, sites: &[u32], all: bool) {
        let marked = now();
        let list = self.geometry.profile_region().switched_offset();
        for site in sites {
            let mut entry = u64::from(site >> NAME_SHIFT) % profile::SWITCHED_SITES;
            let at = |entry: u64| list + entry * profile::SWITCHED_BYTES;
            while self.view.load(at(entry) + profile::SWITCHED_NAME) != 0 {
                entry = (entry + 1) % profile::SWITCHED_SITES;
            }
            self.view.store(at(entry) + profile::SWITCHED_AT, marked);
            self.view
                .store(at(entry) + profile::SWITCHED_NAME, u64::from(*site));
        }
        if all {
            self.table.write64(table::ALL_SWITCHED, marked);
        }
        self.table.write64(table::SWITCHED, marked);
    }

    /// Writes this word all over the home profile.
    pub(crate) fn fill_profile(&self, word: u64) {
        let region = self.geometry.profile_region();
        let offset = region.profile_offset(self.home());
        self.view.fill(offset, region.profile_bytes(), word);
    }

    /// Sets a word of the home profile's header.
    pub(crate) fn set_profile_header(&self, field: u64, value: u64) {
        let region = self.geometry.profile_region();
        let header = region.profile_offset(self.home()) + region.header_at();
        self.view.store(header + field, value);
    }

    /// The profile of a slot.
    pub(crate) fn profile(&self, index: u32) -> Profile {
        Profile::read(&self.view, self.geometry, index)
    }

    /// Renews the home slot, its ring and its filter page, and nothing else.
    pub(crate) fn renew_home(&self) {
        self.free_home();
        let page = self.geometry.filter_offset(self.home());
        self.rings.clear(page, filter::PAGE_BYTES);
    }

    /// Wipes the table, as a forked child finds it.
    pub(crate) fn wipe(&self) {
        self.table.clear(0, self.geometry.table_bytes());
    }

    /// A copy of the home slot, its control line and its ring.
    pub(crate) fn save(&self) -> Saved {
        let home = self.home();
        Saved {
            slot: self.table.copy(self.geometry.slot_offset(home), LINE_BYTES),
            control: self
                .rings
                .copy(self.geometry.control_offset(home), LINE_BYTES),
            ring: self
                .rings
                .copy(self.geometry.ring_offset(home), self.geometry.ring_bytes()),
        }
    }

    /// Puts the copy back.
    pub(crate) fn restore(&self, saved: &Saved) {
        self.table
            .write(self.geometry.slot_offset(self.home()), &saved.slot);
        self.restore_ring(saved);
    }

    /// Puts only the control line and the ring back.
    pub(crate) fn restore_ring(&self, saved: &Saved) {
        let home = self.home();
        self.rings
            .write(self.geometry.control_offset(home), &saved.control);
        self.rings
            .write(self.geometry.ring_offset(home), &saved.ring);
    }

    pub(crate) fn consumer(&self, index: u32) -> Consumer {
        Consumer::resume(&self.view, self.geometry, index).with_payloads()
    }

    /// Reads all events. There must be no hole.
    pub(crate) fn drain(&self, consumer: &mut Consumer) -> Vec<Item> {
        let mut items = Vec::new();
        let now = self.clock.replace(self.clock.get() + 1000);
        let drained = consumer.drain(&self.view, Producer::Alive, now, u64::MAX, |item| {
            items.push(item)
        });
        assert!(drained.at_end && !drained.at_hole, "{drained:?}");
        items
    }

    /// Reads all events, past all holes.
    pub(crate) fn drain_past_holes(&self, consumer: &mut Consumer) -> Vec<Item> {
        let mut items = Vec::new();
        loop {
            let now = self.clock.replace(self.clock.get() + 1000);
            let drained = consumer.drain(&self.view, Producer::Alive, now, u64::MAX, |item| {
                items.push(item)
            });
            if !drained.at_hole {
                return items;
            }
        }
    }

    /// Has full rings take back their oldest chunk.
    pub(crate) fn keep_newest(&self) {
        newest::keep_newest(&self.view);
    }

    /// The items in a copy of the home ring.
    pub(crate) fn copied_events(&self) -> Vec<Item> {
        let copy = RingCopy::take(&self.view, self.geometry, self.home(), u64::MAX);
        let mut consumer = copy.consumer().with_payloads();
        let mut items = Vec::new();
        let take = |item| items.push(item);
        let drained = consumer.drain(&copy, Producer::Alive, 0, u64::MAX, take);
        assert!(drained.at_end && !drained.at_hole, "{drained:?}");
        items
    }

    /// Frees the home ring, as the collector does when a thread is gone; the owner last.
    pub(crate) fn free_home(&self) {
        let home = self.home();
        self.rings
            .clear(self.geometry.ring_offset(home), self.geometry.ring_bytes());
        self.rings
            .clear(self.geometry.control_offset(home), LINE_BYTES);
        self.table
            .clear(self.geometry.slot_offset(home) + 4, LINE_BYTES - 4);
        self.set_slot_owner(home, 0);
    }

    /// Reports the losses that no gap word has reported.
    pub(crate) fn tell_losses(&self, consumer: &mut Consumer) -> Vec<Item> {
        let mut items = Vec::new();
        consumer.tell_losses(&self.view, |item| items.push(item));
        items
    }

    pub(crate) fn unreported(&self, consumer: &Consumer) -> u64 {
        consumer.unreported_losses(&self.view)
    }
}
