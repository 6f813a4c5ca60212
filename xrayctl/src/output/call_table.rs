//! The table of functions of a trace: number and duration of their calls.

use std::io;

use serde::Serialize;
use xray_trace::analysis::{Account, AccountRow, Distribution, Filter};
use xray_trace::model::Trace;

use super::unrecorded::Unrecorded;
use super::{Cell, Column, Look, Table, Tone, units};

/// The table of functions.
#[derive(Debug, Serialize)]
pub(crate) struct CallTable {
    /// All functions that were called.
    functions: usize,
    rows: Vec<CallRow>,
    /// Calls that the rows do not count.
    #[serde(skip)]
    unrecorded: Option<Unrecorded>,
    /// True if the trace shows when threads had a processor.
    #[serde(skip)]
    has_runs: bool,
}

/// One function's calls. Times are in nanoseconds and of calls with an exit; absent without such a
/// call.
#[derive(Debug, Serialize)]
struct CallRow {
    id: u32,
    function: String,
    module: String,
    calls: u64,
    /// Estimated calls that are missing because the function was suppressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    unrecorded_calls_estimate: Option<u64>,
    unfinished: u64,
    total_ns: u64,
    self_ns: u64,
    /// The time on a processor within the calls that the next field has the time of; absent if the
    /// trace shows nothing about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_cpu_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_cpu_of_ns: Option<u64>,
    min_ns: Option<u64>,
    median_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
}

// === impl CallTable ===

impl CallTable {
    /// The first `limit` rows of an account, with names.
    pub(crate) fn new(account: &Account, trace: &Trace, filter: &Filter, limit: usize) -> Self {
        let unrecorded = Unrecorded::new(trace, filter);
        let missing = |row: &AccountRow| {
            let function = row.subject.function()?;
            unrecorded.as_ref()?.calls_of(function)
        };
        let rows = account
            .rows
            .iter()
            .take(limit)
            .filter_map(|row| CallRow::new(row, missing(row), trace));
        Self {
            functions: account.rows.len(),
            rows: rows.collect(),
            unrecorded,
            has_runs: trace.has_runs(),
        }
    }

    /// Writes the table. Its last column is the module if there are several.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut modules = self.rows.iter().map(|row| &row.module);
        let first = modules.next();
        if modules.all(|module| Some(module) == first) {
            self.render_columns(out, look, CallRow::columns(self.has_runs), CallRow::cells)?;
        } else {
            let [
                calls,
                unfinished,
                total,
                own,
                on_cpu,
                min,
                median,
                p99,
                max,
                function,
            ] = CallRow::columns(self.has_runs);
            let module = Column::left("MODULE").minor(5);
            let columns = [
                calls, unfinished, total, own, on_cpu, min, median, p99, max, module, function,
            ];
            self.render_columns(out, look, columns, |row| {
                let [
                    calls,
                    unfinished,
                    total,
                    own,
                    on_cpu,
                    min,
                    median,
                    p99,
                    max,
                    function,
                ] = row.cells();
                let file = row.module.rsplit('/').next().unwrap_or_default();
                let module = Cell::toned(file, Tone::Dim);
                [
                    calls, unfinished, total, own, on_cpu, min, median, p99, max, module, function,
                ]
            })?;
        }
        let left_out = self.functions - self.rows.len();
        if left_out > 0 {
            let line = format!(
                "… {} more; --limit 0 shows everything",
                units::counted(left_out as u64, "function")
            );
            writeln!(out, "{}", look.paint(Tone::Dim, &line))?;
        }
        match &self.unrecorded {
            Some(unrecorded) => unrecorded.render_suppressed(out, look),
            None => Ok(()),
        }
    }

    fn render_columns<const N: usize>(
        &self,
        out: &mut dyn io::Write,
        look: Look,
        columns: [Column; N],
        cells: impl Fn(&CallRow) -> [Cell; N],
    ) -> io::Result<()> {
        let mut table = Table::new(columns);
        self.rows.iter().for_each(|row| table.push(cells(row)));
        table.render(out, look)
    }
}

// === impl CallRow ===

impl CallRow {
    /// `None` for a row of another subject than a function.
    fn new(row: &AccountRow, missing: Option<u64>, trace: &Trace) -> Option<Self> {
        let AccountRow {
            subject,
            calls,
            unfinished,
            total_ns,
            self_ns,
            sum_ns: _,
            durations,
            on_cpu,
        } = *row;
        let id = subject.function()?;
        let of = |which: fn(&Distribution) -> u64| durations.as_ref().map(which);
        let module = trace
            .function(id)
            .and_then(|function| trace.module(function.module));
        Some(Self {
            id: id.0,
            function: trace.function_name(id).into_owned(),
            module: module.map(|module| module.path.clone()).unwrap_or_default(),
            calls,
            unrecorded_calls_estimate: missing,
            unfinished,
            total_ns,
            self_ns,
            on_cpu_ns: on_cpu.map(|on_cpu| on_cpu.ns),
            on_cpu_of_ns: on_cpu.map(|on_cpu| on_cpu.of_ns),
            min_ns: of(|durations| durations.min_ns),
            median_ns: of(|durations| durations.median_ns),
            p99_ns: of(|durations| durations.p99_ns),
            max_ns: of(|durations| durations.max_ns),
        })
    }

    fn columns(has_runs: bool) -> [Column; 10] {
        [
            Column::right("CALLS"),
            Column::right("UNFINISHED").minor(5),
            Column::right("TOTAL"),
            Column::right("SELF").minor(2),
            Column::right("ON-CPU").minor(1).present(has_runs),
            Column::right("MIN").minor(7),
            Column::right("MEDIAN").minor(3),
            Column::right("P99").minor(6),
            Column::right("MAX").minor(4),
            Column::elastic("FUNCTION"),
        ]
    }

    fn cells(&self) -> [Cell; 10] {
        // A function that never returned has no times. Times of zero would be wrong.
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), units::time).into();
        let sum = |ns: u64| time(self.min_ns.map(|_| ns));
        [
            self.calls.to_string().into(),
            self.unfinished.to_string().into(),
            sum(self.total_ns),
            sum(self.self_ns),
            on_cpu_text(self.on_cpu_ns, self.on_cpu_of_ns, self.total_ns).into(),
            time(self.min_ns),
            time(self.median_ns),
            time(self.p99_ns),
            time(self.max_ns),
            Cell::function(&self.function),
        ]
    }
}

/// The time on a processor in a table. With a sign if it is not known for all of the total time.
pub(super) fn on_cpu_text(on_cpu: Option<u64>, of_ns: Option<u64>, total_ns: u64) -> String {
    match on_cpu.zip(of_ns) {
        None => "-".to_owned(),
        Some((ns, of_ns)) if of_ns < total_ns => format!("≥{}", units::time(ns)),
        Some((ns, _)) => units::time(ns),
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn narrow_terminals_see_the_function_and_its_times() {
        let row = |function: &str, module: &str| CallRow {
            id: 0,
            function: function.into(),
            module: module.into(),
            calls: 1_234_567,
            unrecorded_calls_estimate: None,
            unfinished: 0,
            total_ns: 12_345_678_901,
            self_ns: 1_234_567_890,
            on_cpu_ns: None,
            on_cpu_of_ns: None,
            min_ns: Some(999),
            median_ns: Some(12_345),
            p99_ns: Some(123_456),
            max_ns: Some(1_234_567),
        };
        let table = CallTable {
            functions: 2,
            rows: vec![
                row("ns::a_function_with_quite_a_name(int)", "/usr/bin/server"),
                row("f", "/usr/lib/libfoo.so"),
            ],
            unrecorded: None,
            has_runs: false,
        };
        golden::check_narrow("table-narrow.txt", |out, look| table.render(out, look));
    }
}
