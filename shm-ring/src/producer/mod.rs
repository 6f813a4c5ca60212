//! The reference producer: the steps of the trampolines, in Rust, one access to memory at a time.
//!
//! It exists to test the consumer, and to explore what signal handlers and the consumer can do
//! between any two accesses: [`Recording::step`] makes one of them. No target runs it. It must
//! agree with `sled-encoders/src/x86_64/trampoline/`. The steps have the names of that code's
//! labels where it has one.
//!
//! ```text
//!  hot   Home ─ Counter ─ ViewBefore ─ Since ─ Base ─ Reserve ─ Reservation ─ ViewAfter ─ words
//!          │                             │      │ │                │             │ ▲
//!          │                             │      │ │ payload        │             │ │
//!          │                             │      │ └─ Head ─ Limit ─│─ Swap ──────│─┘
//!          ▼                             ▼      ▼                  ▼ in vain     ▼ unusable
//!  slow  Live ─ filler ─ Probe ─ (Claim) ─ Found ─ (Busy) ─ Mark ─ Park ─ Deadline ─ Chunk ─ …
//!          │ closed                                  │ busy                 │ over
//!          └─ LeaveHome                              │                      └─ NoteClosed ─ …
//!                                                    └─ (Repark) ─ CountLoss ─ TellLoss ─ …
//!
//!        Chunk ─┬───────────────────── (view) ─ Losses ─ puts ─ Unpark ─ CallWord ─ Idle ─ Tell
//!               └─ puts ─ NewChunk ─ … ─ view ──┘                                    ▲       │
//!                            │ full                                                  │      Keep
//!                            └─ PutBack ─ CountFull ─────────────────────────────────┤
//!               NoteClosed ─ CloseTable ─ LeaveSlot ─ PutBackAsWas ─ CountFull ──────┘
//!
//!        Keep, where the newest are kept and all chunks are begun:
//!               ReadBegun ─ Take ─ KeepStill ─ Marked ─ Empty … ─ GiveBack
//!
//!  view  CompareSince ─ CompareBase; if either fails, and always in a new chunk:
//!               SetView ─ SetSince ─ ClearBase ─ SetBase
//!  puts  Read ─ Look ─ Write, for each word, and for SetSince and SetBase
//!
//!        PutBack, where threads wait for room:
//!               Asked ─ Leave ─ Again ─ (Live ─ Deadline ─ Room ─ Bound) … ─┬─ AddWait ─ Probe
//!                                                                           └─ Expire ─ CountFull
//! ```
//!
//! TellStuck follows on TellLoss. Done follows on the words, LeaveHome, TellStuck, Keep and
//! GiveBack. Each look that finds the head parked by another context leads to Robbed, or to
//! CountLoss where no word of the event is in the ring.
//!
//! Each part of the drawing is a file:
//!
//! ```text
//!  hot_path.rs      Home … words             reserves and writes an event in the chunk under way
//!  enter.rs         Live … Park              finds the slot, parks the head
//!  chunk.rs         Deadline … Publish       finds room in the chunk, or begins another one
//!  begin_view.rs    CompareSince … SetBase   compares the view, or begins another one
//!  finish.rs        Losses … Idle            reports losses, writes the event, unparks the head
//!  oldest_chunk.rs  Keep … GiveBack          takes the oldest chunk back
//!  losses.rs        Robbed, PutBack, Count…  gives up, and counts the event as lost
//!  waiting.rs       Asked … Expire           waits for room in a full ring
//!  writing.rs       words, puts              the accesses that write one word or field
//! ```

use self::{
    begin_view::ViewStep, chunk::ChunkStep, enter::EnterStep, finish::FinishStep,
    hot_path::HotStep, losses::LossStep, oldest_chunk::OldestStep, waiting::WaitStep, writing::Put,
};
use crate::{
    layout::{Geometry, PROBES, slot},
    memory::{Half, SharedMemory},
    sync::Ordering,
    table::Table,
    view::View,
    word,
};

mod begin_view;
mod chunk;
mod enter;
mod event;
mod finish;
mod hot_path;
mod losses;
mod oldest_chunk;
mod waiting;
mod writing;

pub use event::{Content, Event};

/// The memory of one target.
#[derive(Debug)]
pub struct Target<'a, M> {
    /// The table, private to the target.
    pub table: &'a Table,
    /// The rings, shared with the collector.
    pub rings: &'a M,
    /// Sizes of both.
    pub geometry: Geometry,
}

/// One context in a trampoline: a thread, or a signal handler that interrupted it.
#[derive(Debug, Clone)]
pub struct Recording {
    tid: u32,
    event: Event,
    next: Step,
    /// The slot under consideration.
    index: u32,
    /// The counter as last read.
    ticks: u64,
    /// The view as last read, and the number of views begun at that time.
    view: View,
    views: u32,
    /// Address of the reservation, then of the next word to write.
    cursor: u64,
    /// Words to write from `cursor` on, in order; each takes two steps.
    words: std::collections::VecDeque<(u32, u32)>,
    /// The half of the first of them that is written next.
    half: Half,
    /// Slots that the slow path still looks at.
    probes: u32,
    in_vain: bool,
    /// The head as last read.
    head: u64,
    /// The word of the ring before the slow path writes it.
    seen: u64,
    /// The next access for a word of the slow path.
    put: Put,
    /// Losses that a gap word is to report, and losses reported before.
    news: u64,
    reported: u64,
    /// The losses of the thread, with this event.
    lost: u64,
    /// Chunks begun, as the slow path counts them.
    started: u64,
    /// Chunks given back, as the slow path that takes one back counts them.
    released: u64,
    /// The counter at the begin of the wait for room, and the ticks of all waits.
    wait_begun: u64,
    waited: u64,
    outcome: Outcome,
}

/// The fate of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The event is under way.
    UnderWay,
    /// Its words are in the ring.
    Recorded,
    /// It was counted as lost.
    Lost,
    /// Another context has taken the slow path over. The rest of the chunk is a hole, which the
    /// consumer counts.
    Robbed,
    /// The table is not live: nothing happened.
    Untraced,
}

/// The next step, by the part of the trampoline that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Hot(HotStep),
    Enter(EnterStep),
    Chunk(ChunkStep),
    View(ViewStep),
    Finish(FinishStep),
    Oldest(OldestStep),
    Loss(LossStep),
    Wait(WaitStep),
    Done,
}

// === impl Target ===

impl<M: SharedMemory> Target<'_, M> {
    /// Records an event from beginning to end, without interruption. `now` is the counter.
    pub fn record(&self, tid: u32, event: Event, now: u64) -> Outcome {
        let mut recording = Recording::new(tid, event);
        while !recording.is_done() {
            recording.step(self, now);
        }
        recording.outcome()
    }

    fn line(&self, index: u32, field: u64) -> u64 {
        self.geometry.control_offset(index) + field
    }
}

// === impl Recording ===

impl Recording {
    /// A context of thread `tid` that enters a trampoline.
    pub fn new(tid: u32, event: Event) -> Self {
        Self {
            tid,
            event,
            next: Step::Hot(HotStep::Home),
            index: 0,
            ticks: 0,
            view: View::default(),
            views: 0,
            cursor: 0,
            words: std::collections::VecDeque::new(),
            half: Half::High,
            probes: PROBES,
            in_vain: false,
            head: 0,
            seen: 0,
            put: Put::Read,
            news: 0,
            reported: 0,
            lost: 0,
            started: 0,
            released: 0,
            wait_begun: 0,
            waited: 0,
            outcome: Outcome::UnderWay,
        }
    }

    /// The fate of the event; final when [`Recording::is_done`].
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The ticks that the context has waited in a full ring.
    pub const fn waited(&self) -> u64 {
        self.waited
    }

    /// True when the context has left the trampoline.
    pub fn is_done(&self) -> bool {
        self.next == Step::Done
    }

    /// True while the context writes words that carry nothing. Interruptions there are all alike.
    pub fn is_filling(&self) -> bool {
        let empties =
            self.next == Step::Oldest(OldestStep::Empty) && !self.cursor.is_multiple_of(64);
        empties || self.fills()
    }

    /// True while the context has reserved words of the ring that it has not written. The consumer
    /// waits for them, but not forever.
    pub fn has_reserved(&self) -> bool {
        match self.next {
            Step::Hot(HotStep::ViewAfter | HotStep::HotWords)
            | Step::Finish(FinishStep::CallWord) => true,
            Step::Hot(HotStep::Reservation) => self.cursor & slot::PARKED == 0,
            Step::Enter(EnterStep::Live | EnterStep::Filler) => !self.words.is_empty(),
            _ => false,
        }
    }

    /// True within the store of one word of the slow path, or of one field of the view. The
    /// accesses of such a store differ only for a context that takes the slow path over.
    pub fn is_putting(&self) -> bool {
        self.put != Put::Read
    }

    fn fills(&self) -> bool {
        self.words
            .front()
            .is_some_and(|&(low, _)| low == word::FILLER)
            && self.words.len() > 2
    }

    /// Makes one access to memory. Reading the counter counts as one; `now` is its value.
    pub fn step<M: SharedMemory>(&mut self, target: &Target<'_, M>, now: u64) {
        self.next = match self.next {
            Step::Hot(step) => self.hot_step(step, target, now),
            Step::Enter(step) => self.enter_step(step, target, now),
            Step::Chunk(step) => self.chunk_step(step, target),
            Step::View(step) => self.view_step(step, target),
            Step::Finish(step) => self.finish_step(step, target),
            Step::Oldest(step) => self.oldest_step(step, target),
            Step::Loss(step) => self.loss_step(step, target),
            Step::Wait(step) => self.wait_step(step, target, now),
            Step::Done => Step::Done,
        };
    }

    /// The head as this context parks it. Each context of a test has its own place on the stack.
    fn parked(&self) -> u64 {
        slot::parked_by(self.event.sp)
    }

    /// True if another context has the slow path by now.
    fn is_robbed<M: SharedMemory>(&self, target: &Target<'_, M>) -> bool {
        let head = target.table.slot(self.index).head.load(Ordering::Relaxed);
        parked(head) != self.parked()
    }

    fn exchange_head<M>(&self, target: &Target<'_, M>, expected: u64, head: u64) -> bool {
        let word = &target.table.slot(self.index).head;
        let exchanged = word.compare_exchange(expected, head, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.is_ok()
    }
}

/// A parked head without the additions of contexts that reserved in vain.
const fn parked(head: u64) -> u64 {
    head & !(slot::PARKED_ROOM - 1)
}
