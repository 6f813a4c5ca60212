//! The collector's side of one ring: reads words in order, gives chunks back, counts missing
//! events.
//!
//! A consumer that *holds* gives back what it has read once its caller says so: when the events are
//! where the next collector finds them. Until then a next collector reads the same words again.
//!
//! The producer is a stranger. Whatever it writes into words and counters, reading stays inside the
//! ring, ends, and never panics.

use crate::{
    layout::{GUARD_BYTES, Geometry, PAYLOAD_WORDS, control, mark},
    memory::SharedMemory,
    view::View,
    word::{self, PAYLOAD_BYTES, Word},
};

mod unused;

/// Words copied out of the ring at a time.
const BATCH: usize = 256;
/// An upper bound of the cursor. No producer gets this far; a cursor beyond it is a stranger's.
const MAX_CURSOR: u64 = 1 << 62;
/// Words ahead of a hole, beside those of the event that left it, in which the consumer looks for a
/// written word that proves it a hole.
const LOOK_AHEAD: u64 = 8;
/// The same for a thread that is gone, in its last chunk: twice the words that handlers which
/// interrupt each other can reserve (see [`GUARD_BYTES`]). The consumer does not look at the rest
/// of the chunk: threads may end by the thousand, and most of it was never touched.
const LAST_LOOK_AHEAD: u64 = 2 * GUARD_BYTES / 8;
/// The shortest time between two looks as far ahead as a payload goes, in milliseconds. An event
/// with a payload is far longer than others, and the collector looks at an idle ring more than a
/// thousand times a second.
const FAR_LOOK_EVERY_MS: u64 = 100;
/// Words of the longest event of a call: the values of six registers, with the words that surround
/// every payload.
const EVENT_WORDS: u64 = PAYLOAD_WORDS + (6 * 8u64).div_ceil(PAYLOAD_BYTES as u64);

/// One item of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A call event.
    Call {
        /// Low 32 bits of the return address into the sled.
        site: u32,
        /// The counter at the event.
        ticks: u64,
        /// The place on the stack: the address of the function's return address, to 8 bytes.
        sp: u64,
        /// First argument, where the sled records it.
        argument: Option<u64>,
    },
    /// An event with a payload.
    Data(Box<Data>),
    /// This many events are missing here. Where they left a hole, at least this many.
    Lost(u64),
    /// The thread has waited this many ticks in a full ring, before the next item and after the
    /// previous one.
    Waited(u32),
}

/// An event with a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// Low 32 bits of the return address into the sled.
    pub site: u32,
    /// The counter at the event.
    pub ticks: u64,
    /// The place on the stack, to 8 bytes.
    pub sp: u64,
    /// The payload's type; without meaning where the sled has none.
    pub kind: u32,
    /// The size of the payload in the program, in bytes.
    pub size: u32,
    /// The recorded bytes: `size` or fewer.
    pub bytes: Vec<u8>,
}

/// Takes the items of a ring; any `FnMut(Item)` is one. A type of its own can have [`Sink::take`]
/// inlined into the loop over a ring's words. A closure cannot demand that.
pub trait Sink {
    /// Takes the next item.
    fn take(&mut self, item: Item);
}

impl<F: FnMut(Item)> Sink for F {
    #[inline]
    fn take(&mut self, item: Item) {
        self(item);
    }
}

/// The state of the thread that writes the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    /// It may come back to a word that it reserved.
    Alive,
    /// It is gone, and reserved words stay unwritten.
    Gone,
}

/// The result of one call of [`Consumer::drain`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Words read.
    pub words: u64,
    /// True if the ring was read to its end: there is nothing more to read now, or a hole to wait
    /// at.
    pub at_end: bool,
    /// True if reading ended at a word that is reserved and not written, with written words behind
    /// it.
    pub at_hole: bool,
}

/// Reads one ring.
#[derive(Debug, Clone)]
pub struct Consumer {
    geometry: Geometry,
    index: u32,
    /// Bytes consumed since the ring was claimed. The place in the ring is this modulo the ring's
    /// size.
    cursor: u64,
    /// The cursor that the next collector finds.
    saved: u64,
    /// True if the next collector finds the present losses.
    are_losses_saved: bool,
    /// True if words are held until [`Consumer::release`].
    holds: bool,
    /// The moment of the last sync word and the place of the last stack word; `None` before the
    /// first one.
    since: Option<u64>,
    base: Option<u64>,
    /// True if `argument` or `payload` may be there, so that one look is enough.
    pending: bool,
    /// Halves of an argument that wait for their call word.
    argument: (Option<u32>, Option<u32>),
    /// A payload that waits for its call word. A size word begins it, the call takes it, a hole
    /// drops it.
    payload: Option<Payload>,
    /// Words of the longest event that the producer writes.
    longest: u64,
    /// Losses reported ahead of the gap word that will count them.
    ahead: u64,
    /// Losses of LOST that were handed to a sink, by gap words or ahead of them.
    reported: u64,
    /// The time when the consumer first stood at its present hole, in the caller's milliseconds.
    hole_since: Option<u64>,
    /// The time when it last looked as far as a payload goes, likewise.
    looked_far: Option<u64>,
}

/// The part of a payload that was read so far.
#[derive(Debug, Clone)]
struct Payload {
    size: u32,
    kind: u32,
    bytes: Vec<u8>,
}

/// Words that were reserved and never written.
#[derive(Debug, Clone, Copy)]
struct Hole {
    /// Bytes up to the next written word, or to the chunk's end.
    bytes: u64,
    /// The fewest events that can have left it. The words of a guard belong to one event, and so do
    /// those of a chunk that was begun and left, and those that a payload under way still lacks.
    /// Elsewhere no event has more than `Consumer::longest` words.
    events: u64,
}

// === impl Consumer ===

impl Consumer {
    /// The wait at a hole behind which words have been written, in milliseconds.
    pub const HOLE_PATIENCE_MS: u64 = 1000;

    /// Reads the ring `index` from the place where the last collector left it.
    ///
    /// # Panics
    /// If `index` is not below the geometry's slots, which is a mistake of the caller.
    pub fn resume<M: SharedMemory>(memory: &M, geometry: Geometry, index: u32) -> Self {
        assert!(index < geometry.slots(), "ring index within the geometry");
        let line = geometry.control_offset(index);
        let released = memory.load(line + control::RELEASED) & !control::TAKING;
        let saved = memory.load(line + control::CURSOR);
        // The saved cursor lies in the chunks that were not given back, or at their end. Any other
        // value is not a collector's.
        let first = released.checked_mul(geometry.chunk_bytes());
        let cursor = match first {
            Some(first) if first < MAX_CURSOR => {
                let ours = saved.is_multiple_of(8)
                    && saved
                        .checked_sub(first)
                        .is_some_and(|part| part <= geometry.ring_bytes());
                if ours { saved } else { first }
            }
            _ => 0,
        };
        let mut consumer = Self {
            geometry,
            index,
            cursor,
            saved: cursor,
            are_losses_saved: true,
            holds: false,
            since: None,
            base: None,
            pending: false,
            argument: (None, None),
            payload: None,
            longest: EVENT_WORDS,
            ahead: 0,
            reported: 0,
            hole_since: None,
            looked_far: None,
        };
        // The last collector died while it gave these chunks back.
        for number in released..cursor / geometry.chunk_bytes() {
            consumer.give_back(memory, number);
        }
        // The words of this chunk that were read are still there, unless the memory was given back
        // (see `leave_view`). They are read again for the state that the words to come depend on.
        for at in (cursor - cursor % geometry.chunk_bytes()..cursor).step_by(8) {
            match Word::decode(memory.load(consumer.place(at))) {
                Word::Empty => consumer.drop_pending(),
                word => consumer.step(word, &mut |_| {}),
            }
        }
        // The gap words of these losses come within one ring from the saved cursor on. The thread
        // may have overwritten them since.
        let passed = first.unwrap_or(0).saturating_sub(saved);
        if passed < geometry.ring_bytes() {
            consumer.ahead = memory.load(line + control::AHEAD);
        }
        consumer.reported = memory.load(line + control::REPORTED);
        consumer
    }

    /// The same consumer, which holds words until [`Consumer::release`].
    #[must_use]
    pub fn holding(mut self) -> Self {
        self.holds = true;
        self
    }

    /// Skips the words up to the mark of the last collector, if the block that it names was kept.
    /// To be called before the first [`Consumer::drain`].
    pub fn skip_kept<M: SharedMemory>(&mut self, memory: &M, was_kept: impl Fn(u64) -> bool) {
        let place = self.geometry.mark_offset(self.index);
        let block = memory.load(place + mark::BLOCK);
        let end = memory.load(place + mark::CURSOR);
        let line = self.geometry.control_offset(self.index);
        let started = memory.load(line + control::STARTED);
        let begun = started.saturating_mul(self.geometry.chunk_bytes());
        let readable = self.cursor..=self.limit().min(begun);
        if block == 0 {
            return;
        }
        if end.is_multiple_of(8) && readable.contains(&end) && was_kept(block) {
            while self.cursor < end {
                match Word::decode(memory.load(self.place(self.cursor))) {
                    Word::Empty => self.drop_pending(),
                    word => self.step(word, &mut |_| {}),
                }
                self.cursor += 8;
            }
            self.ahead = memory.load(place + mark::AHEAD);
            self.reported = memory.load(place + mark::REPORTED);
            self.release(memory);
        }
        // It holds once.
        memory.store(place + mark::BLOCK, 0);
    }

    /// Marks the words read so far as the words of `block`, which is about to be kept. `block` is
    /// not 0. The words of the block before must have been released.
    pub fn mark<M: SharedMemory>(&self, memory: &M, block: u64) {
        let place = self.geometry.mark_offset(self.index);
        memory.store(place + mark::BLOCK, 0);
        memory.store(place + mark::CURSOR, self.cursor);
        memory.store(place + mark::AHEAD, self.ahead);
        memory.store(place + mark::REPORTED, self.reported);
        memory.store(place + mark::BLOCK, block);
    }

    /// Gives back the words read so far. The next collector does not read them again.
    pub fn release<M: SharedMemory>(&mut self, memory: &M) {
        let chunk = self.geometry.chunk_bytes();
        let first = self.saved / chunk;
        // The save is first. Otherwise, if this collector dies in the middle, the next one would
        // take emptied words for words still to come, and wait for them.
        self.save(memory);
        for number in first..self.cursor / chunk {
            self.give_back(memory, number);
        }
    }

    /// True if the next word is there.
    pub fn has_word<M: SharedMemory>(&self, memory: &M) -> bool {
        memory.load_words(self.place(self.cursor), &mut [0]) > 0
    }

    /// True if nothing is held: the next collector goes on behind the last item.
    pub const fn is_saved(&self) -> bool {
        self.cursor == self.saved && self.are_losses_saved
    }

    /// Bytes that were read and not given back.
    pub const fn held(&self) -> u64 {
        self.cursor - self.saved
    }

    /// The same as [`Consumer::expect_payloads`], from the start.
    #[must_use]
    pub fn with_payloads(mut self) -> Self {
        self.expect_payloads();
        self
    }

    /// Expects payloads from now on: a hole can be as long as the longest of them.
    pub fn expect_payloads(&mut self) {
        self.longest = self.geometry.longest_event();
    }

    /// The index of the ring.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// True if the consumer stands at words that were reserved and not written so far.
    pub const fn is_at_hole(&self) -> bool {
        self.hole_since.is_some()
    }

    /// Bytes consumed since the ring was claimed.
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Bytes up to the end of the last chunk begun that were not given back: an upper bound of the
    /// unread and the held bytes.
    pub fn backlog<M: SharedMemory>(&self, memory: &M) -> u64 {
        let started = memory.load(self.geometry.control_offset(self.index) + control::STARTED);
        started
            .saturating_mul(self.geometry.chunk_bytes())
            .saturating_sub(self.saved)
            .min(self.geometry.ring_bytes())
    }

    /// Reads until the ring is empty, or until `max_words` words were read or skipped. Unless the
    /// consumer holds, it gives back the chunks that were read to their end. `now_ms` is any clock
    /// that does not go backwards.
    pub fn drain<M: SharedMemory>(
        &mut self,
        memory: &M,
        producer: Producer,
        now_ms: u64,
        max_words: u64,
        mut sink: impl Sink,
    ) -> Drained {
        let mut done = Drained::default();
        let mut batch = [0u64; BATCH];
        let before = self.cursor;
        let end = before.saturating_add(max_words.saturating_mul(8));
        let limit = match self.holds {
            true => self.limit(),
            false => u64::MAX,
        };
        while self.cursor < end.min(limit) {
            let in_chunk = self.geometry.chunk_bytes() - self.cursor % self.geometry.chunk_bytes();
            let wanted = usize::try_from(in_chunk / 8).unwrap_or(BATCH).min(BATCH);
            // Pairs with the producer's store of a word's low half, which comes after the rest of
            // the word.
            let got = memory.load_words(self.place(self.cursor), &mut batch[..wanted]);
            for &raw in &batch[..got] {
                self.step(Word::decode(raw), &mut sink);
            }
            self.advance(memory, 8 * got as u64);
            done.words += got as u64;
            if got > 0 {
                self.hole_since = None;
            }
            if got == wanted {
                continue;
            }
            match self.hole(memory, producer, now_ms) {
                None => {
                    done.at_end = true;
                    break;
                }
                Some(Hole { bytes, events }) => {
                    let since = *self.hole_since.get_or_insert(now_ms);
                    if producer == Producer::Alive
                        && now_ms.saturating_sub(since) < Self::HOLE_PATIENCE_MS
                    {
                        (done.at_end, done.at_hole) = (true, true);
                        break;
                    }
                    self.hole_since = None;
                    self.drop_pending();
                    sink.take(Item::Lost(events));
                    self.advance(memory, bytes);
                }
            }
        }
        done.at_end |= self.cursor == limit;
        if self.cursor != before && !self.holds {
            self.release(memory);
        }
        done
    }

    /// Reports the losses that no gap word has reported so far, at the end of a thread or of a
    /// session. A gap word that comes later does not report them again, neither to this collector
    /// nor to the next one.
    pub fn tell_losses<M: SharedMemory>(&mut self, memory: &M, sink: impl Sink) {
        let unreported = self.unreported_losses(memory);
        self.tell(memory, unreported, sink);
    }

    /// The same for a thread that goes on, and only if nothing is left to read. Otherwise the
    /// losses may stand behind unread events, and the gap word reports them in their place. Returns
    /// true if nothing was left.
    pub fn tell_quiet_losses<M: SharedMemory>(&mut self, memory: &M, sink: impl Sink) -> bool {
        let unreported = self.unreported_losses(memory);
        // Events recorded before the losses are visible by now. The look for them goes as far as
        // after a thread's end.
        let all_read = !self.has_word(memory) && self.hole(memory, Producer::Gone, 0).is_none();
        if all_read {
            self.tell(memory, unreported, sink);
        }
        all_read
    }

    fn tell<M: SharedMemory>(&mut self, memory: &M, unreported: u64, mut sink: impl Sink) {
        if unreported > 0 {
            self.reported = self.reported.saturating_add(unreported);
            self.ahead = self.ahead.saturating_add(unreported);
            match self.holds {
                true => self.are_losses_saved = false,
                false => self.save(memory),
            }
            sink.take(Item::Lost(unreported));
        }
    }

    /// Losses that the producer has counted and no [`Item::Lost`] has reported so far.
    pub fn unreported_losses<M: SharedMemory>(&self, memory: &M) -> u64 {
        memory
            .load(self.geometry.control_offset(self.index) + control::LOST)
            .saturating_sub(self.reported)
    }

    /// Leaves the view for the next collector, after the ring's memory was given back. It writes
    /// the view where that collector looks for it, at the start of the chunk under way. That chunk
    /// was read up to the cursor.
    pub fn leave_view<M: SharedMemory>(&self, memory: &M) {
        let (Some(since), Some(base)) = (self.since, self.base) else {
            return;
        };
        let chunk = self.cursor - self.cursor % self.geometry.chunk_bytes();
        let read = (chunk..self.cursor).step_by(8);
        for (at, word) in read.zip(word::begin_view(View { since, base })) {
            memory.store(self.place(at), word);
        }
    }

    /// Saves the place where the next collector goes on.
    fn save<M: SharedMemory>(&mut self, memory: &M) {
        (self.saved, self.are_losses_saved) = (self.cursor, true);
        let line = self.geometry.control_offset(self.index);
        memory.store(line + control::AHEAD, self.ahead);
        memory.store(line + control::REPORTED, self.reported);
        memory.store(line + control::CURSOR, self.cursor);
    }

    fn place(&self, cursor: u64) -> u64 {
        self.geometry.ring_offset(self.index) + (cursor & (self.geometry.ring_bytes() - 1))
    }

    #[inline]
    fn step(&mut self, word: Word, sink: &mut impl Sink) {
        match word {
            Word::Call { site, packed } => {
                // Only a garbled ring has a call before the first view.
                let (Some(since), Some(base)) = (self.since, self.base) else {
                    self.drop_pending();
                    return sink.take(Item::Lost(1));
                };
                let (ticks, sp) = View { since, base }.unpack(packed);
                if self.pending {
                    return self.take_pending((site, ticks, sp), sink);
                }
                sink.take(Item::Call {
                    site,
                    ticks,
                    sp,
                    argument: None,
                });
            }
            Word::Sync(since) => self.since = Some(since),
            Word::Stack(base) => self.base = Some(base),
            Word::Gap(count) => {
                let count = u64::from(count);
                let news = count.saturating_sub(self.ahead);
                self.ahead = self.ahead.saturating_sub(count);
                if news > 0 {
                    self.reported = self.reported.saturating_add(news);
                    sink.take(Item::Lost(news));
                }
            }
            Word::Wait(ticks) => sink.take(Item::Waited(ticks)),
            Word::ArgumentLow(value) => {
                self.argument.0 = Some(value);
                self.pending = true;
            }
            Word::ArgumentHigh(value) => {
                self.argument.1 = Some(value);
                self.pending = true;
            }
            Word::Size(size) => {
                self.payload = Some(Payload::begin(size));
                self.pending = true;
            }
            Word::Type(kind) => {
                if let Some(payload) = &mut self.payload {
                    payload.kind = kind;
                }
            }
            Word::Payload(bytes) => {
                let limit = self.geometry.payload_limit();
                if let Some(payload) = &mut self.payload
                    && (payload.bytes.len() as u64) < limit
                {
                    payload.bytes.extend_from_slice(&bytes);
                }
            }
            Word::Unknown(_) => sink.take(Item::Lost(1)),
            Word::Filler | Word::Empty => {}
        }
    }

    /// Completes a call whose word has come with the argument or the payload that waited for it.
    #[inline(never)]
    fn take_pending(&mut self, (site, ticks, sp): (u32, u64, u64), sink: &mut impl Sink) {
        let (argument, payload) = (self.argument, self.payload.take());
        self.drop_pending();
        let argument = match argument {
            (Some(low), Some(high)) => Some(u64::from(high) << 32 | u64::from(low)),
            _ => None,
        };
        sink.take(match payload {
            None => Item::Call {
                site,
                ticks,
                sp,
                argument,
            },
            Some(payload) => {
                let limit = self.geometry.payload_limit();
                Item::Data(Box::new(payload.end((site, ticks, sp), limit)))
            }
        });
    }

    /// Drops an argument and a payload whose call word will not come.
    fn drop_pending(&mut self) {
        self.pending = false;
        self.argument = (None, None);
        self.payload = None;
    }

    /// The end of the words that can be read: those behind it are from the ring's turn before.
    fn limit(&self) -> u64 {
        let first = self.saved - self.saved % self.geometry.chunk_bytes();
        first.saturating_add(self.geometry.ring_bytes())
    }

    /// Moves on by `bytes`, which do not cross a chunk's end. At that end it gives the chunk back.
    fn advance<M: SharedMemory>(&mut self, memory: &M, bytes: u64) {
        let chunk = self.geometry.chunk_bytes();
        self.cursor += bytes;
        if bytes > 0 && self.cursor.is_multiple_of(chunk) && !self.holds {
            self.release(memory);
        }
    }

    /// Gives back the chunk `number`, which was read to its end.
    fn give_back<M: SharedMemory>(&self, memory: &M, number: u64) {
        let chunk = self.geometry.chunk_bytes();
        let released = number + 1;
        memory.fill(self.place(number * chunk), chunk, word::empty(released));
        // Publishes the emptied chunk; pairs with the load of RELEASED in the producer's slow path.
        let line = self.geometry.control_offset(self.index);
        memory.store(line + control::RELEASED, released);
    }

    /// The hole at the empty word under the cursor; `None` if the ring ends there.
    fn hole<M: SharedMemory>(
        &mut self,
        memory: &M,
        producer: Producer,
        now_ms: u64,
    ) -> Option<Hole> {
        let chunk = self.geometry.chunk_bytes();
        let rest = chunk - self.cursor % chunk;
        let started = memory.load(self.geometry.control_offset(self.index) + control::STARTED);
        // Only a child that was forked in a chunk's previous turn writes to it before its start.
        let begun = started.checked_sub(self.cursor / chunk)?;
        if begun == 0 {
            return None;
        }
        let later_chunk = begun > 1 && begun <= self.geometry.chunks();
        let limit = self.geometry.payload_limit();
        let to_come = self.payload.as_ref().map(|payload| payload.to_come(limit));
        let look = match producer {
            _ if later_chunk => rest,
            Producer::Gone => rest.min((LAST_LOOK_AHEAD + self.longest) * 8),
            Producer::Alive => {
                // Without the size word the hole can be as long as any event.
                let far = LOOK_AHEAD + to_come.unwrap_or(self.longest);
                let near = LOOK_AHEAD + EVENT_WORDS;
                let recently = |at| now_ms.saturating_sub(at) < FAR_LOOK_EVERY_MS;
                let words = if far <= near {
                    far
                } else if self.looked_far.is_some_and(recently) {
                    near
                } else {
                    self.looked_far = Some(now_ms);
                    far
                };
                rest.min(words * 8)
            }
        };
        let behind = self.place(self.cursor) + 8;
        match memory.find_word(behind, (look / 8).saturating_sub(1)) {
            Some(more) => {
                let words = more + 1;
                let in_guard = self.geometry.in_guard(self.place(self.cursor));
                let events = match to_come {
                    _ if in_guard => 1,
                    Some(to_come) => 1 + words.saturating_sub(to_come).div_ceil(self.longest),
                    None => words.div_ceil(self.longest),
                };
                Some(Hole {
                    bytes: words * 8,
                    events,
                })
            }
            None if later_chunk => Some(Hole {
                bytes: rest,
                events: 1,
            }),
            None => None,
        }
    }
}

// === impl Payload ===

impl Payload {
    fn begin(size: u32) -> Self {
        Self {
            size,
            kind: 0,
            bytes: Vec::new(),
        }
    }

    /// The most words that are still to come, the call among them.
    fn to_come(&self, limit: u64) -> u64 {
        let words = u64::from(self.size)
            .min(limit)
            .div_ceil(PAYLOAD_BYTES as u64);
        let there = (self.bytes.len() / PAYLOAD_BYTES) as u64;
        words.saturating_sub(there) + PAYLOAD_WORDS - 1
    }

    fn end(mut self, (site, ticks, sp): (u32, u64, u64), limit: u64) -> Data {
        // The bytes of the last word behind the end are no part of it.
        let most = u64::from(self.size).min(limit);
        self.bytes
            .truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Data {
            site,
            ticks,
            sp,
            kind: self.kind,
            size: self.size,
            bytes: self.bytes,
        }
    }
}
