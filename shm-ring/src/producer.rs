//! The reference producer: what the trampolines do, in Rust, one access to memory at a time.
//!
//! It exists to test the consumer, and to explore what signal handlers and the consumer can do between any two
//! accesses: [`Recording::step`] makes one of them. It must say the same as
//! `sled-encoders/src/x86_64/trampoline.rs`; the steps have the names of that file's labels where it has one.
//!
//! ```text
//!  hot   Home ─ Counter ─ ViewBefore ─ Since ─ Base ─ Reserve ─ Reservation ─ ViewAfter ─ words ─ Done
//!          │                              │      │ │                 │             │ ▲
//!          │                              │      │ │ payload         │             │ │
//!          │                              │      │ └─ Head ─ Limit ──│─ Swap ──────│─┘
//!          ▼                              ▼      ▼                   ▼ in vain     ▼ unusable
//!  slow  Live ─ filler ─ Probe ─ (Claim) ─ Found ─ MarkBusy ─ Park ─ Chunk ─┬─ (view) ─ Losses ─ words ─ Unpark
//!                                  │                                │       │                              │
//!                                  ▼ busy                           ▼ full  └─ rest ─ NewChunk ─ …         ▼
//!                                (Repark) ─ CountLoss ─ Done      CountLoss ────────────────────────────► Idle ─ Keep ─ Done
//!                                                                                                                │
//!  the newest are kept, and all chunks are begun:                    ReadBegun ─ Take ─ KeepStill ─ Zero … ─ GiveBack ─ Done
//!
//!  view  CompareSince ─ CompareBase ─ or else SetView ─ SetSince ─ SetBase, as at once in a new chunk
//! ```

use crate::{
    layout::{GUARD_BYTES, Geometry, PAYLOAD_WORDS, PROBES, SLOW_WORDS, bucket, control, rings},
    memory::{Half, SharedMemory},
    sync::Ordering,
    table::Table,
    view::View,
    word::{self, PAYLOAD_BYTES},
};

/// What is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Low 32 bits of the return address into the sled: odd.
    pub site: u32,
    /// Where the stack stands: of an entry or an exit, the address of the function's return address.
    pub sp: u64,
    /// What goes with it.
    pub content: Content,
}

/// What is recorded beside the place and the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// The first argument.
    Argument(u64),
    /// What the program says.
    Payload {
        /// Its type.
        kind: u32,
        /// How many bytes the program says there are.
        size: u32,
        /// They, or none where they cannot be read.
        bytes: Vec<u8>,
    },
}

/// The memory of one target.
#[derive(Debug)]
pub struct Target<'a, M> {
    /// Private to the target.
    pub table: &'a Table,
    /// Shared with the collector.
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
    /// The view as last read, and how many had been begun then.
    view: View,
    views: u32,
    /// Address of the reservation, then of the next word to write.
    cursor: u64,
    /// Words to write from `cursor` on, in order; each takes two steps.
    words: std::collections::VecDeque<(u32, u32)>,
    /// Which half of the first of them is written next.
    half: Half,
    /// How many slots the slow path still looks at.
    probes: u32,
    in_vain: bool,
    /// Chunks begun, as the slow path counts them.
    started: u64,
    /// Chunks given back, as the slow path that takes one back counts them.
    released: u64,
    outcome: Outcome,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Not known yet.
    UnderWay,
    /// Its words are in the ring.
    Recorded,
    /// It was counted as lost.
    Lost,
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
    MarkBusy,
    Park,
    Chunk,
    Rest,
    NewChunk,
    SetOwner,
    SetStarted,
    Publish,
    SetLimit,
    CompareSince,
    CompareBase,
    SetView,
    SetSince,
    SetBase,
    Losses,
    SlowWords,
    Unpark,
    Idle,
    Keep,
    ReadBegun,
    Take,
    KeepStill,
    Zero,
    GiveBack,
    Full,
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
    /// A thread enters a trampoline.
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
            started: 0,
            released: 0,
            outcome: Outcome::UnderWay,
        }
    }

    /// What became of the event; final when [`Recording::is_done`].
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// True when the context has left the trampoline.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    /// True while words that carry nothing are written: interruptions there are all alike.
    pub fn is_filling(&self) -> bool {
        let zeroes = self.at == At::Zero && !self.cursor.is_multiple_of(64);
        zeroes || self.fills()
    }

    fn fills(&self) -> bool {
        self.words
            .front()
            .is_some_and(|&(low, _)| low == word::FILLER)
            && self.words.len() > 2
    }

    /// Makes one access to memory (reading the counter counts as one). `now` is what the counter says.
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
            At::Found => match target.rings.load(target.line(self.index, control::BUSY)) {
                0 => At::MarkBusy,
                _ if self.in_vain => At::Repark,
                _ => At::CountLoss,
            },
            At::MarkBusy => {
                target
                    .rings
                    .store(target.line(self.index, control::BUSY), 1);
                At::Park
            }
            At::Park => {
                let end = g.ring_offset(self.index) + g.ring_bytes();
                self.cursor = slot.head.load(Ordering::Relaxed);
                slot.head.store(end, Ordering::Relaxed);
                self.ticks = now;
                At::Chunk
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
            At::Rest => {
                if self.write_half(target) {
                    At::NewChunk
                } else {
                    At::Rest
                }
            }
            At::NewChunk => {
                self.started = slot.started.load(Ordering::Relaxed);
                // Pairs with the collector's store of RELEASED after it zeroed the chunk.
                let released = target
                    .rings
                    .load(target.line(self.index, control::RELEASED));
                let room = self.started.wrapping_sub(released) < g.chunks();
                if room { At::SetOwner } else { At::Full }
            }
            At::SetOwner => {
                target
                    .rings
                    .store(target.line(self.index, control::OWNER), u64::from(self.tid));
                At::SetStarted
            }
            At::SetStarted => {
                slot.started.store(self.started + 1, Ordering::Relaxed);
                At::Publish
            }
            At::Publish => {
                target
                    .rings
                    .store(target.line(self.index, control::STARTED), self.started + 1);
                At::SetLimit
            }
            At::SetLimit => {
                let ring = g.ring_offset(self.index);
                slot.limit.store(ring + g.ring_bytes(), Ordering::Relaxed);
                self.cursor = ring + (self.started & (g.chunks() - 1)) * g.chunk_bytes();
                At::SetView
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
            At::SetSince => {
                slot.since.store(self.view.since, Ordering::Relaxed);
                At::SetBase
            }
            At::SetBase => {
                slot.base.store(self.view.base, Ordering::Relaxed);
                let words = word::begin_view(self.view);
                self.words
                    .extend(words.map(|word| (lower(word), upper(word))));
                At::Losses
            }
            At::Losses => {
                let lost = target.rings.load(target.line(self.index, control::LOST));
                let reported = slot.reported.load(Ordering::Relaxed);
                let news = u32::try_from(lost.wrapping_sub(reported)).unwrap_or(u32::MAX);
                if news > 0 {
                    slot.reported
                        .store(reported + u64::from(news), Ordering::Relaxed);
                    self.words.push_back((word::GAP, news));
                }
                self.push_event(g);
                let end = self.cursor + 8 * self.words.len() as u64;
                let guard = (self.cursor & !(g.chunk_bytes() - 1)) + GUARD_BYTES;
                self.push_filler(guard.saturating_sub(end) / 8);
                At::SlowWords
            }
            At::SlowWords => {
                if self.write_half(target) {
                    At::Unpark
                } else {
                    At::SlowWords
                }
            }
            At::Unpark => {
                self.outcome = Outcome::Recorded;
                slot.head.store(self.cursor, Ordering::Relaxed);
                At::Idle
            }
            At::Idle => {
                target
                    .rings
                    .store(target.line(self.index, control::BUSY), 0);
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
                At::Zero
            }
            At::Zero => {
                target.rings.store(self.cursor, 0);
                self.cursor += 8;
                if self.cursor.is_multiple_of(g.chunk_bytes()) {
                    self.released = self.released.wrapping_add(1);
                    At::GiveBack
                } else {
                    At::Zero
                }
            }
            At::GiveBack => {
                let line = target.line(self.index, control::RELEASED);
                target.rings.store(line, self.released);
                At::Done
            }
            At::Full => {
                self.count_loss(target);
                At::Idle
            }
            At::Repark => {
                let end = g.ring_offset(self.index) + g.ring_bytes();
                slot.head.store(end, Ordering::Relaxed);
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
                // First: a handler may leave by a jump before it is taken.
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

    fn push_event(&mut self, geometry: Geometry) {
        match &self.event.content {
            Content::Nothing => {}
            &Content::Argument(argument) => {
                self.words.push_back((word::ARGUMENT_LOW, lower(argument)));
                self.words.push_back((word::ARGUMENT_HIGH, upper(argument)));
            }
            Content::Payload { kind, size, bytes } => {
                self.words.push_back((word::SIZE, *size));
                self.words.push_back((word::TYPE, *kind));
                let kept = &bytes[..kept(bytes, geometry)];
                self.words
                    .extend(kept.chunks(PAYLOAD_BYTES).map(payload_word));
            }
        }
        let packed = self.view.pack(self.ticks, self.event.sp);
        self.words.push_back((self.event.site, packed));
    }

    fn push_filler(&mut self, words: u64) {
        self.words.extend((0..words).map(|_| (word::FILLER, 0)));
    }

    /// Writes the next half of the next word; true when that was the last. The low half goes last: it makes the word
    /// whole, and pairs with the consumer's load of the word.
    fn write_half<M: SharedMemory>(&mut self, target: &Target<'_, M>) -> bool {
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

    fn count_loss<M: SharedMemory>(&mut self, target: &Target<'_, M>) {
        let line = target.line(self.index, control::LOST);
        increment(target.rings, line);
        self.outcome = Outcome::Lost;
    }
}

// === impl Event ===

impl Event {
    /// Words that the hot path reserves.
    fn words(&self, geometry: Geometry) -> u64 {
        match &self.content {
            Content::Nothing => 1,
            Content::Argument(_) => 3,
            Content::Payload { .. } => PAYLOAD_WORDS + self.payload_words(geometry),
        }
    }

    /// Those of them with bytes of a payload.
    fn payload_words(&self, geometry: Geometry) -> u64 {
        match &self.content {
            Content::Nothing | Content::Argument(_) => 0,
            Content::Payload { bytes, .. } => kept(bytes, geometry).div_ceil(PAYLOAD_BYTES) as u64,
        }
    }

    const fn has_payload(&self) -> bool {
        matches!(self.content, Content::Payload { .. })
    }
}

/// How many bytes of a payload are recorded.
fn kept(bytes: &[u8], geometry: Geometry) -> usize {
    let limit = usize::try_from(geometry.payload_limit()).unwrap_or(usize::MAX);
    bytes.len().min(limit)
}

fn payload_word(bytes: &[u8]) -> (u32, u32) {
    let mut word = [0; 8];
    word[0] = word::PAYLOAD;
    for (to, from) in word[1..].iter_mut().zip(bytes) {
        *to = *from;
    }
    let word = u64::from_le_bytes(word);
    (lower(word), upper(word))
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn lower(value: u64) -> u32 {
    value as u32
}

const fn upper(value: u64) -> u32 {
    lower(value >> 32)
}

/// Wraps as the trampolines' counter does: the memory may hold anything.
fn increment<M: SharedMemory>(memory: &M, place: u64) {
    memory.store(place, memory.load(place).wrapping_add(1));
}
