//! The words that the reference producer is to write, and their writes, one access at a time. The
//! files of the steps have the order of the writes.

use super::{Recording, Target};
use crate::{
    memory::{Half, SharedMemory},
    sync::{AtomicU64, Ordering},
    word,
};

/// The accesses of one word of the slow path, or of one field of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Read,
    Look,
    Write,
}

/// The progress of the words of the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Some,
    All,
    /// The head is parked by another context.
    Robbed,
}

// === impl Recording ===

impl Recording {
    /// Adds the call word of the event.
    pub(super) fn push_call(&mut self) {
        let packed = self.view.pack(self.ticks, self.event.sp);
        self.words.push_back((self.event.site, packed));
    }

    /// Adds this many words that carry nothing.
    pub(super) fn push_filler(&mut self, words: u64) {
        self.words.extend((0..words).map(|_| (word::FILLER, 0)));
    }

    /// Makes one access for the next word of the slow path. It writes the word if the ring's word
    /// has not changed since before the look at the head.
    pub(super) fn put_word<M: SharedMemory>(&mut self, target: &Target<'_, M>) -> Written {
        let Some(&(low, high)) = self.words.front() else {
            return Written::All;
        };
        self.put = match self.put {
            Put::Read => {
                self.seen = target.rings.load(self.cursor);
                Put::Look
            }
            Put::Look if self.is_robbed(target) => return Written::Robbed,
            Put::Look => Put::Write,
            Put::Write => {
                let word = u64::from(high) << 32 | u64::from(low);
                if target.rings.exchange(self.cursor, self.seen, word) {
                    self.cursor += 8;
                    self.words.pop_front();
                }
                Put::Read
            }
        };
        if self.words.is_empty() {
            Written::All
        } else {
            Written::Some
        }
    }

    /// Makes one access for a field of the view. It stores the field if that has not changed since
    /// before the look at the head.
    pub(super) fn store_field<M: SharedMemory>(
        &mut self,
        target: &Target<'_, M>,
        field: &AtomicU64,
        value: u64,
    ) -> Written {
        let mut written = Written::Some;
        self.put = match self.put {
            Put::Read => {
                self.seen = field.load(Ordering::Relaxed);
                Put::Look
            }
            Put::Look if self.is_robbed(target) => return Written::Robbed,
            Put::Look => Put::Write,
            Put::Write => {
                let stored =
                    field.compare_exchange(self.seen, value, Ordering::Relaxed, Ordering::Relaxed);
                if stored.is_ok() {
                    written = Written::All;
                }
                Put::Read
            }
        };
        written
    }

    /// Writes the next half of the next word, and returns true after the last one. The low half
    /// goes last: it makes the word whole, and pairs with the consumer's load of the word.
    pub(super) fn write_half<M: SharedMemory>(&mut self, target: &Target<'_, M>) -> bool {
        let Some(&(low, high)) = self.words.front() else {
            return true;
        };
        match self.half {
            // The high half of a filler is left as it is.
            Half::High if low != word::FILLER => {
                target.rings.store_half(self.cursor, Half::High, high);
                self.half = Half::Low;
            }
            Half::High | Half::Low => {
                target.rings.store_half(self.cursor, Half::Low, low);
                self.half = Half::High;
                self.cursor += 8;
                self.words.pop_front();
            }
        }
        self.words.is_empty()
    }
}
