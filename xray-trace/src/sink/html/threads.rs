//! The threads that a page has: their names and their rows. The calls of the threads are in
//! `lines`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{limits, names};
use crate::analysis::{ThreadTimeline, Timeline};
use crate::model::{ThreadId, Trace};
use crate::sink::kernel_ids::KernelIds;

/// The threads of a page.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// The row of each thread. `new` fills it.
    rows: BTreeMap<ThreadId, usize>,
    /// The names of each thread, by row. `new` fills it.
    shown: Vec<Value>,
}

// === impl Threads ===

impl Threads {
    /// The threads of a timeline, in its order.
    pub(super) fn new(timeline: &Timeline, trace: &Trace) -> Self {
        let mut threads = Self::default();
        for ThreadTimeline { thread, .. } in &timeline.threads {
            let KernelIds { pid, tid } = KernelIds::of(trace, *thread);
            let known = trace.thread(*thread);
            let name = known.map_or("", |known| known.name.as_str());
            let process = known.and_then(|known| trace.process(known.process));
            let command = process.map_or("", |process| process.command.as_str());
            threads.rows.insert(*thread, threads.shown.len());
            threads.shown.push(json!({
                "name": names::cut(name, limits::THREAD_NAME),
                "tid": tid,
                "pid": pid,
                "process": names::cut(command, limits::THREAD_NAME),
            }));
        }
        threads
    }

    /// The threads that the page has.
    pub(super) fn ids(&self) -> impl Iterator<Item = ThreadId> {
        self.rows.keys().copied()
    }

    /// The row of a thread, from 0; `None` if the page does not have the thread.
    pub(super) fn row(&self, thread: ThreadId) -> Option<usize> {
        self.rows.get(&thread).copied()
    }

    /// The number of a thread in the document: 1 more than its row, or 0 if the page does not have
    /// it.
    pub(super) fn number(&self, thread: ThreadId) -> u64 {
        self.row(thread).map_or(0, |row| row as u64 + 1)
    }

    /// The entries of the document's head, one for each thread. The entry of a thread without
    /// events and open calls in the window has only its names.
    pub(super) fn head(&self, timeline: &Timeline) -> Value {
        let mut heads = self.shown.clone();
        for line in &timeline.threads {
            let head = self
                .rows
                .get(&line.thread)
                .and_then(|row| heads.get_mut(*row));
            if let Some(head) = head {
                head["power"] = json!(line.slice_power);
                head["keptFrom"] = json!(line.kept_from_ns);
                head["summed"] = json!(line.summed);
                head["tooDeep"] = json!(line.too_deep);
                head["offKeptFrom"] = json!(line.off_cpu.kept_from_ns);
                head["offLeftOut"] = json!(line.off_cpu.left_out);
            }
        }
        heads.into()
    }
}
