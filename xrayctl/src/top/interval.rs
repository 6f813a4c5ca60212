//! The figures of one interval, from its profile.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde::Serialize;
use xray_trace::analysis::{self, AccountRow, Filter, GroupBy, Subject};
use xray_trace::model::Profile;

use super::function_times::IntervalTimes;
use crate::output::{Cell, Column, Look, Table, units};

/// The estimated cost of recording an event, in nanoseconds: half of the cost of a call, which is
/// two events, in docs/benchmarks.md.
const EVENT_NS: f64 = 35.0;

/// Self time that no event accounts for is told if it is more than one part in this many.
const UNSEEN_PART: f64 = 50.0;

/// Figures of the process as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Header {
    pub(crate) pid: u32,
    pub(crate) command: String,
    /// Functions that are on. `functions` is the number of all.
    pub(crate) functions_on: u32,
    pub(crate) functions: u32,
    /// Events lost since the attach.
    pub(crate) lost: u64,
}

/// The figures of an interval.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Interval {
    #[serde(flatten)]
    pub(crate) header: Header,
    /// Its length.
    pub(crate) seconds: f64,
    pub(crate) calls_per_second: f64,
    /// The estimated share of one processor that recording took.
    pub(crate) overhead: f64,
    /// Events lost in the interval.
    pub(crate) lost_in_interval: u64,
    /// What is missing, as sentences. Absent if nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    /// True if functions have the time for which they had a processor.
    #[serde(skip)]
    pub(crate) has_on_cpu: bool,
    pub(crate) rows: Vec<Row>,
    pub(crate) threads: Vec<Row>,
    /// By caller and callee.
    #[serde(skip)]
    edges: BTreeMap<(String, String), Edge>,
}

/// A function's calls that ended in the interval, or a thread's. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) calls_per_second: f64,
    /// Time in the function itself, per second.
    pub(crate) self_ns_per_second: f64,
    /// Time for which a thread had a processor, per second; of a function, the part of its self
    /// time. Absent if it is not known, and of functions without `--on-cpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) on_cpu_ns_per_second: Option<f64>,
    /// Self time of a function of which that is not known, per second. Absent if it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unknown_ns_per_second: Option<f64>,
    /// Absent if no exit of a call was seen.
    pub(crate) median_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
}

/// Calls of one function by another.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Edge {
    pub(crate) calls_per_second: f64,
    pub(crate) self_ns_per_second: f64,
}

/// The callers and callees of a function by name, most frequent first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Around<'a> {
    /// The caller of outermost calls has an empty name.
    pub(crate) callers: Vec<(&'a str, Edge)>,
    pub(crate) callees: Vec<(&'a str, Edge)>,
}

// === impl Interval ===

impl Interval {
    /// An interval without events.
    pub(crate) fn of(header: Header) -> Self {
        Self {
            header,
            ..Self::default()
        }
    }

    /// The figures of an interval of that length, from its profile. `on_cpu` returns the
    /// nanoseconds for which a thread had a processor, by thread id.
    pub(crate) fn new(
        header: Header,
        profile: &Profile,
        length: Duration,
        on_cpu: impl Fn(u32) -> Option<u64>,
    ) -> Self {
        let seconds = length.as_secs_f64().max(1e-3);
        let tables = profile.tables();
        let account = |by| analysis::account_profile(profile, &Filter::default(), by);
        let functions = account(GroupBy::Function);
        let rows = functions.rows.iter().map(|row| {
            let name = match row.subject {
                Subject::Function(id) => tables.function_name(id).into_owned(),
                _ => String::new(),
            };
            Row::new(name, row, seconds)
        });
        let threads = account(GroupBy::Thread);
        let threads = threads.rows.iter().map(|row| {
            let thread = match row.subject {
                Subject::Thread(id) => tables.thread(id),
                _ => None,
            };
            let name = thread.map(|thread| format!("{} {}", thread.tid, thread.name));
            let on_cpu_ns = thread.and_then(|thread| on_cpu(thread.tid));
            Row {
                on_cpu_ns_per_second: on_cpu_ns.map(|ns| ns as f64 / seconds),
                ..Row::new(name.unwrap_or_default(), row, seconds)
            }
        });
        let rows: Vec<Row> = rows.collect();
        // The sum of an empty iterator would be -0.
        let calls_per_second = rows.iter().map(|row| row.calls_per_second);
        let calls_per_second = calls_per_second.fold(0.0, std::ops::Add::add);
        Self {
            header,
            seconds,
            calls_per_second,
            overhead: calls_per_second * 2.0 * EVENT_NS / 1e9,
            lost_in_interval: profile.missing().lost,
            notes: Vec::new(),
            has_on_cpu: false,
            threads: threads.collect(),
            edges: edges(profile, seconds),
            rows,
        }
    }

    /// Adds the times for which functions had a processor, and what is missing.
    pub(crate) fn add_on_cpu(&mut self, times: &IntervalTimes, notes: Vec<String>) {
        self.has_on_cpu = true;
        self.notes = notes;
        if times.is_incomplete {
            let what = "events came too late, so times with a processor are not known";
            return self.notes.push(what.to_owned());
        }
        for row in &mut self.rows {
            let Some(time) = times.functions.get(&row.name) else {
                continue;
            };
            let per_second = |ns: u64| ns as f64 / self.seconds;
            // The sums begin and end some milliseconds apart from the times with a processor.
            let on = per_second(time.on_ns).min(row.self_ns_per_second);
            let seen = on + per_second(time.off_ns) + per_second(time.unknown_ns);
            // Calls that were open before top came.
            let unseen = row.self_ns_per_second - seen;
            let unseen = if unseen > row.self_ns_per_second / UNSEEN_PART {
                unseen
            } else {
                0.0
            };
            let unknown = per_second(time.unknown_ns) + unseen;
            row.on_cpu_ns_per_second = Some(on);
            row.unknown_ns_per_second = (unknown > 0.0).then_some(unknown);
        }
    }

    /// The callers and callees of a function.
    pub(crate) fn around(&self, name: &str) -> Around<'_> {
        let Around {
            mut callers,
            mut callees,
        } = Around::default();
        for ((caller, callee), edge) in &self.edges {
            if callee == name {
                callers.push((caller.as_str(), *edge));
            }
            if caller == name {
                callees.push((callee.as_str(), *edge));
            }
        }
        for side in [&mut callers, &mut callees] {
            side.sort_by(|a, b| b.1.calls_per_second.total_cmp(&a.1.calls_per_second));
        }
        Around { callers, callees }
    }
}

impl Interval {
    /// Writes one interval as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("CALLS/S"),
            Column::right("SELF/S"),
            Column::right("ON-CPU/S").present(self.has_on_cpu),
            Column::right("P50"),
            Column::right("P99").minor(1),
            Column::right("MAX").minor(2),
            Column::elastic("FUNCTION"),
        ]);
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_by(|a, b| b.self_ns_per_second.total_cmp(&a.self_ns_per_second));
        for row in rows {
            let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), units::time).into();
            table.push([
                rate(row.calls_per_second).into(),
                units::time(whole(row.self_ns_per_second)).into(),
                row.on_cpu().into(),
                time(row.median_ns),
                time(row.p99_ns),
                time(row.max_ns),
                Cell::function(&row.name),
            ]);
        }
        table.render(out, look)
    }
}

/// Calls per second, in short.
pub(super) fn rate(calls: f64) -> String {
    match calls {
        calls if calls >= 999_500_000.0 => format!("{:.1} G", calls / 1e9),
        calls if calls >= 999_500.0 => format!("{:.1} M", calls / 1e6),
        calls if calls >= 9999.5 => format!("{:.0} k", calls / 1e3),
        calls if calls >= 9.95 || calls == 0.0 => format!("{calls:.0}"),
        calls => format!("{calls:.1}"),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of a float saturates"
)]
pub(super) fn whole(value: f64) -> u64 {
    value as u64
}

/// Edges by caller and callee. The caller of outermost calls has an empty name.
fn edges(profile: &Profile, seconds: f64) -> BTreeMap<(String, String), Edge> {
    let mut edges = BTreeMap::<_, Edge>::new();
    let tables = profile.tables();
    for stack in profile.stacks().iter().filter(|stack| stack.calls > 0) {
        let caller = stack.caller.and_then(|at| profile.stacks().get(at));
        let caller = caller.map_or_else(String::new, |caller| {
            tables.function_name(caller.function).into_owned()
        });
        let callee = tables.function_name(stack.function).into_owned();
        let edge = edges.entry((caller, callee)).or_default();
        edge.calls_per_second += stack.calls as f64 / seconds;
        edge.self_ns_per_second += stack.self_ns as f64 / seconds;
    }
    edges
}

// === impl Row ===

impl Row {
    fn new(name: String, row: &AccountRow, seconds: f64) -> Self {
        Self {
            name,
            calls_per_second: row.calls as f64 / seconds,
            self_ns_per_second: row.self_ns as f64 / seconds,
            on_cpu_ns_per_second: None,
            unknown_ns_per_second: None,
            median_ns: row.durations.map(|durations| durations.median_ns),
            p99_ns: row.durations.map(|durations| durations.p99_ns),
            max_ns: row.durations.map(|durations| durations.max_ns),
        }
    }

    /// The time with a processor, as text.
    pub(super) fn on_cpu(&self) -> String {
        let at_least = match self.unknown_ns_per_second {
            None => "",
            Some(_) => "≥",
        };
        match self.on_cpu_ns_per_second {
            None => "-".to_owned(),
            Some(ns) => format!("{at_least}{}", units::time(whole(ns))),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use xray_trace::FileAddr;
    use xray_trace::analysis::{ProfileBudget, Profiler};
    use xray_trace::container::Writer;
    use xray_trace::model::{
        ClockAnchor, Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread, ThreadId,
        Ticks, Trace,
    };

    use super::*;

    const UNIQ: &str = "ns::uniq (.llvm.77)";

    /// A second in which `main` called `parse` this often, and each `parse` called `next` twice.
    pub(in crate::top) fn interval(header: Header, calls: u64) -> Interval {
        let mut profiler = Profiler::new(ProfileBudget::new(1 << 20));
        let [main, parse, next] = [0, 1, 2].map(FunctionId);
        profiler.enter(main, 0);
        for at in 0..calls {
            let at = at * 1000;
            profiler.enter(parse, at);
            for after in [10, 300] {
                profiler.enter(next, at + after);
                profiler.exit(next, at + after + 50);
            }
            profiler.exit(parse, at + 500);
        }
        profiler.exit(main, calls * 1000);
        let mut writer = Writer::new(Vec::new()).unwrap();
        let process = Process {
            id: ProcessId(0),
            pid: header.pid,
            start_time_ticks: 0,
            command: header.command.clone(),
            executable: String::new(),
            host: None,
        };
        writer.add(&process).unwrap();
        let module = Module {
            id: ModuleId(0),
            process: ProcessId(0),
            path: "/usr/bin/server".to_owned(),
            build_id: None,
            load_bias: 0,
            event_formats: Vec::new(),
        };
        writer.add(&module).unwrap();
        for (id, name) in [(main, "main"), (parse, "ns::parse"), (next, UNIQ)] {
            let function = Function {
                id,
                module: ModuleId(0),
                xray_id: id.0 + 1,
                address: FileAddr(0x1000),
                symbol: None,
                name: name.to_owned(),
                source: None,
                sleds: 2,
            };
            writer.add(&function).unwrap();
        }
        let thread = Thread {
            id: ThreadId(0),
            process: ProcessId(0),
            tid: 4712,
            name: "worker".to_owned(),
        };
        writer.add(&thread).unwrap();
        for tick in [0, 1_000_000_000] {
            let anchor = ClockAnchor {
                ticks: Ticks(tick),
                monotonic_ns: tick,
                wall_ns: tick,
            };
            writer.add(&anchor).unwrap();
        }
        for part in profiler.take().parts(ThreadId(0), |id| id) {
            writer.profile(&part).unwrap();
        }
        let trace = Trace::read(writer.get_ref().as_slice()).unwrap();
        let profile = Profile::of_trace(trace).unwrap().unwrap();
        let on_cpu = |_| Some(250_000_000);
        Interval::new(header, &profile, Duration::from_secs(1), on_cpu)
    }

    #[test]
    fn an_interval_has_rates_and_neighbours() {
        let interval = interval(Header::default(), 100);
        let row = |name: &str| interval.rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row(UNIQ).calls_per_second, 200.0);
        assert_eq!(row("ns::parse").self_ns_per_second, 40_000.0);
        assert_eq!(interval.calls_per_second, 301.0);
        let Around { callers, callees } = interval.around("ns::parse");
        assert_eq!(
            callers.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["main"]
        );
        assert_eq!(callees[0].0, UNIQ);
        assert_eq!(callees[0].1.calls_per_second, 200.0);
        let thread = &interval.threads[0];
        assert_eq!(thread.name, "4712 worker");
        assert_eq!(thread.on_cpu_ns_per_second, Some(250_000_000.0));
        assert_eq!(row(UNIQ).on_cpu_ns_per_second, None);
    }
}
