//! The table of calls, in llvm-xray's columns or with all values.

use std::borrow::Cow;
use std::io;

use clap::ValueEnum;
use serde::Serialize;
use xray_trace::analysis::{Account, AccountRow, Distribution, Filter, Subject};
use xray_trace::model::{Trace, XrayIds};

use super::call_table::on_cpu_text;
use super::numbers::{Scale, exponential};
use super::trace_summary::TraceSummary;
use super::unrecorded::Unrecorded;
use super::{Cell, Column, Look, Table as List, Tone, text, units};

/// How to print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// Comma-separated values
    Csv,
    /// docs/xrayctl.md describes it
    Json,
}

/// Which columns text and CSV have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Columns {
    /// The columns of llvm-xray, in seconds, with the same bytes
    Llvm,
    /// All columns: text has times with units, csv has nanoseconds
    All,
}

/// The table.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    trace: TraceSummary,
    /// All rows, before the limit.
    subjects: usize,
    #[serde(skip)]
    finished: usize,
    rows: Vec<Row>,
    /// Calls that the rows do not count.
    #[serde(skip)]
    unrecorded: Option<Unrecorded>,
    #[serde(skip)]
    columns: Columns,
    #[serde(skip)]
    scale: Scale,
    /// True if the trace shows when threads had a processor.
    #[serde(skip)]
    has_runs: bool,
}

/// One row. Times are in nanoseconds and of calls with an exit; absent without such a call.
#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    name: String,
    module: Option<String>,
    source: Option<String>,
    /// True for a function, not for a thread, a process or a module.
    #[serde(skip)]
    is_function: bool,
    /// True for a function that an instrumentation map describes.
    #[serde(skip)]
    described: bool,
    calls: u64,
    /// Estimated calls that are missing because the function was suppressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    unrecorded_calls_estimate: Option<u64>,
    unfinished: u64,
    total_ns: u64,
    self_ns: u64,
    sum_ns: u64,
    min_ns: Option<u64>,
    mean_ns: Option<u64>,
    median_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    max_ns: Option<u64>,
    /// The time on a processor within the calls that the next field has the time of; absent if the
    /// trace shows nothing about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_cpu_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_cpu_of_ns: Option<u64>,
}

// === impl Table ===

impl Table {
    /// The first `top` rows of an account.
    pub(crate) fn new(
        file: &str,
        account: &Account,
        trace: &Trace,
        filter: &Filter,
        columns: Columns,
        top: usize,
    ) -> Self {
        let rows = account.rows.iter().take(top);
        let ids = XrayIds::new(trace);
        let unrecorded = Unrecorded::new(trace, filter);
        let missing = |row: &AccountRow| {
            let function = row.subject.function()?;
            unrecorded.as_ref()?.calls_of(function)
        };
        Self {
            trace: TraceSummary::new(file, trace, account.notes),
            subjects: account.rows.len(),
            finished: account
                .rows
                .iter()
                .filter(|row| row.durations.is_some())
                .count(),
            rows: rows
                .map(|row| Row::new(row, missing(row), trace, &ids))
                .collect(),
            unrecorded,
            columns,
            scale: Scale::of(trace),
            has_runs: trace.has_runs(),
        }
    }

    /// Writes the table.
    pub(crate) fn write(
        &self,
        format: Format,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        match (format, self.columns) {
            (Format::Text, Columns::Llvm) => {
                self.llvm_text(out, look)?;
                self.unfinished_text(out, look)?;
                self.missing_text(out, look)
            }
            (Format::Csv, Columns::Llvm) => self.llvm_csv(out),
            (Format::Text, Columns::All) => {
                self.text(out, look)?;
                self.missing_text(out, look)
            }
            (Format::Csv, Columns::All) => self.csv(out),
            (Format::Json, _) => {
                serde_json::to_writer_pretty(&mut *out, self)?;
                writeln!(out)
            }
        }
    }

    /// The notes on everything that is not an ordinary call.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.trace.notes()
    }

    /// The rows that have times. llvm-xray has no others.
    fn finished(&self) -> impl Iterator<Item = (&Row, [u64; 6])> {
        self.rows.iter().filter_map(|row| {
            let times = [
                row.min_ns?,
                row.median_ns?,
                row.p90_ns?,
                row.p99_ns?,
                row.max_ns?,
                row.sum_ns,
            ];
            Some((row, times))
        })
    }

    fn llvm_text(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        writeln!(out, "Functions with latencies: {}", self.finished)?;
        writeln!(
            out,
            "{:>9} {:>10} [{:>9}, {:>9}, {:>9}, {:>9}, {:>9}] {:>9}  {:<12}",
            "funcid", "count", "min", "med", "90p", "99p", "max", "sum", "function"
        )?;
        for (row, times) in self.finished() {
            let [min, median, p90, p99, max, sum] = times.map(|ns| self.scale.seconds(ns));
            let (id, count) = (row.id, row.calls - row.unfinished);
            let (source, name) = (row.place(), text::printable(&row.shown_name(look)));
            writeln!(
                out,
                "{id:>9} {count:>10} [{min:>9.6}, {median:>9.6}, {p90:>9.6}, {p99:>9.6}, {max:>9.6}] {sum:>9.6}  {source}: {name}"
            )?;
        }
        Ok(())
    }

    /// The calls that `count` lacks: they have no exit, so their durations are not known.
    fn unfinished_text(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = List::new([
            Column::right("UNFINISHED"),
            Column::right("CALLS"),
            Column::elastic("FUNCTION"),
        ]);
        let mut any = false;
        for row in self.rows.iter().filter(|row| row.unfinished > 0) {
            any = true;
            table.push([
                units::count(row.unfinished).into(),
                units::count(row.calls).into(),
                row.name_cell(),
            ]);
        }
        if any { table.render(out, look) } else { Ok(()) }
    }

    fn missing_text(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        match &self.unrecorded {
            Some(unrecorded) => unrecorded.render_suppressed(out, look),
            None => Ok(()),
        }
    }

    fn llvm_csv(&self, out: &mut dyn io::Write) -> io::Result<()> {
        writeln!(
            out,
            "funcid,count,min,median,90%ile,99%ile,max,sum,debug,function"
        )?;
        for (row, times) in self.finished() {
            let times = times
                .map(|ns| exponential(self.scale.seconds(ns)))
                .join(",");
            let (id, count) = (row.id, row.calls - row.unfinished);
            let (source, name) = (quoted(&row.place()), quoted(&row.name));
            writeln!(out, "{id},{count},{times},{source},{name}")?;
        }
        Ok(())
    }

    fn csv(&self, out: &mut dyn io::Write) -> io::Result<()> {
        writeln!(
            out,
            "id,calls,unfinished,total_ns,self_ns,sum_ns,min_ns,mean_ns,median_ns,p90_ns,p99_ns,p999_ns,max_ns,on_cpu_ns,module,source,name"
        )?;
        for row in &self.rows {
            let times = [row.total_ns, row.self_ns, row.sum_ns].map(Some);
            let times = times.into_iter().chain(row.durations());
            let times = times.chain([row.on_cpu_ns]);
            let times = times.map(|ns| ns.map_or_else(String::new, |ns| ns.to_string()));
            let texts = [
                row.module.as_deref(),
                row.source.as_deref(),
                Some(&row.name),
            ];
            let texts = texts.map(|text| quoted(text.unwrap_or_default())).join(",");
            let times = times.collect::<Vec<_>>().join(",");
            writeln!(
                out,
                "{},{},{},{times},{texts}",
                row.id, row.calls, row.unfinished
            )?;
        }
        Ok(())
    }

    fn text(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = List::new([
            Column::right("CALLS"),
            Column::right("UNFINISHED").minor(10),
            Column::right("TOTAL"),
            Column::right("SELF").minor(2),
            Column::right("ON-CPU").minor(1).present(self.has_runs),
            Column::right("MIN").minor(8),
            Column::right("MEAN").minor(4),
            Column::right("MEDIAN").minor(3),
            Column::right("P90").minor(9),
            Column::right("P99").minor(6),
            Column::right("P99.9").minor(7),
            Column::right("MAX").minor(5),
            Column::elastic("NAME"),
        ]);
        for row in &self.rows {
            let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), units::time).into();
            // A profile has no single calls.
            let sum = |ns| time((row.calls > row.unfinished).then_some(ns));
            let [min, mean, median, p90, p99, p999, max] = row.durations().map(time);
            table.push([
                row.calls.to_string().into(),
                row.unfinished.to_string().into(),
                sum(row.total_ns),
                sum(row.self_ns),
                on_cpu_text(row.on_cpu_ns, row.on_cpu_of_ns, row.total_ns).into(),
                min,
                mean,
                median,
                p90,
                p99,
                p999,
                max,
                row.name_cell(),
            ]);
        }
        table.render(out, look)
    }
}

// === impl Row ===

impl Row {
    fn new(row: &AccountRow, missing: Option<u64>, trace: &Trace, ids: &XrayIds<'_>) -> Self {
        let AccountRow {
            subject,
            calls,
            unfinished,
            total_ns,
            self_ns,
            sum_ns,
            durations,
            on_cpu,
        } = *row;
        let of = |which: fn(&Distribution) -> u64| durations.as_ref().map(which);
        let function = subject.function().and_then(|id| trace.function(id));
        let module = function.and_then(|function| trace.module(function.module));
        let source = function.and_then(|function| function.source.as_ref());
        let id = match subject {
            Subject::Function(id) => ids.shown(id),
            Subject::Thread(id) => trace.thread(id).map_or(id.0, |thread| thread.tid).into(),
            Subject::Process(id) => id
                .and_then(|id| trace.process(id))
                .map_or(0, |process| process.pid)
                .into(),
            Subject::Module(id) => id.map_or(u32::MAX, |id| id.0).into(),
        };
        Self {
            id,
            name: subject.name(trace).into_owned(),
            module: module.map(|module| module.path.clone()),
            source: source.map(|source| format!("{}:{}", source.file, source.line)),
            is_function: subject.function().is_some(),
            described: function.is_some_and(|function| function.sleds > 0),
            calls,
            unrecorded_calls_estimate: missing,
            unfinished,
            total_ns,
            self_ns,
            sum_ns,
            min_ns: of(|durations| durations.min_ns),
            mean_ns: of(|durations| durations.mean_ns),
            median_ns: of(|durations| durations.median_ns),
            p90_ns: of(|durations| durations.p90_ns),
            p99_ns: of(|durations| durations.p99_ns),
            p999_ns: of(|durations| durations.p999_ns),
            max_ns: of(|durations| durations.max_ns),
            on_cpu_ns: on_cpu.map(|on_cpu| on_cpu.ns),
            on_cpu_of_ns: on_cpu.map(|on_cpu| on_cpu.of_ns),
        }
    }

    fn name_cell(&self) -> Cell {
        if self.is_function {
            Cell::function(&self.name)
        } else {
            Cell::toned(&self.name, Tone::Name)
        }
    }

    fn shown_name(&self, look: Look) -> Cow<'_, str> {
        if self.is_function {
            look.names.show(&self.name)
        } else {
            Cow::Borrowed(&self.name)
        }
    }

    fn durations(&self) -> [Option<u64>; 7] {
        [
            self.min_ns,
            self.mean_ns,
            self.median_ns,
            self.p90_ns,
            self.p99_ns,
            self.p999_ns,
            self.max_ns,
        ]
    }

    /// The file and the line as llvm-xray prints them: without directories, and with a column,
    /// which is 0 here. Its words distinguish a function without a map from one without a line.
    fn place(&self) -> String {
        match &self.source {
            Some(source) => {
                let file = source.rsplit('/').next().unwrap_or(source);
                format!("{}:0", text::printable(file))
            }
            None if self.described => "<invalid>:0:0".to_owned(),
            None => "(unknown)".to_owned(),
        }
    }
}

/// The text in CSV: in quotes, with inner quotes doubled.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
