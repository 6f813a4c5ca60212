//! Entry points for fuzz targets: memory that an earlier tracer may have left in a target, and text
//! in which sleds are switched. Compiled only with `--cfg fuzzing`.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt as _,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use shm_ring::Geometry;
use sled_encoders::{
    Capture, SledKind,
    x86_64::{MAX_SLED_BYTES, State, TailJump, Trampolines, classify},
};

use super::{
    Layout, Patcher,
    patch_report::PatchReport,
    region::{FoundRegion, Region},
    tracer_record::{ClaimState, TableClaim},
};
use crate::{
    pid::{Pid, TargetAddr},
    sys::Memory,
    target::{MapEntry, Maps},
    types::{PatchSite, Wanted},
};

const TEXT: u64 = 0x40_0000;
const TEXT_BYTES: usize = 4096;
const REGION: u64 = 0x41_0000;
const REGION_BYTES: u64 = 4 * 4096;
/// The part of a region that no switch of a sled changes: all before the stubs.
const FIXED_BYTES: usize = 4 * 4096;
const TABLE: u64 = 0x50_0000;
const RINGS: u64 = 0x1000_0000;

/// Regions of usual layouts, by the shifts of their geometry. They are kept because assembling
/// takes milliseconds.
static PLANNED: Mutex<BTreeMap<(u32, u32), Region>> = Mutex::new(BTreeMap::new());

/// The rest of the input; zeroes follow it.
struct Input<'a>(&'a [u8]);

/// The memory of a target, as a file.
struct Scene {
    file: File,
    memory: Arc<Memory>,
}

/// Takes over the memory of an earlier tracer, as far as that is possible.
///
/// # Panics
/// The adopted layout does not fit the address space.
pub fn adopt(input: &[u8]) {
    let mut input = Input(input);
    let scene = Scene::new();
    tend_record(&scene, &mut input);
    scene.write_region(&mut input);
    let entry = MapEntry {
        range: REGION..REGION + REGION_BYTES,
        permissions: *b"r-xp",
        offset: 0,
        device: (0, 0),
        inode: 0,
        name: String::new(),
        deleted: false,
    };
    let Some(found) = Region::find(&scene.memory, &entry) else {
        return;
    };
    let (region, layout) = match found {
        Ok(FoundRegion::Usable(found)) => *found,
        Ok(FoundRegion::OtherVersion(other)) => return assert_eq!(other.range, entry.range),
        Err(why) => return assert!(!why.is_empty()),
    };
    assert_eq!(region.range(), entry.range);
    assert!(fits(&layout), "{layout:?}");
    assert!(region.next_stub(&scene.memory) <= region.stubs());
}

/// Switches sleds in text of which the target changes bytes.
///
/// # Panics
/// A byte outside of sleds was written, or a sled that counts as off is on.
pub fn switch_sleds(input: &[u8]) {
    static USUAL: LazyLock<(Layout, Trampolines)> = LazyLock::new(|| {
        let layout = usual_layout(Geometry::new(1 << 16, 8).expect("the smallest rings"));
        (layout, plan(&layout).trampolines)
    });
    let (layout, trampolines) = &*USUAL;
    let region = Region {
        address: REGION,
        bytes: REGION_BYTES,
        trampolines: trampolines.clone(),
    };
    let scene = Scene::new();
    region.write(&scene.memory, layout).expect("room");
    let mut input = Input(input);
    // Stubs of an earlier tracer.
    scene.scribble(REGION + FIXED_BYTES as u64, 4096, &mut input);
    switch_in(&scene, region, &mut input);
}

fn plan(layout: &Layout) -> Region {
    Region::plan(REGION, REGION_BYTES, layout).expect("a layout that fits")
}

fn usual_layout(geometry: Geometry) -> Layout {
    Layout {
        table: TABLE,
        rings: RINGS,
        rings_map: (RINGS, geometry.rings_bytes()),
        geometry,
        tid_offset: -0x2d0,
    }
}

/// True if the table and the rings end before the address space does. Code that uses a layout adds
/// offsets to their addresses.
fn fits(layout: &Layout) -> bool {
    let Layout {
        table,
        rings,
        rings_map: (start, bytes),
        geometry,
        tid_offset: _,
    } = *layout;
    let rings_end = rings.checked_add(geometry.rings_bytes());
    let map_end = start.checked_add(bytes);
    let is_within = rings_end
        .zip(map_end)
        .is_some_and(|(end, most)| end <= most);
    table.checked_add(geometry.table_bytes()).is_some() && rings >= start && is_within
}

/// Checks the record that names the tracer, while the target overwrites it.
fn tend_record(scene: &Scene, input: &mut Input<'_>) {
    let shape = input.byte();
    if shape & 1 == 0 {
        return;
    }
    let table = TargetAddr(TABLE);
    let claim = TableClaim::of_new(&scene.memory, table, Pid::this());
    let mut claim = claim.expect("memory that can be written");
    let live = [input.byte(), 0, 0, 0, 0, 0, 0, 0];
    scene.put(TABLE, &live);
    let closed_at = input.byte();
    scene.put(TABLE + shm_ring::layout::table::CLOSED_AT, &[closed_at]);
    for _ in 0..shape >> 5 {
        let at = shm_ring::layout::table::TRACER + u64::from(input.byte() & 63);
        let record = [input.byte()];
        scene.put(TABLE + at, &record);
    }
    let claim_state = claim.tend();
    let is_live = live[0] != 0;
    match claim_state {
        ClaimState::Held => assert!(is_live),
        ClaimState::Closed(at) => assert!(at.0 == u64::from(closed_at) && (at.0 > 0 || !is_live)),
        ClaimState::Lost(_) => {}
        ClaimState::Gone => panic!("the table can be read"),
    }
}

fn switch_in(scene: &Scene, region: Region, input: &mut Input<'_>) {
    let sites = sites(input);
    let mut text = vec![0xcc; TEXT_BYTES];
    for site in &sites {
        let at = place(site);
        let sled = compiled(site.kind);
        text[at..at + sled.len()].copy_from_slice(sled);
    }
    scene.put(TEXT, &text);
    scene.scribble(TEXT, TEXT_BYTES as u64, input);
    let text = scene.get(TEXT, TEXT_BYTES);
    let staged = sites.iter().filter_map(|site| match state(site, &text) {
        State::Staged { target } | State::On { target } => Some((*site, target)),
        State::Compiled | State::Runtime | State::Breakpoint | State::Foreign => None,
    });
    let maps = Maps::parse(&[]);
    let (pid, memory) = (Pid::this(), &*scene.memory);
    let mut patcher = Patcher::new(pid, memory, &maps, [], (vec![region], Vec::new()), staged);
    for _ in 0..8 {
        let to = match input.byte() {
            0 => break,
            1..64 => Wanted::Off,
            wanted => {
                let capture = Capture::NONE.with_arguments(u32::from(wanted & 7));
                Wanted::On(capture.unwrap_or(Capture::NONE))
            }
        };
        let fixed = scene.get(REGION, FIXED_BYTES);
        let before = scene.get(TEXT, TEXT_BYTES);
        let mut report = PatchReport::default();
        let done = patcher.switch_run(memory, &sites, to, None, &mut report);
        let after = scene.get(TEXT, TEXT_BYTES);
        check_outside(&sites, &before, &after);
        assert!(fixed == scene.get(REGION, FIXED_BYTES));
        if done.is_ok() {
            assert_eq!(report.sleds + report.foreign, sites.len() as u64);
            let is_on = |site: &&PatchSite| matches!(state(site, &after), State::On { .. });
            let on = sites.iter().filter(is_on).count() as u64;
            match to {
                Wanted::Off => assert!(on <= report.foreign, "{on} of {report:?}"),
                Wanted::On(_) => assert!(report.sleds <= on, "{on} of {report:?}"),
            }
        }
        scene.scribble(TEXT, TEXT_BYTES as u64, input);
    }
}

/// Sleds in ascending order, with gaps.
fn sites(input: &mut Input<'_>) -> Vec<PatchSite> {
    let mut sites = Vec::new();
    let mut address = TEXT;
    for _ in 0..input.byte() % 24 {
        let (kind, jump) = (input.byte(), input.byte());
        let kind = SledKind::ALL[usize::from(kind) % SledKind::ALL.len()];
        let jump = match (kind, jump & 3) {
            (SledKind::TailExit, 1) => TailJump::Conditional {
                condition: jump >> 4,
            },
            (SledKind::TailExit, 2) => TailJump::BelowStack,
            _ => TailJump::Plain,
        };
        address += u64::from(input.byte() & 0x7e);
        let site = PatchSite {
            address,
            kind,
            jump,
            module: 0,
        };
        address = site.end().next_multiple_of(2);
        if place(&site) + MAX_SLED_BYTES > TEXT_BYTES {
            break;
        }
        sites.push(site);
    }
    sites
}

fn place(site: &PatchSite) -> usize {
    usize::try_from(site.address - TEXT).expect("within the text")
}

fn state(site: &PatchSite, text: &[u8]) -> State {
    classify(site.kind, site.address, &text[place(site)..])
}

/// Sleds as LLVM 19 writes them.
fn compiled(kind: SledKind) -> &'static [u8] {
    match kind {
        SledKind::Entry | SledKind::TailExit | SledKind::EntryArgument => &[
            0xeb, 0x09, 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00,
        ],
        SledKind::Exit => &[
            0xc3, 0x2e, 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x02, 0x00, 0x00,
        ],
        SledKind::CustomEvent => &[
            0xeb, 0x0f, 0x57, 0x56, 0x48, 0x89, 0xc7, 0x48, 0x89, 0xce, 0xe8, 0, 0, 0, 0, 0x5e,
            0x5f,
        ],
        // As LLVM 5 writes it.
        SledKind::CustomEventV0 => &[
            0xeb, 0x14, 0x50, 0x48, 0x89, 0xc7, 0x48, 0x89, 0xce, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0,
            0, 0xff, 0xd0, 0x58,
        ],
        SledKind::TypedEvent => &[
            0xeb, 0x14, 0x57, 0x56, 0x52, 0x48, 0x89, 0xc7, 0x48, 0x89, 0xce, 0x48, 0x89, 0xda,
            0xe8, 0, 0, 0, 0, 0x5a, 0x5e, 0x5f,
        ],
    }
}

/// Checks that only bytes of sleds were written.
fn check_outside(sites: &[PatchSite], before: &[u8], after: &[u8]) {
    let mut from = 0;
    for site in sites {
        let at = place(site);
        assert!(before[from..at] == after[from..at], "before {site:?}");
        from = at + site.length();
    }
    assert!(before[from..] == after[from..], "behind the last sled");
}

// === impl Scene ===

impl Scene {
    fn new() -> Self {
        let file = File::from(memfd_create(c"target", MFdFlags::MFD_CLOEXEC).expect("a file"));
        file.set_len(2 * TABLE).expect("a sparse file");
        let copy = file.try_clone().expect("a descriptor");
        Self {
            file,
            memory: Arc::new(Memory::of_file(copy)),
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).expect("room");
    }

    fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at).expect("written");
        bytes
    }

    /// Writes a region for a layout that the input chooses, and then changes bytes of it.
    fn write_region(&self, input: &mut Input<'_>) {
        let shifts = input.byte();
        let shifts = (16 + u32::from(shifts & 15), 6 + u32::from(shifts >> 4));
        if let Ok(geometry) = Geometry::from_shifts(shifts.0, shifts.1) {
            let rings = input.address(RINGS);
            let map_bytes = input.address(geometry.rings_bytes());
            let layout = Layout {
                table: input.address(TABLE),
                rings,
                rings_map: (rings.saturating_sub(input.byte().into()), map_bytes),
                geometry,
                tid_offset: i32::from_le_bytes(std::array::from_fn(|_| input.byte())),
            };
            // A target writes any layout, and the trampolines for it.
            let words = [
                layout.table,
                layout.rings,
                layout.rings_map.0,
                layout.rings_map.1,
            ];
            match fits(&layout) && input.byte() & 7 == 0 {
                true => plan(&layout).write(&self.memory, &layout),
                false => {
                    let usual = usual_layout(geometry);
                    let mut planned = PLANNED.lock().unwrap_or_else(PoisonError::into_inner);
                    let region = planned.entry(shifts).or_insert_with(|| plan(&usual));
                    region.write(&self.memory, &usual)
                }
            }
            .expect("room");
            for (at, word) in (REGION + 16..).step_by(8).zip(words) {
                self.put(at, &word.to_le_bytes());
            }
        }
        self.scribble(REGION, REGION_BYTES, input);
    }

    /// Writes bytes that the input chooses into a part of the memory.
    fn scribble(&self, start: u64, length: u64, input: &mut Input<'_>) {
        for _ in 0..input.byte() & 15 {
            let at = u64::from(u16::from_le_bytes([input.byte(), input.byte()])) % length;
            self.put(start + at, &[input.byte()]);
        }
    }
}

// === impl Input ===

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// An address or a length: a usual one, one at the end of the address space, or any other.
    fn address(&mut self, usual: u64) -> u64 {
        match self.byte() {
            0..128 => usual,
            128..192 => u64::MAX - (u64::from(self.byte()) << (self.byte() & 31)),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }
}
