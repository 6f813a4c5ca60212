//! The difference of two traces or profiles, function by function.
//!
//! ```text
//! RATIO  PER CALL     AFTER  CALLS  AFTER      CHANGE  FUNCTION
//!  3.70  10.00 µs  37.00 µs    100    100   +2.700 ms  hash_step
//!
//! NOT COMPARED  CALLS  AFTER     CHANGE  FUNCTION
//! only after        0     12  +1.200 ms  fallback
//! ```

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use xray_trace::analysis::Account;
use xray_trace::instr_map::without_llvm_suffix;
use xray_trace::model::Trace;

use super::{Cell, Column, Look, Table, Tone, units};

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Sort {
    /// The greatest factor between the times per call, slower or faster
    #[default]
    Ratio,
    /// The greatest change of the total time
    Total,
    /// The greatest change of the number of calls
    Calls,
    /// The name
    Name,
}

/// The choice and the order of the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) sort: Sort,
    /// The number of rows of each list.
    pub(crate) top: usize,
    /// The least number of finished calls in each file with which a function is compared.
    pub(crate) min_calls: u64,
}

/// The functions of two files, by name.
#[derive(Debug, Default)]
pub(crate) struct Functions(BTreeMap<String, [Counts; 2]>);

/// The calls of a function in one file.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    calls: u64,
    /// The calls with an exit.
    finished: u64,
    total_ns: u64,
    self_ns: u64,
    /// The sum of the durations of the finished calls.
    sum_ns: u64,
}

/// The difference.
#[derive(Debug, Serialize)]
pub(crate) struct FunctionDiff {
    before: String,
    after: String,
    /// The functions of both files together.
    functions: usize,
    /// The functions that are compared, before the limit.
    compared: usize,
    rows: Vec<Row>,
    /// The functions that are not compared, the greatest change of the total time first.
    not_compared: Vec<Row>,
}

/// A function, before and after. Times are in nanoseconds.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Absent if the function is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    calls: [u64; 2],
    /// The mean duration of a finished call, callees included; `null` without such a call.
    per_call_ns: [Option<u64>; 2],
    /// The time per call after, divided by the time before; absent if the function is not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// Time in the function, callees included.
    total_ns: [u64; 2],
    self_ns: [u64; 2],
}

/// Why a function is not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Reason {
    OnlyBefore,
    OnlyAfter,
    FewCalls,
    /// All calls of one file together took less than the clock can show.
    NoTime,
}

// === impl Functions ===

impl Functions {
    /// Adds the functions of a file: the first or the second one. Functions with the same name are
    /// one. Names are compared without LLVM's suffixes, which differ between builds.
    pub(crate) fn add(&mut self, account: &Account, tables: &Trace, side: usize) {
        for row in &account.rows {
            let name = row.subject.name(tables);
            let name = without_llvm_suffix(&name).into_owned();
            let counts = &mut self.0.entry(name).or_default()[side];
            counts.add(&Counts {
                calls: row.calls,
                finished: row.calls.saturating_sub(row.unfinished),
                total_ns: row.total_ns,
                self_ns: row.self_ns,
                sum_ns: row.sum_ns,
            });
        }
    }
}

// === impl Counts ===

impl Counts {
    fn add(&mut self, other: &Self) {
        let Self {
            calls,
            finished,
            total_ns,
            self_ns,
            sum_ns,
        } = *other;
        self.calls = self.calls.saturating_add(calls);
        self.finished = self.finished.saturating_add(finished);
        self.total_ns = self.total_ns.saturating_add(total_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
    }

    fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.finished as f64
    }
}

// === impl FunctionDiff ===

impl FunctionDiff {
    /// The rows to show. `files` are the names of the two files.
    pub(crate) fn new(files: [String; 2], functions: Functions, shown: Shown) -> Self {
        let [before, after] = files;
        let all = functions.0.len();
        let rows = functions.0.into_iter();
        let rows = rows.map(|(name, counts)| Row::new(name, counts, shown.min_calls));
        let (mut rows, mut apart): (Vec<_>, Vec<_>) = rows.partition(|row| row.reason.is_none());
        let compared = rows.len();
        // The rows are in order of their names, and the sort is stable.
        rows.sort_by(|one, other| Row::compare(one, other, shown.sort));
        let by_name = shown.sort == Sort::Name;
        apart.sort_by_key(|row| Reverse(if by_name { 0 } else { row.change_ns() }));
        rows.truncate(shown.top);
        apart.truncate(shown.top);
        Self {
            before,
            after,
            functions: all,
            compared,
            rows,
            not_compared: apart,
        }
    }

    /// Writes both lists as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let apart = self.functions - self.compared;
        if self.compared == 0 {
            let line = match self.functions {
                0 => "no function was called",
                _ => "no function has enough calls in both files",
            };
            writeln!(out, "{}", look.paint(Tone::Warning, line))?;
        } else {
            self.render_compared(out, look)?;
            more(self.compared - self.rows.len(), out, look)?;
        }
        if apart == 0 {
            return Ok(());
        }
        writeln!(out)?;
        self.render_apart(out, look)?;
        more(apart - self.not_compared.len(), out, look)
    }

    fn render_compared(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::right("RATIO"),
            Column::right("PER CALL").minor(1),
            Column::right("AFTER").minor(1),
            Column::right("CALLS").minor(3),
            Column::right("AFTER").minor(3),
            Column::right("CHANGE").minor(2),
            Column::elastic("FUNCTION"),
        ]);
        for row in &self.rows {
            let [per_call, per_call_after] = row
                .per_call_ns
                .map(|ns| ns.map_or_else(|| "-".to_owned(), units::time));
            let [calls, calls_after] = row.calls.map(units::count);
            let ratio = row.ratio.unwrap_or(1.0);
            table.push([
                Cell::toned(ratio_text(ratio), ratio_tone(ratio)),
                per_call.into(),
                per_call_after.into(),
                calls.into(),
                calls_after.into(),
                change(row.total_ns).into(),
                Cell::function(&row.name),
            ]);
        }
        table.render(out, look)
    }

    fn render_apart(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::left("NOT COMPARED"),
            Column::right("CALLS").minor(2),
            Column::right("AFTER").minor(2),
            Column::right("CHANGE").minor(1),
            Column::elastic("FUNCTION"),
        ]);
        for row in &self.not_compared {
            let [calls, calls_after] = row.calls.map(units::count);
            table.push([
                row.reason.map_or("", Reason::word).into(),
                calls.into(),
                calls_after.into(),
                change(row.total_ns).into(),
                Cell::function(&row.name),
            ]);
        }
        table.render(out, look)
    }
}

// === impl Row ===

impl Row {
    fn new(name: String, counts: [Counts; 2], min_calls: u64) -> Self {
        let [before, after] = &counts;
        let reason = if after.calls == 0 {
            Some(Reason::OnlyBefore)
        } else if before.calls == 0 {
            Some(Reason::OnlyAfter)
        } else if before.finished.min(after.finished) < min_calls.max(1) {
            Some(Reason::FewCalls)
        } else if before.sum_ns.min(after.sum_ns) == 0 {
            Some(Reason::NoTime)
        } else {
            None
        };
        let ratio = match reason {
            None => Some(after.mean_ns() / before.mean_ns()),
            Some(_) => None,
        };
        Self {
            name,
            reason,
            calls: counts.map(|counts| counts.calls),
            per_call_ns: counts.map(|counts| counts.sum_ns.checked_div(counts.finished)),
            ratio,
            total_ns: counts.map(|counts| counts.total_ns),
            self_ns: counts.map(|counts| counts.self_ns),
        }
    }

    /// The amount of the change of the total time.
    fn change_ns(&self) -> u64 {
        let [before, after] = self.total_ns;
        before.abs_diff(after)
    }

    /// The factor between the times per call: never less than 1.
    fn factor(&self) -> f64 {
        self.ratio.map_or(1.0, |ratio| ratio.max(1.0 / ratio))
    }

    fn compare(one: &Self, other: &Self, sort: Sort) -> Ordering {
        let by_change = || other.change_ns().cmp(&one.change_ns());
        match sort {
            Sort::Ratio => {
                let by_factor = other.factor().total_cmp(&one.factor());
                by_factor.then_with(by_change)
            }
            Sort::Total => by_change(),
            Sort::Calls => {
                let change = |row: &Self| row.calls[0].abs_diff(row.calls[1]);
                change(other).cmp(&change(one)).then_with(by_change)
            }
            Sort::Name => one.name.cmp(&other.name),
        }
    }
}

// === impl Reason ===

impl Reason {
    fn word(self) -> &'static str {
        match self {
            Self::OnlyBefore => "only before",
            Self::OnlyAfter => "only after",
            Self::FewCalls => "few calls",
            Self::NoTime => "no time",
        }
    }
}

/// Writes how many functions a list leaves out.
fn more(left_out: usize, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
    if left_out == 0 {
        return Ok(());
    }
    let functions = units::counted(left_out as u64, "more function");
    let line = format!("… {functions}; --top 0 shows all");
    writeln!(out, "{}", look.paint(Tone::Dim, &line))
}

/// A ratio with three significant digits.
fn ratio_text(ratio: f64) -> String {
    let digits = match ratio {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    format!("{ratio:.digits$}")
}

fn ratio_tone(ratio: f64) -> Tone {
    match ratio.total_cmp(&1.0) {
        Ordering::Less => Tone::Good,
        Ordering::Equal => Tone::Dim,
        Ordering::Greater => Tone::Bad,
    }
}

/// The change with its sign.
fn change([before, after]: [u64; 2]) -> String {
    match after.checked_sub(before) {
        Some(0) => units::time(0),
        Some(more) => format!("+{}", units::time(more)),
        None => format!("-{}", units::time(before - after)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    /// Calls with an exit, and the time of all of them.
    fn counts(finished: u64, sum_ns: u64) -> Counts {
        Counts {
            calls: finished,
            finished,
            total_ns: sum_ns,
            self_ns: sum_ns / 2,
            sum_ns,
        }
    }

    fn diff(shown: Shown) -> FunctionDiff {
        let none = Counts::default();
        let functions = [
            ("same", counts(100, 1_000_000), counts(100, 1_000_000)),
            ("hash_step", counts(100, 1_000_000), counts(100, 3_700_000)),
            ("faster", counts(50, 1_000_000), counts(10, 40_000)),
            ("slower", counts(1000, 9_000_000), counts(500, 6_750_000)),
            ("called more", counts(20, 2_000), counts(9_000, 900_000)),
            ("rare", counts(3, 3_000_000), counts(900, 1)),
            ("dropped", counts(12, 4_000), none),
            ("ns::added (int)", none, counts(12, 1_200_000)),
            ("instant", counts(20, 0), counts(20, 20)),
        ];
        let functions = functions.map(|(name, before, after)| (name.to_owned(), [before, after]));
        let files = ["before.xtrace", "after.xtrace"].map(str::to_owned);
        FunctionDiff::new(files, Functions(functions.into()), shown)
    }

    const SHOWN: Shown = Shown {
        sort: Sort::Ratio,
        top: usize::MAX,
        min_calls: 10,
    };

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn rows_have_the_order_that_was_requested() {
        for (sort, expected) in [
            // A factor of 5, 3.7, 1.5, and 1 twice.
            (
                Sort::Ratio,
                ["faster", "hash_step", "slower", "called more", "same"],
            ),
            (
                Sort::Total,
                ["hash_step", "slower", "faster", "called more", "same"],
            ),
            (
                Sort::Calls,
                ["called more", "slower", "faster", "hash_step", "same"],
            ),
            (
                Sort::Name,
                ["called more", "faster", "hash_step", "same", "slower"],
            ),
        ] {
            let diff = diff(Shown { sort, ..SHOWN });
            assert_eq!(names(&diff.rows), expected, "{sort:?}");
        }
    }

    #[test]
    fn functions_that_cannot_be_compared_are_listed_apart() {
        let apart = diff(SHOWN).not_compared;
        let reasons: Vec<_> = apart.iter().map(|row| row.reason.unwrap()).collect();
        let (few, after) = (Reason::FewCalls, Reason::OnlyAfter);
        assert_eq!(reasons, [few, after, Reason::OnlyBefore, Reason::NoTime]);
        assert_eq!(
            names(&apart),
            ["rare", "ns::added (int)", "dropped", "instant"]
        );
        assert!(apart.iter().all(|row| row.ratio.is_none()));
        // A smaller bound compares more functions.
        let shown = Shown {
            min_calls: 3,
            ..SHOWN
        };
        assert_eq!(diff(shown).rows[0].name, "rare");
    }

    #[test]
    fn a_difference_looks_as_agreed() {
        golden::check("diff.txt", |out| diff(SHOWN).render(out, Look::PLAIN));
        let shown = Shown { top: 2, ..SHOWN };
        golden::check("diff-top.txt", |out| diff(shown).render(out, Look::PLAIN));
        golden::check_narrow("diff-narrow.txt", |out, look| diff(SHOWN).render(out, look));
        golden::check_json("diff.json", &diff(shown));
    }

    #[test]
    fn ratios_have_three_digits() {
        for (ratio, expected) in [
            (0.012_34, "0.0123"),
            (0.27, "0.270"),
            (1.0, "1.00"),
            (3.7, "3.70"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ] {
            assert_eq!(ratio_text(ratio), expected);
        }
    }
}
