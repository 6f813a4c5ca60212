//! The difference of two profiles, function by function.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::Serialize;
use xray_trace::analysis::Stacks;

use super::{Cell, Column, Look, Table, units};

/// The difference.
#[derive(Debug, Serialize)]
pub(crate) struct ProfileDiff {
    before: String,
    after: String,
    /// The functions of both profiles together.
    functions: usize,
    /// The greatest change of self time first.
    rows: Vec<Row>,
}

/// A function, before and after. Times are in nanoseconds.
#[derive(Debug, Default, Serialize)]
struct Row {
    name: String,
    calls: [u64; 2],
    /// Time in the function itself.
    self_ns: [u64; 2],
    /// Self time per call; `null` without calls.
    self_per_call_ns: [Option<u64>; 2],
}

// === impl ProfileDiff ===

impl ProfileDiff {
    /// The first `top` functions of the stacks of two files; 0 for all.
    pub(crate) fn new(files: &[PathBuf], stacks: &Stacks, top: usize) -> Self {
        let mut rows = BTreeMap::<&str, Row>::new();
        for node in stacks.nodes() {
            let row = rows.entry(stacks.name(node)).or_default();
            for (side, counts) in node.counts.iter().enumerate() {
                row.calls[side] = row.calls[side].saturating_add(counts.calls);
                row.self_ns[side] = row.self_ns[side].saturating_add(counts.self_ns);
            }
        }
        let mut rows: Vec<Row> = rows
            .into_iter()
            .map(|(name, row)| Row {
                name: name.to_owned(),
                self_per_call_ns: std::array::from_fn(|side| {
                    row.self_ns[side].checked_div(row.calls[side])
                }),
                ..row
            })
            .collect();
        let functions = rows.len();
        // The sort is stable: rows of the same difference stay in order of their names.
        rows.sort_by_key(|row| std::cmp::Reverse(row.self_ns[0].abs_diff(row.self_ns[1])));
        rows.truncate(if top == 0 { usize::MAX } else { top });
        let name = |at: usize| {
            files
                .get(at)
                .map(|file| file.display().to_string())
                .unwrap_or_default()
        };
        Self {
            before: name(0),
            after: name(1),
            functions,
            rows,
        }
    }

    /// Writes the table as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("CALLS").minor(4),
            Column::right("AFTER").minor(3),
            Column::right("SELF"),
            Column::right("AFTER"),
            Column::right("CHANGE"),
            Column::right("PER CALL").minor(2),
            Column::right("AFTER").minor(1),
            Column::elastic("NAME"),
        ]);
        for row in &self.rows {
            let per_call = row
                .self_per_call_ns
                .map(|ns| ns.map_or_else(|| "-".to_owned(), units::time));
            let [before, after] = row.self_ns;
            let [calls, calls_after] = row.calls;
            let [per_call, per_call_after] = per_call;
            table.push([
                units::count(calls).into(),
                units::count(calls_after).into(),
                units::time(before).into(),
                units::time(after).into(),
                change(before, after).into(),
                per_call.into(),
                per_call_after.into(),
                Cell::function(&row.name),
            ]);
        }
        table.render(out, look)
    }
}

/// The change with its sign.
fn change(before: u64, after: u64) -> String {
    match after.checked_sub(before) {
        Some(more) => format!("+{}", units::time(more)),
        None => format!("-{}", units::time(before - after)),
    }
}
