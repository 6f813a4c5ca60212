//! Reading a thread's profile ([`layout::profile`]), which the thread may change meanwhile.
//!
//! Each number in it changes by one instruction, and no two numbers change together. So a copy may
//! lack the latest change of one number and have the latest change of another one. Times in the
//! copy are off by the duration of the copying at most: see [`Profile::read`].

use crate::{
    Geometry,
    layout::{self, ProfileRegion, profile},
    memory::SharedMemory,
};

/// The times that a profile is copied again, if long calls have ended meanwhile.
const ATTEMPTS: u32 = 4;
/// Calls that are open for this many ticks are long: much longer than copying takes.
const LONG: u64 = 1 << 22;

/// A copy of one thread's profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Callers come before their callees.
    pub stacks: Vec<StackSums>,
    /// The open calls, outermost first.
    pub open: Vec<OpenCall>,
    /// The counter at the latest event.
    pub latest: u64,
    /// Exits of calls that were not open.
    pub unmatched: u64,
    /// Calls that are in no stack, because too many calls were open or there was no room.
    pub not_followed: u64,
}

/// The sums of the calls with one stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackSums {
    /// The caller's index in the stacks of the profile; `None` for outermost calls.
    pub caller: Option<usize>,
    /// The name of the entry's site; `None` for all stacks within the caller that have none of
    /// their own.
    pub site: Option<u32>,
    /// Ticks of the calls with an exit.
    pub total: u64,
    /// Ticks of the shortest and of the longest of them; not meaningful without any.
    pub shortest: u64,
    /// See `shortest`.
    pub longest: u64,
    /// Calls without an exit.
    pub left: u64,
    /// Their ticks up to the event before their end was seen.
    pub left_ticks: u64,
    /// Ticks of calls that were made within other calls of the same stack. Only a stack without a
    /// site has such calls.
    pub nested: u64,
    /// Calls with an exit whose durations are not in `durations`.
    pub unsorted: u64,
    /// The other calls with an exit, by their durations, in order of length.
    pub durations: Vec<(DurationRange, u64)>,
}

/// The numbers of calls in one thread's profile, by stack: less than a [`Profile`], and read
/// sooner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallNumbers {
    /// As in [`Profile::stacks`].
    pub stacks: Vec<StackCalls>,
    /// The open calls, outermost first.
    pub open: Vec<OpenCall>,
    /// The counter at the latest event.
    pub latest: u64,
}

/// The calls with one stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackCalls {
    /// As in [`StackSums::site`].
    pub site: Option<u32>,
    /// Calls with an exit.
    pub finished: u64,
    /// Calls without an exit.
    pub left: u64,
    /// Ticks of both.
    pub ticks: u64,
}

/// A range of durations. Its width is at most 1/8 of its durations. Durations of less than 8 ticks
/// count as 8 to 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationRange(u16);

/// An open call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCall {
    /// The index of its stack.
    pub stack: usize,
    /// The counter at its entry.
    pub began: u64,
}

/// A frame as it stands in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    stack: u64,
    began: u64,
    place: u32,
}

// === impl Profile ===

impl Profile {
    /// Copies the profile `index`.
    ///
    /// A call that ends while the profile is copied may be missing in the sums and in the open
    /// calls. So the profile is copied again if a long call was among them. Then, in a copy, a
    /// duration is missing or there twice for no longer than copying takes.
    pub fn read(memory: &impl SharedMemory, geometry: Geometry, index: u32) -> Self {
        let reader = Reader::new(memory, geometry, index);
        let mut copy = Self::default();
        for _ in 0..ATTEMPTS {
            let before = reader.frames();
            copy = reader.sums();
            let after = reader.frames();
            let same = before
                .iter()
                .zip(&after)
                .take_while(|(one, other)| one == other);
            let same = same.count();
            copy.latest = reader.header(profile::LATEST);
            let changed = before.get(same).into_iter().chain(after.get(same));
            let is_long = |frame: &Frame| copy.latest.saturating_sub(frame.began) > LONG;
            let has_changed = changed.into_iter().any(is_long);
            copy.open = reader.open_calls(&after, copy.stacks.len());
            if !has_changed {
                break;
            }
        }
        copy
    }

    /// Words of which one at least changes with each event of the profile `index`. They change
    /// before the event's other stores.
    pub fn state(memory: &impl SharedMemory, geometry: Geometry, index: u32) -> [u64; 3] {
        let reader = Reader::new(memory, geometry, index);
        [profile::OPEN, profile::LATEST, profile::NOT_FOLLOWED].map(|field| reader.header(field))
    }

    /// True if nothing was ever added up.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty() && self.unmatched == 0 && self.not_followed == 0
    }
}

/// A call that took at least as long as the table says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongCall {
    /// The name of the site of its exit.
    pub site: u32,
    /// The counter at its end.
    pub ended: u64,
    /// Its duration in ticks.
    pub ticks: u64,
}

/// The long calls that one thread has noted since a reader has looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LongCalls {
    /// Those whose notes are there, in the order of their numbers.
    pub calls: Vec<LongCall>,
    /// Those whose notes were overwritten or left unfinished.
    pub missed: u64,
}

// === impl LongCalls ===

impl LongCalls {
    /// Reads the notes of the profile `index` with numbers above `seen`, which then is the number
    /// of the last one. A note that is being written ends the reading, unless a later one is whole:
    /// its thread has left it by a jump out of a signal handler.
    pub fn read(
        memory: &impl SharedMemory,
        geometry: Geometry,
        index: u32,
        seen: &mut u64,
    ) -> Self {
        let reader = Reader::new(memory, geometry, index);
        let noted = reader.header(profile::NOTED);
        let mut news = Self::default();
        // The number may be any. A profile that was emptied begins anew.
        if noted < *seen {
            *seen = 0;
        }
        let first = noted.saturating_sub(profile::NOTES).max(*seen);
        news.missed = first - *seen;
        *seen = first;
        let mut unfinished = 0;
        for number in first + 1..=noted {
            unfinished += 1;
            if let Some(call) = reader.note(number) {
                news.missed = news.missed.saturating_add(unfinished - 1);
                news.calls.push(call);
                (*seen, unfinished) = (number, 0);
            }
        }
        news
    }
}

// === impl CallNumbers ===

impl CallNumbers {
    /// Copies the numbers of the profile `index`.
    pub fn read(memory: &impl SharedMemory, geometry: Geometry, index: u32) -> Self {
        let reader = Reader::new(memory, geometry, index);
        // A target may have any number of nodes point to the same blocks.
        let mut blocks = reader.region.blocks();
        let stacks = (1..=reader.nodes()).map(|node| reader.calls(node, &mut blocks));
        let stacks: Vec<StackCalls> = stacks.collect();
        Self {
            open: reader.open_calls(&reader.frames(), stacks.len()),
            latest: reader.header(profile::LATEST),
            stacks,
        }
    }
}

// === impl StackSums ===

impl StackSums {
    /// The number of calls with an exit.
    pub fn finished(&self) -> u64 {
        let sorted = self.durations.iter().map(|(_, calls)| *calls);
        sorted.fold(self.unsorted, u64::saturating_add)
    }
}

/// One profile in memory.
struct Reader<'a, M> {
    memory: &'a M,
    region: ProfileRegion,
    offset: u64,
}

// === impl Reader ===

impl<'a, M: SharedMemory> Reader<'a, M> {
    fn new(memory: &'a M, geometry: Geometry, index: u32) -> Self {
        let region = geometry.profile_region();
        Self {
            memory,
            region,
            offset: region.profile_offset(index),
        }
    }

    fn load(&self, at: u64) -> u64 {
        self.memory.load(self.offset + at)
    }

    fn header(&self, field: u64) -> u64 {
        self.load(self.region.header_at() + field)
    }

    /// The index of a place's node among the nodes without the root.
    fn index(place: u32) -> Option<usize> {
        usize::try_from(place >> profile::NODE_SHIFT)
            .ok()?
            .checked_sub(1)
    }

    /// The number of nodes without the root.
    fn nodes(&self) -> u64 {
        self.header(profile::NODES).min(self.region.nodes() - 1)
    }

    /// The long call with this number, if its note is whole.
    fn note(&self, number: u64) -> Option<LongCall> {
        let at = (number - 1) % profile::NOTES * profile::NOTE_BYTES;
        let field = |field: u64| self.load(self.region.notes_at() + at + field);
        if field(profile::NOTE_NUMBER) != number {
            return None;
        }
        let call = LongCall {
            site: low(field(profile::NOTE_NAME)),
            ended: field(profile::NOTE_ENDED),
            ticks: field(profile::NOTE_TICKS),
        };
        // The thread stores 0 before it writes another call there.
        (field(profile::NOTE_NUMBER) == number).then_some(call)
    }

    fn frames(&self) -> Vec<Frame> {
        let open = self.header(profile::OPEN) & 0xffff_ffff;
        let open = open.min(self.region.frames() - 1);
        let frame = |at: u64| {
            let at = self.region.frames_at() + (at << profile::FRAME_SHIFT);
            Frame {
                stack: self.load(at + profile::STACK),
                began: self.load(at + profile::BEGAN),
                place: low(self.load(at + profile::NODE)),
            }
        };
        (1..=open).map(frame).collect()
    }

    fn open_calls(&self, frames: &[Frame], stacks: usize) -> Vec<OpenCall> {
        let calls = frames.iter().map_while(|frame| {
            let stack = Self::index(frame.place)?;
            let began = frame.began;
            (stack < stacks).then_some(OpenCall { stack, began })
        });
        calls.collect()
    }

    /// The sums, callers before callees. So a caller's time is the older one, and without the time
    /// of its callees it is not too long.
    fn sums(&self) -> Profile {
        let nodes = self.nodes();
        // A target may have any number of nodes point to the same blocks.
        let mut blocks = self.region.blocks();
        let stacks = (1..=nodes).map(|node| self.stack(node, &mut blocks));
        Profile {
            stacks: stacks.collect(),
            open: Vec::new(),
            latest: 0,
            unmatched: self.header(profile::UNMATCHED),
            not_followed: self.header(profile::NOT_FOLLOWED),
        }
    }

    /// The sums of one node. A node that is not made so far has none.
    fn stack(&self, node: u64, blocks: &mut u64) -> StackSums {
        let at = node << profile::NODE_SHIFT;
        let field = |field: u64| self.load(at + field);
        const { assert!(profile::NAME.is_multiple_of(8) && profile::CALLER == profile::NAME + 4) };
        let names = field(profile::NAME);
        let (name, caller) = (low(names), high(names));
        let caller = Self::index(caller).filter(|caller| (*caller as u64) < node - 1);
        let is_more = name == profile::MORE_NAME;
        // First: a call changes a counter last, so what it changed before is in the copy, too.
        let durations = self.durations(at, blocks);
        let unsorted = field(profile::UNSORTED);
        let left = field(profile::LEFT);
        StackSums {
            caller,
            site: (!is_more).then_some(name),
            total: field(profile::TOTAL),
            shortest: field(profile::SHORTEST),
            longest: field(profile::LONGEST),
            left,
            left_ticks: field(profile::LEFT_TICKS),
            nested: match is_more {
                true => field(profile::NESTED),
                false => 0,
            },
            unsorted,
            durations,
        }
    }

    /// The calls of one node.
    fn calls(&self, node: u64, blocks: &mut u64) -> StackCalls {
        let at = node << profile::NODE_SHIFT;
        let field = |field: u64| self.load(at + field);
        let name = low(field(profile::NAME));
        let mut finished = field(profile::UNSORTED);
        self.each_duration(at, blocks, |_, calls| {
            finished = finished.saturating_add(calls);
        });
        StackCalls {
            site: (name != profile::MORE_NAME).then_some(name),
            finished,
            left: field(profile::LEFT),
            ticks: field(profile::TOTAL).saturating_add(field(profile::LEFT_TICKS)),
        }
    }

    fn durations(&self, node: u64, blocks: &mut u64) -> Vec<(DurationRange, u64)> {
        let mut durations = Vec::new();
        self.each_duration(node, blocks, |range, calls| durations.push((range, calls)));
        durations
    }

    /// Calls `take` with the durations of a node and the numbers of calls with them.
    fn each_duration(&self, node: u64, blocks: &mut u64, mut take: impl FnMut(DurationRange, u64)) {
        for entry in 0..profile::BLOCK_ENTRIES {
            let at = node + profile::BLOCKS + 2 * entry;
            let block = self.load(at & !7) >> (8 * (at & 7)) & 0xffff;
            if block == 0 || *blocks == 0 {
                continue;
            }
            *blocks -= 1;
            let block = block & (self.region.blocks() - 1);
            let counters = self.region.blocks_at() + (block << profile::NODE_SHIFT);
            for counter in 0..profile::COUNTERS {
                let calls = self.load(counters + 8 * counter);
                if calls > 0 {
                    take(DurationRange::of_counter(entry, counter), calls);
                }
            }
        }
    }
}

// === impl DurationRange ===

impl DurationRange {
    /// The range of a counter of the block for this entry.
    fn of_counter(entry: u64, counter: u64) -> Self {
        let range = entry * profile::COUNTERS + counter;
        Self(u16::try_from(range).unwrap_or(0))
    }

    /// The range of a duration in ticks.
    pub fn of(duration: u64) -> Self {
        let highest = u64::from(63 - (duration | 8).leading_zeros());
        let shift = highest - 3;
        let counter = ((duration >> shift) + 8 * shift) % profile::COUNTERS;
        Self::of_counter(highest / 2, counter)
    }

    /// The shortest and the longest of its durations, in ticks.
    pub fn bounds(self) -> (u64, u64) {
        // From 8 to 15 parts of a power of two.
        let parts = u64::from(8 + self.0 % 8);
        let first = |parts: u64| match self.0 / 8 {
            0..2 => 0,
            2 => parts - 8,
            power => parts << (power - 3),
        };
        (first(parts), first(parts + 1).saturating_sub(1))
    }

    /// Its middle, rounded down.
    pub fn middle(self) -> u64 {
        let (low, high) = self.bounds();
        low.midpoint(high)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the half is meant")]
const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// Empties the profile `index` while nothing is added up. `give_back` makes the bytes from an
/// offset on read as 0. A trampoline that is still under way sees the change, and begins again.
pub fn clear(
    memory: &impl SharedMemory,
    geometry: Geometry,
    index: u32,
    give_back: impl FnOnce(u64, u64),
) {
    let region = geometry.profile_region();
    let open = region.profile_offset(index) + region.header_at() + profile::OPEN;
    let before = memory.load(open);
    give_back(region.profile_offset(index), region.profile_bytes());
    memory.store(open, (before | 0xffff_ffff).wrapping_add(1));
}

/// The bytes that a thread can write to its profile, if it may have this many nodes, blocks and
/// frames.
pub const fn written_bytes(region: ProfileRegion, limits: Limits) -> u64 {
    let nodes = (limits.nodes as u64) << profile::NODE_SHIFT;
    let blocks = (limits.blocks as u64) << profile::NODE_SHIFT;
    let frames = (limits.open as u64 + 1) << profile::FRAME_SHIFT;
    let notes = profile::NOTES << profile::NOTE_SHIFT;
    // A page that each part may begin within, and the header.
    nodes + blocks + frames + 4 * region.places() + notes + 5 * 4096
}

/// Limits on a profile, as they stand in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// [`layout::table::MOST_NODES`].
    pub nodes: u32,
    /// [`layout::table::MOST_BLOCKS`].
    pub blocks: u32,
    /// [`layout::table::MOST_OPEN`].
    pub open: u32,
}

// === impl Limits ===

impl Limits {
    /// As many as there is address space for.
    pub fn most(geometry: Geometry) -> Self {
        Self::part(geometry, 1)
    }

    /// One of `parts` of that.
    pub fn part(geometry: Geometry, parts: u64) -> Self {
        let region = geometry.profile_region();
        let small = |number: u64| u32::try_from(number / parts).unwrap_or(u32::MAX);
        Self {
            nodes: small(region.nodes()),
            blocks: small(region.blocks()),
            open: small(region.frames() - 2),
        }
    }

    /// The words of the table that hold them.
    pub fn words(self) -> [(u64, u32); 3] {
        [
            (layout::table::MOST_NODES, self.nodes),
            (layout::table::MOST_BLOCKS, self.blocks),
            (layout::table::MOST_OPEN, self.open),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_its_durations() {
        for duration in (0_u64..4096).chain([1 << 20, (1 << 40) - 1, 3 << 50]) {
            let range = DurationRange::of(duration);
            let (low, high) = range.bounds();
            assert!(
                (low..=high).contains(&duration),
                "{duration}: {low} to {high}"
            );
            assert!(high - low <= duration / 8);
            assert!((low..=high).contains(&range.middle()));
        }
    }
}
