//! Finds out which resting drains have something to read, so that no drain polls its rings.
//!
//! The header page of the rings has words that change when a thread records something
//! ([`shm_ring::layout::rings`]). They share a cache line. A drain that has nothing to do rests,
//! and leaves the words here as it saw them before its last look at the rings. The *scanner*
//! compares them with the words in memory, and wakes the drain when they differ. It is one task of
//! the pool for all drains:
//!
//! | look | how often | for |
//! |---|---|---|
//! | prompt | every 2 ms, every 4 ms for 1,000 drains | news that a drain wants at once: a thread fills its ring |
//! | calm | every 20 ms | news for a live reader or a trigger, such as a long call |
//! | lazy | every 200 ms | all news that a drain wants |
//!
//! The scanner holds no lock while it reads a target's memory.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use shm_ring::{
    FirstLine, Mapping, SharedMemory as _,
    layout::{LINE_BYTES, rings},
};

use crate::{
    lock::lock,
    sys::prefer_thread,
    tasks::{Next, Pool, RunningPool, Task, Waker, shared_time_after},
};

/// Time between two prompt looks, and how much longer it is for each drain that waits for one. A
/// wake-up takes about 16 µs of processor time in a virtual machine, and a drain up to 120 ns. A
/// function of 20 ns fills a ring of 1 MiB in 2.5 ms.
const PROMPT: Duration = Duration::from_millis(2);
const PROMPT_FOR_EACH: Duration = Duration::from_micros(2);
/// Prompt looks are so many times as far apart as one takes, up to this time: many lines in slow
/// memory are not to take more than a hundredth of a processor.
const APART: u32 = 100;
const LONGEST_PROMPT: Duration = Duration::from_millis(10);
/// Time between two calm looks.
pub(super) const CALM: Duration = Duration::from_millis(20);
/// Time between two lazy looks.
const LAZY: Duration = Duration::from_millis(200);
/// Lines that are on their way to the cache while one is looked at. For a thousand processes, none
/// is in it.
const AHEAD: usize = 8;
/// Pause of the scanner while no drain rests.
const NOTHING_TO_DO: Duration = Duration::from_secs(3600);

/// The pool of the drains, and the scanner that wakes them. The scanner ends with the last of
/// these.
#[derive(Debug, Clone)]
pub(crate) struct Collectors(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    pool: Pool,
    inbox: Arc<Mutex<Inbox>>,
}

/// The words of a rings' header that change with news. They are read before what they tell of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Words {
    activity: u64,
    chunk: u64,
    claim: u64,
    long_calls: u64,
    /// Losses of threads without a slot.
    slotless: [u64; 2],
}

/// A choice of news, or the news that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct News {
    /// A slow path has ended.
    pub(super) activity: bool,
    /// A chunk was begun.
    pub(super) chunk: bool,
    /// A thread has claimed a slot, or has lost events for lack of one.
    pub(super) threads: bool,
    /// A long call was noted.
    pub(super) long_calls: bool,
}

/// What a resting drain waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wants {
    /// Looked for at prompt looks.
    pub(super) promptly: News,
    /// Looked for at calm looks.
    pub(super) calmly: News,
    /// Looked for at lazy looks.
    pub(super) lazily: News,
}

/// What the scanner needs of a drain.
#[derive(Debug)]
pub(super) struct ScannedDrain {
    rings: Arc<Mapping>,
    waker: Waker,
    /// The number of its rests, and of its steps after them. A rest with another number is over.
    number: AtomicU64,
}

/// A drain's handle to the scanner.
#[derive(Debug)]
pub(super) struct ScannerHandle {
    collectors: Collectors,
    drain: Arc<ScannedDrain>,
}

/// Drains that have begun to rest since the last look.
#[derive(Debug, Default)]
struct Inbox {
    resting: Vec<RestingDrain>,
    scanner: Option<Waker>,
    /// True if the scanner is to end.
    is_over: bool,
    /// When the scanner looks next; `None` while it looks. Then it looks into the inbox again.
    next_look: Option<Instant>,
    /// Time between two prompt looks at present; 0 before the first look.
    prompt: Duration,
}

/// A drain that rests, and the words as it left them.
#[derive(Debug)]
struct RestingDrain {
    line: FirstLine,
    drain: Arc<ScannedDrain>,
    number: u64,
    words: Words,
    wants: Wants,
}

/// The task that looks.
struct Scanner {
    inbox: Arc<Mutex<Inbox>>,
    resting: Vec<RestingDrain>,
    next_calm: Instant,
    next_lazy: Instant,
}

/// A kind of look, the most frequent one first. Each also looks for what those before it look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    Prompt,
    Calm,
    Lazy,
}

// === impl Collectors ===

impl Collectors {
    /// A pool with this usual number of workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self(Arc::new(Owner {
            pool: Pool::new("collector", workers),
            inbox: Arc::default(),
        }))
    }

    /// Starts the first threads of the pool, and the scanner.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn begin(&self) -> io::Result<RunningPool> {
        let Self(owner) = self;
        let pool = owner.pool.begin()?;
        let mut inbox = lock(&owner.inbox);
        if inbox.scanner.is_none() {
            inbox.scanner = Some(pool.add(Scanner {
                inbox: Arc::clone(&owner.inbox),
                resting: Vec::new(),
                next_calm: Instant::now(),
                next_lazy: Instant::now(),
            }));
        }
        Ok(pool)
    }

    /// See [`Pool::longest_wait`].
    pub(crate) fn longest_wait(&self) -> Duration {
        self.0.pool.longest_wait()
    }

    /// A handle for the drain of these rings, whose task `waker` wakes.
    pub(super) fn scanner_handle(&self, rings: &Arc<Mapping>, waker: &Waker) -> ScannerHandle {
        let drain = ScannedDrain {
            rings: Arc::clone(rings),
            waker: waker.clone(),
            number: AtomicU64::new(0),
        };
        ScannerHandle {
            collectors: self.clone(),
            drain: Arc::new(drain),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut inbox = lock(&self.inbox);
        inbox.is_over = true;
        if let Some(scanner) = &inbox.scanner {
            scanner.wake();
        }
    }
}

// === impl ScannerHandle ===

impl ScannerHandle {
    /// The drain works from now on. The scanner does not wake it any more.
    pub(super) fn leave(&self) {
        self.drain.number.fetch_add(1, Relaxed);
    }

    /// The drain rests from now on, and is woken for news. `words` were read before its last look
    /// at the rings.
    pub(super) fn rest(&self, words: Words, wants: Wants) {
        let number = self.drain.number.load(Relaxed);
        let mut inbox = lock(&self.collectors.0.inbox);
        inbox.resting.push(RestingDrain {
            line: FirstLine::of(&self.drain.rings),
            drain: Arc::clone(&self.drain),
            number,
            words,
            wants,
        });
        let soon = Instant::now() + wants.pause(inbox.prompt);
        if let (Some(next), Some(scanner)) = (inbox.next_look, &inbox.scanner)
            && next > soon
        {
            scanner.wake_from_step();
            // The next drain need not wake it, too.
            inbox.next_look = None;
        }
    }
}

// === impl Task for Scanner ===

impl Task for Scanner {
    fn step(&mut self) -> Next {
        prefer_thread(false);
        {
            let mut inbox = lock(&self.inbox);
            if inbox.is_over {
                return Next::Done;
            }
            inbox.next_look = None;
            self.resting.append(&mut inbox.resting);
        }
        let now = Instant::now();
        let mut look = Look::Prompt;
        if now >= self.next_calm {
            self.next_calm = shared_time_after(CALM / 2);
            look = Look::Calm;
        }
        if now >= self.next_lazy {
            self.next_lazy = shared_time_after(LAZY / 2);
            look = Look::Lazy;
        }
        let (mut prompt, mut calm, mut at) = (0, 0, 0);
        while let Some(resting) = self.resting.get(at) {
            if let Some(later) = self.resting.get(at + AHEAD) {
                later.prefetch(look);
            }
            if resting.stays(look) {
                prompt += u32::from(resting.wants.promptly.is_any());
                calm += u32::from(resting.wants.calmly.is_any());
                at += 1;
            } else {
                self.resting.swap_remove(at);
            }
        }
        let apart = (now.elapsed() * APART).min(LONGEST_PROMPT);
        let pause = (PROMPT + PROMPT_FOR_EACH * prompt).max(apart);
        let next = match prompt {
            0 if self.resting.is_empty() => now + NOTHING_TO_DO,
            0 if calm == 0 => self.next_lazy,
            0 => self.next_calm,
            _ => (now + pause).min(self.next_calm),
        };
        let mut inbox = lock(&self.inbox);
        inbox.prompt = pause;
        if inbox.resting.is_empty() {
            inbox.next_look = Some(next);
            Next::At(next)
        } else {
            Next::At(next.min(now + pause))
        }
    }
}

// === impl RestingDrain ===

impl RestingDrain {
    /// Begins to load what a look at it reads.
    fn prefetch(&self, look: Look) {
        if self.wants.at(look).is_any() {
            self.line.prefetch();
        }
    }

    /// Wakes the drain if there is what it waits for. False if the rest is over, as far as the look
    /// finds that out.
    fn stays(&self, look: Look) -> bool {
        let is_over = || self.drain.number.load(Relaxed) != self.number;
        // Most looks find nothing. So they touch as little memory as possible: for a thousand
        // processes, none of it is in a cache.
        if look == Look::Lazy && is_over() {
            return false;
        }
        let has_news = self.words.are_changed(&self.line, self.wants.at(look));
        if has_news && !is_over() {
            self.drain.waker.wake_from_step();
        }
        !has_news
    }
}

// === impl Wants ===

impl Wants {
    /// The longest time until the next look that these wants allow. `prompt` is the time between
    /// two prompt looks.
    fn pause(self, prompt: Duration) -> Duration {
        if self.promptly.is_any() {
            prompt
        } else if self.calmly.is_any() {
            CALM
        } else {
            LAZY
        }
    }

    /// What is looked for.
    fn at(self, look: Look) -> News {
        match look {
            Look::Prompt => self.promptly,
            Look::Calm => self.promptly.or(self.calmly),
            Look::Lazy => self.promptly.or(self.calmly).or(self.lazily),
        }
    }
}

// === impl News ===

impl News {
    fn or(self, other: Self) -> Self {
        Self {
            activity: self.activity || other.activity,
            chunk: self.chunk || other.chunk,
            threads: self.threads || other.threads,
            long_calls: self.long_calls || other.long_calls,
        }
    }

    /// Nothing.
    pub(super) const NONE: Self = Self {
        activity: false,
        chunk: false,
        threads: false,
        long_calls: false,
    };

    pub(super) fn is_any(self) -> bool {
        self != Self::NONE
    }
}

// === impl Words ===

impl Words {
    /// The words as they are now.
    pub(super) fn of(memory: &Mapping) -> Self {
        let mut line = [0; (LINE_BYTES / 8) as usize];
        memory.copy_words(0, &mut line);
        let word = |offset: u64| line[(offset / 8) as usize];
        Self {
            activity: word(rings::ACTIVITY),
            chunk: word(rings::CHUNK),
            claim: word(rings::CLAIM),
            long_calls: word(rings::LONG_CALLS),
            slotless: [word(rings::NO_SLOT), word(rings::BUCKETS_TAKEN)],
        }
    }

    /// True if there are news among the wanted ones since the words were like this.
    fn are_changed(&self, line: &FirstLine, wanted: News) -> bool {
        let changed = |at, before| line.peek(at) != before;
        wanted.chunk && changed(rings::CHUNK, self.chunk)
            || wanted.activity && changed(rings::ACTIVITY, self.activity)
            || wanted.long_calls && changed(rings::LONG_CALLS, self.long_calls)
            || wanted.threads
                && (changed(rings::CLAIM, self.claim)
                    || changed(rings::NO_SLOT, self.slotless[0])
                    || changed(rings::BUCKETS_TAKEN, self.slotless[1]))
    }

    /// What has happened since the words were like `before`.
    pub(super) fn since(&self, before: &Self) -> News {
        News {
            activity: self.activity != before.activity,
            long_calls: self.long_calls != before.long_calls,
            chunk: self.chunk != before.chunk,
            threads: self.claim != before.claim || self.slotless != before.slotless,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use shm_ring::layout::HEADER_BYTES;

    use super::*;

    /// Far longer than anything takes, but for a machine that is very busy.
    const LONG: Duration = Duration::from_secs(60);
    /// Longer than the time between two lazy looks.
    const WHILE: Duration = Duration::from_millis(300);

    const CHUNK: News = News {
        chunk: true,
        ..News::NONE
    };
    const ACTIVITY: News = News {
        activity: true,
        ..News::NONE
    };

    struct Tells(SyncSender<()>);

    impl Task for Tells {
        fn step(&mut self) -> Next {
            let _ = self.0.send(());
            Next::At(Instant::now() + LONG)
        }
    }

    /// A header page, the handle of its drain, and a message for each of its steps.
    fn drain(collectors: &Collectors) -> (Arc<Mapping>, ScannerHandle, Receiver<()>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(HEADER_BYTES).unwrap();
        let header = Arc::new(Mapping::new(&file, 0, HEADER_BYTES).unwrap());
        let (ran, runs) = sync_channel(8);
        let waker = collectors.begin().unwrap().add(Tells(ran));
        runs.recv_timeout(LONG).unwrap();
        let scanner = collectors.scanner_handle(&header, &waker);
        (header, scanner, runs)
    }

    fn wants(promptly: News, calmly: News, lazily: News) -> Wants {
        Wants {
            promptly,
            calmly,
            lazily,
        }
    }

    #[test]
    fn a_drain_is_woken_once_for_the_news_that_it_waits_for() {
        let collectors = Collectors::new(2);
        let (header, scanner, runs) = drain(&collectors);
        let (_other, beside, others_runs) = drain(&collectors);
        beside.rest(Words::default(), wants(CHUNK, ACTIVITY, ACTIVITY));
        for (at, wants) in [
            (rings::CHUNK, wants(CHUNK, News::NONE, News::NONE)),
            (rings::ACTIVITY, wants(CHUNK, ACTIVITY, News::NONE)),
            (rings::ACTIVITY, wants(News::NONE, News::NONE, ACTIVITY)),
        ] {
            scanner.leave();
            scanner.rest(Words::of(&header), wants);
            assert!(runs.recv_timeout(WHILE).is_err(), "nothing has come");
            header.store(at, header.load(at) + 1);
            runs.recv_timeout(LONG).unwrap();
            header.store(at, header.load(at) + 1);
            assert!(runs.recv_timeout(WHILE).is_err(), "it does not rest");
        }
        assert!(others_runs.try_recv().is_err());
    }

    /// What changes between the look of the drain and its rest is not overlooked.
    #[test]
    fn news_from_before_the_rest_wake_the_drain() {
        let collectors = Collectors::new(2);
        let (header, scanner, runs) = drain(&collectors);
        let words = Words::of(&header);
        header.store(rings::CLAIM, 7);
        let threads = News {
            threads: true,
            ..News::NONE
        };
        scanner.rest(words, wants(News::NONE, News::NONE, threads));
        runs.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn other_news_and_news_after_the_rest_wake_no_drain() {
        let collectors = Collectors::new(2);
        let (header, scanner, runs) = drain(&collectors);
        scanner.rest(Words::of(&header), wants(CHUNK, CHUNK, CHUNK));
        header.store(rings::ACTIVITY, 7);
        assert!(runs.recv_timeout(WHILE).is_err());
        scanner.leave();
        header.store(rings::CHUNK, 7);
        assert!(runs.recv_timeout(WHILE).is_err());
    }

    #[test]
    fn the_scanner_ends_with_the_last_place() {
        let collectors = Collectors::new(2);
        let (_, scanner, _) = drain(&collectors);
        let inbox = Arc::downgrade(&collectors.0.inbox);
        drop(collectors);
        assert!(inbox.strong_count() > 0);
        drop(scanner);
        let deadline = Instant::now() + LONG;
        while inbox.strong_count() > 0 {
            assert!(Instant::now() < deadline, "the scanner goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
