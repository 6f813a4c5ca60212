//! Memory for the open calls of a target's threads: the limits for all threads together and for one
//! thread, and what each thread has taken. The calls themselves are in `shadow_stack`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The most known open calls of one thread. Calls within them are matched by their functions alone.
const MOST_FRAMES: usize = 1 << 17;
/// The same for all threads of a target together: 48 MiB. Sixteen threads that recurse without end
/// reach it. So do 8,192 threads that were once more than 128 calls deep, since each of those keeps
/// `KEPT`.
const MOST_FRAMES_TOGETHER: usize = 1 << 21;
/// The most segments of one thread. With more, gaps do not count.
const MOST_SEGMENTS: usize = 32;
/// The frames that a thread takes at first, and the frames that it keeps.
const FIRST: usize = 16;
const KEPT: usize = 256;

/// The frames that the threads of one target may take together.
#[derive(Debug, Clone)]
pub(super) struct FrameBudget {
    /// Frames that no thread has taken. Shares take them and give them back, all on one thread: the
    /// drain, or the thread that decodes a snapshot.
    left: Arc<AtomicUsize>,
    /// The most frames of one thread.
    frames: usize,
    /// The most segments of one thread.
    segments: usize,
}

/// The frames that one thread has taken.
#[derive(Debug)]
pub(super) struct Share {
    room: FrameBudget,
    /// Their number.
    taken: usize,
}

// === impl FrameBudget ===

impl FrameBudget {
    /// The room of one target.
    pub(super) fn new() -> Self {
        Self::with(MOST_FRAMES_TOGETHER, MOST_FRAMES, MOST_SEGMENTS)
    }

    /// A budget of `together` frames, with this many frames and segments for each thread at most.
    pub(super) fn with(together: usize, frames: usize, segments: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(together)),
            frames,
            segments,
        }
    }

    /// The share of one thread, with nothing taken.
    pub(super) fn share(&self) -> Share {
        let room = self.clone();
        Share { room, taken: 0 }
    }

    /// The frames that no thread has taken.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

// === impl Share ===

impl Share {
    /// The frames that there is room for.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// The most segments.
    pub(super) fn segments(&self) -> usize {
        self.room.segments
    }

    /// Takes as much again. False if there is not so much, or one thread may not have it.
    #[cold]
    pub(super) fn grow(&mut self) -> bool {
        let wanted = (2 * self.taken).max(FIRST).min(self.room.frames);
        let more = wanted.saturating_sub(self.taken);
        let left = self.room.left.load(Ordering::Relaxed);
        if more == 0 || more > left {
            return false;
        }
        self.room.left.store(left - more, Ordering::Relaxed);
        self.taken = wanted;
        true
    }

    /// Gives back what `used` frames do not need, if that is most of the share. True if it did.
    pub(super) fn shrink(&mut self, used: usize) -> bool {
        if self.taken <= KEPT || used > self.taken / 4 {
            return false;
        }
        self.give_back(self.taken - (2 * used).max(KEPT));
        true
    }

    fn give_back(&mut self, frames: usize) {
        self.taken -= frames;
        self.room.left.fetch_add(frames, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_of_all_threads_are_bounded_and_come_back() {
        let room = FrameBudget::with(1000, 400, 1);
        let mut shares: Vec<Share> = (0..10).map(|_| room.share()).collect();
        for share in &mut shares {
            while share.grow() {}
            assert!(share.taken() <= 400);
        }
        let taken: usize = shares.iter().map(Share::taken).sum();
        assert_eq!(taken + room.left(), 1000);
        assert!(room.left() < FIRST, "{} left", room.left());
        // Shares in use, and small shares, are kept.
        assert!(!shares[0].shrink(400) && !shares[0].shrink(101));
        assert!(shares[0].shrink(100) && !shares[0].shrink(0));
        assert_eq!(shares[0].taken(), KEPT);
        drop(shares);
        assert_eq!(room.left(), 1000);
    }
}
