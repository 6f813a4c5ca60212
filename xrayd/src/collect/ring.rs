//! One ring under way.

use std::time::Instant;

use shm_ring::{Consumer, Geometry, Producer, newest};

use super::{SiteTable, slots::Slots, thread_decoder::ThreadDecoder};
use crate::{store::EventStore, sys::ticks_now, target::StartTime};

/// Words read from one ring before the next one has its turn.
pub(super) const TURN_WORDS: u64 = 1 << 16;

/// Turns that read a ring which was full at the start, and a little more.
pub(super) fn turns(geometry: Geometry) -> u64 {
    geometry.ring_bytes() / 8 / TURN_WORDS + 2
}

/// A ring under way. What it yields goes into the decoder of its owner.
#[derive(Debug)]
pub(super) struct Ring {
    index: u32,
    /// `None` while it keeps the newest events by itself, and nobody reads it.
    consumer: Option<Consumer>,
    /// Whose it is, as the target knows it.
    pub(super) owner: u32,
    /// When that thread began: numbers are given out anew. `None` if that was not seen so far.
    pub(super) began: Option<StartTime>,
    /// Its slot was withdrawn. Its owner is not the thread that it was made for, and came to it
    /// before that.
    pub(super) withdrawn: bool,
    /// Its owner has gone on to another ring.
    left: bool,
    /// LOST at the last chore, to notice a slow path that a jump left.
    lost_seen: u64,
    /// Where the consumer stood then: in a ring that is merely overloaded it moves.
    cursor_seen: u64,
    /// A sign of that was seen at the last chore.
    suspicious: bool,
    /// What its thread has left out so far.
    left_out: u64,
    /// What was counted of its thread's calls so far, by the sites' numbers.
    counted: Vec<u64>,
    /// What it had been given when the session began, or when reading it ended.
    words_before: newest::Words,
    /// Of what it was given since, words that were looked at, and about how many events those are.
    words_seen: u64,
    events_seen: u64,
}

/// Estimate of the events that a ring was given and that no drain has read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unread {
    pub(super) events: u64,
    /// Those of them that are not there any more.
    pub(super) overwritten: u64,
}

/// What a ring is read with.
pub(super) struct Around<'a> {
    pub(super) slots: &'a Slots,
    pub(super) sites: &'a SiteTable,
    pub(super) output: &'a EventStore,
    /// When the drain was.
    pub(super) started: Instant,
    /// Rings keep the newest events by themselves.
    pub(super) newest: bool,
}

// === impl Ring ===

impl Ring {
    /// The ring of a thread, which nobody reads so far, and which was given `words_before` in an earlier session.
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
            counted: Vec::new(),
            left_out: 0,
            words_before,
            words_seen: 0,
            events_seen: 0,
        }
    }

    /// What its thread has left out since the last time.
    pub(super) fn take_left_out(&mut self, slots: &Slots) -> u64 {
        let now = slots.left_out(self.index);
        now.saturating_sub(std::mem::replace(&mut self.left_out, now))
    }

    /// What was counted since the last time, by the sites' numbers, of which the first `most` are looked at.
    pub(super) fn take_counts(&mut self, slots: &Slots, most: usize) -> Vec<(u64, u64)> {
        let numbered = usize::try_from(slots.numbered()).unwrap_or(0);
        // Never fewer than before: what was added up once would be added up again.
        let looked_at = numbered.min(most).max(self.counted.len());
        self.counted.resize(looked_at, 0);
        let counted = (0..).zip(&mut self.counted);
        let news = counted.filter_map(|(number, before)| {
            let now = slots.count_of(self.index, number);
            // Whatever stands there, it never grows by less than nothing.
            let more = now.saturating_sub(std::mem::replace(before, now));
            (more > 0).then_some((number, more))
        });
        news.collect()
    }

    /// From now on it is read, unless its thread takes a chunk of it back just now.
    pub(super) fn begin_reading(&mut self, around: &Around<'_>) {
        let (rings, geometry) = (&around.slots.rings, around.slots.layout.geometry);
        if self.consumer.is_some() || self.left || newest::is_taken(rings, geometry, self.index) {
            return;
        }
        let Unread { overwritten, .. } = self.unread(around.slots);
        around.output.overwritten(overwritten);
        (self.words_seen, self.events_seen) = (0, 0);
        let consumer = Consumer::resume(rings, geometry, self.index);
        self.consumer = Some(match around.sites.has_events() {
            true => consumer.with_payloads(),
            false => consumer,
        });
    }

    /// From now on its thread keeps the newest by itself.
    pub(super) fn end_reading(&mut self, slots: &Slots) {
        if self.consumer.take().is_some() {
            self.forget_words(slots);
        }
    }

    /// What it was given so far counts as unread no more.
    fn forget_words(&mut self, slots: &Slots) {
        self.words_before = newest::Words::of(&slots.rings, slots.layout.geometry, self.index);
        (self.words_seen, self.events_seen) = (0, 0);
    }

    /// What it was given since nobody reads it; nothing if somebody does.
    fn words(&self, slots: &Slots) -> newest::Words {
        match self.consumer {
            Some(_) => newest::Words::default(),
            None => newest::Words::of(&slots.rings, slots.layout.geometry, self.index)
                .since(self.words_before),
        }
    }

    /// About how many events that is. What has come since the last time is as much as the newest
    /// words say.
    pub(super) fn unread(&mut self, slots: &Slots) -> Unread {
        let words = self.words(slots);
        let more = words.begun.saturating_sub(self.words_seen);
        if more > 0 {
            let share = newest::EventShare::of(&slots.rings, slots.layout.geometry, self.index);
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

    /// Its owner has gone on to another ring.
    pub(super) fn is_left(&self) -> bool {
        self.left
    }

    /// Events may have payloads from now on.
    pub(super) fn expect_payloads(&mut self) {
        if let Some(consumer) = &mut self.consumer {
            consumer.expect_payloads();
        }
    }

    /// An upper bound of what waits to be read, in bytes.
    pub(super) fn backlog(&self, slots: &Slots) -> u64 {
        let consumer = self.consumer.as_ref();
        consumer.map_or(0, |consumer| consumer.backlog(&slots.rings))
    }

    /// Losses that were not told so far.
    pub(super) fn untold_losses(&self, slots: &Slots) -> u64 {
        match &self.consumer {
            Some(consumer) => consumer.untold_losses(&slots.rings),
            None => slots.untold(self.index),
        }
    }

    /// After its memory was given back.
    pub(super) fn leave_view(&self, slots: &Slots) {
        if let Some(consumer) = &self.consumer {
            consumer.leave_view(&slots.rings);
        }
    }

    /// One turn; returns the words read.
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
        let sink = decoder.sink(around.sites, around.output);
        let drained = consumer.drain(rings, producer, now, TURN_WORDS, sink);
        decoder.settle(around.output);
        drained.words
    }

    /// Reads what is left and tells the losses that no gap word told. A hole is not waited for: its ring is given back, or left.
    pub(super) fn read_all(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        // So many turns read everything that was there; a target that goes on writing is not waited for.
        for _ in 0..turns(around.slots.layout.geometry) {
            if self.read(decoder, around, Producer::Gone) == 0 {
                break;
            }
        }
        if let Some(consumer) = &mut self.consumer {
            let sink = decoder.sink(around.sites, around.output);
            consumer.tell_losses(&around.slots.rings, sink);
        }
    }

    /// The same of a thread that is gone, or records no more in this ring: no chunk is taken back,
    /// whatever the ring says.
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

    /// Its owner has gone on to another ring, and what it recorded here comes before what is there. While nobody reads, it is history that is
    /// over: what is in the other one may have a gap before it.
    pub(super) fn leave(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        match around.newest {
            true => self.write_off(around),
            false => self.read_last(decoder, around),
        }
        self.left = true;
    }

    /// What the ring was given so far will not be read: that counts as overwritten from now on.
    fn write_off(&mut self, around: &Around<'_>) {
        let Unread { events, .. } = self.unread(around.slots);
        around.output.overwritten(events);
        self.forget_words(around.slots);
    }

    /// Its owner has ended, and another thread with the same number may stand in it for a moment
    /// more. What it holds is the owner's, also while nobody reads along: no chunk of it is begun
    /// any more, so the most that the thread takes back is what was read.
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

    /// Tells the losses of a thread that goes on and has recorded nothing since the last chore, if all that it has recorded was
    /// read: those that no gap word has told, and those that no event has followed.
    pub(super) fn tell_if_quiet(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        let cursor = self.consumer.as_ref().map(Consumer::cursor);
        if !self.left && cursor == Some(self.cursor_seen) {
            self.tell_if_read(decoder, around);
        }
    }

    /// The same of any thread, whether it records or not.
    pub(super) fn tell_if_read(&mut self, decoder: &mut ThreadDecoder, around: &Around<'_>) {
        let Some(consumer) = &mut self.consumer else {
            return;
        };
        let rings = &around.slots.rings;
        if consumer.untold_losses(rings) == 0 && !decoder.has_early() {
            return;
        }
        let now = ticks_now();
        let sink = decoder.sink(around.sites, around.output);
        if consumer.tell_quiet_losses(rings, sink) {
            decoder.tell_early(now);
        }
    }

    /// Whether the slow path is marked that a handler has left by `longjmp`: losses grow in a ring that has room, or that its thread was to make
    /// room in. Asked once a chore.
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
        // A thread may call rarely: no loss since is no sign that the slow path was left.
        self.suspicious = sign || could_be && self.suspicious;
        self.lost_seen = lost;
        stuck
    }

    /// Takes the marks away.
    pub(super) fn unstick(&self, slots: &Slots) {
        slots.clear_busy(self.index);
        if self.consumer.is_none() {
            newest::finish_taking(&slots.rings, slots.layout.geometry, self.index);
        }
    }
}
