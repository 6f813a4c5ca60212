//! The kernel events of a thread, in order of time, with their times in ticks. The steps take them
//! between the events of the program.

use std::vec;

use crate::container::{KernelPart, KernelRecord, KernelRecordKind, KernelRecords};
use crate::model::{Clock, DataKind, DataRef, ThreadId, Ticks, Trace};

/// The kernel events of a thread that have no step yet.
#[derive(Debug)]
pub(crate) struct KernelQueue<'a> {
    clock: &'a Clock,
    /// The first and the last nanosecond whose events are taken.
    window: (u64, u64),
    /// The parts that were not begun yet.
    parts: vec::IntoIter<&'a KernelPart>,
    /// The rest of the current part.
    records: Option<KernelRecords>,
    next: Option<Next>,
    /// The data of the latest event that was taken.
    data: Vec<u8>,
}

/// The next event.
#[derive(Debug, Clone, Copy)]
struct Next {
    ticks: Ticks,
    ns: u64,
    tracepoint: u16,
    /// The place of its data in the current part.
    data: (usize, usize),
}

/// A kernel event that was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TakenEvent {
    pub(crate) ticks: Ticks,
    pub(crate) ns: u64,
    pub(crate) kind: DataKind,
    pub(crate) data: DataRef,
}

// === impl KernelQueue ===

impl<'a> KernelQueue<'a> {
    /// The kernel events of a thread; `None` if it has none.
    pub(crate) fn of(trace: &'a Trace, thread: ThreadId) -> Option<Box<Self>> {
        let parts = trace.kernel_parts(thread);
        let mut this = Self {
            clock: trace.clock(),
            window: trace.kernel_window(thread),
            parts: parts.into_iter(),
            records: None,
            next: None,
            data: Vec::new(),
        };
        this.advance();
        this.next.is_some().then(|| Box::new(this))
    }

    /// The time of the next event; the greatest one if there is none.
    pub(crate) fn due(&self) -> Ticks {
        self.next.map_or(Ticks(u64::MAX), |next| next.ticks)
    }

    /// Drops the events before a moment.
    pub(crate) fn skip_before(&mut self, since: Ticks) {
        let from_ns = self.clock.monotonic_ns(since);
        if self.due() < since {
            let later = |part: &&KernelPart| part.until_ns >= from_ns;
            let parts = self.parts.as_slice().iter().copied().filter(later);
            self.parts = parts.collect::<Vec<_>>().into_iter();
        }
        while self.due() < since {
            self.advance();
        }
    }

    /// Takes the next event, if it is before this moment.
    pub(crate) fn take_before(&mut self, until: Ticks) -> Option<TakenEvent> {
        let next = self.next.filter(|next| next.ticks < until)?;
        let records = self.records.as_ref();
        let data = records.map_or(&[][..], |records| records.data(next.data));
        self.data.clear();
        self.data.extend_from_slice(data);
        // A field of a section is far shorter than 4 GiB.
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.advance();
        Some(TakenEvent {
            ticks: next.ticks,
            ns: next.ns,
            kind: DataKind::Kernel(next.tracepoint),
            data: DataRef {
                at: 0,
                len,
                size: len,
                function: None,
            },
        })
    }

    /// The data of the latest event that was taken.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    fn advance(&mut self) {
        self.next = loop {
            let Some(records) = &mut self.records else {
                let Some(part) = self.parts.next() else {
                    break None;
                };
                self.records = Some(part.records());
                continue;
            };
            match records.next() {
                Some(KernelRecord {
                    at_ns: ns,
                    what: KernelRecordKind::Event { tracepoint, data },
                }) if (self.window.0..=self.window.1).contains(&ns) => {
                    break Some(Next {
                        ticks: self.clock.ticks_at(ns),
                        ns,
                        tracepoint,
                        data,
                    });
                }
                Some(_) => {}
                None => self.records = None,
            }
        };
    }
}
