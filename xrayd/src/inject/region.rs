//! The code mapping of a neighbourhood: a handshake for the next tracer, the trampolines, and
//! stubs.
//!
//! ```text
//!  +0     magic "xrayd" 0 0 10 | bytes | table | rings | rings mapping: start, bytes
//!         | ring shift, slots shift | thread id offset
//!  +256   trampolines
//!  +12288 stubs, 64 bytes each
//! ```
//!
//! The handshake is as trustworthy as the target. A tracer that takes a region over generates its
//! trampolines anew from the handshake, and compares every byte.
//!
//! The handshake up to the mapping of the rings is the same in every version of xrayd. So are the
//! words `LIVE`, `MINE`, `TRACER` and `TRACER_COUNTER` of the table (`shm_ring::layout::table`).
//! With these, each version can let go of what another one left on: it takes the table's record,
//! and switches off the sleds that call into the region.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
};

use shm_ring::{Geometry, layout};
use sled_encoders::{
    EncodeError,
    x86_64::{DispatchMode, Enable, Gate, STUB_BYTES, Template, Trampolines},
};

use super::rings_file::RingsFile;
use crate::{
    lock::lock,
    pid::{Pid, TargetAddr},
    sys::Memory,
    target::MapEntry,
};

const MAGIC: [u8; 8] = [b'x', b'r', b'a', b'y', b'd', 0, 0, layout::VERSION];
/// All ways that the byte of a gate can lead.
const WAYS: [(DispatchMode, Enable); 6] = [
    (DispatchMode::None, Enable::On),
    (DispatchMode::Count, Enable::On),
    (DispatchMode::Filter, Enable::On),
    (DispatchMode::Profile, Enable::On),
    (DispatchMode::ProfileAndRecord, Enable::On),
    (DispatchMode::None, Enable::Off),
];
/// Trampolines that are kept assembled. A process chooses its sizes, if it forges a handshake.
const MOST_TEMPLATES: usize = 8;
const HANDSHAKE_WORDS: usize = 8;
const TRAMPOLINES_AT: u64 = 256;
const STUBS_AT: u64 = 4 * 4096;
/// Reach of a call in bytes, less a margin for the region and the sled.
const REACH: u64 = (1 << 31) - (1 << 20);
/// Modules farther apart than this get trampolines of their own.
const SPREAD: u64 = 1 << 30;

/// Addresses and sizes of the data that a target's trampolines use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The table's mapping.
    pub(crate) table: u64,
    /// First byte of the rings, a multiple of the chunk size.
    pub(crate) rings: u64,
    /// The mapping that holds the rings: start and bytes.
    pub(crate) rings_map: (u64, u64),
    /// The sizes of rings and table.
    pub(crate) geometry: Geometry,
    /// Offset of the thread id from the thread pointer.
    pub(crate) tid_offset: i32,
}

/// A code mapping in the target.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) trampolines: Trampolines,
}

/// The code mapping of another version of xrayd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherVersion {
    pub(crate) range: Range<u64>,
    /// The table that its trampolines use.
    pub(super) table: TargetAddr,
    /// The mapping of its rings: start and bytes.
    rings_map: (u64, u64),
}

/// A code mapping that an xrayd left in a process.
#[derive(Debug)]
pub(super) enum FoundRegion {
    /// A region of this version, and the layout that its handshake names.
    Usable(Box<(Region, Layout)>),
    OtherVersion(OtherVersion),
}

/// Modules close enough to share a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbourhood {
    /// From the first sled to the end of the last.
    pub(crate) range: Range<u64>,
    /// Sleds that need a stub.
    pub(crate) stubs: u64,
}

/// The trampolines of these sizes, which most processes share. The latest ones are kept.
fn template(geometry: Geometry, tid_offset: i32) -> Result<Arc<Template>, EncodeError> {
    static KEPT: Mutex<Vec<(Geometry, i32, Arc<Template>)>> = Mutex::new(Vec::new());
    let find = |kept: &[(Geometry, i32, Arc<Template>)]| {
        let is_it = |one: &&(Geometry, i32, _)| (one.0, one.1) == (geometry, tid_offset);
        kept.iter().find(is_it).map(|(.., it)| Arc::clone(it))
    };
    if let Some(template) = find(&lock(&KEPT)) {
        return Ok(template);
    }
    let template = Arc::new(Template::assemble(geometry, tid_offset)?);
    let mut kept = lock(&KEPT);
    if find(&kept).is_none() {
        kept.insert(0, (geometry, tid_offset, Arc::clone(&template)));
        kept.truncate(MOST_TEMPLATES);
    }
    Ok(template)
}

// === impl OtherVersion ===

impl OtherVersion {
    /// Returns the memory of its rings to the system, once no sled calls into it. A thread that
    /// still stands in its trampolines writes into memory that reads as zero.
    pub(crate) fn give_back_rings(&self, pid: Pid) {
        let (start, bytes) = self.rings_map;
        let proven = RingsFile::mapped(pid, &(start..start.saturating_add(bytes)));
        let given = match proven {
            Ok(rings) => rings.give_back(0, bytes).map_err(|error| error.to_string()),
            Err(why) => Err(format!("{why:?}")),
        };
        if let Err(why) = given {
            tracing::debug!(%pid, why, "the rings of another version keep their memory");
        }
    }
}

// === impl Region ===

impl Region {
    /// A region as it will be at `address`. Nothing is written.
    pub(crate) fn plan(address: u64, bytes: u64, layout: &Layout) -> Result<Self, EncodeError> {
        let template = template(layout.geometry, layout.tid_offset)?;
        let origin = address + TRAMPOLINES_AT;
        let trampolines = template.place(origin, layout.table, layout.rings);
        if trampolines.code.len() as u64 > STUBS_AT - TRAMPOLINES_AT {
            return Err(EncodeError::Assembler(
                "the trampolines do not fit into their pages".to_owned(),
            ));
        }
        Ok(Self {
            address,
            bytes,
            trampolines,
        })
    }

    /// Writes the region and reads it back.
    pub(crate) fn write(&self, memory: &Memory, layout: &Layout) -> io::Result<()> {
        memory.write(
            TargetAddr(self.address + TRAMPOLINES_AT),
            &self.trampolines.code,
        )?;
        // The handshake is last: a tracer that finds the magic finds the rest.
        memory.write(TargetAddr(self.address), &self.handshake(layout))?;
        if self.stands(memory)? {
            Ok(())
        } else {
            Err(io::Error::other(
                "the trampolines do not read back as written",
            ))
        }
    }

    /// The region whose handshake stands in `entry`. `None` if there is no handshake.
    ///
    /// # Errors
    /// The reason why the region cannot be used: its memory does not match the handshake.
    pub(super) fn find(
        memory: &Memory,
        entry: &MapEntry,
    ) -> Option<Result<FoundRegion, &'static str>> {
        if entry.is_file() || entry.permissions != *b"r-xp" {
            return None;
        }
        let mut bytes = [0u8; HANDSHAKE_WORDS * 8];
        memory
            .read(TargetAddr(entry.range.start), &mut bytes)
            .ok()?;
        if bytes[..5] != MAGIC[..5] {
            return None;
        }
        Some(Self::understand(memory, entry, &bytes))
    }

    fn understand(
        memory: &Memory,
        entry: &MapEntry,
        bytes: &[u8; HANDSHAKE_WORDS * 8],
    ) -> Result<FoundRegion, &'static str> {
        let mut words = [0u64; HANDSHAKE_WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        let [
            _,
            length,
            table,
            rings,
            map_start,
            map_bytes,
            shifts,
            tid_offset,
        ] = words;
        if length != entry.range.end - entry.range.start
            || table.checked_add(layout::table::COMMON_BYTES).is_none()
        {
            return Err("its addresses are inconsistent");
        }
        if bytes[..8] != MAGIC {
            return Ok(FoundRegion::OtherVersion(OtherVersion {
                range: entry.range.clone(),
                table: TargetAddr(table),
                rings_map: (map_start, map_bytes),
            }));
        }
        let geometry = Geometry::from_word(shifts).map_err(|_| "its sizes are invalid")?;
        let tid_offset = i32::try_from(tid_offset.cast_signed())
            .map_err(|_| "its thread id offset is invalid")?;
        let fits = table.checked_add(geometry.table_bytes()).is_some()
            && rings.is_multiple_of(geometry.chunk_bytes())
            && rings >= map_start
            && rings
                .checked_add(geometry.rings_bytes())
                .zip(map_start.checked_add(map_bytes))
                .is_some_and(|(end, map_end)| end <= map_end);
        if !fits {
            return Err("its addresses are inconsistent");
        }
        let layout = Layout {
            table,
            rings,
            rings_map: (map_start, map_bytes),
            geometry,
            tid_offset,
        };
        let region = Self::plan(entry.range.start, length, &layout)
            .map_err(|_| "its addresses are inconsistent")?;
        match region.stands(memory) {
            Ok(true) => Ok(FoundRegion::Usable(Box::new((region, layout)))),
            Ok(false) => Err("its trampolines differ"),
            Err(_) => Err("it cannot be read"),
        }
    }

    /// True if the calls of every sled in `range` reach this region.
    pub(crate) fn serves(&self, range: &Range<u64>) -> bool {
        let end = self.address + self.bytes;
        range.end.saturating_sub(self.address) <= REACH && end.saturating_sub(range.start) <= REACH
    }

    /// Addresses of the region.
    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes
    }

    /// Stubs that the region has room for.
    pub(crate) fn stubs(&self) -> u64 {
        self.bytes.saturating_sub(STUBS_AT) / STUB_BYTES as u64
    }

    /// Address of stub `index`, if there is room for it.
    pub(crate) fn stub(&self, index: u64) -> Option<u64> {
        let offset = STUBS_AT.checked_add(index.checked_mul(STUB_BYTES as u64)?)?;
        (offset.checked_add(STUB_BYTES as u64)? <= self.bytes).then_some(self.address + offset)
    }

    /// Index of the first stub behind all stubs that were ever written. A thread may still stand in
    /// any of those, also if no known sled leads to it. If the memory cannot be read, no stub is
    /// left.
    pub(crate) fn next_stub(&self, memory: &Memory) -> u64 {
        let mut stub = [0u8; STUB_BYTES];
        let mut is_used = |index: u64| {
            let address = self.stub(index).map(TargetAddr);
            let read = address.map(|address| memory.read(address, &mut stub));
            !matches!(read, Some(Ok(()))) || stub != [0; STUB_BYTES]
        };
        // Stubs are written in ascending order.
        let (mut used, mut free) = (0, self.stubs());
        while used < free {
            let middle = used.midpoint(free);
            if is_used(middle) {
                used = middle + 1;
            } else {
                free = middle;
            }
        }
        used
    }

    /// The index of the stub at `address`, if one can stand there.
    pub(crate) fn stub_index(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?.checked_sub(STUBS_AT)?;
        let index = offset / STUB_BYTES as u64;
        (offset.is_multiple_of(STUB_BYTES as u64) && index < self.stubs()).then_some(index)
    }

    /// True if the trampolines stand there, wherever their gates lead.
    fn stands(&self, memory: &Memory) -> io::Result<bool> {
        let origin = self.address + TRAMPOLINES_AT;
        let mut there = vec![0u8; self.trampolines.code.len()];
        memory.read(TargetAddr(origin), &mut there)?;
        for gate in &self.trampolines.gates {
            let place = usize::try_from(gate.address - origin).ok();
            let byte = place.and_then(|place| there.get_mut(place));
            if let Some(byte) = byte
                && WAYS
                    .iter()
                    .any(|&(dispatch_mode, enable)| gate.byte(dispatch_mode, enable) == *byte)
            {
                *byte = gate.byte(DispatchMode::None, Enable::On);
            }
        }
        Ok(there == self.trampolines.code)
    }

    /// True if all flavours add calls up, and are enabled. A gate may be on its way from one of
    /// those dispatch modes to the other.
    pub(crate) fn adds_up(&self, memory: &Memory) -> io::Result<bool> {
        for gate in &self.trampolines.gates {
            let mut byte = [0];
            memory.read(TargetAddr(gate.address), &mut byte)?;
            let modes = [DispatchMode::Profile, DispatchMode::ProfileAndRecord];
            if modes
                .map(|mode| [gate.byte(mode, Enable::On)])
                .contains(&byte)
            {
                continue;
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Sets the dispatch mode of all flavours, which had `before`, a byte at a time. No thread is
    /// stopped for it. Between two modes that add calls up, each call is added up.
    pub(crate) fn set_dispatch_mode(
        &self,
        memory: &Memory,
        (before, dispatch_mode): (DispatchMode, DispatchMode),
        enable: Enable,
    ) -> io::Result<()> {
        if !(before.adds_up() && dispatch_mode.adds_up()) {
            self.set_gates(memory, DispatchMode::None, enable, |_| true)?;
        }
        self.set_gates(memory, dispatch_mode, enable, |_| true)
    }

    /// Disables all flavours, or enables them in their dispatch mode.
    pub(crate) fn set_enable(
        &self,
        memory: &Memory,
        dispatch_mode: DispatchMode,
        enable: Enable,
    ) -> io::Result<()> {
        self.set_gates(memory, dispatch_mode, enable, Gate::is_enable)
    }

    /// Writes the bytes of the gates that are wanted.
    fn set_gates(
        &self,
        memory: &Memory,
        dispatch_mode: DispatchMode,
        enable: Enable,
        is_wanted: impl Fn(&Gate) -> bool,
    ) -> io::Result<()> {
        let gates = self.trampolines.gates.iter();
        let bytes: Vec<(TargetAddr, [u8; 1])> = gates
            .filter(|gate| is_wanted(gate))
            .map(|gate| (TargetAddr(gate.address), [gate.byte(dispatch_mode, enable)]))
            .collect();
        let pieces: Vec<_> = bytes.iter().map(|(at, byte)| (*at, &byte[..])).collect();
        memory.write_pieces(&pieces).map_err(|(_, error)| error)
    }

    fn handshake(&self, layout: &Layout) -> Vec<u8> {
        let shifts = layout.geometry.to_word();
        let words = [
            self.bytes,
            layout.table,
            layout.rings,
            layout.rings_map.0,
            layout.rings_map.1,
            shifts,
            i64::from(layout.tid_offset).cast_unsigned(),
        ];
        MAGIC
            .into_iter()
            .chain(words.into_iter().flat_map(u64::to_le_bytes))
            .collect()
    }
}

// === impl Neighbourhood ===

impl Neighbourhood {
    /// Groups modules by distance. A module is given by its range, first sled to last, and the
    /// number of stubs that it needs.
    pub(crate) fn group(modules: impl IntoIterator<Item = (Range<u64>, u64)>) -> Vec<Self> {
        let mut modules: Vec<_> = modules.into_iter().collect();
        modules.sort_unstable_by_key(|(range, _)| range.start);
        let mut groups: Vec<Self> = Vec::new();
        for (range, stubs) in modules {
            match groups.last_mut() {
                Some(group) if range.end.saturating_sub(group.range.start) <= SPREAD => {
                    group.range.end = group.range.end.max(range.end);
                    group.stubs += stubs;
                }
                _ => groups.push(Self { range, stubs }),
            }
        }
        groups
    }

    /// Bytes of the region that it needs.
    pub(crate) fn region_bytes(&self) -> u64 {
        (STUBS_AT + self.stubs * STUB_BYTES as u64).next_multiple_of(4096)
    }

    /// Longest distance of the region from its sleds, in bytes.
    pub(crate) const fn reach() -> u64 {
        REACH
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// A target can write a handshake for any layout.
    #[test]
    fn a_layout_that_does_not_fit_the_address_space_is_refused() {
        let memory = Memory::open(Pid::this(), Pid::this().leader()).unwrap();
        let geometry = Geometry::new(1 << 16, 8).unwrap();
        let page = Box::new([0u8; 4096]);
        let address = black_box(&page).as_ptr().addr() as u64;
        let entry = MapEntry {
            range: address..address + 4096,
            permissions: *b"r-xp",
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: String::new(),
            deleted: false,
        };
        let shifts = geometry.to_word();
        let last = u64::MAX - 0xffff;
        for (table, rings) in [(last, 1 << 30), (u64::MAX, 1 << 30), (1 << 20, last)] {
            let words = [4096, table, rings, rings, geometry.rings_bytes(), shifts, 0];
            let handshake = MAGIC
                .into_iter()
                .chain(words.into_iter().flat_map(u64::to_le_bytes));
            let handshake: Vec<u8> = handshake.collect();
            memory.write(TargetAddr(address), &handshake).unwrap();
            let found = Region::find(&memory, &entry).unwrap();
            assert_eq!(found.unwrap_err(), "its addresses are inconsistent");
            // Nothing but the table's own words is known of another version.
            memory.write(TargetAddr(address + 7), &[0xee]).unwrap();
            let found = Region::find(&memory, &entry).unwrap();
            assert_eq!(found.is_err(), table == u64::MAX, "{table:#x}");
        }
    }

    /// A target can forge a sled that leads anywhere.
    #[test]
    fn a_stub_is_within_its_region() {
        let layout = Layout {
            table: 1 << 20,
            rings: 1 << 30,
            rings_map: (1 << 30, 1 << 30),
            geometry: Geometry::new(1 << 16, 8).unwrap(),
            tid_offset: 0x2d0,
        };
        let region = Region::plan(1 << 40, STUBS_AT + 4096, &layout).unwrap();
        let (first, end) = (region.address + STUBS_AT, region.address + region.bytes);
        let size = STUB_BYTES as u64;
        for (address, index) in [
            (first, Some(0)),
            (first + size, Some(1)),
            (end - size, Some(region.stubs() - 1)),
            (end, None),
            (end + STUBS_AT - size, None),
            (first + 1, None),
            (first - size, None),
            (region.address - size, None),
        ] {
            assert_eq!(region.stub_index(address), index, "{address:#x}");
        }
    }

    #[test]
    fn modules_are_grouped_by_distance() {
        let groups = Neighbourhood::group([
            (0x7f00_0000_0000..0x7f00_0010_0000, 1),
            (0x5500_0000_0000..0x5500_0000_1000, 0),
            (0x7f00_1000_0000..0x7f00_1000_1000, 64),
            (0x7f00_8000_0000..0x7f00_8000_1000, 0),
        ]);
        let ranges: Vec<_> = groups
            .iter()
            .map(|group| (group.range.clone(), group.stubs))
            .collect();
        assert_eq!(
            ranges,
            [
                (0x5500_0000_0000..0x5500_0000_1000, 0),
                (0x7f00_0000_0000..0x7f00_1000_1000, 65),
                (0x7f00_8000_0000..0x7f00_8000_1000, 0),
            ]
        );
        assert_eq!(groups[1].region_bytes(), 4 * 4096 + 2 * 4096);
    }
}
