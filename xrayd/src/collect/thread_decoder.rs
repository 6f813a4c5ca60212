//! The decoder of one thread: turns what comes out of its ring into blocks, sums and hits of
//! triggers.
//!
//! It follows the open calls (`shadow_stack`), applies the filter (`keep`), and counts events and
//! losses. It does not read memory: the consumer of a ring calls it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use shm_ring::{Data, Item, Sink, word};
use xray_trace::{
    analysis::Profiler,
    container::{BegunCalls, BlockEncoder, ClosedBlock, OpenCall, StackChange},
    model::{CallKind, DataKind, FunctionId, ThreadId, Ticks, Values},
};

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
    store::{EventStore, EventUses, PublishedBlock},
    sys::ticks_now,
    triggers::TriggerMatcher,
};

/// A block is closed when its bytes reach this size…
const BLOCK_BYTES: usize = 48 << 10;
/// …or it is this old, so that readers of the live stream see events soon.
const BLOCK_AGE: Duration = Duration::from_millis(100);

/// The most open calls whose arguments are remembered: 64 KiB.
const MOST_ARGS: usize = 1024;

/// The decoder of one thread.
#[derive(Debug)]
pub(super) struct ThreadDecoder {
    thread: ThreadId,
    encoder: BlockEncoder,
    keeps: EventUses,
    /// Optional observers of decoded events; `None` in the common case.
    beside: Option<Observers>,
    /// Events by function, while the governor has calls counted.
    counting: Option<Box<Counting>>,
    /// The open calls. Emptied by a loss.
    stacks: ShadowStack,
    /// Which open calls were kept. `None` while everything is and was kept.
    kept: Option<KeptCalls>,
    /// True if nothing of this thread is kept.
    muted: bool,
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
    /// User events in the block under way.
    user_events: u32,
    /// The open calls since the last block.
    since_block: SinceBlock,
    /// The arguments of open calls that have any, by their places in the shadow stack.
    args: Vec<(usize, Values)>,
    /// Events and losses since the last call of `settle`.
    tally: (u64, u64),
    /// Events among them that were left out.
    filtered: u64,
}

/// The open calls at the begin of a block, and what hides the changes since.
#[derive(Debug, Default)]
struct SinceBlock {
    /// The number of kept calls that were open when the last block was closed.
    before: u64,
    /// True if all events since then are in the block under way.
    continues: bool,
    /// True if an exit belonged to no open call, or events were lost.
    irregular: bool,
    /// True if arguments of an open call were not remembered. Reset when none are.
    lacks_args: bool,
}

/// The observers of decoded events beside the readers of blocks. At least one is there.
#[derive(Debug, Default)]
struct Observers {
    /// Present while events are added up.
    profiler: Option<Profiler>,
    /// Present while triggers are armed.
    watch: Option<Watch>,
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
        }
        if decoder.encoder.encoded_len() >= BLOCK_BYTES {
            decoder.publish(output);
        }
    }
}

// === impl ThreadDecoder ===

impl ThreadDecoder {
    /// The decoder of a thread. `told` is the time of its losses that were reported last; 0 if
    /// there were none.
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
            },
            beside: None,
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
            user_events: 0,
            since_block: SinceBlock::default(),
            args: Vec::new(),
            tally: (0, 0),
            filtered: 0,
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
                && self.kept.is_none()
                && self.beside.is_none()
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
        if kind == CallKind::Enter && !(self.args.is_empty() && values.into().is_empty()) {
            self.note_args(values.into());
        }
        if !kept {
            self.filtered += 1;
        } else if PLAIN || self.keeps.blocks {
            self.encoder
                .push_call(Ticks(self.last), function, kind, values);
        }
        self.tally.0 += 1;
        if kind == CallKind::Enter {
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
            output.event_types.meet(number);
        }
        self.count(function, happens, ticks);
        self.pass(ticks);
        self.drop_suspects();
        let over = self.stacks.pass(sp);
        self.unwind(over);
        self.tally.0 += 1;
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
        if let Some(beside) = &mut self.beside {
            let number = match kind {
                DataKind::Typed(number) => Some(number),
                DataKind::Custom => None,
            };
            beside.say(number, function, self.last, self.stacks.depth());
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

    /// Reports the counts to the event store, and closes the block if it is old.
    pub(super) fn settle(&mut self, output: &EventStore) {
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
            return;
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if begun.elapsed() >= BLOCK_AGE {
            self.publish(output);
        }
    }

    /// Closes the block under way.
    pub(super) fn publish(&mut self, output: &EventStore) {
        self.begun = None;
        if let Some(closed) = self.encoder.close() {
            let user_events = std::mem::take(&mut self.user_events);
            let stack = self.stack_change();
            let closed = ClosedBlock { stack, ..closed };
            output.publish(PublishedBlock::new(closed, user_events));
        }
    }

    /// The change of the kept open calls since the last block. `None` if it is not known.
    fn stack_change(&mut self) -> Option<StackChange> {
        let SinceBlock {
            before,
            continues,
            irregular,
            lacks_args,
        } = self.since_block;
        let least = self.stacks.take_least();
        let open = self.stacks.calls().len();
        self.drop_args(open);
        self.since_block = SinceBlock {
            before: self.kept_open(),
            continues: true,
            irregular: false,
            lacks_args: lacks_args && !self.args.is_empty(),
        };
        let least = least.filter(|_| !lacks_args)?;
        let places = self.stacks.calls().enumerate().skip(least);
        let begun = places.map(|(place, (function, start))| OpenCall {
            function,
            start,
            args: self.args_at(place),
        });
        let (kept, begun) = match &self.kept {
            None => (least as u64, BegunCalls::new(begun)),
            Some(kept) => {
                let mut flags = kept.calls();
                let outermost = flags.by_ref().take(least).filter(|kept| *kept).count();
                let begun = begun.zip(flags).filter(|(_, kept)| *kept);
                let begun = BegunCalls::new(begun.map(|(call, _)| call));
                (outermost as u64, begun)
            }
        };
        Some(StackChange {
            before,
            kept,
            begun,
            nests: !irregular,
            continues,
        })
    }

    /// The number of kept calls that are open and have room.
    fn kept_open(&self) -> u64 {
        let open = self.stacks.calls().len();
        match &self.kept {
            None => open as u64,
            Some(kept) => kept.calls().take(open).filter(|kept| *kept).count() as u64,
        }
    }

    /// Begins to follow the open calls anew: events since the last block are in no block.
    fn follow_anew(&mut self) {
        // The change since the last block has no reader.
        self.stack_change();
        self.since_block.continues = false;
    }

    /// Notes the arguments of the call that has just begun.
    #[cold]
    fn note_args(&mut self, args: Values) {
        let Some(place) = self.stacks.calls().len().checked_sub(1) else {
            return;
        };
        self.drop_args(place);
        if args.is_empty() {
            return;
        }
        if self.args.len() < MOST_ARGS {
            self.args.push((place, args));
        } else {
            self.since_block.lacks_args = true;
        }
    }

    /// Forgets the arguments of calls from this place on.
    fn drop_args(&mut self, place: usize) {
        while self.args.pop_if(|(its, _)| *its >= place).is_some() {}
    }

    fn args_at(&self, place: usize) -> Values {
        let at = self.args.binary_search_by_key(&place, |(its, _)| *its);
        at.map_or(Values::NONE, |at| self.args[at].1)
    }

    /// Forgets the open calls. The next events do not continue the last ones.
    pub(super) fn restart(&mut self, output: &EventStore) {
        self.publish(output);
        self.forget_calls();
        self.follow_anew();
        if let Some(beside) = &mut self.beside {
            beside.end();
        }
    }

    /// Sets the filter for the next events; `None` keeps all.
    pub(super) fn filter(&mut self, keep: Option<Arc<EventFilter>>, muted: bool) {
        self.muted = muted;
        let keep = match muted {
            true => Some(Arc::new(EventFilter::nothing())),
            false => keep,
        };
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
            self.show_to(|beside| beside.profiler = profiler);
        }
        if !self.keeps.blocks && keeps.blocks {
            self.follow_anew();
        }
        self.keeps = keeps;
    }

    /// Sets the triggers that watch the thread.
    pub(super) fn watch(&mut self, armed: &[Arc<TriggerMatcher>]) {
        let thread = self.thread;
        self.show_to(|beside| {
            let before = beside.watch.take();
            let watched = !armed.is_empty();
            beside.watch = watched.then(|| Watch::new(thread, armed, before));
        });
    }

    fn show_to(&mut self, change: impl FnOnce(&mut Observers)) {
        let mut beside = self.beside.take().unwrap_or_default();
        change(&mut beside);
        let anybody = beside.profiler.is_some() || beside.watch.is_some();
        self.beside = anybody.then_some(beside);
    }

    fn profiler(&mut self) -> Option<&mut Profiler> {
        self.beside.as_mut()?.profiler.as_mut()
    }

    /// Hands over the sums since the last call.
    pub(super) fn hand_over(&mut self, output: &EventStore) {
        if let Some(profiler) = self.profiler() {
            let sums = profiler.take();
            if !sums.is_empty() {
                output.hand_over(self.thread, false, &sums);
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

    /// True if nothing of this thread is kept.
    pub(super) fn is_muted(&self) -> bool {
        self.muted
    }

    /// The id of the thread in the trace.
    pub(super) fn thread(&self) -> ThreadId {
        self.thread
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
        if let Some(profiler) = self.profiler() {
            profiler.end();
            let sums = profiler.take();
            output.hand_over(self.thread, true, &sums);
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
            if kept && let Some(beside) = &mut self.beside {
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
            self.since_block.irregular = true;
        }
        let unmatched_exit = shown.of == Exit::Unmatched;
        if unmatched_exit && (PLAIN || self.keeps.blocks) {
            self.encoder.push_unmatched_exit(Ticks(self.last));
        }
        if !PLAIN && let Some(beside) = &mut self.beside {
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
        if let Some(profiler) = self.profiler() {
            profiler.unwind(calls, last);
        }
    }

    #[cold]
    fn tell_loss(&mut self, count: u64) {
        self.since_block.irregular = true;
        if self.keeps.blocks {
            self.encoder.push_lost(Ticks(self.last), count);
        }
        if let Some(beside) = &mut self.beside {
            beside.lose(count);
        }
    }

    fn forget_calls(&mut self) {
        self.stacks.clear();
        self.args.clear();
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

// === impl Observers ===

impl Observers {
    /// A call begins, with which `depth` calls are open.
    #[inline]
    fn enter(&mut self, function: FunctionId, at: u64, depth: u64) {
        if let Some(profiler) = &mut self.profiler {
            profiler.enter(function, at);
        }
        if let Some(watch) = &mut self.watch {
            watch.enter(function, Ticks(at), depth);
        }
    }

    /// An open call ends, or there is an unmatched exit. Then `depth` calls are open.
    #[inline]
    fn exit(&mut self, function: FunctionId, at: u64, of: Exit, depth: u64) {
        match &mut self.profiler {
            Some(profiler) if of == Exit::Unmatched => {
                profiler.pass(at);
                profiler.unmatched_exit();
            }
            Some(profiler) => profiler.exit(function, at),
            None => {}
        }
        match &mut self.watch {
            Some(watch) if of == Exit::Innermost => watch.exit(function, Ticks(at), depth),
            Some(watch) => watch.close(depth),
            None => {}
        }
    }

    /// A user event within `depth` calls. A typed event has a number.
    fn say(&mut self, number: Option<u16>, function: FunctionId, at: u64, depth: u64) {
        if let Some(profiler) = &mut self.profiler {
            profiler.pass(at);
        }
        if let Some(watch) = &mut self.watch {
            watch.say(number, function, Ticks(at), depth);
        }
    }

    fn lose(&mut self, events: u64) {
        if let Some(profiler) = &mut self.profiler {
            profiler.lose(events);
        }
        if let Some(watch) = &mut self.watch {
            watch.close(0);
        }
    }

    /// Nothing is known of open calls any more.
    fn end(&mut self) {
        if let Some(profiler) = &mut self.profiler {
            profiler.end();
        }
        if let Some(watch) = &mut self.watch {
            watch.close(0);
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

#[cfg(test)]
mod tests {
    use xray_trace::model::{EventBody, ProcessId};

    use super::*;

    /// The contents of a ring come from the target.
    #[test]
    fn no_payload_decodes_to_more_values_than_a_call_has() {
        let bytes: Vec<u8> = (0..100).collect();
        let first = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        for (kind, len, count) in [
            (CallKind::Enter, 0, 0),
            (CallKind::Enter, 7, 0),
            (CallKind::Enter, 17, 2),
            (CallKind::Enter, 48, 6),
            (CallKind::Enter, 100, 6),
            (CallKind::Exit, 100, 1),
            (CallKind::TailExit, 100, 0),
        ] {
            let values = values_at(kind, &bytes[..len]);
            assert_eq!(values.len(), count, "{kind:?} of {len} bytes");
            assert_eq!(values.first(), (count > 0).then_some(first));
        }
    }

    /// Losses wait for the time of the first event, but no longer than until everything is read.
    #[test]
    fn losses_before_the_first_event_are_reported_once() {
        let mut sites = SiteTable::new();
        let site = CallSite {
            name: 0x1007,
            function: FunctionId(0),
            kind: SiteKind::Call(CallKind::Enter),
        };
        assert!(sites.insert(site, Ticks(0)));
        let event = |ticks| Item::Call {
            site: 0x1007,
            ticks,
            sp: 0x7000,
            argument: None,
        };
        let rows: [&[Item]; 5] = [
            &[Item::Lost(5)],
            &[Item::Lost(5), Item::Lost(2)],
            &[Item::Lost(5), event(100)],
            &[event(100), Item::Lost(5)],
            &[Item::Lost(5), event(100), Item::Lost(2), event(200)],
        ];
        for items in rows {
            let losses = items.iter().map(|item| match item {
                Item::Lost(count) => *count,
                _ => 0,
            });
            let expected: u64 = losses.sum();
            for read in 0..=items.len() {
                let output = EventStore::new(ProcessId(0), 1, 1 << 20);
                let thread = output.new_thread(1, String::new());
                let mut decoder =
                    ThreadDecoder::new(thread, Ticks(0), &FrameBudget::new(), Arc::default());
                for (at, item) in items.iter().enumerate() {
                    if at == read {
                        decoder.tell_early(ticks_now());
                    }
                    decoder.sink(&sites, &output).take(item.clone());
                }
                if read == items.len() {
                    decoder.tell_early(ticks_now());
                    decoder.publish(&output);
                } else {
                    decoder.end(&output);
                }
                decoder.settle(&output);
                let blocks = output.snapshot().blocks;
                let reported: u64 = blocks.iter().map(|block| block.lost).sum();
                assert_eq!(reported, expected, "{items:?}, all read after {read}");
                assert_eq!(output.counters().lost, expected);
                let order = blocks.iter().flat_map(|block| [block.first, block.last]);
                assert!(order.is_sorted());
            }
        }
    }

    /// A call is open when its function is switched off. Another call in its place returns when the
    /// function is on again. That exit does not end the first call. It makes no difference whether
    /// the switch is known before or after the decoder's last look.
    #[test]
    fn an_exit_after_a_switch_is_not_that_of_an_entry_before_it() {
        for looked in [false, true] {
            for switched in [false, true] {
                let mut sites = SiteTable::new();
                for (name, kind) in [(0x1007, CallKind::Enter), (0x2007, CallKind::Exit)] {
                    let site = CallSite {
                        name,
                        function: FunctionId(7),
                        kind: SiteKind::Call(kind),
                    };
                    assert!(sites.insert(site, Ticks(0)));
                }
                let switches = Arc::new(Switches::default());
                let output = EventStore::new(ProcessId(0), 8, 1 << 20);
                let thread = output.new_thread(1, String::new());
                let mut decoder = ThreadDecoder::new(
                    thread,
                    Ticks(0),
                    &FrameBudget::new(),
                    Arc::clone(&switches),
                );
                let call = |site, ticks: Ticks| Item::Call {
                    site,
                    ticks: ticks.0,
                    sp: 0x7000,
                    argument: None,
                };
                let enter = call(0x1007, ticks_now());
                if looked {
                    decoder.sink(&sites, &output).take(enter.clone());
                }
                // Of a neighbour, and of a function that was off.
                switches.mark(&[FunctionId(6), FunctionId(8)]);
                if switched {
                    switches.mark(&[FunctionId(3), FunctionId(7)]);
                }
                if !looked {
                    decoder.sink(&sites, &output).take(enter);
                }
                decoder
                    .sink(&sites, &output)
                    .take(call(0x2007, ticks_now()));
                decoder.end(&output);
                let blocks = output.snapshot().blocks;
                let events = blocks.iter().flat_map(|block| block.events());
                let bodies: Vec<EventBody> = events.map(|event| event.unwrap().body).collect();
                let left = bodies.contains(&EventBody::Unwound { calls: 1 });
                assert_eq!(left, switched, "{bodies:?}");
            }
        }
    }
}
