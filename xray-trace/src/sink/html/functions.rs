//! The table of functions, with their durations and their longest calls. A page does not contain
//! functions beyond its limit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde_json::json;

use super::document::Document;
use super::limits;
use super::names::Names;
use super::off_cpu;
use super::threads::Threads;
use crate::analysis::{AccountRow, Distribution, Spread, TimelineCall};
use crate::model::{FunctionId, ThreadId, Trace, XrayIds};

/// The functions with a row. Those with the most self time come first.
#[derive(Debug)]
pub(super) struct Functions {
    rows: Vec<Row>,
    numbers: HashMap<FunctionId, u64>,
    left_out: LeftOut,
}

#[derive(Debug)]
struct Row {
    function: FunctionId,
    id: u64,
    name: u64,
    module: u64,
    /// The number of a name, and the line + 1; both 0 if unknown.
    source: (u64, u64),
    counts: AccountRow,
    spread: Spread,
}

/// The value of a duration column.
type Which = fn(&Distribution) -> u64;

/// The sums of the functions without a row.
#[derive(Debug, Default)]
struct LeftOut {
    functions: usize,
    calls: u64,
    self_ns: u64,
}

// === impl Functions ===

impl Functions {
    pub(super) fn new(
        rows: Vec<AccountRow>,
        spreads: Vec<Spread>,
        trace: &Trace,
        names: &mut Names,
    ) -> Self {
        let mut all: Vec<_> = rows.into_iter().zip(spreads).collect();
        all.sort_by_key(|(row, _)| (Reverse((row.self_ns, row.total_ns)), row.subject));
        let mut left_out = LeftOut::default();
        for (row, _) in all.iter().skip(limits::FUNCTIONS) {
            left_out.functions += 1;
            left_out.calls = left_out.calls.saturating_add(row.calls);
            left_out.self_ns = left_out.self_ns.saturating_add(row.self_ns);
        }
        let ids = XrayIds::new(trace);
        let mut bars = 0;
        let rows = all.into_iter().take(limits::FUNCTIONS);
        let rows = rows.filter_map(|(counts, mut spread)| {
            let function = counts.subject.function()?;
            bars += spread.bars().len();
            if bars > limits::BARS {
                spread = Spread::default();
            }
            let known = trace.function(function);
            let module = known.and_then(|known| trace.module(known.module));
            let source = known.and_then(|known| known.source.as_ref());
            let source =
                source.map(|source| (names.number(&source.file), u64::from(source.line) + 1));
            Some(Row {
                function,
                id: ids.shown(function),
                name: names.number(&trace.function_name(function)),
                module: module.map_or(0, |module| names.number(&module.path) + 1),
                source: source.unwrap_or_default(),
                counts,
                spread,
            })
        });
        let rows: Vec<_> = rows.collect();
        let numbers = (1..).zip(&rows);
        let numbers = numbers
            .map(|(number, row)| (row.function, number))
            .collect();
        Self {
            rows,
            numbers,
            left_out,
        }
    }

    /// The number of a function's row + 1; 0 if it has none.
    pub(super) fn number(&self, function: FunctionId) -> u64 {
        self.numbers.get(&function).copied().unwrap_or(0)
    }

    pub(super) fn write(&mut self, document: &mut Document) {
        let column = |document: &mut Document, name: &str, value: &dyn Fn(&Row) -> u64| {
            document.column(name, self.rows.iter().map(value));
        };
        column(document, "function.id", &|row| row.id);
        column(document, "function.name", &|row| row.name);
        column(document, "function.module", &|row| row.module);
        column(document, "function.file", &|row| row.source.0);
        column(document, "function.line", &|row| row.source.1);
        column(document, "function.calls", &|row| row.counts.calls);
        column(document, "function.unfinished", &|row| {
            row.counts.unfinished
        });
        column(document, "function.total", &|row| row.counts.total_ns);
        column(document, "function.self", &|row| row.counts.self_ns);
        column(document, "function.sum", &|row| row.counts.sum_ns);
        // Durations are stored + 1; 0 if unknown.
        let durations: [(&str, Which); 7] = [
            ("function.min", |known| known.min_ns),
            ("function.mean", |known| known.mean_ns),
            ("function.median", |known| known.median_ns),
            ("function.p90", |known| known.p90_ns),
            ("function.p99", |known| known.p99_ns),
            ("function.p999", |known| known.p999_ns),
            ("function.max", |known| known.max_ns),
        ];
        for (name, which) in durations {
            column(document, name, &|row| {
                let known = row.counts.durations.as_ref();
                known.map_or(0, |known| which(known).saturating_add(1))
            });
        }
        column(document, "function.bars", &|row| {
            row.spread.bars().len() as u64
        });
        let bars = || self.rows.iter().flat_map(|row| row.spread.bars());
        document.column("bar.at", bars().map(|(at, _)| at.into()));
        document.column("bar.calls", bars().map(|(_, calls)| calls));
        let LeftOut {
            functions,
            calls,
            self_ns,
        } = self.left_out;
        document.set(
            "functionsLeftOut",
            json!({ "functions": functions, "calls": calls, "self": self_ns }),
        );
    }

    /// Writes the longest calls of each function. The user can look them up in the timeline.
    pub(super) fn write_longest(
        &self,
        longest: &BTreeMap<FunctionId, Vec<(ThreadId, TimelineCall)>>,
        threads: &Threads,
        origin_ns: u64,
        document: &mut Document,
    ) {
        let of = |row: &Row| longest.get(&row.function).map_or(&[][..], Vec::as_slice);
        let counts = self.rows.iter().map(|row| of(row).len() as u64);
        document.column("function.longest", counts);
        let calls = || self.rows.iter().flat_map(of);
        document.column(
            "longest.thread",
            calls().map(|(thread, _)| threads.number(*thread)),
        );
        document.column("longest.depth", calls().map(|(_, call)| call.depth as u64));
        let start = |call: &TimelineCall| call.start_ns.saturating_sub(origin_ns);
        document.column("longest.start", calls().map(|(_, call)| start(call)));
        let len = |call: &TimelineCall| call.len_ns() << 1 | u64::from(!call.finished);
        document.column("longest.len", calls().map(|(_, call)| len(call)));
        off_cpu::write_calls("longest", || calls().map(|(_, call)| call), document);
    }
}
