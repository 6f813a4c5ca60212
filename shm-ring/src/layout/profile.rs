//! A profile: the sums of one thread's calls by stack, and its open calls, as its trampolines write
//! them while calls are added up in the program. It lies in the shared memory, so that it outlives
//! the process and the collector.
//!
//! ```text
//! +0            node 0, the root (128 bytes) | node 1 | …
//! +size         block 0, unused (128 bytes) | block 1 | …   durations of calls
//! +3 * size     frame 0, below all calls (32 bytes) | frame 1 | …   open calls, outermost first
//! +places       places of nodes by caller and site, a u32 each, open addressing
//! +header       the fields that have no unit in their description below
//! +notes        note 0 (32 bytes) | note 1 | …   the newest long calls, each in the place of its
//!               number
//! ```
//!
//! A *place* is the offset of a node in the profile. Where one has [`MORE`] added, the node
//! stands for all stacks within its caller that have no node of their own.

/// Bytes of a node, and of a block.
pub const NODE_BYTES: u64 = 128;
/// log2 of [`NODE_BYTES`].
pub const NODE_SHIFT: u32 = 7;
/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 32;
/// log2 of [`FRAME_BYTES`].
pub const FRAME_SHIFT: u32 = 5;

/// In a node, u32: the place of the callee that began first in the latest call; 0 for none. It
/// is a guess of the next callee, and may be any place.
pub const FIRST: u64 = 0;
/// In a node, u32: the place of the callee that its caller called next; 0 for none. A guess,
/// too.
pub const NEXT: u64 = 4;
/// In a node, u32: the name of the entry's site; 0 for the root and for a node that was not
/// made so far; [`MORE_NAME`].
pub const NAME: u64 = 8;
/// In a node, u32: the place of the caller's node.
pub const CALLER: u64 = 12;
/// In a node, u64: ticks of the calls with an exit.
pub const TOTAL: u64 = 16;
/// In a node, u64: ticks of the shortest of them.
pub const SHORTEST: u64 = 24;
/// In a node, u64: ticks of the longest of them.
pub const LONGEST: u64 = 32;
/// In a node, u64: ticks of calls without an exit, up to the event before their end was seen.
pub const LEFT_TICKS: u64 = 40;
/// In a node, u64: calls without an exit.
pub const LEFT: u64 = 48;
/// In a node, u64: calls with an exit that are in no block, since there was no room for one.
pub const UNSORTED: u64 = 56;
/// In a node, 28 u16: the numbers of its blocks, 0 for none. The entry `n` is for durations
/// from `4^n` ticks on. The entry 1 is for all durations of less than 16 ticks.
pub const BLOCKS: u64 = 64;
/// In a node whose name is [`MORE_NAME`], u64: ticks of its calls that were made within
/// another one of its calls.
pub const NESTED: u64 = 120;
/// Entries of [`BLOCKS`]. No duration needs more: 2^56 ticks are some months.
pub const BLOCK_ENTRIES: u64 = 28;
/// Counters of a block, a u64 each: for durations from `4^n` ticks on, eight parts of one
/// width, and eight parts of twice that width from `2 * 4^n` on. The block of the entry 1 has one
/// counter for each duration from 0 to 15 ticks.
pub const COUNTERS: u64 = 16;

/// In a frame, u64: the place on the stack at the entry.
pub const STACK: u64 = 0;
/// In a frame, u64: the counter at the entry.
pub const BEGAN: u64 = 8;
/// In a frame, u32: the place of its node.
pub const NODE: u64 = 16;
/// In a frame, u32: where the place of the next callee is guessed: [`FIRST`] of its node, or
/// [`NEXT`] of the callee before.
pub const GUESS: u64 = 20;

/// Added to a place.
pub const MORE: u32 = 1;
/// The name of nodes for all stacks that have no node of their own. No site has it.
pub const MORE_NAME: u32 = 1;

/// u64: in the low half the number of open calls, in the high half the number of its changes.
/// The thread and its handlers change it with one instruction that compares.
pub const OPEN: u64 = 0;
/// u64: the counter at the latest event.
pub const LATEST: u64 = 8;
/// u64: nodes that were begun, without the root. It may exceed the number of nodes.
pub const NODES: u64 = 16;
/// u64: blocks that were begun. Likewise.
pub const BEGUN_BLOCKS: u64 = 24;
/// u64: exits of calls that are not open.
pub const UNMATCHED: u64 = 32;
/// u64: calls that are in no node, because too many calls were open or no node was left.
pub const NOT_FOLLOWED: u64 = 40;
/// u64: long calls that were noted, or are being noted: calls that took at least
/// [`LONG_CALL`](super::table::LONG_CALL).
pub const NOTED: u64 = 48;
/// Bytes of the header.
pub const HEADER_BYTES: u64 = 64;

/// Notes of a profile; a power of two.
pub const NOTES: u64 = 1 << 9;
/// Bytes of a note.
pub const NOTE_BYTES: u64 = 32;
/// log2 of [`NOTE_BYTES`].
pub const NOTE_SHIFT: u32 = 5;
/// In a note, u64: the number of the call, the first one is 1; 0 while the note is written.
pub const NOTE_NUMBER: u64 = 0;
/// In a note, u64: the counter at the end of the call.
pub const NOTE_ENDED: u64 = 8;
/// In a note, u64: the ticks of the call.
pub const NOTE_TICKS: u64 = 16;
/// In a note, u32: the name of the exit's site.
pub const NOTE_NAME: u64 = 24;

/// Entries of the list of switched sites; a power of two. At most half of them are used: enough for
/// the sites of some ten thousand functions.
pub const SWITCHED_SITES: u64 = 1 << 16;
/// Bytes of an entry of that list.
pub const SWITCHED_BYTES: u64 = 16;
/// In such an entry, u32: the name of the site; 0 for none.
pub const SWITCHED_NAME: u64 = 0;
/// In such an entry, u64: the counter when its function was last switched.
pub const SWITCHED_AT: u64 = 8;

/// The region of the rings' mapping in which calls are added up by stack: the sites of switched
/// functions, then the profile of each thread. See [`profile_region`].
///
/// [`profile_region`]: super::Geometry::profile_region
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileRegion {
    pub(super) offset: u64,
    pub(super) nodes_shift: u32,
    pub(super) is_there: bool,
}

// === impl ProfileRegion ===

impl ProfileRegion {
    /// Nodes of a profile, including the root; a power of two. There is one for each 128 bytes of a
    /// ring, from 512 to 32,768.
    pub const fn nodes(self) -> u64 {
        1 << self.nodes_shift
    }

    /// Blocks of a profile, including the unused one; a power of two, twice as many as nodes.
    pub const fn blocks(self) -> u64 {
        2 * self.nodes()
    }

    /// Frames of a profile, including the one below all calls; a power of two.
    pub const fn frames(self) -> u64 {
        2 * self.nodes()
    }

    /// Entries of the table of places; a power of two, twice as many as nodes.
    pub const fn places(self) -> u64 {
        2 * self.nodes()
    }

    /// Bytes of all nodes; a power of two.
    pub const fn size(self) -> u64 {
        self.nodes() << NODE_SHIFT
    }

    /// The offset in a profile of the blocks.
    pub const fn blocks_at(self) -> u64 {
        self.size()
    }

    /// The offset in a profile of the frames.
    pub const fn frames_at(self) -> u64 {
        3 * self.size()
    }

    /// The offset in a profile of the table of places.
    pub const fn places_at(self) -> u64 {
        self.frames_at() + (self.frames() << FRAME_SHIFT)
    }

    /// The offset in a profile of its header.
    pub const fn header_at(self) -> u64 {
        self.places_at() + 4 * self.places()
    }

    /// The offset in a profile of the notes of long calls.
    pub const fn notes_at(self) -> u64 {
        self.header_at() + HEADER_BYTES
    }

    /// log2 of [`ProfileRegion::profile_bytes`].
    pub const fn profile_shift(self) -> u32 {
        self.nodes_shift + NODE_SHIFT + 2
    }

    /// Bytes of one thread's profile; a power of two.
    pub const fn profile_bytes(self) -> u64 {
        1 << self.profile_shift()
    }

    /// The offset in the rings' mapping of the list of switched sites.
    pub const fn switched_offset(self) -> u64 {
        self.offset
    }

    /// The offset in the rings' mapping of the profile `index`.
    pub const fn profile_offset(self, index: u32) -> u64 {
        let sites = SWITCHED_SITES * SWITCHED_BYTES;
        let profiles = (self.offset + sites).next_multiple_of(4096);
        profiles + ((index as u64) << self.profile_shift())
    }
}
