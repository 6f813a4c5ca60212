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
//!  slow  Live ─ filler ─ Probe ─ (Claim) ─ Found ─ (Busy) ─ Mark ─ Park ─ Chunk ─ …
//!                                                    │ busy
//!                                                    └─ (Repark) ─ CountLoss
//!
//!        Chunk ─┬────────────────────── (view) ─ Losses ─ puts ─ Unpark ─ CallWord ─ Idle ─ Keep
//!               └─ puts ─ NewChunk ─ … ─ view ───┘                                    ▲
//!                            │ full                                                   │
//!                            └─ PutBack ─ CountFull ──────────────────────────────────┘
//!
//!        Keep, where the newest are kept and all chunks are begun:
//!               ReadBegun ─ Take ─ KeepStill ─ Marked ─ Empty … ─ GiveBack
//!
//!  view  CompareSince ─ CompareBase; if either fails, and always in a new chunk:
//!               SetView ─ SetSince ─ ClearBase ─ SetBase
//!  puts  Read ─ Look ─ Write, for each word, and for SetSince and SetBase
//! ```
//!
//! Done follows on the words, CountLoss, Keep and GiveBack. Each look that finds the head parked by
//! another context leads to Robbed, or to CountLoss where no word of the event is in the ring.

use self::{
    event::{lower, upper},
    writing::{Put, Written},
};
use crate::{
    layout::{GUARD_BYTES, Geometry, PROBES, SLOW_WORDS, bucket, control, rings, slot},
    memory::{Half, SharedMemory},
    sync::Ordering,
    table::Table,
    view::View,
    word,
};

mod event;
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
    at: At,
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
    /// Chunks begun, as the slow path counts them.
    started: u64,
    /// Chunks given back, as the slow path that takes one back counts them.
    released: u64,
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

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Home,
    Counter,
    ViewBefore,
    Since,
    Base,
    Reserve,
    Reservation,
    Head,
    Limit,
    Swap,
    ViewAfter,
    HotWords,
    Live,
    Filler,
    Probe,
    Claim,
    Found,
    Busy,
    Mark,
    Park,
    Chunk,
    Rest,
    NewChunk,
    LookForChunk,
    ClaimChunk,
    LookForOwner,
    SetOwner,
    SetLimit,
    ReadStarted,
    Publish,
    CompareSince,
    CompareBase,
    SetView,
    SetSince,
    ClearBase,
    SetBase,
    Losses,
    LookForLosses,
    Report,
    Content,
    SlowWords,
    Unpark,
    CallWord,
    Idle,
    Keep,
    ReadBegun,
    Take,
    KeepStill,
    Marked,
    Empty,
    GiveBack,
    Robbed,
    PutBack,
    CountFull,
    Repark,
    CountLoss,
    NoSlot,
    Bucket,
    TakeBucket,
    CountInBucket,
    CountForAll,
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
            at: At::Home,
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
            started: 0,
            released: 0,
            outcome: Outcome::UnderWay,
        }
    }

    /// The fate of the event; final when [`Recording::is_done`].
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// True when the context has left the trampoline.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    /// True while the context writes words that carry nothing. Interruptions there are all alike.
    pub fn is_filling(&self) -> bool {
        let empties = self.at == At::Empty && !self.cursor.is_multiple_of(64);
        empties || self.fills()
    }

    /// True while the context has reserved words of the ring that it has not written. The consumer
    /// waits for them, but not forever.
    pub fn has_reserved(&self) -> bool {
        match self.at {
            At::ViewAfter | At::HotWords | At::CallWord => true,
            At::Reservation => self.cursor & slot::PARKED == 0,
            At::Live | At::Filler => !self.words.is_empty(),
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
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        self.at = match self.at {
            At::Home => {
                self.index = self.tid & (g.slots() - 1);
                let owner = target.table.owner(self.index);
                if owner == self.tid {
                    At::Counter
                } else {
                    At::Live
                }
            }
            At::Counter => {
                self.ticks = now;
                At::ViewBefore
            }
            At::ViewBefore => {
                self.views = slot.view.load(Ordering::Relaxed);
                At::Since
            }
            At::Since => {
                self.view.since = slot.since.load(Ordering::Relaxed);
                if self.view.has_ticks(self.ticks) {
                    At::Base
                } else {
                    At::Live
                }
            }
            At::Base => {
                self.view.base = slot.base.load(Ordering::Relaxed);
                if !self.view.has_sp(self.event.sp) {
                    At::Live
                } else if self.event.has_payload() {
                    At::Head
                } else {
                    At::Reserve
                }
            }
            At::Head => {
                self.cursor = slot.head.load(Ordering::Relaxed);
                At::Limit
            }
            At::Limit => {
                let limit = slot.limit.load(Ordering::Relaxed);
                let left = g.chunk_bytes() - self.cursor % g.chunk_bytes();
                let fits = self.cursor < limit
                    && !g.in_guard(self.cursor)
                    && 8 * self.event.words(g) <= left;
                if fits { At::Swap } else { At::Live }
            }
            At::Swap => {
                let end = self.cursor + 8 * self.event.words(g);
                let swapped = slot.head.compare_exchange(
                    self.cursor,
                    end,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match swapped {
                    Ok(_) => At::ViewAfter,
                    // A handler has recorded meanwhile.
                    Err(_) => At::Counter,
                }
            }
            At::Reserve => {
                self.cursor = slot.head.load(Ordering::Relaxed);
                slot.head
                    .store(self.cursor + 8 * self.event.words(g), Ordering::Relaxed);
                At::Reservation
            }
            At::Reservation => {
                let limit = slot.limit.load(Ordering::Relaxed);
                self.in_vain = self.cursor >= limit || g.in_guard(self.cursor);
                if self.in_vain {
                    At::Live
                } else {
                    At::ViewAfter
                }
            }
            At::ViewAfter => {
                let place = self.cursor % g.chunk_bytes();
                let left = (g.chunk_bytes() - place) / 8;
                let same = slot.view.load(Ordering::Relaxed) == self.views;
                if same && self.event.words(g) <= left {
                    self.push_event(g);
                    At::HotWords
                } else {
                    self.push_filler(left.min(self.event.words(g)));
                    At::Live
                }
            }
            At::HotWords => {
                if self.write_half(target) {
                    self.outcome = Outcome::Recorded;
                    At::Done
                } else {
                    At::HotWords
                }
            }
            At::Live if !target.table.is_live() => {
                self.outcome = Outcome::Untraced;
                At::Done
            }
            At::Live if self.words.is_empty() => self.first_probe(g),
            At::Live => At::Filler,
            At::Filler => {
                if self.write_half(target) {
                    self.first_probe(g)
                } else {
                    At::Filler
                }
            }
            At::Probe => match slot.tid.load(Ordering::Acquire) {
                owner if owner == self.tid => At::Found,
                0 => At::Claim,
                slot::CLOSED => At::NoSlot,
                _ => {
                    self.index = (self.index + 1) & (g.slots() - 1);
                    self.probes -= 1;
                    if self.probes == 0 {
                        At::NoSlot
                    } else {
                        At::Probe
                    }
                }
            },
            At::Claim => {
                let claim =
                    slot.tid
                        .compare_exchange(0, self.tid, Ordering::AcqRel, Ordering::Relaxed);
                if claim.is_ok() { At::Found } else { At::Probe }
            }
            At::Found => {
                self.head = slot.head.load(Ordering::Relaxed);
                if self.head & slot::PARKED == 0 {
                    At::Mark
                } else {
                    At::Busy
                }
            }
            At::Busy => match target.rings.load(target.line(self.index, control::BUSY)) {
                0 => At::Mark,
                // Left by the attempt before, during which the head has changed.
                busy if busy == self.parked() => At::Mark,
                _ if self.in_vain => At::Repark,
                _ => At::CountLoss,
            },
            At::Mark => {
                let line = target.line(self.index, control::BUSY);
                target.rings.store(line, self.parked());
                At::Park
            }
            At::Park => {
                if self.exchange_head(target, self.head, self.parked()) {
                    self.cursor = self.head;
                    self.ticks = now;
                    At::Chunk
                } else {
                    At::Found
                }
            }
            At::Chunk => {
                let ring = g.ring_offset(self.index)..g.ring_offset(self.index) + g.ring_bytes();
                let fresh = slot.limit.load(Ordering::Relaxed) == 0;
                let left = (g.chunk_bytes() - self.cursor % g.chunk_bytes()) / 8;
                if fresh || !ring.contains(&self.cursor) || g.in_guard(self.cursor) {
                    At::NewChunk
                } else if left < SLOW_WORDS + self.event.payload_words(g) {
                    self.push_filler(left);
                    At::Rest
                } else {
                    At::CompareSince
                }
            }
            At::Rest => match self.put_word(target) {
                Written::Some => At::Rest,
                Written::All => At::NewChunk,
                Written::Robbed => At::Robbed,
            },
            At::NewChunk => {
                self.started = slot.started.load(Ordering::Relaxed);
                // Pairs with the collector's store of RELEASED after it emptied the chunk.
                let released = target
                    .rings
                    .load(target.line(self.index, control::RELEASED));
                let room = self.started.wrapping_sub(released) < g.chunks();
                if room { At::LookForChunk } else { At::PutBack }
            }
            At::LookForChunk if self.is_robbed(target) => At::CountLoss,
            At::LookForChunk => At::ClaimChunk,
            At::ClaimChunk => {
                let claim = slot.started.compare_exchange(
                    self.started,
                    self.started.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if claim.is_ok() {
                    At::LookForOwner
                } else {
                    At::NewChunk
                }
            }
            At::LookForOwner if self.is_robbed(target) => At::Robbed,
            At::LookForOwner => At::SetOwner,
            At::SetOwner => {
                target
                    .rings
                    .store(target.line(self.index, control::OWNER), u64::from(self.tid));
                At::SetLimit
            }
            At::SetLimit => {
                let ring = g.ring_offset(self.index);
                slot.limit.store(ring + g.ring_bytes(), Ordering::Relaxed);
                self.cursor = ring + (self.started & (g.chunks() - 1)) * g.chunk_bytes();
                At::ReadStarted
            }
            At::ReadStarted => {
                self.seen = target.rings.load(target.line(self.index, control::STARTED));
                if self.seen > self.started {
                    At::SetView
                } else {
                    At::Publish
                }
            }
            At::Publish => {
                let line = target.line(self.index, control::STARTED);
                if target
                    .rings
                    .exchange(line, self.seen, self.started.wrapping_add(1))
                {
                    At::SetView
                } else {
                    At::ReadStarted
                }
            }
            At::CompareSince => {
                self.view.since = slot.since.load(Ordering::Relaxed);
                if self.view.has_ticks(self.ticks) {
                    At::CompareBase
                } else {
                    At::SetView
                }
            }
            At::CompareBase => {
                self.view.base = slot.base.load(Ordering::Relaxed);
                if self.view.has_sp(self.event.sp) {
                    At::Losses
                } else {
                    At::SetView
                }
            }
            At::SetView => {
                slot.view.fetch_add(1, Ordering::Relaxed);
                self.view = View::around(self.ticks, self.event.sp);
                At::SetSince
            }
            At::SetSince => match self.store_field(target, &slot.since, self.view.since) {
                Written::Some => At::SetSince,
                Written::All => At::ClearBase,
                Written::Robbed => At::Robbed,
            },
            At::ClearBase => {
                slot.base.store(0, Ordering::Relaxed);
                At::SetBase
            }
            At::SetBase => match self.store_field(target, &slot.base, self.view.base) {
                Written::Some => At::SetBase,
                Written::All => {
                    let words = word::begin_view(self.view);
                    self.words
                        .extend(words.map(|word| (lower(word), upper(word))));
                    At::Losses
                }
                Written::Robbed => At::Robbed,
            },
            At::Losses => {
                self.reported = slot.reported.load(Ordering::Relaxed);
                let lost = target.rings.load(target.line(self.index, control::LOST));
                let news = lost.wrapping_sub(self.reported);
                self.news = news.min(u64::from(u32::MAX));
                if news == 0 {
                    At::Content
                } else {
                    At::LookForLosses
                }
            }
            At::LookForLosses if self.is_robbed(target) => At::Robbed,
            At::LookForLosses => At::Report,
            At::Report => {
                let report = slot.reported.compare_exchange(
                    self.reported,
                    self.reported + self.news,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if report.is_ok() {
                    self.words.push_back((word::GAP, lower(self.news)));
                    At::Content
                } else {
                    At::Losses
                }
            }
            At::Content => {
                // Filler in the guard of a new chunk: the event's words end where the guard ends.
                let event = self.cursor + 8 * self.words.len() as u64;
                let guard = (self.cursor & !(g.chunk_bytes() - 1)) + GUARD_BYTES;
                self.push_filler(guard.saturating_sub(event + 8 * self.event.words(g)) / 8);
                self.words.extend(self.event.content_words(g));
                if self.words.is_empty() {
                    At::Unpark
                } else {
                    At::SlowWords
                }
            }
            At::SlowWords => match self.put_word(target) {
                Written::Some => At::SlowWords,
                Written::All => At::Unpark,
                Written::Robbed => At::Robbed,
            },
            At::Unpark => {
                let head = slot.head.load(Ordering::Relaxed);
                if parked(head) != self.parked() {
                    At::Robbed
                } else if self.exchange_head(target, head, self.cursor + 8) {
                    self.push_call();
                    At::CallWord
                } else {
                    At::Unpark
                }
            }
            At::CallWord => {
                if self.write_half(target) {
                    self.outcome = Outcome::Recorded;
                    At::Idle
                } else {
                    At::CallWord
                }
            }
            At::Idle => {
                let line = target.line(self.index, control::BUSY);
                target.rings.exchange(line, self.parked(), 0);
                At::Keep
            }
            At::Keep if target.rings.load(rings::KEEP_NEWEST) == 0 => At::Done,
            At::Keep => {
                self.started = slot.started.load(Ordering::Relaxed);
                At::ReadBegun
            }
            At::ReadBegun => {
                let line = target.line(self.index, control::RELEASED);
                self.released = target.rings.load(line);
                let full = self.started.wrapping_sub(self.released) >= g.chunks();
                if full && self.released & control::TAKING == 0 {
                    At::Take
                } else {
                    At::Done
                }
            }
            At::Take => {
                let line = target.line(self.index, control::RELEASED);
                let before = target.rings.set_bits(line, control::TAKING);
                self.seen = before | control::TAKING;
                // A handler may have taken the chunk meanwhile.
                if before == self.released {
                    At::KeepStill
                } else if before & control::TAKING != 0 {
                    At::Done
                } else {
                    self.released = before;
                    At::GiveBack
                }
            }
            At::KeepStill if target.rings.load(rings::KEEP_NEWEST) == 0 => At::GiveBack,
            At::KeepStill => {
                let place = (self.released & (g.chunks() - 1)) * g.chunk_bytes();
                self.cursor = g.ring_offset(self.index) + place;
                self.released = self.released.wrapping_add(1);
                At::Marked
            }
            At::Marked => {
                let line = target.line(self.index, control::RELEASED);
                if target.rings.load(line) == self.seen {
                    At::Empty
                } else {
                    At::Done
                }
            }
            At::Empty => {
                let empty = word::empty(self.released);
                target.rings.store(self.cursor, empty);
                self.cursor += 8;
                if self.cursor.is_multiple_of(g.chunk_bytes()) {
                    At::GiveBack
                } else if self.cursor.is_multiple_of(64) {
                    At::Marked
                } else {
                    At::Empty
                }
            }
            At::GiveBack => {
                let line = target.line(self.index, control::RELEASED);
                target.rings.exchange(line, self.seen, self.released);
                At::Done
            }
            At::Robbed => {
                slot.view.fetch_add(1, Ordering::Relaxed);
                slot.since.store(0, Ordering::Relaxed);
                self.outcome = Outcome::Robbed;
                At::Done
            }
            At::PutBack => {
                let head = slot.head.load(Ordering::Relaxed);
                let back = match self.cursor & slot::PARKED {
                    0 => g.ring_offset(self.index) + g.ring_bytes(),
                    _ => self.cursor,
                };
                let gone = parked(head) != self.parked();
                if gone || self.exchange_head(target, head, back) {
                    At::CountFull
                } else {
                    At::PutBack
                }
            }
            At::CountFull => {
                self.count_loss(target);
                At::Idle
            }
            At::Repark => {
                self.exchange_head(target, self.head, parked(self.head));
                At::CountLoss
            }
            At::CountLoss => {
                self.count_loss(target);
                At::Done
            }
            At::NoSlot => {
                self.index = self.tid & (g.buckets() - 1);
                self.probes = PROBES;
                if self.tid == 0 {
                    At::CountForAll
                } else {
                    At::Bucket
                }
            }
            At::Bucket => {
                let owner = target.rings.load(g.bucket_offset(self.index) + bucket::TID);
                match owner {
                    0 => At::TakeBucket,
                    owner if owner == u64::from(self.tid) => At::CountInBucket,
                    _ => {
                        self.index = (self.index + 1) & (g.buckets() - 1);
                        self.probes -= 1;
                        if self.probes == 0 {
                            At::CountForAll
                        } else {
                            At::Bucket
                        }
                    }
                }
            }
            At::TakeBucket => {
                // The count is first: a handler may leave by a jump before the bucket is taken.
                increment(target.rings, rings::BUCKETS_TAKEN);
                let place = g.bucket_offset(self.index) + bucket::TID;
                target.rings.store(place, self.tid.into());
                At::CountInBucket
            }
            At::CountInBucket => {
                let place = g.bucket_offset(self.index) + bucket::LOST;
                increment(target.rings, place);
                self.outcome = Outcome::Lost;
                At::Done
            }
            At::CountForAll => {
                increment(target.rings, rings::NO_SLOT);
                self.outcome = Outcome::Lost;
                At::Done
            }
            At::Done => At::Done,
        };
    }

    fn first_probe(&mut self, geometry: Geometry) -> At {
        self.index = self.tid & (geometry.slots() - 1);
        if self.tid == 0 { At::NoSlot } else { At::Probe }
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

    fn push_event(&mut self, geometry: Geometry) {
        self.words.extend(self.event.content_words(geometry));
        self.push_call();
    }

    fn push_call(&mut self) {
        let packed = self.view.pack(self.ticks, self.event.sp);
        self.words.push_back((self.event.site, packed));
    }

    fn push_filler(&mut self, words: u64) {
        self.words.extend((0..words).map(|_| (word::FILLER, 0)));
    }

    fn count_loss<M: SharedMemory>(&mut self, target: &Target<'_, M>) {
        let line = target.line(self.index, control::LOST);
        increment(target.rings, line);
        self.outcome = Outcome::Lost;
    }
}

/// A parked head without the additions of contexts that reserved in vain.
const fn parked(head: u64) -> u64 {
    head & !(slot::PARKED_ROOM - 1)
}

/// Adds one. It wraps as the trampolines' counter does: the memory may hold any value.
fn increment<M: SharedMemory>(memory: &M, place: u64) {
    memory.store(place, memory.load(place).wrapping_add(1));
}
