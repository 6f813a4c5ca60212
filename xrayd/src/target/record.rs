//! Parses the records that the kernel writes into the ring of a perf event:
//! include/uapi/linux/perf_event.h, `perf_event_mmap_page` and `perf_event_type`.
//!
//! ```text
//!  page 0           …  +1024 head  +1032 tail  …
//!  page 1 on        records, each a multiple of 8 bytes, going on at the beginning:
//!                   type u32 | flags u16 | bytes u16 | body | process u32, thread u32 | time
//!  mapped           process u32, thread u32 | address | bytes | offset in the file | name
//!  forked, ended    process u32, parent u32 | thread u32, parent's thread u32 | time
//!  named            process u32, thread u32 | name; a flag marks an exec
//!  switch           thread again, time, processor; flags: gives it up, and could go on
//!  sample           process u32, thread u32 | time | processor | bytes u32, event of a tracepoint
//!  lost             event | records
//! ```

use std::ops::Range;

use shm_ring::SharedMemory;
use xray_trace::model::{ContextSwitch, RunState};

const PAGE: u64 = 4096;
const HEAD: u64 = 1024;
const TAIL: u64 = 1032;
/// Some 300 records of the processes of the host fit, enough for a starved reader, or 1024 switches
/// of a thread.
const DATA_PAGES: u64 = 8;
pub(super) const DATA_BYTES: u64 = DATA_PAGES * PAGE;
/// The same of a ring for events of tracepoints, which takes about a thousand of them.
pub(super) const TRACEPOINT_DATA_BYTES: u64 = 16 * PAGE;

const MMAP: u32 = 1;
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SWITCH: u32 = 14;
/// PERF_RECORD_MISC_COMM_EXEC
const BY_EXEC: u64 = 1 << 13;
/// PERF_RECORD_MISC_SWITCH_OUT
const OUT: u64 = 1 << 13;
/// PERF_RECORD_MISC_SWITCH_OUT_PREEMPT
const PREEMPTED: u64 = 1 << 14;
/// Bytes of the record of a switch.
pub(super) const SWITCH_BYTES: u64 = 32;
/// Words of a record's header and of its end.
const HEADER_WORDS: usize = 1;
const END_WORDS: usize = 2;

/// An activity of some process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PerfRecord {
    /// The process has mapped part of a file as executable.
    Mapped {
        /// The process.
        process: u32,
        /// The addresses of the mapping.
        range: Range<u64>,
        /// Time of the mapping, in nanoseconds of `CLOCK_MONOTONIC`.
        when: u64,
    },
    /// The process has forked or become another program.
    Turned {
        /// The process.
        process: u32,
        /// The process that it has forked. `None` if it has become another program.
        child: Option<u32>,
        /// Time of the event, in nanoseconds of `CLOCK_MONOTONIC`.
        when: u64,
    },
    /// A thread has got or given up a processor, the latter for the last time if it has ended.
    Switched {
        /// The process.
        process: u32,
        /// The thread.
        thread: u32,
        /// The switch, at a time by `CLOCK_MONOTONIC`. Without records of switches, its processor
        /// means nothing.
        switch: ContextSwitch,
        /// True if the thread has ended.
        ended: bool,
    },
    /// A tracepoint of a thread has had an event.
    Event {
        /// The process.
        process: u32,
        /// The thread that ran.
        thread: u32,
        /// The time, in nanoseconds of `CLOCK_MONOTONIC`.
        when: u64,
        /// The kernel's record of the event.
        record: Vec<u8>,
    },
    /// The kernel dropped this number of records because the ring had no room, or at most so many.
    Lost(u64),
}

/// The reader's end of a ring.
#[derive(Debug)]
pub(super) struct Ring<M> {
    memory: M,
    /// Bytes of the ring behind the first page, a power of two.
    data_bytes: u64,
    /// Position up to which the ring has been read.
    tail: u64,
    /// Words of the current record.
    record: Vec<u64>,
}

/// The mapped bytes of a ring with so many bytes of records.
pub(super) const fn mapped_bytes(data_bytes: u64) -> u64 {
    PAGE + data_bytes
}

// === impl Ring ===

impl<M: SharedMemory> Ring<M> {
    /// The ring of a perf event, with so many bytes of records.
    pub(super) fn new(memory: M, data_bytes: u64) -> Self {
        Self {
            tail: memory.load(TAIL),
            memory,
            data_bytes,
            record: Vec::new(),
        }
    }

    /// Reads the new records, and frees their space. Returns the bytes that they took.
    pub(super) fn take(&mut self, each: &mut impl FnMut(PerfRecord)) -> u64 {
        // Pairs with the barrier between the kernel's records and its store of the head.
        let head = self.memory.load(HEAD);
        let bytes = head.wrapping_sub(self.tail);
        if bytes == 0 {
            return 0;
        }
        // As many of the shortest records as the ring can hold.
        let lost = || PerfRecord::Lost(self.data_bytes / 8);
        if head.wrapping_sub(self.tail) > self.data_bytes {
            self.tail = head;
            each(lost());
        }
        while self.tail != head {
            let first = self.word(self.tail);
            let bytes = first >> 48;
            if bytes < 8 || !bytes.is_multiple_of(8) || bytes > head.wrapping_sub(self.tail) {
                self.tail = head;
                each(lost());
                break;
            }
            let mut record = std::mem::take(&mut self.record);
            record.clear();
            record.extend((0..bytes / 8).map(|word| self.word(self.tail.wrapping_add(8 * word))));
            self.tail = self.tail.wrapping_add(bytes);
            if let Some(notice) = PerfRecord::parse(&record) {
                each(notice);
            }
            self.record = record;
        }
        // The records have been copied, so the kernel may overwrite them.
        self.memory.store(TAIL, self.tail);
        bytes
    }

    fn word(&self, position: u64) -> u64 {
        self.memory.load(PAGE + position % self.data_bytes)
    }
}

// === impl PerfRecord ===

impl PerfRecord {
    /// Parses a record. `None` for other kinds of records.
    fn parse(words: &[u64]) -> Option<Self> {
        let low = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or_default();
        let processor = |word: u64| u16::try_from(low(word)).unwrap_or(u16::MAX);
        match (low(*words.first()?), words) {
            (LOST, &[_, _, records, ..]) => Some(Self::Lost(records)),
            (MMAP, &[_, process, address, bytes, _, ref rest @ ..])
                if words.len() > HEADER_WORDS + 4 + END_WORDS =>
            {
                let name = rest.first()?.to_le_bytes();
                if name.starts_with(b"//anon") || name.starts_with(b"[") {
                    return None;
                }
                Some(Self::Mapped {
                    process: low(process),
                    range: address..address.saturating_add(bytes),
                    when: *rest.last()?,
                })
            }
            // A new thread has the process of its parent.
            (FORK, &[_, both, _, .., when]) if low(both) != low(both >> 32) => Some(Self::Turned {
                process: low(both >> 32),
                child: Some(low(both)),
                when,
            }),
            (EXIT, &[_, both, threads, at_ns, .., last]) => Some(Self::Switched {
                process: low(both),
                thread: low(threads),
                switch: ContextSwitch {
                    at_ns,
                    to: RunState::Waiting,
                    processor: processor(last),
                },
                ended: true,
            }),
            (SWITCH, &[header, both, at_ns, last]) => {
                let flags = header >> 32;
                let to = match (flags & OUT, flags & PREEMPTED) {
                    (0, _) => RunState::Running,
                    (_, 0) => RunState::Waiting,
                    _ => RunState::Ready,
                };
                Some(Self::Switched {
                    process: low(both),
                    thread: low(both >> 32),
                    switch: ContextSwitch {
                        at_ns,
                        to,
                        processor: processor(last),
                    },
                    ended: false,
                })
            }
            (SAMPLE, &[_, both, when, _, first, ref rest @ ..]) => {
                // The length of the event, and its first bytes.
                let mut record = first.to_le_bytes().to_vec();
                record.drain(..4);
                record.extend(rest.iter().flat_map(|word| word.to_le_bytes()));
                record.truncate(usize::try_from(low(first)).unwrap_or(usize::MAX));
                Some(Self::Event {
                    process: low(both),
                    thread: low(both >> 32),
                    when,
                    record,
                })
            }
            (COMM, &[header, process, .., when]) if header >> 32 & BY_EXEC != 0 => {
                Some(Self::Turned {
                    process: low(process),
                    child: None,
                    when,
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    /// Memory like the kernel's, which no other thread writes.
    struct Words(RefCell<Vec<u64>>);

    impl SharedMemory for Words {
        fn load(&self, offset: u64) -> u64 {
            self.0.borrow()[usize::try_from(offset / 8).unwrap()]
        }

        fn store(&self, offset: u64, value: u64) {
            self.0.borrow_mut()[usize::try_from(offset / 8).unwrap()] = value;
        }

        fn fill(&self, _: u64, _: u64, _: u64) {
            unreachable!("the kernel's memory is not filled");
        }
    }

    fn ring() -> Ring<Words> {
        let words = vec![0; usize::try_from((PAGE + DATA_BYTES) / 8).unwrap()];
        Ring::new(Words(RefCell::new(words)), DATA_BYTES)
    }

    fn write(ring: &Ring<Words>, words: &[u64]) {
        let head = ring.memory.load(HEAD);
        for (at, &word) in (0..).zip(words) {
            let position = (head + 8 * at) % DATA_BYTES;
            ring.memory.store(PAGE + position, word);
        }
        ring.memory.store(HEAD, head + 8 * words.len() as u64);
    }

    fn taken(ring: &mut Ring<Words>) -> Vec<PerfRecord> {
        let mut notices = Vec::new();
        ring.take(&mut |notice| notices.push(notice));
        assert_eq!(ring.memory.load(TAIL), ring.memory.load(HEAD));
        notices
    }

    fn record(kind: u32, body: &[u64]) -> Vec<u64> {
        let bytes = 8 * (1 + body.len() as u64);
        let mut words = vec![u64::from(kind) | bytes << 48];
        words.extend(body);
        words
    }

    fn mapped(name: &[u8; 8], when: u64) -> Vec<u64> {
        let (process, name) = (7 | 8 << 32, u64::from_le_bytes(*name));
        record(MMAP, &[process, 0x7000, 0x1000, 0, name, 0, process, when])
    }

    #[test]
    fn files_that_are_mapped_are_reported() {
        let mut ring = ring();
        let name = |when| PerfRecord::Mapped {
            process: 7,
            range: 0x7000..0x8000,
            when,
        };
        // Many rounds, so that records wrap around to the beginning.
        for round in 0..1000 {
            write(&ring, &mapped(b"/lib/a.s", round));
            write(&ring, &mapped(b"//anon\0\0", round));
            write(&ring, &mapped(b"[vdso]\0\0", round));
            write(&ring, &record(LOST, &[1, 5, 0, 0]));
            write(&ring, &record(99, &[]));
            let expected = [name(round), PerfRecord::Lost(5)];
            assert_eq!(taken(&mut ring), expected);
        }
        assert_eq!(taken(&mut ring), []);
    }

    #[test]
    fn forks_ends_and_execs_are_reported() {
        let mut ring = ring();
        let task = |kind, process: u64, parent: u64, thread: u64| {
            let (processes, threads) = (process | parent << 32, thread | 7 << 32);
            record(kind, &[processes, threads, 1, threads, 1])
        };
        let named = |process: u64, flags: u64| {
            let mut words = record(COMM, &[process | 9 << 32, 0, process | 9 << 32, 1]);
            words[0] |= flags << 32;
            words
        };
        write(&ring, &task(FORK, 8, 7, 8));
        write(&ring, &task(EXIT, 8, 7, 8));
        write(&ring, &named(9, BY_EXEC));
        // Threads, and threads with other names.
        write(&ring, &task(FORK, 10, 10, 11));
        write(&ring, &task(EXIT, 10, 7, 11));
        write(&ring, &named(10, 0));
        let turned = |process, child| PerfRecord::Turned {
            process,
            child,
            when: 1,
        };
        let ended = |process, thread| PerfRecord::Switched {
            process,
            thread,
            switch: ContextSwitch {
                at_ns: 1,
                to: RunState::Waiting,
                processor: 1,
            },
            ended: true,
        };
        let expected = [
            turned(7, Some(8)),
            ended(8, 8),
            turned(9, None),
            ended(10, 11),
        ];
        assert_eq!(taken(&mut ring), expected);
    }

    #[test]
    fn switches_of_a_thread_are_reported() {
        let mut ring = ring();
        let both = 7 | 8 << 32;
        for (flags, to) in [
            (0, RunState::Running),
            (OUT, RunState::Waiting),
            (OUT | PREEMPTED, RunState::Ready),
        ] {
            let mut words = record(SWITCH, &[both, 99, 3]);
            words[0] |= flags << 32;
            assert_eq!(8 * words.len() as u64, SWITCH_BYTES);
            write(&ring, &words);
            let switch = ContextSwitch {
                at_ns: 99,
                to,
                processor: 3,
            };
            let expected = PerfRecord::Switched {
                process: 7,
                thread: 8,
                switch,
                ended: false,
            };
            assert_eq!(taken(&mut ring), [expected]);
        }
    }

    #[test]
    fn what_is_no_record_counts_as_lost() {
        for bytes in [0u64, 7, 12, 4096] {
            let mut ring = ring();
            write(&ring, &[u64::from(MMAP) | bytes << 48, 0]);
            assert_eq!(
                taken(&mut ring),
                [PerfRecord::Lost(DATA_BYTES / 8)],
                "{bytes}"
            );
            write(&ring, &mapped(b"/lib/a.s", 1));
            assert_eq!(taken(&mut ring).len(), 1, "{bytes}");
        }
        let mut ring = ring();
        ring.memory.store(HEAD, DATA_BYTES + 8);
        assert_eq!(taken(&mut ring), [PerfRecord::Lost(DATA_BYTES / 8)]);
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_read_to_its_end(words: Vec<u64>, head: u64) {
            let mut ring = ring();
            for (at, &word) in (0..DATA_BYTES / 8).zip(&words) {
                ring.memory.store(PAGE + 8 * at, word);
            }
            ring.memory.store(HEAD, head % (2 * DATA_BYTES));
            taken(&mut ring);
        }

        #[test]
        fn whatever_a_record_says_is_parsed(words: Vec<u64>, kind in 0u32..16) {
            let _ = PerfRecord::parse(&words);
            let _ = PerfRecord::parse(&record(kind, &words));
        }
    }
}
