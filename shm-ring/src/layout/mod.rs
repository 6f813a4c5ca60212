//! The layout of the memory that xrayd puts into a target: pure arithmetic, no memory access.
//!
//! Two mappings carry data. The *table* is private to the target (and wiped in forked children):
//!
//! ```text
//! +0                  header page: the fields of [`table`], else zero
//! +4096               slot 0 (64 bytes) | slot 1 | …
//! +inside_offset(0)   names of sites, open addressing: list 0 | list 1
//! ```
//!
//! The *rings* are shared with the collector:
//!
//! ```text
//! +0                 header page: the fields of [`rings`], else zero
//! +4096              control line 0 (64 bytes) | control line 1 | …
//! +bucket_offset(0)  bucket 0 (32 bytes) | bucket 1 | …
//! +filter_offset(0)  filter page 0 (4 KiB) | filter page 1 | …   open calls of a filtered thread
//! +names_offset      the names of counted sites, open addressing
//! +counts_offset(0)  counts 0 | counts 1 | …     each `counts_bytes`, a u64 for each name
//! +switched_offset   the sites of functions that were switched, open addressing
//! +profile_offset(0) profile 0 | profile 1 | …   sums by stack, see [`profile`]
//! +mark_offset(0)    mark 0 (40 bytes) | mark 1 | …   the collector's, for the next collector
//! +rings_offset      ring 0 | ring 1 | …         each `ring_bytes`, a sequence of chunks
//! +sums_offset       two halves for the collector's sums, see [`sums`]
//! ```
//!
//! The slot, the control line, the filter page, the counts, the profile, the mark and the ring of
//! the same index belong together. Buckets are for threads without a slot: each bucket counts the
//! losses of one of them. Every field is 8 bytes wide, but for the first two of a slot, and some of
//! a profile.
//!
//! Only the slow path writes the first [`GUARD_BYTES`] of a chunk. A context that reserves a word
//! past the end of its chunk gets an address there. So the address itself shows the context that it
//! has reserved nothing, also when a signal handler has moved the thread to another chunk in
//! between.

use crate::{error::GeometryError, word::PAYLOAD_BYTES};

pub mod profile;
pub mod sums;

pub use profile::ProfileRegion;

/// The version of the layout and of the trampolines that are made from it. It changes with each
/// change of either.
pub const VERSION: u8 = if SHIFT == 0 { 0x11 } else { 0x91 };
/// 1 in a build whose layout differs in nearly every place (the feature `shifted-layout`). Tests
/// use it as another version.
const SHIFT: u64 = if cfg!(feature = "shifted-layout") {
    1
} else {
    0
};

/// Size of a header page of both mappings.
pub const HEADER_BYTES: u64 = 4096 << SHIFT;
/// Size of a slot and of a control line: one cache line.
pub const LINE_BYTES: u64 = 64;
/// log2 of [`LINE_BYTES`].
pub const LINE_SHIFT: u32 = 6;
/// Size of a bucket.
pub const BUCKET_BYTES: u64 = 32;
/// Size of a mark.
pub const MARK_BYTES: u64 = 40;
/// log2 of [`BUCKET_BYTES`].
pub const BUCKET_SHIFT: u32 = 5;
/// Slots that a thread looks at before it counts its event as lost. It then looks at as many
/// buckets for one to count it in.
pub const PROBES: u32 = 64;
/// The most words that the slow path writes at once, beside those with bytes of a payload: sync,
/// stack, gap, wait, size and type or the two halves of an argument, call.
pub const SLOW_WORDS: u64 = 7;
/// The beginning of a chunk, which the hot path never writes; a power of two. It bounds the number
/// of signal handlers that can interrupt each other between the reservation of a word past the
/// chunk's end and the slow path's next step: 21 with three-word events, 64 with others.
pub const GUARD_BYTES: u64 = 512;
/// Words of an event with a payload beside those with its bytes: size, type, call.
pub const PAYLOAD_WORDS: u64 = 3;
/// The most bytes of a payload that any ring holds.
pub const MAX_PAYLOAD_BYTES: u64 = 4096;

/// Entries of a list of sites; a power of two. At most half of them are used.
pub const INSIDE_NAMES: u64 = 1 << 13;
/// The low bits that the place of a name leaves out, in such a list and in that of counted sites.
/// So the names of neighbouring sites stand next to each other.
pub const NAME_SHIFT: u32 = 4;

/// Offsets in the table's header page. `LIVE`, `MINE`, `CLOSED_AT`, `TRACER` and `TRACER_COUNTER`
/// are at these places in every version, so that each version can take over what another one left.
pub mod table {
    use super::SHIFT;

    /// u64: not 0 while trampolines may record. A forked child reads 0.
    pub const LIVE: u64 = 0;
    /// u64: names the process in which the mapping was made; never 0. A forked child reads 0:
    /// everything else of xrayd's that it finds is its parent's. A vforked child runs in its
    /// parent's memory and reads its parent's name.
    pub const MINE: u64 = 8;
    /// u64: the program leaves out calls that end in fewer ticks; 0 for none.
    pub const MIN_TICKS: u64 = 16 + 128 * SHIFT;
    /// u32: the program leaves out calls further in; the outermost calls have depth 1. Never 0
    /// while calls are filtered.
    pub const MAX_DEPTH: u64 = 24 + 128 * SHIFT;
    /// u32: the program records the first of this many call trees of a thread; 0 and 1 for all.
    pub const ONE_IN: u64 = 28 + 128 * SHIFT;
    /// Six u64: the tracer that uses this memory; zero for none. Only tracers write it. A forked
    /// child reads 0.
    pub const TRACER: u64 = 64;
    /// u64: that tracer changes it while it lives.
    pub const TRACER_COUNTER: u64 = 112;
    /// u32: 1 or 2 if the program records only events inside the functions of the first or the
    /// second list; 0 for all events.
    pub const INSIDE: u64 = 32 + 128 * SHIFT;
    /// u64: the counter when a slow path closed recording because the collector did not move the
    /// deadline; 0 if none has. The collector stores 0 before it records again. A forked child
    /// reads 0.
    pub const CLOSED_AT: u64 = 40;
    /// u64: the counter when a function was last switched. A call in a profile that began before
    /// may have ended unseen, if its function is among the switched sites.
    pub const SWITCHED: u64 = 128 + 128 * SHIFT;
    /// u64: the same for all functions: each call in a profile that began before may have ended
    /// unseen.
    pub const ALL_SWITCHED: u64 = 136 + 128 * SHIFT;
    /// u32: nodes that a profile may have, including the root.
    pub const MOST_NODES: u64 = 144 + 128 * SHIFT;
    /// u32: blocks of durations that a profile may have, including the unused first one.
    pub const MOST_BLOCKS: u64 = 148 + 128 * SHIFT;
    /// u32: open calls that a profile may have.
    pub const MOST_OPEN: u64 = 152 + 128 * SHIFT;
    /// u64: the ticks from which on a call that ends is *long*: its thread notes it in its profile.
    /// `u64::MAX` for none. Never 0 while calls are added up.
    pub const LONG_CALL: u64 = 160 + 128 * SHIFT;
    /// The end of the words that are the same in every version.
    pub const COMMON_BYTES: u64 = 120;
    const _: () = assert!(LIVE == 0 && MINE == 8 && CLOSED_AT == 40);
    const _: () = assert!(TRACER == 64 && TRACER_COUNTER == 112);
}

/// A filter page: the open calls of one thread, as its trampolines see them while calls are
/// filtered. It lies in the shared memory, so that it outlives the process.
///
/// ```text
/// +0   the fields of `filter`
/// +64  record 0 (24 bytes) | record 1 | …   outermost first
/// ```
pub mod filter {
    /// u64: in the low half the number of records, in the high half the number of its changes. The
    /// thread and its handlers change it with one instruction that compares. The collector sets it
    /// while nothing is filtered.
    pub const OPEN: u64 = 0;
    /// u64: calls and events that were left out. The thread counts them. The collector sets it back
    /// when the thread is gone.
    pub const LEFT_OUT: u64 = 8;
    /// u32: not 0 if nothing that begins now is recorded. Written by the collector.
    pub const MUTED: u64 = 16;
    /// u32: call trees since the last recorded one. Written by the thread.
    pub const TREES: u64 = 20;
    /// u64: the thread is writing the records below this one into the ring. Written by the thread.
    pub const WRITING: u64 = 24;
    /// The start of the records.
    pub const RECORDS: u64 = 64;
    /// Bytes of a record.
    pub const RECORD_BYTES: u64 = 24;
    /// Records for which there is room.
    pub const MOST: u64 = (PAGE_BYTES - RECORDS) / RECORD_BYTES;
    /// Bytes of a page.
    pub const PAGE_BYTES: u64 = 4096;
    /// log2 of [`PAGE_BYTES`].
    pub const PAGE_SHIFT: u32 = 12;

    /// In a record, u64: the place on the stack at the entry.
    pub const PLACE: u64 = 0;
    /// In a record, u64: the counter at the entry. Only calls that are [`WAITS`] have it.
    pub const TIME: u64 = 8;
    /// In a record, u32: the name of the site.
    pub const NAME: u64 = 16;
    /// In a record, u32: in the low half the depth of the call, in the high half its fate.
    pub const STATE: u64 = 20;
    /// Shift of the fate.
    pub const STATE_SHIFT: u32 = 16;
    /// The call was recorded.
    pub const RECORDED: u32 = 0;
    /// The call is recorded when it has lasted long enough.
    pub const WAITS: u32 = 1;
    /// The call is outside of the functions inside which events are recorded. So are the calls in
    /// it, but for calls of those functions.
    pub const OUTSIDE: u32 = 2;
    /// The call is left out, and so are the calls in it.
    pub const LEFT: u32 = 3;
}

/// Offsets in a slot.
pub mod slot {
    use super::SHIFT;

    /// u32: the thread that owns the slot; 0 for a free slot.
    pub const TID: u64 = 0;
    /// In TID: the thread has ended, and its ring is not read to the end. No thread has this id.
    /// Written by the collector. It looks once more for a thread with the same number before it
    /// frees the slot.
    pub const WITHDRAWN: u32 = u32::MAX;
    /// In TID: no memory is promised for the ring, so no thread takes the slot or looks at the
    /// slots behind it. No thread has this id. Written by the collector, which opens the slot by
    /// making it free.
    pub const CLOSED: u32 = u32::MAX - 1;
    /// In TID: the thread has found recording closed (see [`super::rings::DEADLINE`]). No thread
    /// has this id. The thread writes it to its own slot. Its calls are cheap then, since the hot
    /// path ends with the look at TID. Once recording is open again, the thread takes the slot back
    /// in its slow path. It knows the slot by the owner in the control line.
    pub const PAUSED: u32 = u32::MAX - 2;
    /// u32: the number of views begun; it wraps. A context sees by it that a handler has begun a
    /// view.
    pub const VIEW: u64 = 4;
    /// u64: address of the next free word. In the guard of a chunk, or at the ring's end, it means
    /// that there is none. With the bit [`PARKED`] it names the context that is in the slow path,
    /// see [`parked_by`].
    pub const HEAD: u64 = 8 + 8 * SHIFT;
    /// In HEAD: a context is in the slow path. The bit is above every address, and less than 2^63
    /// above.
    pub const PARKED: u64 = 1 << 62;
    /// The most that contexts which reserve in vain may add to a parked head, before one of them
    /// takes it away again.
    pub const PARKED_ROOM: u64 = 1 << 11;

    /// The parked head of the context whose stack stands at `sp`, a multiple of 8. No two contexts
    /// that are in the slow path at the same time have the same one.
    pub const fn parked_by(sp: u64) -> u64 {
        sp << 10 >> 2 | PARKED
    }
    /// u64: end of the ring. 0 sends every event to the slow path, which then begins a chunk. The
    /// collector frees a slot by storing 0 here and then to [`TID`].
    pub const LIMIT: u64 = 16 + 8 * SHIFT;
    /// u64: chunks begun.
    pub const STARTED: u64 = 24 + 8 * SHIFT;
    /// u64: losses that gap words have reported.
    pub const REPORTED: u64 = 32 + 8 * SHIFT;
    /// u64: the moment of the view, see [`crate::View`].
    pub const SINCE: u64 = 40 + 8 * SHIFT;
    /// u64: the lowest place on the stack of the view.
    pub const BASE: u64 = 48 + 8 * SHIFT;
    /// u32: ticks that the thread has waited in a full ring and that no wait word has reported; it
    /// stays at its greatest value. See [`super::rings::WAIT`].
    pub const WAITED: u64 = 56 - 48 * SHIFT;
    /// u32: the low half of [`super::control::RELEASED`] plus 1 when the last wait ended in a ring
    /// that was still full. The thread does not wait again before RELEASED changes.
    pub const EXPIRED: u64 = 60 - 48 * SHIFT;
}

/// Offsets in a control line.
pub mod control {
    use super::SHIFT;

    /// u64: thread id of the owner; 0 for none. The producer writes it at the start of each chunk.
    pub const OWNER: u64 = 56 * SHIFT;
    /// u64: chunks that were emptied and given back. Written by the collector. In a ring that keeps
    /// the newest events (see [`super::rings::KEEP_NEWEST`]) the producer writes it, with the bit
    /// [`TAKING`] while it empties the next chunk.
    pub const RELEASED: u64 = 8 + 8 * SHIFT;
    /// In RELEASED: the producer takes back the oldest chunk. The producer sets it with a locked
    /// instruction and then reads KEEP_NEWEST. The collector sets KEEP_NEWEST and then looks at
    /// this bit, behind a fence. So at least one of the two sees the change of the other.
    pub const TAKING: u64 = 1 << 63;
    /// u64: chunks begun. Written by the producer.
    pub const STARTED: u64 = 16 + 8 * SHIFT;
    /// u64: events dropped. Written by the producer.
    pub const LOST: u64 = 24 + 8 * SHIFT;
    /// u64: the parked head (see [`super::slot::parked_by`]) of the context in the slow path; 0 in
    /// between. Written by the producer. The collector stores 0 if it sticks. From then on another
    /// context may take the slow path over, and the one that had it gives up if it comes back.
    pub const BUSY: u64 = 32 + 8 * SHIFT;
    /// u64: bytes consumed since the ring was claimed. Written by the collector, for the next
    /// collector.
    pub const CURSOR: u64 = 40 + 8 * SHIFT;
    /// u64: losses reported ahead of the gap word that will count them. Written likewise.
    pub const AHEAD: u64 = 48 - 48 * SHIFT;
    /// u64: losses reported to the readers of the trace. Written likewise.
    pub const REPORTED: u64 = 56 - 48 * SHIFT;
}

/// Offsets in a mark: the words that a collector has read up to the end of a block, which it keeps
/// for the next collector. It writes the mark before it keeps the block, and gives the words back
/// afterwards. So the next collector, which knows whether the block was kept, reads each word once.
pub mod mark {
    /// u64: names the block; 0 for none. The collector stores 0 before it changes the rest.
    pub const BLOCK: u64 = 0;
    /// u64: [`control::CURSOR`](super::control::CURSOR) at the block's end.
    pub const CURSOR: u64 = 8;
    /// u64: [`control::AHEAD`](super::control::AHEAD) there.
    pub const AHEAD: u64 = 16;
    /// u64: [`control::REPORTED`](super::control::REPORTED) there.
    pub const REPORTED: u64 = 24;
    /// u64: the thread has ended, and these sums have its counts or its profile, if they end here
    /// or later; see [`super::sums`]. 0 while the thread lives.
    pub const SUMS: u64 = 32;
}

/// Offsets in the rings' header page. The collector looks at the first cache line to find out
/// whether there is anything to read.
pub mod rings {
    use super::SHIFT;

    /// u64: events dropped by threads that found neither a free slot nor a bucket. Producers count
    /// them with a locked increment.
    pub const NO_SLOT: u64 = 0;
    /// u64: long calls that threads have noted in their profiles (see [`super::profile::NOTED`]).
    /// Producers count them with a locked increment, after the note.
    pub const LONG_CALLS: u64 = 8;
    /// u64: the number of times that a producer began to take a bucket. While it is 0, the
    /// collector need not look at the buckets. Producers count with a locked increment.
    pub const BUCKETS_TAKEN: u64 = 16;
    /// u64: not 0 while full rings take back their oldest chunk themselves and the collector gives
    /// none back. Written by the collector.
    pub const KEEP_NEWEST: u64 = 24;
    /// u64: sites that were given a number for counting, see [`super::CountRegion::ids`]. It may
    /// exceed the number of numbers. Producers write it with a locked addition.
    pub const COUNT_IDS: u64 = 32;
    /// u64: changes after a slow path has recorded an event, or has counted one as lost in its
    /// control line. A thread that has recorded nothing for the time of a view takes the slow path
    /// for its next event. Producers store what no other store leaves here: the address of the
    /// event's call word, or the losses in the control line.
    pub const ACTIVITY: u64 = 40;
    /// u64: changes after a chunk was begun. Producers store the chunk's address plus the number of
    /// chunks begun. It also changes after an event was lost because another context of the thread
    /// was in the slow path, and may have left it for good: producers store the thread's losses.
    pub const CHUNK: u64 = 48;
    /// u64: changes after another thread has stored its id in a control line. Producers store that
    /// id.
    pub const CLAIM: u64 = 56;
    /// u64: not 0 from the end of a session that has let the process go until the next session
    /// begins to read; 0 after a collector that died. Written by the collector.
    pub const LET_GO: u64 = 64 + 64 * SHIFT;
    /// u64: the counter at which recording ends, unless the collector writes a later one before; 0
    /// for no end. The first slow path at a later counter *closes* recording: it stores the counter
    /// to [`super::table::CLOSED_AT`], and 0 to [`super::table::LIVE`].
    pub const DEADLINE: u64 = 72 + 64 * SHIFT;
    /// u64: the end of the sums that outlive the collector, see [`super::sums`]; 0 for none.
    /// Written by the collector.
    pub const SUMS: u64 = 80 + 64 * SHIFT;
    /// u64: what those sums are: [`COUNTS`] or [`PROFILES`]. Written by the collector.
    pub const SUMS_KIND: u64 = 88 + 64 * SHIFT;
    /// u64: the counter from which on calls are in those sums. Written by the collector.
    pub const SUMS_SINCE: u64 = 96 + 64 * SHIFT;
    /// u64: the ticks for which a thread waits in its slow path for room in a full ring, before it
    /// counts its event as lost; 0 for none. Written by the collector, which stores 0 while
    /// KEEP_NEWEST is not 0.
    pub const WAIT: u64 = 104 + 64 * SHIFT;
    /// u64: the number of collectors that have added up calls of those sums in their own memory,
    /// which no later collector has. Written by the collector.
    pub const SUMS_TAKEN: u64 = 112 + 64 * SHIFT;
    /// u64: events among those of NO_SLOT that were reported to the readers of the trace. Written
    /// by the collector, for the next collector.
    pub const NO_SLOT_REPORTED: u64 = 120 + 64 * SHIFT;
    /// In SUMS_KIND: calls are counted.
    pub const COUNTS: u64 = 1;
    /// In SUMS_KIND: calls are added up by stack.
    pub const PROFILES: u64 = 2;
}

/// Offsets in a bucket.
pub mod bucket {
    /// u64: in its low half the thread that the bucket counts for; 0 for none. Producers take the
    /// bucket with a compare and exchange. The collector frees it when the thread is gone.
    pub const TID: u64 = 0;
    /// u64: events that the thread lost because no slot was free. The thread counts them with a
    /// locked increment.
    pub const LOST: u64 = 8;
    /// u64: events among them that were reported to the readers of the trace. Written by the
    /// collector, for the next collector.
    pub const REPORTED: u64 = 16;
}

/// In the word of a geometry: there are no profiles.
const NO_PROFILES: u64 = 1 << 63;

/// The sizes of one target's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    ring_shift: u32,
    chunk_shift: u32,
    slots_shift: u32,
    has_profiles: bool,
}

/// The region of the rings' mapping in which calls are counted: the names of counted sites, then
/// the counts of each thread. See [`Geometry::count_region`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountRegion {
    offset: u64,
    ids_shift: u32,
}

// === impl Geometry ===

impl Geometry {
    /// The smallest ring of a thread.
    pub const MIN_RING_BYTES: u64 = 64 << 10;
    /// The largest ring of a thread.
    pub const MAX_RING_BYTES: u64 = 1 << 30;
    /// The most threads whose losses are counted one by one while there is no slot for them.
    pub const MAX_BUCKETS: u32 = 1 << 12;
    /// The most threads with a ring at the same time.
    pub const MAX_THREADS: u32 = 1 << 16;
    /// The most address space that all rings together may take.
    pub const MAX_TOTAL_BYTES: u64 = 1 << 42;

    /// Rings of `ring_bytes` (a power of two from 64 KiB to 1 GiB) for up to `max_threads` threads.
    ///
    /// The table has twice as many slots as threads, so that few threads meet in one.
    ///
    /// # Errors
    /// A size that is out of range, with the range.
    pub fn new(ring_bytes: u64, max_threads: u32) -> Result<Self, GeometryError> {
        if !ring_bytes.is_power_of_two()
            || !(Self::MIN_RING_BYTES..=Self::MAX_RING_BYTES).contains(&ring_bytes)
        {
            return Err(GeometryError::RingBytes(ring_bytes));
        }
        if max_threads == 0 || max_threads > Self::MAX_THREADS {
            return Err(GeometryError::Threads(max_threads));
        }
        let slots = (max_threads.next_power_of_two() * 2).max(PROBES);
        Self::from_shifts(ring_bytes.trailing_zeros(), slots.trailing_zeros())
    }

    /// The geometry with rings of `1 << ring_shift` bytes, and `1 << slots_shift` slots.
    ///
    /// # Errors
    /// Values that [`Geometry::new`] could not have produced.
    pub fn from_shifts(ring_shift: u32, slots_shift: u32) -> Result<Self, GeometryError> {
        let ring_bytes = 1u64.checked_shl(ring_shift).unwrap_or(0);
        if !(Self::MIN_RING_BYTES..=Self::MAX_RING_BYTES).contains(&ring_bytes) {
            return Err(GeometryError::RingBytes(ring_bytes));
        }
        if !(PROBES.trailing_zeros()..=Self::MAX_THREADS.trailing_zeros() + 1)
            .contains(&slots_shift)
        {
            return Err(GeometryError::Threads(slots_shift));
        }
        let geometry = Self {
            ring_shift,
            chunk_shift: (ring_shift - 4).clamp(12, 16),
            slots_shift,
            has_profiles: true,
        };
        let total = ring_bytes << slots_shift;
        if total > Self::MAX_TOTAL_BYTES {
            return Err(GeometryError::Total(total));
        }
        Ok(geometry)
    }

    /// The same without profiles, for memory that counts in full once it is mapped.
    #[must_use]
    pub const fn without_profiles(self) -> Self {
        Self {
            has_profiles: false,
            ..self
        }
    }

    /// True if calls can be added up in the program.
    pub const fn has_profiles(self) -> bool {
        self.has_profiles
    }

    /// A word from which [`Geometry::from_word`] makes the same geometry.
    pub const fn to_word(self) -> u64 {
        let profiles = if self.has_profiles { 0 } else { NO_PROFILES };
        self.ring_shift as u64 | (self.slots_shift as u64) << 32 | profiles
    }

    /// The geometry that an earlier attach wrote down.
    ///
    /// # Errors
    /// A word that [`Geometry::to_word`] could not have returned.
    pub fn from_word(word: u64) -> Result<Self, GeometryError> {
        let shifts = word & !NO_PROFILES;
        let half = |half: u64| u32::try_from(half).unwrap_or(u32::MAX);
        let geometry = Self::from_shifts(half(shifts & 0xffff_ffff), half(shifts >> 32))?;
        Ok(match word & NO_PROFILES {
            0 => geometry,
            _ => geometry.without_profiles(),
        })
    }

    /// Bytes of one ring.
    pub const fn ring_bytes(self) -> u64 {
        1 << self.ring_shift
    }

    /// log2 of [`Geometry::ring_bytes`].
    pub const fn ring_shift(self) -> u32 {
        self.ring_shift
    }

    /// Bytes of one chunk: the unit in which a ring is given back.
    pub const fn chunk_bytes(self) -> u64 {
        1 << self.chunk_shift
    }

    /// log2 of [`Geometry::chunk_bytes`].
    pub const fn chunk_shift(self) -> u32 {
        self.chunk_shift
    }

    /// The most bytes of a payload that are recorded: [`MAX_PAYLOAD_BYTES`], or half a chunk where
    /// that is less.
    pub const fn payload_limit(self) -> u64 {
        let half = self.chunk_bytes() / 2;
        if half < MAX_PAYLOAD_BYTES {
            half
        } else {
            MAX_PAYLOAD_BYTES
        }
    }

    /// Words of the longest event with a payload.
    pub const fn longest_event(self) -> u64 {
        PAYLOAD_WORDS + self.payload_limit().div_ceil(PAYLOAD_BYTES as u64)
    }

    /// True for a place (an address, or an offset into the rings) in the guard of its chunk.
    pub const fn in_guard(self, place: u64) -> bool {
        place & (self.chunk_bytes() - GUARD_BYTES) == 0
    }

    /// Chunks of a ring: a power of two, at least 4.
    pub const fn chunks(self) -> u64 {
        1 << (self.ring_shift - self.chunk_shift)
    }

    /// Slots, control lines and rings: a power of two.
    pub const fn slots(self) -> u32 {
        1 << self.slots_shift
    }

    /// log2 of [`Geometry::slots`].
    pub const fn slots_shift(self) -> u32 {
        self.slots_shift
    }

    /// Size of the table's mapping.
    pub const fn table_bytes(self) -> u64 {
        self.inside_offset(2)
    }

    /// The offset in the table's mapping of the list `list` of sites, 0 or 1: [`INSIDE_NAMES`]
    /// names of 4 bytes, 0 for none.
    pub const fn inside_offset(self, list: u64) -> u64 {
        self.slot_offset(self.slots()) + list * INSIDE_NAMES * 4
    }

    /// The offset in the table's mapping of the slot `index`.
    pub const fn slot_offset(self, index: u32) -> u64 {
        HEADER_BYTES + ((index as u64) << LINE_SHIFT)
    }

    /// The offset in the rings' mapping of the control line `index`.
    pub const fn control_offset(self, index: u32) -> u64 {
        HEADER_BYTES + ((index as u64) << LINE_SHIFT)
    }

    /// Buckets: as many as slots, up to [`Self::MAX_BUCKETS`]; a power of two.
    pub const fn buckets(self) -> u32 {
        if self.slots() < Self::MAX_BUCKETS {
            self.slots()
        } else {
            Self::MAX_BUCKETS
        }
    }

    /// The offset in the rings' mapping of the bucket `index`.
    pub const fn bucket_offset(self, index: u32) -> u64 {
        self.control_offset(self.slots()) + ((index as u64) << BUCKET_SHIFT)
    }

    /// The offset in the rings' mapping of the filter page `index`.
    pub const fn filter_offset(self, index: u32) -> u64 {
        let pages = self.bucket_offset(self.buckets());
        pages.next_multiple_of(filter::PAGE_BYTES) + ((index as u64) << filter::PAGE_SHIFT)
    }

    /// The region of the rings' mapping in which calls are counted.
    pub const fn count_region(self) -> CountRegion {
        let ids_shift = self.ring_shift - 5;
        CountRegion {
            offset: self.filter_offset(self.slots()),
            ids_shift: if ids_shift < 16 { ids_shift } else { 16 },
        }
    }

    /// The region of the rings' mapping in which calls are added up by stack.
    pub const fn profile_region(self) -> ProfileRegion {
        let nodes_shift = self.ring_shift - profile::NODE_SHIFT;
        ProfileRegion {
            offset: self.count_region().counts_offset(self.slots()),
            nodes_shift: if nodes_shift < 15 { nodes_shift } else { 15 },
            is_there: self.has_profiles,
        }
    }

    /// The offset in the rings' mapping of the mark `index`.
    pub const fn mark_offset(self, index: u32) -> u64 {
        let region = self.profile_region();
        let marks = match region.is_there {
            true => region.profile_offset(self.slots()),
            false => region.offset,
        };
        marks + (index as u64) * MARK_BYTES
    }

    /// The offset in the rings' mapping of the first ring; a multiple of the chunk size.
    pub const fn rings_offset(self) -> u64 {
        let end = self.mark_offset(self.slots());
        end.next_multiple_of(self.chunk_bytes())
    }

    /// The offset in the rings' mapping of the ring `index`.
    pub const fn ring_offset(self, index: u32) -> u64 {
        self.rings_offset() + ((index as u64) << self.ring_shift)
    }

    /// The offset in the rings' mapping of the sums that outlive the collector. Without profiles
    /// there are none.
    pub const fn sums_offset(self) -> u64 {
        self.ring_offset(self.slots())
    }

    /// Bytes of a half of these sums: as many as 64 rings have, up to [`sums::MOST_BYTES`].
    pub const fn sums_half(self) -> u64 {
        let rings = self.ring_bytes() << 6;
        if rings < sums::MOST_BYTES {
            rings
        } else {
            sums::MOST_BYTES
        }
    }

    /// Size of the rings' mapping. Its address must be a multiple of the chunk size.
    pub const fn rings_bytes(self) -> u64 {
        match self.has_profiles {
            true => self.sums_offset() + 2 * self.sums_half(),
            false => self.sums_offset(),
        }
    }
}

// === impl CountRegion ===

impl CountRegion {
    /// Numbers that sites can have for counting; a power of two. There is one for each 32 bytes of
    /// a ring, from 2,048 to 65,536. The number 0 stands for all sites that have none of their own.
    pub const fn ids(self) -> u64 {
        1 << self.ids_shift
    }

    /// Entries of the names; a power of two, twice as many as numbers. The low half of an entry
    /// holds the name of a site, 0 for none, and the high half its number.
    pub const fn names(self) -> u64 {
        2 * self.ids()
    }

    /// The offset in the rings' mapping of the names.
    pub const fn names_offset(self) -> u64 {
        self.offset
    }

    /// log2 of [`CountRegion::counts_bytes`].
    pub const fn counts_shift(self) -> u32 {
        self.ids_shift + 3
    }

    /// Bytes of one thread's counts.
    pub const fn counts_bytes(self) -> u64 {
        1 << self.counts_shift()
    }

    /// The offset in the rings' mapping of the counts `index`.
    pub const fn counts_offset(self, index: u32) -> u64 {
        self.names_offset() + 8 * self.names() + ((index as u64) << self.counts_shift())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_of_the_defaults() {
        let g = Geometry::new(1 << 20, 1024).unwrap();
        assert_eq!(
            (g.slots(), g.chunk_bytes(), g.chunks(), g.table_bytes()),
            (2048, 64 << 10, 16, 4096 + 2048 * 64 + (64 << 10))
        );
        let counts = g.count_region();
        assert_eq!((counts.ids(), counts.counts_bytes()), (32 << 10, 256 << 10));
        assert_eq!(g.rings_offset() % g.chunk_bytes(), 0);
        assert_eq!(g.ring_offset(1) - g.ring_offset(0), 1 << 20);
        assert_eq!(
            Geometry::from_shifts(g.ring_shift(), g.slots_shift()).unwrap(),
            g
        );
    }

    #[test]
    fn the_longest_event_and_what_the_slow_path_adds_fit_a_chunk() {
        for shift in 16..=30 {
            let g = Geometry::new(1 << shift, 1).unwrap();
            let limit = if shift == 16 { 2048 } else { 4096 };
            assert_eq!(g.payload_limit(), limit);
            let words = g.longest_event() - PAYLOAD_WORDS + SLOW_WORDS;
            assert!(words * 8 <= g.chunk_bytes(), "{words} words");
        }
    }

    #[test]
    fn contexts_park_the_head_each_in_its_own_way() {
        for sp in [0x7ffc_1234_5678, 0x5555_0000_0008, 8, (1 << 47) - 8] {
            let (head, next) = (slot::parked_by(sp), slot::parked_by(sp + 8));
            assert!(head & slot::PARKED != 0 && head < 1 << 63);
            assert_eq!(next - head, slot::PARKED_ROOM);
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        for (ring, threads) in [
            (0, 1),
            (1 << 15, 1),
            (3 << 16, 1),
            (1 << 31, 1),
            (1 << 20, 0),
            (1 << 20, (1 << 16) + 1),
            (1 << 30, 1 << 16),
        ] {
            assert!(Geometry::new(ring, threads).is_err(), "{ring} {threads}");
        }
        assert!(Geometry::from_shifts(64, 11).is_err());
        assert!(Geometry::from_shifts(20, 40).is_err());
    }

    #[test]
    fn every_geometry_keeps_rings_apart_and_aligned() {
        for ring_shift in 16..=30 {
            for slots_shift in 6..=17 {
                let Ok(g) = Geometry::from_shifts(ring_shift, slots_shift) else {
                    continue;
                };
                assert_eq!(Geometry::from_word(g.to_word()), Ok(g));
                let without = g.without_profiles();
                assert_eq!(Geometry::from_word(without.to_word()), Ok(without));
                assert!(without.rings_bytes() < g.rings_bytes());
                assert_eq!(
                    without.mark_offset(0),
                    g.count_region().counts_offset(g.slots())
                );
                assert!(g.chunks() >= 4 && g.chunks() * g.chunk_bytes() == g.ring_bytes());
                assert_eq!(
                    g.control_offset(g.slots() - 1) + LINE_BYTES,
                    g.bucket_offset(0)
                );
                assert!(g.buckets().is_power_of_two() && g.buckets() >= PROBES);
                assert!(g.bucket_offset(g.buckets() - 1) + BUCKET_BYTES <= g.filter_offset(0));
                assert_eq!(g.filter_offset(0) % filter::PAGE_BYTES, 0);
                let counts = g.count_region();
                assert_eq!(g.filter_offset(g.slots()), counts.names_offset());
                let names_end = counts.names_offset() + 8 * counts.names();
                assert_eq!(names_end, counts.counts_offset(0));
                let profiles = g.profile_region();
                assert_eq!(counts.counts_offset(g.slots()), profiles.switched_offset());
                assert_eq!(profiles.profile_offset(0) % 4096, 0);
                assert_eq!(profiles.profile_offset(g.slots()), g.mark_offset(0));
                let notes_end = profiles.notes_at() + profile::NOTES * profile::NOTE_BYTES;
                assert!(notes_end <= profiles.profile_bytes());
                assert!(profiles.blocks() - 1 <= u64::from(u16::MAX));
                assert!(g.mark_offset(g.slots()) <= g.rings_offset());
                assert_eq!(
                    g.ring_offset(g.slots() - 1) + g.ring_bytes(),
                    g.sums_offset()
                );
                assert_eq!(without.sums_offset(), without.rings_bytes());
                assert_eq!(g.ring_offset(0) % g.chunk_bytes(), 0);
            }
        }
    }
}
