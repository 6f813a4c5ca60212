//! The decoder of one thread: turns what comes out of its ring into blocks, sums and matches of
//! triggers.
//!
//! It follows the open calls (`shadow_stack`), applies the filter (`event_filter`), and counts
//! events and losses. It does not read memory: the consumer of a ring calls it.
//!
//! | file | holds |
//! |---|---|
//! | `call_changes` | the change of the open calls from block to block |
//! | `observers` | profiles and triggers, which see decoded events |

mod call_changes;
mod observers;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use shm_ring::{Data, Item, Sink, word};
use xray_trace::{
    analysis::Profiler,
    container::{Block, BlockEncoder, ClosedBlock, OpenCall},
    event_format::RecordedData,
    model::{CallKind, DataKind, FunctionId, ThreadId, ThreadWait, Ticks, Values},
};

use self::{call_changes::CallChanges, observers::Observers};
use super::{
    CallSite, EventFilter, SiteKind, SiteTable,
    event_filter::KeptCalls,
    frame_budget::FrameBudget,
    sample::Counting,
    shadow_stack::{Exit, ShadowStack},
    switches::{Along, Switches},
    watch::Watch,
};
use crate::{
    store::{EventStore, EventUses, Handover, PublishedBlock},
    sys::ticks_now,
    triggers::TriggerMatcher,
};

/// A block is closed when its bytes reach this size…
const BLOCK_BYTES: usize = 48 << 10;
/// …or it is this old, so that readers of the live stream see events soon.
pub(super) const BLOCK_AGE: Duration = Duration::from_millis(100);

/// The decoder of one thread.
#[derive(Debug)]
pub(super) struct ThreadDecoder {
    /// The id of the thread in the trace.
    pub(super) thread: ThreadId,
    encoder: BlockEncoder,
    keeps: EventUses,
    beside: Observers,
    /// Events by function, while the governor has calls counted.
    counting: Option<Box<Counting>>,
    /// The open calls. Emptied by a loss.
    stacks: ShadowStack,
    /// Which open calls were kept. `None` while everything is and was kept.
    kept: Option<KeptCalls>,
    /// True if nothing of this thread is kept. Its filter keeps nothing meanwhile.
    pub(super) muted: bool,
    /// When functions were switched, and this thread's progress along that.
    switches: Arc<Switches>,
    along: Along,
    /// Time of the last event; 0 before the first one. Time does not run backwards in a thread. The
    /// events of a signal handler come before the event that it interrupted.
    last: u64,
    /// Losses before the first event. They wait for its time. Emptied by it or by `tell_early`.
    early: u64,
    /// The begin of the block under way.
    begun: Option<Instant>,
    /// The age at which a block is closed.
    pub(super) block_age: Duration,
    /// User events in the block under way.
    user_events: u32,
    /// The changes of the open calls since the last block.
    changes: CallChanges,
    /// Events and losses since the last call of `settle`.
    tally: (u64, u64),
    /// Events among them that were left out.
    filtered: u64,
    /// The time of the event before the first wait in a full ring since the last block, and the
    /// ticks of all waits since then.
    wait: Option<(u64, u64)>,
}

/// The input of a decoder: what comes out of a ring.
pub(super) struct DecoderSink<'a> {
    decoder: &'a mut ThreadDecoder,
    sites: &'a SiteTable,
    output: &'a EventStore,
    /// See [`ThreadDecoder::call`].
    plain: bool,
}

// === impl DecoderSink ===

impl Sink for DecoderSink<'_> {
    #[expect(
        clippy::inline_always,
        reason = "the collector's innermost loop, of which the compiler makes calls and copies otherwise"
    )]
    #[inline(always)]
    fn take(&mut self, item: Item) {
        let Self {
            decoder,
            sites,
            output,
            plain,
        } = self;
        match item {
            Item::Call {
                site,
                ticks,
                sp,
                argument,
            } => match sites.find(site, Ticks(ticks)) {
                Some(&CallSite {
                    function,
                    kind: SiteKind::Call(kind),
                    ..
                }) => match plain {
                    true => decoder.call::<true>((ticks, sp), function, kind, argument, output),
                    false => decoder.call::<false>((ticks, sp), function, kind, argument, output),
                },
                // The word is garbled, or older than every known meaning of its name.
                _ => decoder.lose(1),
            },
            Item::Data(data) => decoder.take_data(&data, sites, output),
            Item::Lost(count) => decoder.lose(count),
            Item::Waited(ticks) => decoder.note_wait(ticks.into()),
        }
        if decoder.encoder.encoded_len() >= BLOCK_BYTES {
            decoder.publish(output);
        }
    }
}

// === impl ThreadDecoder ===

impl ThreadDecoder {
    /// The decoder of a thread. Its losses were last reported at `reported`; 0 if there were none.
    pub(super) fn new(
        thread: ThreadId,
        reported: Ticks,
        room: &FrameBudget,
        switches: Arc<Switches>,
    ) -> Self {
        Self {
            thread,
            keeps: EventUses {
                blocks: true,
                sums: false,
                counts: true,
            },
            beside: Observers::default(),
            counting: None,
            switches,
            along: Along::new(),
            encoder: BlockEncoder::new(thread),
            stacks: ShadowStack::new(room),
            kept: None,
            muted: false,
            last: reported.0,
            early: 0,
            begun: None,
            block_age: BLOCK_AGE,
            user_events: 0,
            changes: CallChanges::default(),
            tally: (0, 0),
            filtered: 0,
            wait: None,
        }
    }

    /// The input for what comes out of the ring.
    pub(super) fn sink<'a>(
        &'a mut self,
        sites: &'a SiteTable,
        output: &'a EventStore,
    ) -> DecoderSink<'a> {
        DecoderSink {
            plain: self.keeps.blocks
                && self.keeps.counts
                && self.kept.is_none()
                && self.beside.0.is_none()
                && self.counting.is_none(),
            decoder: self,
            sites,
            output,
        }
    }

    /// Handles the begin or end of a call. In the common case it is `PLAIN`: every event goes into
    /// a block, and there are no observers.
    #[expect(clippy::inline_always, reason = "as `DecoderSink::take`")]
    #[inline(always)]
    fn call<const PLAIN: bool>(
        &mut self,
        (ticks, sp): (u64, u64),
        function: FunctionId,
        kind: CallKind,
        values: impl Into<Values> + Copy,
        output: &EventStore,
    ) {
        if !PLAIN {
            self.count(function, SiteKind::Call(kind), ticks);
        }
        self.pass(ticks);
        self.drop_suspects();
        let kept = self.follow::<PLAIN>(function, kind, sp);
        if kind == CallKind::Enter && (self.changes.has_args() || !values.into().is_empty()) {
            self.changes.note_args(&self.stacks, values.into());
        }
        if !kept {
            self.filtered += 1;
        } else if PLAIN || self.keeps.blocks {
            self.encoder
                .push_call(Ticks(self.last), function, kind, values);
        }
        let counts = PLAIN || self.keeps.counts;
        self.tally.0 += u64::from(counts);
        if counts && kind == CallKind::Enter {
            output.counts.count_call(function);
        } else {
            output.counts.mark_seen(function);
        }
    }

    /// Handles a payload: a user event, or the values of registers at a call.
    #[cold]
    fn take_data(&mut self, data: &Data, sites: &SiteTable, output: &EventStore) {
        let Data {
            site,
            ticks,
            sp,
            kind,
            size,
            ref bytes,
        } = *data;
        let Some(&CallSite {
            function,
            kind: happens,
            ..
        }) = sites.find(site, Ticks(ticks))
        else {
            return self.lose(1);
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "types are numbers of 16 bits: xray_interface.h, __xray_register_event_type. Of a greater one, which no \
                         registration has given, the low 16 are kept"
        )]
        let kind = match happens {
            SiteKind::Custom => DataKind::Custom,
            SiteKind::Typed => DataKind::Typed(kind as u16),
            SiteKind::Call(call) if kind == word::VALUES => {
                let values = values_at(call, bytes);
                return self.call::<false>((ticks, sp), function, call, values, output);
            }
            SiteKind::Call(_) => return self.lose(1),
        };
        if let DataKind::Typed(number) = kind {
            output.meet_event_type(number);
        }
        self.count(function, happens, ticks);
        self.pass(ticks);
        self.drop_suspects();
        let over = self.stacks.pass(sp);
        self.unwind(over);
        self.tally.0 += u64::from(self.keeps.counts);
        output.counts.mark_seen(function);
        let kept = self.kept.as_ref();
        if kept.is_some_and(|kept| !kept.keeps(function, self.last)) {
            self.filtered += 1;
            return;
        }
        if self.keeps.blocks {
            self.encoder
                .push_user_event(Ticks(self.last), kind, Some(function), size, bytes);
            self.user_events += 1;
        }
        if let Some(beside) = &mut self.beside.0 {
            let number = match kind {
                DataKind::Typed(number) => Some(number),
                DataKind::Custom | DataKind::Kernel(_) => None,
            };
            let depth = self.stacks.depth();
            let data = RecordedData::of_size(bytes, size.into());
            beside.user_event((number, data), function, self.last, depth);
        }
    }

    fn count(&mut self, function: FunctionId, kind: SiteKind, ticks: u64) {
        if let Some(counting) = &mut self.counting {
            counting.take(function, kind, ticks);
        }
    }

    /// Begins to count events by function, or stops. Returns what was counted so far.
    pub(super) fn count_events(&mut self, within: Option<Counting>) -> Option<Counting> {
        let before = std::mem::replace(&mut self.counting, within.map(Box::new));
        before.map(|counting| *counting)
    }

    /// Reports the counts to the event store. Returns true if the block under way is old, and is to
    /// be closed.
    pub(super) fn settle(&mut self, output: &EventStore) -> bool {
        self.stacks.tidy();
        let (events, lost) = std::mem::take(&mut self.tally);
        output.count(self.thread, events, lost);
        output
            .counters
            .add_filtered(std::mem::take(&mut self.filtered));
        if self.kept.as_ref().is_some_and(KeptCalls::is_over) {
            self.kept = None;
        }
        if self.encoder.is_empty() {
            return false;
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        begun.elapsed() >= self.block_age
    }

    /// The bytes of the block under way.
    pub(super) fn block_bytes(&self) -> usize {
        self.encoder.encoded_len()
    }

    /// Closes the block under way.
    pub(super) fn publish(&mut self, output: &EventStore) {
        self.publish_after(output, |_| ());
    }

    /// The same. The block is not archived before `see` has returned.
    pub(super) fn publish_after(&mut self, output: &EventStore, see: impl FnOnce(&Block)) {
        self.begun = None;
        if let Some(closed) = self.encoder.close() {
            see(&closed.block);
            let user_events = std::mem::take(&mut self.user_events);
            let stack = self.changes.take(&mut self.stacks, self.kept.as_ref());
            let closed = ClosedBlock { stack, ..closed };
            let wait = self.take_wait(closed.block.first, closed.block.last);
            let published = PublishedBlock::new(closed, user_events);
            output.publish(PublishedBlock { wait, ..published });
        }
    }

    /// Notes that the thread has waited in its full ring, after the last event and before the next
    /// one.
    #[cold]
    fn note_wait(&mut self, ticks: u64) {
        let (_, waited) = self.wait.get_or_insert((self.last, 0));
        *waited = waited.saturating_add(ticks);
    }

    /// The waits before the events from `first` to `until`, unless no event has followed on them.
    fn take_wait(&mut self, first: Ticks, until: Ticks) -> Option<ThreadWait> {
        let (from, waited) = self.wait.take_if(|(from, _)| *from < until.0)?;
        // No event came before the wait.
        let from = if from == 0 {
            first.0.saturating_sub(waited)
        } else {
            from
        };
        Some(ThreadWait {
            thread: self.thread,
            from: Ticks(from),
            until,
            waited: waited.min(until.0 - from),
        })
    }

    /// Forgets the open calls. The next events do not continue the last ones.
    pub(super) fn restart(&mut self, output: &EventStore) {
        self.publish(output);
        self.forget_calls();
        self.changes
            .begin_anew(&mut self.stacks, self.kept.as_ref());
        if let Some(beside) = &mut self.beside.0 {
            beside.end();
        }
    }

    /// Sets the filter for the next events; `None` keeps all.
    pub(super) fn filter(&mut self, keep: Option<Arc<EventFilter>>) {
        if keep.is_some() || self.kept.is_some() {
            let open = self.stacks.depth();
            let kept = self.kept.get_or_insert_with(|| KeptCalls::new(open));
            kept.keep(keep);
        }
    }

    /// Sets what becomes of events. Hands over the sums first.
    pub(super) fn keep(&mut self, keeps: EventUses, output: &EventStore) {
        if self.keeps.blocks && !keeps.blocks {
            self.publish(output);
        }
        if keeps.sums != self.keeps.sums {
            self.hand_over(output);
            let room = output.profiles.room();
            let profiler = keeps.sums.then(|| Profiler::new(room));
            self.beside.change(|beside| beside.profiler = profiler);
        }
        if !self.keeps.blocks && keeps.blocks {
            self.changes
                .begin_anew(&mut self.stacks, self.kept.as_ref());
        }
        self.keeps = keeps;
    }

    /// Sets the triggers that watch the thread.
    pub(super) fn watch(&mut self, armed: &[Arc<TriggerMatcher>]) {
        let thread = self.thread;
        self.beside.change(|beside| {
            let before = beside.watch.take();
            let watched = !armed.is_empty();
            beside.watch = watched.then(|| Watch::new(thread, armed, before));
        });
    }

    /// Hands over the sums since the last call.
    pub(super) fn hand_over(&mut self, output: &EventStore) {
        if let Some(profiler) = self.beside.profiler() {
            let sums = profiler.take();
            if !sums.is_empty() {
                output.hand_over_events(self.thread, Handover::Interim, &sums);
            }
        }
    }

    /// The kept calls that are open at `now`, as far as the events that were read show it,
    /// outermost first. `None` if there was no room to follow them.
    pub(super) fn open_calls(&self, now: Ticks) -> Option<Vec<OpenCall>> {
        let switched = self.along.switched(now, &self.switches);
        let open = self
            .stacks
            .certain(|function| switched.contains(function))?;
        let call = |(function, start)| OpenCall {
            function,
            start,
            args: Values::NONE,
        };
        Some(match &self.kept {
            None => open.map(call).collect(),
            Some(kept) => {
                let kept = open.zip(kept.calls()).filter(|(_, kept)| *kept);
                kept.map(|(open, _)| call(open)).collect()
            }
        })
    }

    /// True while a block is under way.
    pub(super) fn has_block(&self) -> bool {
        !self.encoder.is_empty()
    }

    /// True if losses wait for an event.
    pub(super) fn has_early(&self) -> bool {
        self.early > 0
    }

    /// Reports the losses that no event has followed, as of `now`. To be called when everything in
    /// the ring at that time was read.
    pub(super) fn tell_early(&mut self, Ticks(now): Ticks) {
        if self.early > 0 {
            self.pass(now);
        }
    }

    /// Ends the thread, and closes its block.
    pub(super) fn end(&mut self, output: &EventStore) {
        self.tell_early(ticks_now());
        self.settle(output);
        self.publish(output);
        if let Some(profiler) = self.beside.profiler() {
            profiler.end();
            let sums = profiler.take();
            output.hand_over_events(self.thread, Handover::Last, &sums);
        }
    }

    /// Advances the time to an event at `ticks`, which comes next.
    #[inline]
    fn pass(&mut self, ticks: u64) {
        self.last = ticks.max(self.last);
        if self.early > 0 {
            let early = std::mem::take(&mut self.early);
            self.tell_loss(early);
        }
    }

    /// Drops the calls that may have ended while their functions were off, before this event.
    #[inline]
    fn drop_suspects(&mut self) {
        if self.last >= self.along.look_at {
            self.along.meet(self.last, &self.switches, &mut self.stacks);
        }
        let over = self.stacks.drop_suspects();
        self.unwind(over);
    }

    /// Follows a call's begin or end: ends the calls that the stack shows to be over. True if the
    /// event is kept.
    #[expect(clippy::inline_always, reason = "as `DecoderSink::take`")]
    #[inline(always)]
    fn follow<const PLAIN: bool>(&mut self, function: FunctionId, kind: CallKind, sp: u64) -> bool {
        if kind == CallKind::Enter {
            let over = self.stacks.enter(function, sp, self.last);
            self.unwind(over);
            if PLAIN {
                return true;
            }
            let kept = match &mut self.kept {
                Some(kept) => kept.enter(function, self.last),
                None => true,
            };
            if kept && let Some(beside) = &mut self.beside.0 {
                beside.enter(function, self.last, self.stacks.depth());
            }
            return kept;
        }
        let shown = self.stacks.exit(function, sp);
        self.unwind(shown.over);
        if !PLAIN
            && let Some(kept) = &mut self.kept
            && !kept.exit(self.stacks.depth(), function, self.last)
        {
            return false;
        }
        if shown.of != Exit::Innermost {
            self.changes.irregular = true;
        }
        let unmatched_exit = shown.of == Exit::Unmatched;
        if unmatched_exit && (PLAIN || self.keeps.blocks) {
            self.encoder.push_unmatched_exit(Ticks(self.last));
        }
        if !PLAIN && let Some(beside) = &mut self.beside.0 {
            beside.exit(function, self.last, shown.of, self.stacks.depth());
        }
        true
    }

    #[inline]
    fn unwind(&mut self, calls: u64) {
        if calls > 0 {
            self.tell_unwinding(calls);
        }
    }

    #[cold]
    fn tell_unwinding(&mut self, calls: u64) {
        let calls = match &mut self.kept {
            Some(kept) => kept.leave(calls),
            None => calls,
        };
        if calls == 0 {
            return;
        }
        if self.keeps.blocks {
            self.encoder.push_unwound(Ticks(self.last), calls);
        }
        let last = self.last;
        if let Some(profiler) = self.beside.profiler() {
            profiler.unwind(calls, last);
        }
    }

    #[cold]
    fn tell_loss(&mut self, count: u64) {
        self.changes.irregular = true;
        if self.keeps.blocks {
            self.encoder.push_lost(Ticks(self.last), count);
        }
        if let Some(beside) = &mut self.beside.0 {
            beside.lose(count);
        }
    }

    fn forget_calls(&mut self) {
        self.stacks.clear();
        self.changes.forget_calls();
        if let Some(kept) = &mut self.kept {
            kept.clear();
        }
    }

    #[cold]
    fn lose(&mut self, count: u64) {
        self.forget_calls();
        if let Some(counting) = &mut self.counting {
            counting.lose(count);
        }
        self.tally.1 = self.tally.1.saturating_add(count);
        if self.last == 0 {
            self.early = self.early.saturating_add(count);
        } else {
            self.tell_loss(count);
        }
    }
}

/// The register values in a payload, limited to the number that such an event has.
fn values_at(kind: CallKind, bytes: &[u8]) -> Values {
    let most = match kind {
        CallKind::Enter => Values::MOST,
        CallKind::Exit => 1,
        CallKind::TailExit => 0,
    };
    let values = bytes.as_chunks().0.iter().take(most);
    Values::new(values.map(|value| u64::from_le_bytes(*value)))
}
