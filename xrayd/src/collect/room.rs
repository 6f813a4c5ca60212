//! Memory for the open calls of a target's threads: what they may take together, and what one of them has taken of it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Open calls of one thread that are known; those further in are matched by their functions alone.
const MOST_FRAMES: usize = 1 << 17;
/// Of all threads of a target together: 48 MiB. Sixteen that recurse without end get there, or
/// 8,192 that were once more than 128 calls deep, since each of those keeps `KEPT`.
const MOST_FRAMES_TOGETHER: usize = 1 << 21;
/// Segments of one thread; with more, gaps do not count.
const MOST_SEGMENTS: usize = 32;
/// What a thread takes at first, and keeps.
const FIRST: usize = 16;
const KEPT: usize = 256;

/// What the threads of one target may take together.
#[derive(Debug, Clone)]
pub(super) struct Room {
    /// Frames that nobody has taken. Shares take of it and give back; the drain thread alone does.
    left: Arc<AtomicUsize>,
    /// Frames of one thread.
    frames: usize,
    /// Segments of one thread.
    segments: usize,
}

/// What one thread has taken.
#[derive(Debug)]
pub(super) struct Share {
    room: Room,
    /// Frames.
    taken: usize,
}

// === impl Room ===

impl Room {
    /// That of one target.
    pub(super) fn new() -> Self {
        Self::with(MOST_FRAMES_TOGETHER, MOST_FRAMES, MOST_SEGMENTS)
    }

    /// So many frames together, and frames and segments of each thread.
    pub(super) fn with(together: usize, frames: usize, segments: usize) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(together)),
            frames,
            segments,
        }
    }

    /// That of one thread, with nothing taken.
    pub(super) fn share(&self) -> Share {
        let room = self.clone();
        Share { room, taken: 0 }
    }

    /// Frames that nobody has taken.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

// === impl Share ===

impl Share {
    /// Frames there is room for.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Segments there may be.
    pub(super) fn segments(&self) -> usize {
        self.room.segments
    }

    /// Takes as much again. False if that is more than there is, or than one thread may have.
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

    /// Gives back what `used` frames do not need, if that is most of what was taken; true if it did.
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
    fn what_threads_take_together_is_bounded_and_comes_back() {
        let room = Room::with(1000, 400, 1);
        let mut shares: Vec<Share> = (0..10).map(|_| room.share()).collect();
        for share in &mut shares {
            while share.grow() {}
            assert!(share.taken() <= 400);
        }
        let taken: usize = shares.iter().map(Share::taken).sum();
        assert_eq!(taken + room.left(), 1000);
        assert!(room.left() < FIRST, "{} left", room.left());
        // In use, or little: kept.
        assert!(!shares[0].shrink(400) && !shares[0].shrink(101));
        assert!(shares[0].shrink(100) && !shares[0].shrink(0));
        assert_eq!(shares[0].taken(), KEPT);
        drop(shares);
        assert_eq!(room.left(), 1000);
    }
}
