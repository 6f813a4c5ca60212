//! The number of calls of functions.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::Serialize;
use xrayd_proto::v1::{CallCounts, FunctionCalls};

use super::{Cell, Column, Look, Table, units};

/// Counts as the engine reports them.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    calls: BTreeMap<Key, Known>,
    /// Calls of functions that could not be told apart.
    unnamed: u64,
}

/// A function in a thread of a process. Thread 0 stands for all threads that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pid: u32,
    tid: u32,
    function: u32,
}

#[derive(Debug)]
struct Known {
    thread: String,
    name: String,
    module: String,
    calls: u64,
}

/// Counts, and the time in which they were counted.
#[derive(Debug)]
pub(crate) struct Counted {
    counts: Counts,
    /// The length of the time, if it is known.
    during: Option<Duration>,
}

/// The subjects of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountBy {
    Function,
    FunctionAndThread,
}

/// The rows of a table.
#[derive(Debug, Serialize)]
pub(crate) struct Rows {
    /// All calls, with and without a row.
    calls: u64,
    /// Calls of functions that could not be told apart: too many were called, or their library was
    /// gone.
    unnamed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// Most calls first.
    rows: Vec<Row>,
    /// The number of rows that are not shown.
    #[serde(skip)]
    more: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    module: String,
    calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<String>,
}

// === impl Counts ===

impl Counts {
    /// Adds a message.
    pub(crate) fn add(&mut self, message: CallCounts) {
        let CallCounts {
            pid,
            tid,
            thread,
            functions,
            unnamed,
        } = message;
        self.unnamed = self.unnamed.saturating_add(unnamed);
        for function in functions {
            let FunctionCalls {
                id,
                name,
                module,
                calls,
            } = function;
            let key = Key {
                pid,
                tid,
                function: id,
            };
            let known = self.calls.entry(key).or_insert_with(|| Known {
                thread: thread.clone(),
                name,
                module,
                calls: 0,
            });
            known.calls = known.calls.saturating_add(calls);
        }
    }
}

// === impl Counted ===

impl Counted {
    pub(crate) fn new(counts: Counts, during: Option<Duration>) -> Self {
        Self { counts, during }
    }

    /// Subtracts an earlier count.
    pub(crate) fn since(mut self, before: &Counts) -> Self {
        let Counts { calls, unnamed } = &mut self.counts;
        for (key, known) in calls {
            let before = before.calls.get(key).map_or(0, |before| before.calls);
            known.calls = known.calls.saturating_sub(before);
        }
        *unnamed = unnamed.saturating_sub(before.unnamed);
        self
    }

    /// A row for each function, or for each function of each thread: the `top` rows with the most
    /// calls.
    pub(crate) fn rows(&self, by: CountBy, top: usize) -> Rows {
        let seconds = self.during.map(|during| during.as_secs_f64());
        let mut rows = BTreeMap::<(Option<(u32, u32)>, &str, &str), Row>::new();
        let mut all = self.counts.unnamed;
        for (key, known) in &self.counts.calls {
            if known.calls == 0 {
                continue;
            }
            all = all.saturating_add(known.calls);
            let thread = match by {
                CountBy::Function => None,
                CountBy::FunctionAndThread => Some((key.pid, key.tid)),
            };
            let row = rows
                .entry((thread, &known.module, &known.name))
                .or_insert_with(|| Row {
                    name: known.name.clone(),
                    module: known.module.clone(),
                    calls: 0,
                    calls_per_second: None,
                    pid: thread.map(|(pid, _)| pid),
                    tid: thread.map(|(_, tid)| tid),
                    thread: thread.map(|_| known.thread.clone()),
                });
            row.calls = row.calls.saturating_add(known.calls);
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        for row in &mut rows {
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let calls = row.calls as f64;
            row.calls_per_second = seconds.map(|seconds| calls / seconds.max(f64::MIN_POSITIVE));
        }
        // The sort is stable: rows with the same number stay in order of their names.
        rows.sort_by_key(|row| std::cmp::Reverse(row.calls));
        let more = rows.len().saturating_sub(top);
        rows.truncate(top);
        Rows {
            calls: all,
            unnamed: self.counts.unnamed,
            seconds,
            rows,
            more,
        }
    }
}

// === impl Rows ===

impl Rows {
    /// Writes the table as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        if self.rows.iter().any(|row| row.tid.is_some()) {
            return self.render_by_thread(out, look);
        }
        let mut table = Table::new([
            Column::right("CALLS"),
            Column::right("SHARE").minor(2),
            Column::right("CALLS/S").minor(1),
            Column::elastic("NAME"),
        ]);
        for row in &self.rows {
            let [calls, share, rate, name] = self.cells(row);
            table.push([calls, share, rate, name]);
        }
        table.render(out, look)
    }

    fn render_by_thread(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("CALLS"),
            Column::right("SHARE").minor(2),
            Column::right("CALLS/S").minor(1),
            Column::right("TID"),
            Column::left("THREAD").minor(3),
            Column::elastic("NAME"),
        ]);
        for row in &self.rows {
            let [calls, share, rate, name] = self.cells(row);
            let (tid, thread) = match (row.tid, &row.thread) {
                (Some(tid), Some(thread)) if tid > 0 => (tid.to_string(), thread.clone()),
                _ => ("-".to_owned(), "(ended)".to_owned()),
            };
            table.push([calls, share, rate, tid.into(), thread.into(), name]);
        }
        table.render(out, look)
    }

    fn cells(&self, row: &Row) -> [Cell; 4] {
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = 100.0 * row.calls as f64 / self.calls.max(1) as f64;
        let rate = row.calls_per_second.map(|rate| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate for people, and never negative"
            )]
            let whole = rate.round() as u64;
            units::count(whole)
        });
        [
            units::count(row.calls).into(),
            format!("{share:.1}%").into(),
            rate.unwrap_or_else(|| "-".to_owned()).into(),
            Cell::function(&row.name),
        ]
    }

    /// The notes beside the table.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.calls == 0 {
            notes.push("no call was counted".to_owned());
        }
        if self.more > 0 {
            let more = self.more;
            notes.push(format!("{more} more rows; --top 0 shows them all"));
        }
        if self.unnamed > 0 {
            let unnamed = units::counted(self.unnamed, "call");
            notes.push(format!(
                "{unnamed} of unnamed functions: more functions were called than can be counted one by one, or their library was unloaded"
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tid: u32, calls: &[(u32, &str, u64)], unnamed: u64) -> CallCounts {
        let functions = calls.iter().map(|&(id, name, calls)| FunctionCalls {
            id,
            name: name.to_owned(),
            module: "/bin/app".to_owned(),
            calls,
        });
        CallCounts {
            pid: 7,
            tid,
            thread: format!("t{tid}"),
            functions: functions.collect(),
            unnamed,
        }
    }

    fn counts(messages: impl IntoIterator<Item = CallCounts>) -> Counts {
        let mut counts = Counts::default();
        messages.into_iter().for_each(|message| counts.add(message));
        counts
    }

    #[test]
    fn threads_are_added_up_or_distinguished() {
        let before = counts([message(1, &[(0, "f", 10)], 1)]);
        let after = counts([
            message(1, &[(0, "f", 15), (1, "g", 100)], 0),
            message(2, &[(0, "f", 3)], 4),
        ]);
        let counted = Counted::new(after, Some(Duration::from_secs(2))).since(&before);
        let rows = counted.rows(CountBy::Function, 1);
        assert_eq!((rows.calls, rows.unnamed, rows.more), (111, 3, 1));
        let first = &rows.rows[0];
        assert_eq!((first.name.as_str(), first.calls), ("g", 100));
        assert_eq!(first.calls_per_second, Some(50.0));
        let all = counted.rows(CountBy::FunctionAndThread, usize::MAX);
        let seen = all
            .rows
            .iter()
            .map(|row| (row.tid, row.name.as_str(), row.calls));
        let expected = [(Some(1), "g", 100), (Some(1), "f", 5), (Some(2), "f", 3)];
        assert!(seen.eq(expected));
    }
}
