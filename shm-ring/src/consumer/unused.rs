//! The memory of chunks that a slow thread does not need.
//!
//! A thread writes to every page of its ring before it comes to the same one again. So a thread
//! that was busy once keeps a whole ring of memory, however rarely it records from then on. The
//! collector frees the pages of chunks that were given back, while the thread goes on:
//!
//! ```text
//!            freed                        under way
//!  ┌───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┬───┐
//!  │   │   │   │   │   │   │   │   │   │ c │   │   │   │   │   │   │
//!  └───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┴───┘
//!                                          the next chunks stay
//! ```
//!
//! 1. It takes these chunks back: it stores a smaller RELEASED, which leaves the thread
//!    [`KEPT_CHUNKS`] chunks to begin. A thread that looks at RELEASED now finds no other room.
//! 2. It reads STARTED once more. If that has not changed, no thread can be in the chunks: a thread
//!    reads RELEASED for each chunk that it begins, and stores STARTED between two of them.
//! 3. It frees the pages. The words in them read as 0, which is an empty word.
//! 4. It stores RELEASED as it was.
//!
//! A thread that begins more than [`KEPT_CHUNKS`] chunks meanwhile finds its ring full, and counts
//! what it loses. If the collector dies in the middle, the next one finds the saved cursor behind
//! RELEASED, and gives the chunks back anew.

use super::Consumer;
use crate::{
    layout::control,
    memory::SharedMemory,
    sync::{Ordering, fence},
};

/// The chunks behind the one under way whose memory stays: a thread may begin them at any moment.
const KEPT_CHUNKS: u64 = 3;

// === impl Consumer ===

impl Consumer {
    /// The number of chunks that were read to their end.
    pub const fn chunks_read(&self) -> u64 {
        self.cursor / self.geometry.chunk_bytes()
    }

    /// Has `free` free the memory of chunks that were given back, except for the chunks that the
    /// thread begins next. `free` gets offsets and sizes in bytes, and the part that it frees must
    /// read as zero afterwards, or as before. Returns false if the thread began a chunk meanwhile,
    /// and if there is no such memory. Then `free` was not called.
    ///
    /// No context of the thread may have been away while the ring was freed from it: such a
    /// context tells empty words of two turns of the ring apart by their high halves.
    pub fn free_unused<M: SharedMemory>(&self, memory: &M, mut free: impl FnMut(u64, u64)) -> bool {
        let (chunk, chunks) = (self.geometry.chunk_bytes(), self.geometry.chunks());
        let line = self.geometry.control_offset(self.index);
        let started = memory.load(line + control::STARTED);
        let released = self.saved / chunk;
        let first = started.saturating_add(KEPT_CHUNKS).saturating_sub(chunks);
        // The thread may stand at the end of the last chunk that it has begun.
        let end = released.min(started.saturating_sub(1));
        if first >= end {
            return false;
        }
        memory.store(line + control::RELEASED, first);
        // The thread must see the store before STARTED is read, and before the pages are freed.
        fence(Ordering::SeqCst);
        let is_still = memory.load(line + control::STARTED) == started;
        if is_still {
            let mut number = first;
            while number < end {
                // The ring's end may be in the middle.
                let turn_end = (number & !(chunks - 1)).saturating_add(chunks).min(end);
                free(self.place(number * chunk), (turn_end - number) * chunk);
                number = turn_end;
            }
        }
        memory.store(line + control::RELEASED, released);
        is_still
    }
}
