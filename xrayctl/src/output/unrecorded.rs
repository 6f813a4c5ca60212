//! Calls that a trace lacks beside counted losses, in words: calls of suppressed functions, calls
//! outside of a duty cycle, calls that a filter left out, calls in a gap. The numbers of such calls
//! are estimates, or unknown, and the output calls them so.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use xray_trace::analysis::{Budget, DutyCycle, Filter, FilterSpan, GapSpan, Suppressed};
use xray_trace::model::{FunctionId, GapCause, Trace};

use super::{Cell, Column, Look, Table, Tone, text, units};

/// Functions that are listed one by one.
const TOP: usize = 10;
/// Functions in a sentence.
const NAMED: usize = 3;
/// Characters of a name in a sentence.
const NAME_WIDTH: usize = 60;

/// Everything that a trace lacks beside counted losses.
#[derive(Debug, Serialize)]
pub(crate) struct Unrecorded {
    #[serde(skip_serializing_if = "Option::is_none")]
    suppressed: Option<RestingFunctions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duty: Option<Duty>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    filters: Vec<InForce>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<Missing>,
    /// Missing calls, by function.
    #[serde(skip)]
    calls: BTreeMap<FunctionId, u64>,
    /// Words behind the number of those calls if the filter selects only some threads; else empty.
    #[serde(skip)]
    whose: &'static str,
}

/// Functions that were off for a time.
#[derive(Debug, Serialize)]
struct RestingFunctions {
    functions: usize,
    unrecorded_calls_estimate: u64,
    /// The functions with the most missing calls.
    top: Vec<Off>,
}

/// A function that was off for a time.
#[derive(Debug, Serialize)]
struct Off {
    id: u32,
    function: String,
    off_ns: u64,
    /// Absent in a profile if it is not known.
    off_share: Option<f64>,
    unrecorded_calls_estimate: u64,
    #[serde(skip)]
    thousandths: Option<u64>,
}

/// The times in which all functions recorded.
#[derive(Debug, Serialize)]
struct Duty {
    windows: u64,
    recorded_ns: u64,
    stands_for_ns: u64,
    /// The estimated ratio of all calls to the recorded ones; absent if none was recorded.
    weight: Option<f64>,
}

/// A filter and its time, by `CLOCK_MONOTONIC`.
#[derive(Debug, Serialize)]
struct InForce {
    pid: Option<u32>,
    filter: String,
    /// Absent if the filter was set before the trace began.
    since_ns: Option<u64>,
    /// Absent if the filter was in force at the end.
    until_ns: Option<u64>,
}

/// A time in which an unknown number of events was lost, by `CLOCK_MONOTONIC`.
#[derive(Debug, Serialize)]
struct Missing {
    pid: Option<u32>,
    /// Absent if unknown.
    since_ns: Option<u64>,
    until_ns: u64,
    #[serde(serialize_with = "by_name")]
    cause: GapCause,
}

// === impl Unrecorded ===

impl Unrecorded {
    /// `None` for a trace that has everything that `filter` selects.
    pub(crate) fn new(trace: &Trace, filter: &Filter) -> Option<Self> {
        let budget = Budget::new(trace, filter);
        if budget.is_empty() {
            return None;
        }
        let unrecorded_calls_estimate = budget.calls();
        let Budget {
            suppressed,
            duty,
            filters,
            gaps,
        } = budget;
        let top = suppressed.iter().take(TOP);
        let some = (!suppressed.is_empty()).then(|| RestingFunctions {
            functions: suppressed.len(),
            unrecorded_calls_estimate,
            top: top.map(|suppressed| Off::new(suppressed, trace)).collect(),
        });
        let calls = suppressed
            .iter()
            .map(|suppressed| (suppressed.function, suppressed.calls));
        let filters = filters.into_iter().map(|span| InForce::new(span, trace));
        Some(Self {
            calls: calls.collect(),
            suppressed: some,
            duty: duty.map(Duty::new),
            filters: filters.collect(),
            gaps: gaps.iter().map(|gap| Missing::new(gap, trace)).collect(),
            whose: match filter.threads {
                None => "",
                Some(_) => ", in all threads",
            },
        })
    }

    /// The estimated number of a function's missing calls. `None` if it was never suppressed, or if
    /// the filter selects only some threads.
    pub(crate) fn calls_of(&self, function: FunctionId) -> Option<u64> {
        match self.whose {
            "" => self.calls.get(&function).copied(),
            _ => None,
        }
    }

    /// A line for a budget, for a duty cycle, for each gap and for each filter.
    pub(crate) fn lines(&self) -> Vec<(Tone, String)> {
        self.lines_with(RestingFunctions::line)
    }

    /// The same lines with names of functions, where there is room.
    pub(crate) fn lines_with_names(&self) -> Vec<(Tone, String)> {
        self.lines_with(RestingFunctions::line_with_names)
    }

    fn lines_with(&self, line: fn(&RestingFunctions) -> String) -> Vec<(Tone, String)> {
        let mut lines = Vec::new();
        let suppressed = self.suppressed.as_ref();
        lines.extend(suppressed.map(|suppressed| (Tone::Warning, line(suppressed))));
        lines.extend(self.duty.as_ref().map(|duty| (Tone::Warning, duty.line())));
        let gaps = self.gaps.iter().take(TOP);
        lines.extend(gaps.map(|gap| (Tone::Warning, gap.line())));
        if let Some(more @ 1..) = self.gaps.len().checked_sub(TOP) {
            let more = units::counted(more as u64, "more gap");
            lines.push((Tone::Warning, format!("and {more}")));
        }
        // One filter may be in several processes, or set several times.
        let mut filters = BTreeMap::<_, Vec<_>>::new();
        for filter in &self.filters {
            filters.entry(&filter.filter).or_default().push(filter);
        }
        lines.extend(filters.iter().map(|(text, all)| {
            let always = |one: &&InForce| one.since_ns.is_none() && one.until_ns.is_none();
            let what = "recorded with this filter";
            let text = text::printable(text);
            let line = match all.iter().all(always) {
                true => format!("{what}: {text}"),
                false => format!("{what} at times: {text}"),
            };
            (Tone::Dim, line)
        }));
        lines
    }

    /// Writes the functions with missing calls below a table of functions, a line each.
    pub(crate) fn render_suppressed(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let Some(suppressed) = &self.suppressed else {
            return Ok(());
        };
        let lines = suppressed.top.iter().map(|off| {
            let more = about(off.unrecorded_calls_estimate, "call");
            let name = text::printable(&look.names.show(&off.function));
            let name = text::cut(&name, NAME_WIDTH);
            let time = off.time();
            format!(
                "{name} was suppressed {time}: {more} not recorded{}",
                self.whose
            )
        });
        let more = suppressed.functions - suppressed.top.len();
        let more =
            (more > 0).then(|| format!("and {}", units::counted(more as u64, "more function")));
        for line in lines.chain(more) {
            for line in text::wrap(&line, look.width.unwrap_or(usize::MAX)) {
                writeln!(out, "{}", look.paint(Tone::Warning, &line))?;
            }
        }
        Ok(())
    }

    /// Writes the facts that [`Self::lines`] leaves out. Times count from `begin_ns`.
    pub(crate) fn render_more(
        &self,
        begin_ns: Option<u64>,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        if let Some(duty) = &self.duty {
            let windows = units::counted(duty.windows, "window");
            let recorded = units::time(duty.recorded_ns);
            writeln!(out, "duty cycle: {windows}, {recorded} in all")?;
        }
        if let Some(suppressed) = &self.suppressed {
            let mut table = Table::new([
                Column::right("SUPPRESSED"),
                Column::right("CALLS MISSING"),
                Column::elastic("FUNCTION"),
            ]);
            for off in &suppressed.top {
                table.push([
                    off.thousandths
                        .map_or_else(|| "-".to_owned(), percent)
                        .into(),
                    format!(
                        "~{}",
                        units::count(units::rough(off.unrecorded_calls_estimate))
                    )
                    .into(),
                    Cell::function(&off.function),
                ]);
            }
            table.render(out, look)?;
        }
        if self.filters.is_empty() {
            return Ok(());
        }
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("SINCE"),
            Column::right("UNTIL"),
            Column::elastic("FILTER"),
        ]);
        for filter in &self.filters {
            let pid = filter.pid.map(|pid| pid.to_string());
            let after = |ns: u64| units::time(ns.saturating_sub(begin_ns.unwrap_or(ns)));
            let since = filter.since_ns.map(after);
            let until = filter.until_ns.map(after);
            table.push([
                pid.unwrap_or_default().into(),
                since.unwrap_or_else(|| "before".to_owned()).into(),
                until.unwrap_or_else(|| "end".to_owned()).into(),
                text::printable(&filter.filter).into(),
            ]);
        }
        table.render(out, look)
    }

    /// The facts that a format cannot hold, and their numbers.
    pub(crate) fn left_out(&self) -> Vec<(String, u64)> {
        let suppressed = self.suppressed.as_ref().map(|suppressed| {
            let what = "functions were off at times, to keep to a budget; calls that are missing, an estimate";
            (what.to_owned(), units::rough(suppressed.unrecorded_calls_estimate))
        });
        let duty = self.duty.as_ref().map(|duty| {
            let what = "only a part of the time was recorded: windows of a duty cycle";
            (what.to_owned(), duty.windows)
        });
        let filters = self.filters.len() as u64;
        let filters = (filters > 0).then(|| {
            let what = "filters that were in force";
            (what.to_owned(), filters)
        });
        let gaps = self.gaps.len() as u64;
        let gaps = (gaps > 0).then(|| {
            let what = "times in which an unknown number of events was lost";
            (what.to_owned(), gaps)
        });
        let facts = suppressed.into_iter().chain(duty);
        facts.chain(filters).chain(gaps).collect()
    }
}

// === impl Missing ===

impl Missing {
    fn new(gap: &GapSpan, trace: &Trace) -> Self {
        let process = trace.process(gap.process);
        Self {
            pid: process.map(|process| process.pid),
            since_ns: gap.since_ns,
            until_ns: gap.until_ns,
            cause: gap.cause,
        }
    }

    fn line(&self) -> String {
        let line = gap_line(self.since_ns, self.until_ns, cause_in_words(self.cause));
        match self.pid {
            Some(pid) => format!("{pid}: {line}"),
            None => line,
        }
    }
}

/// The name of a cause, as `status` has it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn by_name<S: serde::Serializer>(cause: &GapCause, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match cause {
        GapCause::NoDaemon => "no_daemon",
        GapCause::UnreadRings => "unread_rings",
        GapCause::DamagedEvents => "damaged_events",
        GapCause::Unknown => "unspecified",
    })
}

/// The cause of a gap, for people.
pub(super) const fn cause_in_words(cause: GapCause) -> &'static str {
    match cause {
        GapCause::NoDaemon => "no daemon was at work, so recording had closed itself",
        GapCause::UnreadRings => "the rings of an earlier daemon could not be read",
        GapCause::DamagedEvents => "events that an earlier daemon had retained were damaged",
        GapCause::Unknown => "the cause is unknown",
    }
}

/// A line for a gap, with times on `CLOCK_MONOTONIC`.
pub(super) fn gap_line(since_ns: Option<u64>, until_ns: u64, cause: &str) -> String {
    let lost = "an unknown number of events was lost";
    match since_ns {
        Some(since) => {
            let time = units::time(until_ns.saturating_sub(since));
            format!("{lost} in {time}: {cause}")
        }
        None => format!("{lost} at the begin: {cause}"),
    }
}

// === impl RestingFunctions ===

impl RestingFunctions {
    fn line(&self) -> String {
        let functions = units::counted(self.functions as u64, "function");
        let calls = about(self.unrecorded_calls_estimate, "call");
        format!("{functions} suppressed to keep a budget: {calls} not recorded")
    }

    fn line_with_names(&self) -> String {
        let mut named: Vec<_> = self
            .top
            .iter()
            .take(NAMED)
            .map(|off| {
                let name = text::cut(&text::printable(&off.function), NAME_WIDTH);
                format!(
                    "{name} {}",
                    units::count(units::rough(off.unrecorded_calls_estimate))
                )
            })
            .collect();
        let more = self.functions - named.len();
        if more > 0 {
            named.push(units::counted(more as u64, "more function"));
        }
        format!("{} ({})", self.line(), named.join(", "))
    }
}

// === impl Off ===

impl Off {
    fn new(suppressed: &Suppressed, trace: &Trace) -> Self {
        let thousandths = suppressed.off_thousandths();
        Self {
            id: suppressed.function.0,
            function: trace.function_name(suppressed.function).into_owned(),
            off_ns: suppressed.off_ns,
            off_share: thousandths.map(|thousandths| decimal(thousandths, 1000)),
            unrecorded_calls_estimate: suppressed.calls,
            thousandths,
        }
    }

    fn time(&self) -> String {
        match self.thousandths {
            None => "at times".to_owned(),
            Some(1000..) => "all the time".to_owned(),
            Some(part) => format!("for {} of the time", percent(part)),
        }
    }
}

// === impl Duty ===

impl Duty {
    fn new(cycle: DutyCycle) -> Self {
        let weight = cycle.weight_tenths();
        let DutyCycle {
            windows,
            recorded_ns,
            stands_for_ns,
        } = cycle;
        Self {
            windows,
            recorded_ns,
            stands_for_ns,
            weight: weight.map(|tenths| decimal(tenths, 10)),
        }
    }

    fn line(&self) -> String {
        let mean = |ns: u64| units::time(ns / self.windows.max(1));
        let (recorded, each) = (mean(self.recorded_ns), mean(self.stands_for_ns));
        let weight = self.weight.map(|weight| match weight {
            0.0..9.95 => format!("{weight:.1}"),
            _ => format!("{weight:.0}"),
        });
        let stand = weight.map(|weight| format!(": counts stand for about {weight} times as many"));
        let stand = stand.unwrap_or_default();
        format!("recorded for {recorded} of each {each}{stand}")
    }
}

// === impl InForce ===

impl InForce {
    fn new(span: FilterSpan, trace: &Trace) -> Self {
        let FilterSpan {
            process,
            filter,
            since_ns,
            until_ns,
        } = span;
        Self {
            pid: trace.process(process).map(|process| process.pid),
            filter,
            since_ns,
            until_ns,
        }
    }
}

/// An estimate in words.
fn about(number: u64, noun: &str) -> String {
    format!("about {}", units::counted(units::rough(number), noun))
}

/// Thousandths in whole percent. A value between none and all stays between 1 and 99.
fn percent(thousandths: u64) -> String {
    let percent = match thousandths {
        0 => 0,
        1000.. => 100,
        between => ((between + 5) / 10).clamp(1, 99),
    };
    format!("{percent} %")
}

#[expect(clippy::cast_precision_loss, reason = "a few digits are shown")]
fn decimal(number: u64, parts: u64) -> f64 {
    number as f64 / parts as f64
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn estimates_have_two_digits() {
        for (number, expected) in [
            (0, 0),
            (7, 7),
            (99, 99),
            (104, 100),
            (4_149_999, 4_100_000),
            (4_150_000, 4_200_000),
            (9_960, 10_000),
            (u64::MAX, 18_000_000_000_000_000_000),
        ] {
            assert_eq!(units::rough(number), expected, "{number}");
        }
    }

    #[test]
    fn narrow_terminals_see_whose_calls_are_missing() {
        let off = |function: &str, calls, thousandths| Off {
            id: 0,
            function: function.into(),
            off_ns: 0,
            off_share: None,
            unrecorded_calls_estimate: calls,
            thousandths,
        };
        let functions = vec![
            off("dictFind", 4_123_456, Some(980)),
            off("ns::a_function_with<quite, a, name>(int)", 17, Some(1000)),
            off("f", 1, None),
        ];
        let filter = InForce {
            pid: Some(4711),
            filter: "--min-duration 10us --module libfoo.so".into(),
            since_ns: None,
            until_ns: Some(1_500_000_000),
        };
        let cycle = DutyCycle {
            windows: 60,
            recorded_ns: 300_000_000,
            stands_for_ns: 60_000_000_000,
        };
        let unrecorded = Unrecorded {
            suppressed: Some(RestingFunctions {
                functions: 12,
                unrecorded_calls_estimate: 4_123_474,
                top: functions,
            }),
            duty: Some(Duty::new(cycle)),
            filters: vec![filter],
            gaps: vec![Missing {
                pid: Some(4711),
                since_ns: Some(1_500_000_000),
                until_ns: 13_750_000_000,
                cause: GapCause::NoDaemon,
            }],
            calls: BTreeMap::new(),
            whose: "",
        };
        golden::check_narrow("unrecorded-narrow.txt", |out, look| {
            unrecorded.render_suppressed(out, look)?;
            unrecorded.render_more(Some(0), out, look)
        });
        let lines = unrecorded.lines_with_names();
        let lines: Vec<_> = lines.iter().map(|(_, line)| line.as_str()).collect();
        let expected = [
            "12 functions suppressed to keep a budget: about 4,100,000 calls not recorded \
             (dictFind 4,100,000, ns::a_function_with<quite, a, name>(int) 17, f 1, 9 more functions)",
            "recorded for 5.000 ms of each 1.000 s: counts stand for about 200 times as many",
            "4711: an unknown number of events was lost in 12.25 s: no daemon was at work, \
             so recording had closed itself",
            "recorded with this filter at times: --min-duration 10us --module libfoo.so",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn some_is_neither_nothing_nor_everything() {
        let shown = [0, 1, 14, 15, 980, 999, 1000].map(percent);
        assert_eq!(shown, ["0 %", "1 %", "1 %", "2 %", "98 %", "99 %", "100 %"]);
    }
}
