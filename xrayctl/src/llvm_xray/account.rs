//! `llvm-xray account`: counts and times of the functions.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use super::dense_map::DenseMap;
use super::failure::Failure;
use super::log::{Log, Order};
use super::names::Names;
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
use super::output::Output;
use super::record::{Record, Step};
use super::sort;
use super::statistics::{self, exponential};

pub(super) const COMMAND: Command = Command {
    name: "account",
    about: "Function call accounting",
    inputs: Inputs::Each(&["<xray log file>"]),
    options: &[
        Opt {
            name: "deduce-sibling-calls",
            alias: "d",
            value: ValueKind::Flag,
            about: "Deduce sibling calls when unrolling function call stacks",
        },
        Opt {
            name: "format",
            alias: "f",
            value: ValueKind::OneOf(&["text", "csv"]),
            about: "The output format",
        },
        Opt {
            name: "instr_map",
            alias: "m",
            value: ValueKind::Text("binary with xray_instr_map"),
            about: "The binary with the instrumentation map, or a separate map",
        },
        Opt {
            name: "keep-going",
            alias: "k",
            value: ValueKind::Flag,
            about: "Keep going on errors encountered",
        },
        Opt {
            name: "output",
            alias: "o",
            value: ValueKind::Text("output file"),
            about: "The output file; - is standard output",
        },
        Opt {
            name: "recursive-calls-only",
            alias: "",
            value: ValueKind::Flag,
            about: "Only count the calls that are recursive",
        },
        Opt {
            name: "sort",
            alias: "s",
            value: ValueKind::OneOf(&[
                "funcid", "count", "min", "med", "90p", "99p", "max", "sum", "func",
            ]),
            about: "Sort the output by this field",
        },
        Opt {
            name: "sortorder",
            alias: "r",
            value: ValueKind::OneOf(&["asc", "dsc"]),
            about: "The direction of the order",
        },
        Opt {
            name: "top",
            alias: "p",
            value: ValueKind::Number("N"),
            about: "Only show the top N results",
        },
    ],
};

/// Adds up the calls.
#[derive(Debug, Default)]
struct Accountant {
    deduces: bool,
    only_recursive: bool,
    first: u64,
    /// The times of each function.
    times: DenseMap<i32, Vec<u64>>,
    stacks: DenseMap<u32, Stack>,
}

/// The open calls of a thread.
#[derive(Debug, Default)]
struct Stack {
    /// The function and the counter at its entry.
    calls: Vec<(i32, u64)>,
    depths: HashMap<i32, Depth>,
}

/// The number of open calls of a function.
#[derive(Debug, Default)]
struct Depth {
    open: u32,
    /// Whether there were two of them since there was none.
    is_recursive: bool,
}

/// A line of the output.
#[derive(Debug)]
struct Row {
    function: i32,
    count: usize,
    /// min, med, 90p, 99p, max, sum
    times: [f64; 6],
    source: String,
    name: String,
}

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let names = Names::of_option(args.text("instr_map", ""))?;
    let output = Output::open(args.text("output", "-"))?;
    let input = args.input();
    let log = Log::load(input, Order::File).map_err(|failure| {
        let input = input.to_string_lossy();
        failure.in_context(format!("Failed loading input file '{input}'"))
    })?;
    let mut accountant = Accountant {
        deduces: args.flag("deduce-sibling-calls"),
        only_recursive: args.flag("recursive-calls-only"),
        ..Accountant::default()
    };
    for record in &log.records {
        if accountant.take(record) {
            continue;
        }
        let _ = io::stderr().write_all(accountant.describe(record, &names).as_bytes());
        if !args.flag("keep-going") {
            let input = input.to_string_lossy();
            return Err(Failure::new(format!(
                "Failed accounting function calls in file '{input}'."
            )));
        }
    }
    let rows = accountant.rows(args, log.header.cycle_frequency, &names);
    let functions = accountant.times.len();
    output.write(|out| match args.word("format", "text") {
        "csv" => write_csv(&rows, out),
        _ => write_text(functions, &rows, out),
    })
}

fn write_text(functions: usize, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Functions with latencies: {functions}")?;
    writeln!(
        out,
        "{:>9} {:>10} [{:>9}, {:>9}, {:>9}, {:>9}, {:>9}] {:>9}  {:<12}",
        "funcid", "count", "min", "med", "90p", "99p", "max", "sum", "function"
    )?;
    for row in rows {
        let [min, med, p90, p99, max, sum] = row.times.map(|time| statistics::fixed(time, 6));
        writeln!(
            out,
            "{:>9} {:>10} [{min:>9}, {med:>9}, {p90:>9}, {p99:>9}, {max:>9}] {sum:>9}  {}: {}",
            row.function, row.count, row.source, row.name
        )?;
    }
    Ok(())
}

fn write_csv(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "funcid,count,min,median,90%ile,99%ile,max,sum,debug,function"
    )?;
    for row in rows {
        let times = row.times.map(exponential).join(",");
        writeln!(
            out,
            "{},{},{times},\"{}\",\"{}\"",
            row.function, row.count, row.source, row.name
        )?;
    }
    Ok(())
}

// === impl Accountant ===

impl Accountant {
    /// Takes a record; false if it does not fit.
    fn take(&mut self, record: &Record) -> bool {
        if self.first == 0 {
            self.first = record.tsc;
        }
        if record.tsc < self.first {
            return false;
        }
        let stack = self.stacks.entry(record.tid);
        match record.step() {
            Step::None => {}
            Step::Enter => {
                stack.calls.push((record.function, record.tsc));
                let depth = stack.depths.entry(record.function).or_default();
                depth.open += 1;
                depth.is_recursive |= depth.open == 2;
            }
            Step::Exit => {
                let mut calls = stack.calls.iter();
                let Some(at) = calls.rposition(|(function, _)| *function == record.function) else {
                    return false;
                };
                if at + 1 < stack.calls.len() && !self.deduces {
                    return false;
                }
                for (function, tsc) in stack.calls.drain(at..) {
                    let depth = stack.depths.entry(function).or_default();
                    if depth.is_recursive || !self.only_recursive {
                        self.times.entry(function).push(tsc.abs_diff(record.tsc));
                    }
                    depth.open = depth.open.saturating_sub(1);
                    depth.is_recursive &= depth.open > 0;
                }
            }
        }
        true
    }

    /// The text for a record that does not fit, with the open calls of all threads.
    fn describe(&self, record: &Record, names: &Names) -> String {
        let Record {
            record_type,
            cpu,
            function,
            tsc,
            tid,
            pid,
            ..
        } = record;
        let kind = record.kind_name();
        let mut text = format!(
            "Error processing record: {{type: {record_type}; cpu: {cpu}; record-type: {kind}; \
             function-id: {function}; tsc: {tsc}; thread-id: {tid}; process-id: {pid}}}}}\n"
        );
        for (tid, stack) in self.stacks.iter() {
            let _ = writeln!(text, "Thread ID: {tid}");
            if stack.calls.is_empty() {
                text.push_str("  (empty stack)\n");
            }
            for (level, (function, _)) in stack.calls.iter().enumerate().rev() {
                let _ = writeln!(text, "  #{}\t{}", level + 1, names.name(*function));
            }
        }
        text
    }

    /// The lines in the order that the options ask for.
    fn rows(&self, args: &Arguments, frequency: u64, names: &Names) -> Vec<Row> {
        let rows = self.times.iter().map(|(function, times)| {
            let sum = times.iter().fold(0.0, |sum, time| sum + *time as f64);
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let count = sorted.len();
            let at = |share: f64| statistics::place(&sorted, (count as f64 * share).floor());
            let median = sorted.get(count / 2).copied().unwrap_or_default() as f64;
            let min = statistics::place(&sorted, 0.0);
            let max = sorted.last().copied().unwrap_or_default() as f64;
            let times = [min, median, at(0.9), at(0.99), max, sum];
            Row {
                function: *function,
                count,
                times: match frequency {
                    0 => times,
                    frequency => times.map(|time| time / frequency as f64),
                },
                source: names.source(*function),
                name: names.name(*function),
            }
        });
        let mut rows = rows.collect::<Vec<_>>();
        let ascending = args.word("sortorder", "asc") == "asc";
        let key = |row: &Row| match args.word("sort", "funcid") {
            "count" => row.count as f64,
            "min" => row.times[0],
            "med" => row.times[1],
            "90p" => row.times[2],
            "99p" => row.times[3],
            "max" => row.times[4],
            "sum" => row.times[5],
            _ => row.function.into(),
        };
        // LLVM does not implement the order by name.
        if args.word("sort", "funcid") != "func" {
            sort::sort(&mut rows, |a, b| {
                if ascending {
                    key(a) < key(b)
                } else {
                    key(a) > key(b)
                }
            });
        }
        if let Ok(top @ 1..) = usize::try_from(args.number("top", -1)) {
            rows.truncate(top);
        }
        rows
    }
}
