//! For how long the drain rests after a look, and for which news it is woken before.
//!
//! ```text
//!                    few events, no chunk begun
//!  reading: 0 to 300 µs ──────────────────────────► resting: 10 s or 30 s
//!     ▲                                                │
//!     └─────── a chunk was begun, or a request ────────┘
//! ```
//!
//! If a live reader or a trigger waits for events that are read, the drain also reads them while it
//! rests, at the next calm look of the scanner. Then it rests for 10 ms, so that their block is
//! closed soon. Long calls that threads have noted are read at calm looks, too. If metrics measure
//! functions, it looks a second after the last events. What is unsettled is looked at every 100 ms.
//!
//! A thread tells in its slow path that it has recorded something. For the time of a view after
//! that, its events are silent. A thread that loses its processor within the trampoline stores its
//! event later. So for a live reader, a look without news is followed by another one after a
//! second, and by one every ten seconds after that.

use std::time::{Duration, Instant};

use super::{chore_times::CHORES_EVERY, rings::Busy};
use crate::collect::activity::{News, Wants, Words};

/// The rest while many events come. A function of 20 ns fills a ring of 1 MiB in 2.6 ms. A wake-up
/// takes about 16 µs of processor time in a virtual machine.
const SHORT: Duration = Duration::from_micros(300);
/// The rest while a thread takes a chunk back, which ends soon.
const UNREAD: Duration = Duration::from_millis(1);
/// The rest before blocks are closed for a live reader or a trigger, and the age of these blocks.
pub(super) const LIVE: Duration = Duration::from_millis(10);
/// The rest after something new, if metrics measure functions; after the first look that found
/// nothing for a live reader; and while names of threads are read.
const ATTENTIVE: Duration = Duration::from_secs(1);
/// The rest otherwise.
const LONG: Duration = Duration::from_secs(10);
/// The rest while nothing in the rings waits for a reader, and no scrape reads the counters.
const LONGEST: Duration = Duration::from_secs(30);
/// Time between two looks for rings of threads that have not told of them.
const LOOK_FOR_RINGS: Duration = Duration::from_millis(20);

/// The rest after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// None: there is more to read.
    None,
    /// For so long, whatever comes.
    For(Duration),
    /// For so long, or until there is one of these news.
    Until(Duration, Wants),
}

/// What the drain knows of the last look.
#[derive(Debug)]
pub(super) struct LastLook {
    /// The words before it.
    pub(super) words: Words,
    /// True if it found nothing new.
    pub(super) was_quiet: bool,
    /// True if the drain was woken before its time, and has not read counts since: a client may
    /// want them.
    pub(super) is_asked: bool,
    /// The last look for rings.
    rings: Option<Instant>,
}

/// All that the rest depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Situation {
    /// Rings keep the newest events by themselves, or calls are counted or added up without events.
    pub(super) is_silent: bool,
    /// A client waits for counts that could not be read at this look.
    pub(super) is_asked: bool,
    /// Functions are on.
    pub(super) is_armed: bool,
    /// A live reader or a trigger waits for events.
    pub(super) is_live: bool,
    /// A trigger waits for long calls, which threads note.
    pub(super) awaits_long_calls: bool,
    /// The look before found nothing new.
    pub(super) was_quiet: bool,
    /// A block is under way.
    pub(super) has_block: bool,
    /// A ring cannot be read just now.
    pub(super) is_unread: bool,
    /// Something was seen that the next chores judge.
    pub(super) is_unsettled: bool,
    /// Something changes without news: counts of calls, and of calls that were left out.
    pub(super) is_counted: bool,
    /// Slots are opened for the threads that need them.
    pub(super) opens_slots: bool,
    /// The sums of calls are transferred to metrics.
    pub(super) is_measured: bool,
    /// Scrapes read the counters.
    pub(super) is_metered: bool,
    /// Threads are chosen by the names that they have.
    pub(super) chooses_threads: bool,
}

// === impl LastLook ===

impl LastLook {
    pub(super) fn none() -> Self {
        Self {
            words: Words::default(),
            was_quiet: false,
            is_asked: false,
            rings: None,
        }
    }

    /// True if rings are to be looked for, given the news since the last look.
    pub(super) fn needs_rings(&mut self, news: News) -> bool {
        let is_due = |at: Instant| news.chunk && at.elapsed() >= LOOK_FOR_RINGS;
        let needs = news.threads || self.rings.is_none_or(is_due);
        if needs {
            self.rings = Some(Instant::now());
        }
        needs
    }
}

/// True if a look found something new.
pub(super) fn finds_news(busy: Busy, news: News) -> bool {
    news.is_any() || busy >= Busy::Little
}

// === impl Situation ===

impl Situation {
    /// The rest after a look that found so much work and these news.
    pub(super) fn rest(self, busy: Busy, news: News) -> Rest {
        match busy {
            Busy::Full => return Rest::None,
            Busy::Some => return Rest::For(SHORT),
            Busy::Little | Busy::Idle if self.is_unread => return Rest::For(UNREAD),
            Busy::Little | Busy::Idle => {}
        }
        let has_news = finds_news(busy, news);
        let has_more = has_news || self.has_block || self.is_counted;
        let pause = if self.is_live && (has_news || self.has_block) {
            LIVE
        } else if self.is_unsettled || self.is_silent && news.chunk {
            CHORES_EVERY
        } else if self.chooses_threads
            || self.is_asked
            || self.is_live && !self.was_quiet
            || self.is_measured && has_more
        {
            ATTENTIVE
        } else if self.is_silent && !self.is_metered && !self.is_live {
            LONGEST
        } else {
            LONG
        };
        let promptly = News {
            chunk: self.is_armed && !self.is_silent,
            threads: self.opens_slots,
            ..News::NONE
        };
        let calmly = News {
            activity: self.is_live,
            threads: self.is_live,
            long_calls: self.awaits_long_calls,
            ..News::NONE
        };
        let lazily = News {
            activity: self.is_measured && pause >= LONG,
            threads: true,
            ..News::NONE
        };
        let wants = Wants {
            promptly,
            calmly,
            lazily,
        };
        Rest::Until(pause, wants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTIVITY: News = News {
        activity: true,
        ..News::NONE
    };
    const CHUNK: News = News {
        activity: true,
        chunk: true,
        ..News::NONE
    };
    /// Rings are read, without a live reader.
    const READ: Situation = Situation {
        is_silent: false,
        is_asked: false,
        is_armed: true,
        is_live: false,
        awaits_long_calls: false,
        was_quiet: true,
        has_block: false,
        is_unread: false,
        is_unsettled: false,
        is_counted: false,
        opens_slots: false,
        is_measured: false,
        is_metered: false,
        chooses_threads: false,
    };

    /// The pause, and the wants at prompt, calm and lazy looks.
    fn until(situation: Situation, busy: Busy, news: News) -> (Duration, Wants) {
        match situation.rest(busy, news) {
            Rest::Until(pause, wants) => (pause, wants),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_drain_with_much_to_read_does_not_wait_for_news() {
        assert_eq!(READ.rest(Busy::Full, CHUNK), Rest::None);
        assert_eq!(READ.rest(Busy::Some, News::NONE), Rest::For(SHORT));
        let unread = Situation {
            is_unread: true,
            ..READ
        };
        assert_eq!(unread.rest(Busy::Idle, News::NONE), Rest::For(UNREAD));
    }

    #[test]
    fn without_a_reader_only_chunks_and_threads_wake_a_drain() {
        let open = Situation {
            has_block: true,
            ..READ
        };
        let counted = Situation {
            is_counted: true,
            is_silent: true,
            ..READ
        };
        for situation in [READ, open, counted] {
            for (busy, news) in [
                (Busy::Idle, ACTIVITY),
                (Busy::Little, News::NONE),
                (Busy::Idle, News::NONE),
            ] {
                let (pause, wants) = until(situation, busy, news);
                let is_silent = situation.is_silent;
                assert_eq!(pause, if is_silent { LONGEST } else { LONG });
                assert_eq!(wants.promptly.chunk, !situation.is_silent);
                assert!(!wants.calmly.activity && !wants.lazily.activity && wants.lazily.threads);
            }
        }
    }

    #[test]
    fn scrapes_see_counters_of_the_last_ten_seconds() {
        let counted = Situation {
            is_counted: true,
            is_silent: true,
            is_metered: true,
            ..READ
        };
        assert_eq!(until(counted, Busy::Idle, News::NONE).0, LONG);
    }

    /// A thread that is not recorded leaves no news, and may get another name.
    #[test]
    fn names_of_threads_are_read_every_second() {
        let choosing = Situation {
            chooses_threads: true,
            ..READ
        };
        assert_eq!(until(choosing, Busy::Idle, News::NONE).0, ATTENTIVE);
    }

    #[test]
    fn metrics_get_sums_after_a_second() {
        let measured = Situation {
            is_measured: true,
            ..READ
        };
        let (pause, wants) = until(measured, Busy::Idle, ACTIVITY);
        assert_eq!(pause, ATTENTIVE);
        // It looks by itself. A thread that records now and then wakes it no more often.
        assert!(!wants.lazily.activity);
        let (pause, wants) = until(measured, Busy::Idle, News::NONE);
        assert_eq!(pause, LONG);
        assert!(wants.lazily.activity);
    }

    #[test]
    fn a_reader_gets_events_soon() {
        let live = Situation {
            is_live: true,
            ..READ
        };
        let (pause, wants) = until(live, Busy::Little, ACTIVITY);
        assert_eq!(pause, LIVE);
        assert!(wants.calmly.activity);
        let with_block = Situation {
            has_block: true,
            ..live
        };
        assert_eq!(until(with_block, Busy::Idle, News::NONE).0, LIVE);
        // A thread that lost its processor may store its event late.
        let first = Situation {
            was_quiet: false,
            ..live
        };
        for (situation, expected) in [(first, ATTENTIVE), (live, LONG)] {
            let (pause, wants) = until(situation, Busy::Idle, News::NONE);
            assert_eq!(pause, expected);
            assert!(wants.calmly.activity && wants.calmly.threads);
        }
    }

    #[test]
    fn rings_that_keep_the_newest_events_are_only_counted() {
        let flight = Situation {
            is_silent: true,
            ..READ
        };
        for news in [News::NONE, ACTIVITY, CHUNK] {
            assert!(!until(flight, Busy::Idle, news).1.promptly.is_any());
        }
        assert_eq!(until(flight, Busy::Idle, CHUNK).0, CHORES_EVERY);
        assert_eq!(until(flight, Busy::Idle, ACTIVITY).0, LONGEST);
        let metered = Situation {
            is_metered: true,
            ..flight
        };
        assert_eq!(until(metered, Busy::Idle, ACTIVITY).0, LONG);
        let limited = Situation {
            opens_slots: true,
            ..flight
        };
        assert!(until(limited, Busy::Idle, News::NONE).1.promptly.threads);
    }

    #[test]
    fn a_trigger_learns_of_long_calls_soon_and_of_nothing_else() {
        let awaiting = Situation {
            is_silent: true,
            is_counted: true,
            awaits_long_calls: true,
            ..READ
        };
        for news in [News::NONE, ACTIVITY] {
            let (pause, wants) = until(awaiting, Busy::Idle, news);
            assert_eq!(pause, LONGEST);
            assert!(!wants.promptly.is_any() && !wants.calmly.activity);
            assert!(wants.calmly.long_calls);
        }
    }

    #[test]
    fn what_is_unsettled_is_looked_at_soon() {
        let unsettled = Situation {
            is_unsettled: true,
            is_armed: false,
            ..READ
        };
        let (pause, wants) = until(unsettled, Busy::Idle, News::NONE);
        assert_eq!(pause, CHORES_EVERY);
        assert!(!wants.promptly.is_any(), "nothing is on");
    }
}
