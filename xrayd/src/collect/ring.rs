//! One ring, and the drain's progress in it.
//!
//! It reads the ring's words or estimates what was overwritten, and reports losses. Decoding is in
//! `thread_decoder`; slots and their table are in `slots`.

use std::time::Instant;

use shm_ring::{Consumer, Geometry, Item, Producer, Sink as _, newest};
use xray_trace::analysis::StackSums;
use xray_trace::model::Ticks;

use super::{
    SiteTable,
    call_reading::{AddedEvents, CallReading},
    profile_reader::ProfileReader,
    slots::Slots,
    thread_decoder::ThreadDecoder,
};
use crate::{
    store::{EventStore, fingerprint},
    sys::ticks_now,
    target::StartTime,
};

/// The most words read from one ring before the next one has its turn.
pub(super) const TURN_WORDS: u64 = 1 << 16;

/// The most words that are read from a ring between two looks at the block under way, while words
/// are held.
const MOST_STEP_WORDS: u64 = 1 << 11;
/// While words are held, a block is closed when its bytes reach this size, or when the words that
/// are held take one in `HELD_PART` bytes of the ring.
const HELD_BLOCK_BYTES: usize = 24 << 10;
const HELD_PART: u64 = 8;

/// The number of turns of so many words that read a ring which was full at the start, and a little
/// more.
pub(super) fn turns(geometry: Geometry, turn_words: u64) -> u64 {
    geometry.ring_bytes() / 8 / turn_words + 2
}

/// A ring. Its events go to the decoder of its owner.
#[derive(Debug)]
pub(super) struct Ring {
    index: u32,
    /// `None` while the ring keeps the newest events by itself and the drain does not read it.
    consumer: Option<Consumer>,
    /// The thread that owns the ring, by its id in the target.
    pub(super) owner: u32,
    /// The start time of that thread, since ids are reused. `None` until it was seen.
    pub(super) began: Option<StartTime>,
    /// True if the slot was withdrawn. The present owner is then not the thread for which the ring
    /// was begun. It came to the ring before the slot was withdrawn.
    pub(super) withdrawn: bool,
    /// True if its owner has gone on to another ring.
    left: bool,
    /// LOST at the last chore, to notice a slow path that was left by a jump.
    lost_seen: u64,
    /// The consumer's position then. It moves in a ring that is merely overloaded.
    cursor_seen: u64,
    /// True if the last chore saw a sign of such a jump.
    suspicious: bool,
    /// True until an event is read that is not dropped: see [`Around::dropped_until`].
    may_be_old: bool,
    /// The number of the last long call whose note was read.
    pub(super) notes_seen: u64,
    /// True once the marks of such a slow path were removed: its context may come back.
    was_unstuck: bool,
    /// The number of chunks that were read when its memory was last looked at, and when some of its
    /// memory was last freed.
    chunks_seen: u64,
    chunks_freed: u64,
    /// The calls and events that its thread has left out so far.
    left_out: u64,
    /// The calls that its thread has counted so far, by the sites' numbers.
    counted: Vec<u64>,
    /// What was seen of the calls that its thread has added up.
    pub(super) profile: ProfileReader,
    /// The number of events that its thread has added up.
    pub(super) added: AddedEvents,
    /// What the last sample has read of its calls; `None` if that sample has not read them.
    pub(super) reading: Option<CallReading>,
    /// All of these calls, once they were read for the last time and until they are kept for the
    /// next daemon.
    pub(super) whole_sums: Option<StackSums>,
    /// The words written to it by the begin of the session, or read by the end of reading.
    words_before: newest::Words,
    /// The words written since and looked at, and the estimated number of events in them.
    words_seen: u64,
    events_seen: u64,
}

/// An estimate of the events that were written to a ring and not read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unread {
    pub(super) events: u64,
    /// Those of `events` that are overwritten.
    pub(super) overwritten: u64,
}

/// The surroundings in which a ring is read.
pub(super) struct Around<'a> {
    pub(super) slots: &'a Slots,
    pub(super) sites: &'a SiteTable,
    pub(super) output: &'a EventStore,
    /// The time at which the drain started.
    pub(super) started: Instant,
    /// True while rings keep the newest events by themselves.
    pub(super) newest: bool,
    /// True if events that are read count. Otherwise the program's sums have them.
    pub(super) counts: bool,
    /// Events before this are dropped.
    pub(super) dropped_until: Ticks,
    /// True if words stay in the rings until their events are archived.
    pub(super) holds: bool,
    /// The words read from one ring before the next one has its turn.
    pub(super) turn_words: u64,
}

// === impl Ring ===

impl Ring {
    /// The ring of a thread, not read so far. `words_before` were written to it in an earlier
    /// session.
    pub(super) fn new(
        index: u32,
        (owner, began): (u32, Option<StartTime>),
        slots: &Slots,
        words_before: newest::Words,
    ) -> Self {
        Self {
            index,
            consumer: None,
            owner,
            began,
            withdrawn: false,
            left: false,
            lost_seen: slots.lost(index),
            cursor_seen: 0,
            suspicious: false,
            may_be_old: true,
            notes_seen: 0,
            was_unstuck: false,
            chunks_seen: 0,
            chunks_freed: 0,
            counted: Vec::new(),
            profile: ProfileReader::default(),
            added: AddedEvents::default(),
            reading: None,
            whole_sums: None,
            left_out: 0,
            words_before,
            words_seen: 0,
            events_seen: 0,
        }
    }

    /// The calls and events that its thread has left out since the last call.
    pub(super) fn take_left_out(&mut self, slots: &Slots) -> u64 {
        let now = slots.left_out(self.index);
        now.saturating_sub(std::mem::replace(&mut self.left_out, now))
    }

    /// The calls counted since the last call, by the sites' numbers. The first `most` numbers are
    /// read.
    pub(super) fn take_counts(&mut self, slots: &Slots, most: usize) -> Vec<(u64, u64)> {
        let numbered = usize::try_from(slots.numbered()).unwrap_or(0);
        // Never fewer than before: calls that were added up once would be added up again.
        let looked_at = numbered.min(most).max(self.counted.len());
        self.counted.resize(looked_at, 0);
        let counted = (0..).zip(&mut self.counted);
        let news = counted.filter_map(|(number, before)| {
            let now = slots.count_of(self.index, number);
            // The memory may contain anything, and a count never shrinks.
            let more = now.saturating_sub(std::mem::replace(before, now));
            (more > 0).then_some((number, more))
        });
        news.collect()
    }

    /// All calls that the last [`Self::take_counts`] has seen, by the sites' numbers.
    pub(super) fn counted(&self) -> &[u64] {
        &self.counted
    }

    /// Forgets what was counted so far: the counts were set back.
    pub(super) fn forget_counts(&mut self) {
        self.counted.clear();
    }

    /// Begins to read the ring, unless its thread takes a chunk back just now.
    pub(super) fn begin_reading(&mut self, around: &Around<'_>) {
        let (rings, geometry) = (&around.slots.rings, around.slots.layout.geometry);
        if self.consumer.is_some() || self.left || newest::is_taken(rings, geometry, self.index) {
            return;
        }
        if around.counts {
            let Unread { overwritten, .. } = self.unread(around.slots);
            around.output.counters.add_overwritten(overwritten);
        }
        (self.words_seen, self.events_seen) = (0, 0);
        let mut consumer = Consumer::resume(rings, geometry, self.index);
        if around.sites.has_events() {
            consumer.expect_payloads();
        }
        consumer.skip_kept(rings, |block| around.output.has_earlier(block));
        self.consumer = Some(match around.holds {
            true => consumer.holding(),
            false => consumer,
        });
    }

    /// Leaves the ring to keep the newest events by itself. Closes the block, with what was lost so
    /// far: it is dropped with what was read.
    pub(super) fn end_reading(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        self.tell_losses(decoder, around);
        decoder.tell_early(ticks_now());
        decoder.settle(around.output);
        self.close_block(decoder, around);
        if let Some(consumer) = self.consumer.take() {
            let geometry = around.slots.layout.geometry;
            self.words_before = newest::Words::read_until(geometry, consumer.cursor());
            (self.words_seen, self.events_seen) = (0, 0);
        }
    }

    /// Drops what the ring holds once it is read.
    pub(super) fn drop_unread(&mut self, slots: &Slots) {
        self.may_be_old = true;
        self.forget_words(slots);
    }

    /// Stops counting the words written so far as unread.
    fn forget_words(&mut self, slots: &Slots) {
        self.words_before = newest::Words::of(&slots.rings, slots.layout.geometry, self.index);
        (self.words_seen, self.events_seen) = (0, 0);
    }

    /// The words that the drain had not read when it stopped reading, and those written since; none
    /// while it reads.
    fn words(&self, slots: &Slots) -> newest::Words {
        match self.consumer {
            Some(_) => newest::Words::default(),
            None => {
                let seen = self.words_before.begun.saturating_add(self.words_seen);
                newest::Words::after(&slots.rings, slots.layout.geometry, self.index, seen)
                    .since(self.words_before)
            }
        }
    }

    /// The estimated number of events in the unread words. The newest words give the share of
    /// events among the words that were written since the last call.
    pub(super) fn unread(&mut self, slots: &Slots) -> Unread {
        let words = self.words(slots);
        let more = words.begun.saturating_sub(self.words_seen);
        if more > 0 {
            let share =
                newest::EventShare::of(&slots.rings, slots.layout.geometry, self.index, more);
            self.words_seen = words.begun;
            self.events_seen = self.events_seen.saturating_add(share.events_in(more));
        }
        let all = newest::EventShare {
            words: words.begun,
            events: self.events_seen,
        };
        Unread {
            events: self.events_seen,
            overwritten: all.events_in(words.overwritten),
        }
    }

    /// True if the drain is to read the ring, and has not begun: its thread takes a chunk back.
    pub(super) fn is_unread(&self) -> bool {
        self.consumer.is_none() && !self.left
    }

    /// True if the consumer stands at words that were reserved and not written so far.
    pub(super) fn stands_at_hole(&self) -> bool {
        self.consumer.as_ref().is_some_and(Consumer::is_at_hole)
    }

    /// True if losses of the thread are to be told once it is quiet, or if its slow path may have
    /// been left by a jump.
    pub(super) fn is_unsettled(&self, slots: &Slots) -> bool {
        self.suspicious || self.consumer.is_some() && self.unreported_losses(slots) > 0
    }

    /// True if its owner has gone on to another ring.
    pub(super) fn is_left(&self) -> bool {
        self.left
    }

    /// Prepares for events with payloads.
    pub(super) fn expect_payloads(&mut self) {
        if let Some(consumer) = &mut self.consumer {
            consumer.expect_payloads();
        }
    }

    /// An upper bound of the unread bytes.
    pub(super) fn backlog(&self, slots: &Slots) -> u64 {
        let consumer = self.consumer.as_ref();
        consumer.map_or(0, |consumer| consumer.backlog(&slots.rings))
    }

    /// The losses that were not reported so far.
    pub(super) fn unreported_losses(&self, slots: &Slots) -> u64 {
        match &self.consumer {
            Some(consumer) => consumer.unreported_losses(&slots.rings),
            None => slots.unreported(self.index),
        }
    }

    /// Leaves the consumer's view for the next collector, once the ring's memory was given back.
    pub(super) fn leave_view(&self, slots: &Slots) {
        if let Some(consumer) = &self.consumer {
            consumer.leave_view(&slots.rings);
        }
    }

    /// Reads for one turn, and returns the number of words that it went on: those that it read, and
    /// those of holes.
    pub(super) fn read(
        &mut self,
        decoder: &mut ThreadDecoder,
        around: &Around<'_>,
        producer: Producer,
    ) -> u64 {
        self.begin_reading(around);
        let Some(consumer) = &mut self.consumer else {
            return 0;
        };
        let now = u64::try_from(around.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let rings = &around.slots.rings;
        let ring_bytes = around.slots.layout.geometry.ring_bytes();
        self.may_be_old &= around.dropped_until > Ticks(0);
        let step = match around.holds {
            true => MOST_STEP_WORDS.min(ring_bytes / 8 / (4 * HELD_PART)),
            false => around.turn_words,
        };
        let begin = consumer.cursor();
        while consumer.cursor() - begin < 8 * around.turn_words {
            let before = consumer.cursor();
            let mut sink = decoder.sink(around.sites, around.output);
            let drained = match self.may_be_old {
                false => consumer.drain(rings, producer, now, step, sink),
                true => {
                    let is_old = &mut self.may_be_old;
                    let sink = |item| {
                        *is_old &= !is_since(&item, around.dropped_until);
                        if !*is_old {
                            sink.take(item);
                        }
                    };
                    consumer.drain(rings, producer, now, step, sink)
                }
            };
            let is_old = decoder.settle(around.output);
            let held = consumer.held();
            let is_full = around.holds
                && (decoder.block_bytes() >= HELD_BLOCK_BYTES || held >= ring_bytes / HELD_PART);
            if is_full && drained.at_end {
                decoder.tell_early(ticks_now());
            }
            // The block may have words of the ring to which the thread has gone on. That ring
            // closes it, unless this one has late words (see `has_late_words`).
            let closes = match self.left && around.holds {
                true => drained.words > 0,
                false => is_old || is_full,
            };
            if closes {
                publish(consumer, decoder, around);
            }
            release(consumer, decoder, around);
            if drained.at_end || consumer.cursor() == before {
                break;
            }
        }
        (consumer.cursor() - begin) / 8
    }

    /// True if its owner has gone on to another ring, and an interrupted context has recorded in
    /// this one since. The block of the other ring must be closed before these words are read.
    pub(super) fn has_late_words(&self, slots: &Slots) -> bool {
        let consumer = self.consumer.as_ref().filter(|_| self.left);
        consumer.is_some_and(|consumer| consumer.has_word(&slots.rings))
    }

    /// Closes the block under way, and gives its words back.
    pub(super) fn close_block(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        match &mut self.consumer {
            Some(consumer) => {
                publish(consumer, decoder, around);
                release(consumer, decoder, around);
            }
            None => decoder.publish(around.output),
        }
    }

    /// Reads the rest, and reports the losses that no gap word has reported. It does not wait for
    /// holes, since the ring is given back or left.
    pub(super) fn read_all(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        // This many turns read everything that was there. A target that goes on writing would
        // otherwise never come to an end.
        for _ in 0..turns(around.slots.layout.geometry, around.turn_words) {
            if self.read(decoder, around, Producer::Gone) == 0 {
                break;
            }
        }
        self.tell_losses(decoder, around);
        if around.holds {
            // The ring is freed next, or another thread goes on in it.
            self.close_block(decoder, around);
        }
    }

    /// Reports the losses that no gap word has reported.
    fn tell_losses(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        if let Some(consumer) = &mut self.consumer {
            let sink = decoder.sink(around.sites, around.output);
            consumer.tell_losses(&around.slots.rings, sink);
        }
    }

    /// Reads the rest of a ring whose thread is gone, or records in it no more. No chunk is taken
    /// back any more, whatever the ring says.
    pub(super) fn read_last(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        if self.consumer.is_none() {
            let (rings, geometry) = (&around.slots.rings, around.slots.layout.geometry);
            newest::finish_taking(rings, geometry, self.index);
        }
        self.read_all(decoder, around);
        if self.consumer.is_none() {
            self.write_off(around);
        }
    }

    /// Notes that the owner has gone on to another ring. The events in this ring come before those
    /// in the other one. While rings keep the newest events, this ring's events are given up: there
    /// may be a gap before the events of the other ring.
    pub(super) fn leave(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        match around.newest {
            true => self.write_off(around),
            false => self.read_last(decoder, around),
        }
        self.left = true;
    }

    /// Counts everything that was written to the ring as overwritten, since the drain will not read
    /// it.
    fn write_off(&mut self, around: &Around<'_>) {
        if around.counts {
            let Unread { events, .. } = self.unread(around.slots);
            around.output.counters.add_overwritten(events);
        }
        self.forget_words(around.slots);
    }

    /// Notes that the owner has ended, and that another thread with the same id may stand in the
    /// ring for a moment more. The contents belong to the ended owner. They are read even while
    /// rings keep the newest events: no chunk of this ring is begun any more, so the other thread
    /// takes back no more than what was read.
    pub(super) fn leave_to_heir(
        &mut self,
        decoder: &mut ThreadDecoder,
        around: &Around<'_>,
        heir: Option<StartTime>,
    ) {
        self.read_all(decoder, around);
        self.left = self.consumer.is_some();
        self.began = heir;
        self.withdrawn = true;
    }

    /// Reports the losses of a thread that goes on and has recorded nothing since the last chore,
    /// if everything that it recorded was read. These are losses that no gap word has reported, and
    /// losses that no event has followed.
    pub(super) fn tell_if_quiet(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        let cursor = self.consumer.as_ref().map(Consumer::cursor);
        if !self.left && cursor == Some(self.cursor_seen) {
            self.tell_if_read(decoder, around);
        }
    }

    /// Does the same for any thread, even if it has recorded something since.
    pub(super) fn tell_if_read(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        let Some(consumer) = &mut self.consumer else {
            return;
        };
        let rings = &around.slots.rings;
        if consumer.unreported_losses(rings) == 0 && !decoder.has_early() {
            return;
        }
        let now = ticks_now();
        let sink = decoder.sink(around.sites, around.output);
        if consumer.tell_quiet_losses(rings, sink) {
            decoder.tell_early(now);
        }
    }

    /// Frees the memory that the thread does not need, if it has filled one chunk at most since the
    /// last call. See `shm_ring::Consumer::free_unused`. Returns true if it freed some.
    pub(super) fn free_unused(&mut self, slots: &Slots) -> bool {
        let Some(consumer) = &self.consumer else {
            return false;
        };
        let chunks = consumer.chunks_read();
        let more = chunks.saturating_sub(std::mem::replace(&mut self.chunks_seen, chunks));
        if more > 1 || chunks == self.chunks_freed || self.was_unstuck {
            return false;
        }
        let freed = consumer.free_unused(&slots.rings, |at, bytes| slots.free_emptied(at, bytes));
        if freed {
            self.chunks_freed = chunks;
        }
        freed
    }

    /// True if a signal handler has left the slow path by `longjmp` and it stays marked. The sign
    /// is that losses grow in a ring that has room, or in which its thread was to make room. To be
    /// called once per chore.
    pub(super) fn is_stuck(&mut self, slots: &Slots) -> bool {
        let geometry = slots.layout.geometry;
        let lost = slots.lost(self.index);
        let could_be = match &self.consumer {
            Some(consumer) => {
                let roomy = consumer.backlog(&slots.rings) < geometry.ring_bytes() / 2;
                let still = consumer.cursor() == self.cursor_seen;
                self.cursor_seen = consumer.cursor();
                roomy && still && slots.busy(self.index)
            }
            None => slots.busy(self.index) || newest::is_taken(&slots.rings, geometry, self.index),
        };
        let sign = could_be && lost > self.lost_seen;
        let stuck = sign && self.suspicious;
        // A thread may call rarely: a chore without losses does not show that the slow path was
        // left.
        self.suspicious = sign || could_be && self.suspicious;
        self.lost_seen = lost;
        stuck
    }

    /// Removes the marks of a stuck slow path.
    pub(super) fn unstick(&mut self, slots: &Slots) {
        self.was_unstuck = true;
        slots.clear_busy(self.index);
        if self.consumer.is_none() {
            newest::finish_taking(&slots.rings, slots.layout.geometry, self.index);
        }
    }
}

/// True if the item is an event at this moment or later.
fn is_since(item: &Item, since: Ticks) -> bool {
    match item {
        Item::Call { ticks, .. } => Ticks(*ticks) >= since,
        Item::Data(data) => Ticks(data.ticks) >= since,
        Item::Lost(_) | Item::Waited(_) => false,
    }
}

/// Closes the block under way. Before the block is archived, the ring gets a mark. If this daemon
/// is killed before it gives the words back, the next one skips them by the mark.
fn publish(consumer: &Consumer, decoder: &mut ThreadDecoder, around: &Around<'_>) {
    decoder.publish_after(around.output, |block| {
        if !consumer.is_saved() {
            consumer.mark(&around.slots.rings, fingerprint(block));
        }
    });
}

/// Gives back the words whose events are archived.
fn release(consumer: &mut Consumer, decoder: &ThreadDecoder, around: &Around<'_>) {
    if !consumer.is_saved() && !decoder.has_block() && !decoder.has_early() {
        consumer.release(&around.slots.rings);
    }
}
