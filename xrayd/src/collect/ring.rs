//! One ring under way.

use std::time::Instant;

use shm_ring::{Consumer, Geometry, Producer};

use super::{SiteTable, lane::Lane, slots::Slots};
use crate::{session::Output, sys::ticks_now};

/// Words read from one ring before the next one has its turn.
pub(super) const TURN_WORDS: u64 = 1 << 16;

/// Turns that read a ring which was full at the start, and a little more.
pub(super) fn turns(geometry: Geometry) -> u64 {
    geometry.ring_bytes() / 8 / TURN_WORDS + 2
}

/// A ring under way. What it yields goes into the lane of its owner.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) consumer: Consumer,
    /// Whose it is, as the target knows it.
    pub(super) owner: u32,
    /// Its owner has gone on to another ring.
    left: bool,
    /// LOST at the last chore, to notice a slow path that a jump left.
    lost_seen: u64,
    /// Where the consumer stood then: in a ring that is merely overloaded it moves.
    cursor_seen: u64,
    /// A sign of that was seen at the last chore.
    suspicious: bool,
}

/// What a ring is read with.
pub(super) struct Around<'a> {
    pub(super) slots: &'a Slots,
    pub(super) sites: &'a SiteTable,
    pub(super) output: &'a Output,
    /// When the drain was.
    pub(super) started: Instant,
}

// === impl Ring ===

impl Ring {
    /// The ring of a thread that has counted so many losses there.
    pub(super) fn new(consumer: Consumer, owner: u32, lost: u64) -> Self {
        Self {
            consumer,
            owner,
            left: false,
            lost_seen: lost,
            cursor_seen: 0,
            suspicious: false,
        }
    }

    /// One turn; returns the words read.
    pub(super) fn read(&mut self, lane: &mut Lane, around: &Around<'_>, producer: Producer) -> u64 {
        let now = u64::try_from(around.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let rings = &around.slots.rings;
        let drained = self
            .consumer
            .drain(rings, producer, now, TURN_WORDS, |item| {
                lane.take(item, around.sites, around.output);
            });
        lane.settle(around.output);
        drained.words
    }

    /// Reads what is left and tells the losses that no gap word told. A hole is not waited for: its ring is given back, or left.
    pub(super) fn read_all(&mut self, lane: &mut Lane, around: &Around<'_>) {
        // So many turns read everything that was there; a target that goes on writing is not waited for.
        for _ in 0..turns(around.slots.layout.geometry) {
            if self.read(lane, around, Producer::Gone) == 0 {
                break;
            }
        }
        self.consumer.tell_losses(&around.slots.rings, |item| {
            lane.take(item, around.sites, around.output);
        });
    }

    /// Its owner has gone on to another ring, and what it recorded here comes before what is there.
    pub(super) fn leave(&mut self, lane: &mut Lane, around: &Around<'_>) {
        self.left = true;
        self.read_all(lane, around);
    }

    /// Tells the losses of a thread that goes on and has recorded nothing since the last chore, if all that it has recorded was
    /// read: those that no gap word has told, and those that no event has followed.
    pub(super) fn tell_if_quiet(&mut self, lane: &mut Lane, around: &Around<'_>) {
        let rings = &around.slots.rings;
        let quiet = !self.left && self.consumer.cursor() == self.cursor_seen;
        let untold = self.consumer.untold_losses(rings) > 0 || lane.has_early();
        if !quiet || !untold {
            return;
        }
        let now = ticks_now();
        let take = |item| lane.take(item, around.sites, around.output);
        if self.consumer.tell_quiet_losses(rings, take) {
            lane.tell_early(now);
        }
    }

    /// Whether the slow path is marked busy that a handler has left by `longjmp`: losses grow in a ring that has room. Asked once a chore.
    pub(super) fn is_stuck(&mut self, index: u32, slots: &Slots) -> bool {
        let lost = slots.lost(index);
        let roomy = self.consumer.backlog(&slots.rings) < slots.layout.geometry.ring_bytes() / 2;
        let still = self.consumer.cursor() == self.cursor_seen;
        let could_be = roomy && still && slots.busy(index);
        let sign = could_be && lost > self.lost_seen;
        let stuck = sign && self.suspicious;
        self.cursor_seen = self.consumer.cursor();
        // A thread may call rarely: no loss since is no sign that the slow path was left.
        self.suspicious = sign || could_be && self.suspicious;
        self.lost_seen = lost;
        stuck
    }
}
