//! The problems of the attached processes and of policies, for `xrayctl status --check`.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use serde::Serialize;
use xrayd_proto::v1::{
    ClockFault, GetAccessResponse, PolicyMistake, PolicyRefusal, PolicyStatus, ProcessStatus,
    SessionState,
};

use super::text::printable;
use super::units;

/// A budget may be exceeded by this part for a moment, because its measurements vary.
const TOLERATED: f64 = 1.5;

/// The state of everything, as a check sees it.
#[derive(Debug, Serialize)]
pub(crate) struct Health {
    problems: Vec<Problem>,
    /// The number of processes that were looked at.
    processes: usize,
}

/// A condition that does not end without an operator.
#[derive(Debug, PartialEq, Serialize)]
struct Problem {
    /// The process. Absent if the problem is one of a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// The name of the policy, or its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// The file of the rules of access.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<String>,
    what: String,
}

// === impl Health ===

impl Health {
    /// Compares two looks at the processes, so many seconds apart.
    pub(crate) fn of(
        before: &[ProcessStatus],
        now: &[ProcessStatus],
        policies: &[PolicyStatus],
        access: Option<&GetAccessResponse>,
        seconds: f64,
    ) -> Self {
        // A process that was attached again meanwhile has other counters.
        let key = |row: &ProcessStatus| (row.pid, row.attached_wall_ns);
        let before: HashMap<_, _> = before.iter().map(|row| (key(row), row)).collect();
        let problems = now.iter().flat_map(|row| {
            let earlier = before.get(&key(row)).copied().unwrap_or(row);
            let problems = problems_of(earlier, row, seconds).into_iter();
            problems.map(|what| Problem {
                pid: Some(row.pid),
                policy: None,
                access: None,
                what,
            })
        });
        let of_policies = policies.iter().flat_map(|policy| {
            let name = match policy.name.is_empty() {
                true => &policy.path,
                false => &policy.name,
            };
            problems_of_policy(policy).into_iter().map(|what| Problem {
                pid: None,
                policy: Some(name.clone()),
                access: None,
                what,
            })
        });
        let of_access = access.and_then(|access| {
            Some(Problem {
                pid: None,
                policy: None,
                access: Some(access.path.clone()),
                what: problem_of_file(&access.path, &access.mistakes)?,
            })
        });
        Self {
            problems: problems.chain(of_policies).chain(of_access).collect(),
            processes: now.len(),
        }
    }

    /// The number of problems.
    pub(crate) fn problems(&self) -> usize {
        self.problems.len()
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for problem in &self.problems {
            let what = printable(&problem.what);
            match (problem.pid, &problem.policy) {
                (Some(pid), _) => writeln!(out, "{pid}: {what}")?,
                (None, Some(policy)) => writeln!(out, "policy {}: {what}", printable(policy))?,
                (None, None) => writeln!(out, "rules of access: {what}")?,
            }
        }
        if self.problems.is_empty() {
            let processes = units::counted(self.processes as u64, "process");
            writeln!(out, "no problem; {processes} attached")?;
        }
        Ok(())
    }
}

/// The problem of a file with mistakes.
fn problem_of_file(file: &str, mistakes: &[PolicyMistake]) -> Option<String> {
    let PolicyMistake { line, column, what } = mistakes.first()?;
    let count = units::counted(mistakes.len() as u64, "mistake");
    Some(format!(
        "{file} has {count}, so it changes nothing: line {line}, column {column}: {what}"
    ))
}

/// The problems of a policy: mistakes of its file, and processes that cannot be traced until an
/// operator changes something.
fn problems_of_policy(policy: &PolicyStatus) -> Vec<String> {
    let mut problems = Vec::new();
    problems.extend(problem_of_file(&policy.path, &policy.mistakes));
    // A process without sleds is no mistake of the policy, a client may detach, and the daemon
    // tries the others again.
    let passing = [
        "busy",
        "no-sleds",
        "no-such-process",
        "not-attached",
        "pid-reused",
        "stop-timeout",
        "target-exited",
        "zombie",
    ];
    let mut refused = policy.refused.iter();
    let lasting = |refusal: &&PolicyRefusal| !passing.contains(&refusal.reason.as_str());
    if let Some(first) = refused.find(lasting) {
        let count = 1 + refused.filter(lasting).count() as u64;
        let count = units::counted(count, "process");
        problems.push(format!("it cannot trace {count}: {}", first.message));
    }
    problems
}

/// The problems of a process, which was looked at so many seconds before.
fn problems_of(before: &ProcessStatus, row: &ProcessStatus, seconds: f64) -> Vec<String> {
    let mut problems = Vec::new();
    if row.state() == SessionState::Failed {
        let failure = printable(&row.failure);
        problems.push(format!(
            "its session has failed ({failure}); detach, then attach again"
        ));
    }
    if !row.rings_refused.is_empty() {
        let why = printable(&row.rings_refused);
        problems.push(format!(
            "threads without a ring lose all their events: {why}"
        ));
    }
    let lost = row.lost.saturating_sub(before.lost);
    if lost > 0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float saturates"
        )]
        let rate = (lost as f64 / seconds) as u64;
        let rate = units::counted(rate.max(1), "event");
        problems.push(format!(
            "it loses {rate} a second: record fewer functions, or use a budget or mode profile"
        ));
    }
    // The newest 16 are there.
    let is_new = |fault: &&ClockFault| !before.clock_faults.contains(fault);
    let faults = row.clock_faults.iter().filter(is_new).count();
    if faults > 0 {
        let faults = units::counted(faults as u64, "fault");
        problems.push(format!(
            "the processor's counter has had {faults}: durations around them are wrong"
        ));
    }
    let budget = row.budget.as_ref();
    let limit = budget.and_then(|budget| Some(budget.budget.as_ref()?.max_overhead_ppm));
    let limit = limit.filter(|ppm| *ppm > 0).map(f64::from);
    let overhead = budget.and_then(|budget| budget.overhead_ppm);
    if let (Some(limit), Some(overhead)) = (limit, overhead)
        && overhead as f64 > limit * TOLERATED
    {
        let [overhead, limit] = [overhead as f64, limit].map(|ppm| ppm / 1e4);
        problems.push(format!(
            "tracing costs {overhead:.2} %, and its limit is {limit} %: kept functions may cost \
             more than the limit"
        ));
    }
    let missed = row.group.iter().flat_map(|group| &group.not_followed);
    let lives = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
    for process in missed.filter(|process| lives(process.pid)) {
        let refusal = process.refusal.as_ref();
        let why = refusal.map_or("", |refusal| refusal.message.as_str());
        let (pid, why) = (process.pid, printable(why));
        problems.push(format!(
            "process {pid} comes from it and is not traced: {why}"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::{Budget, BudgetStatus, GroupStatus, NotFollowed};

    use super::*;

    fn row(pid: u32) -> ProcessStatus {
        ProcessStatus {
            pid,
            state: SessionState::Tracing.into(),
            lost: 100,
            ..ProcessStatus::default()
        }
    }

    fn text(before: &[ProcessStatus], now: &[ProcessStatus]) -> String {
        let mut text = Vec::new();
        Health::of(before, now, &[], None, 2.0)
            .render(&mut text)
            .unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn only_problems_are_printed() {
        // Losses of the past are no problem.
        assert_eq!(
            text(&[row(7)], &[row(7)]),
            "no problem; 1 process attached\n"
        );
        assert_eq!(text(&[], &[]), "no problem; 0 processes attached\n");
        let failed = ProcessStatus {
            state: SessionState::Failed.into(),
            failure: "no\u{1b} memory".to_owned(),
            rings_refused: "8 rings".to_owned(),
            lost: 3100,
            clock_faults: vec![ClockFault::default()],
            budget: Some(BudgetStatus {
                budget: Some(Budget {
                    max_overhead_ppm: 20_000,
                    ..Budget::default()
                }),
                overhead_ppm: Some(31_000),
                ..BudgetStatus::default()
            }),
            ..row(7)
        };
        let told = text(&[row(7)], &[failed]);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 5, "{told}");
        for (line, part) in lines.iter().zip([
            "7: its session has failed (no",
            "7: threads without a ring",
            "7: it loses 1,500 events a second",
            "7: the processor's counter has had 1 fault",
            "7: tracing costs 3.10 %, and its limit is 2 %",
        ]) {
            assert!(line.starts_with(part) && !line.contains('\u{1b}'), "{line}");
        }
        // Faults of the past are no problem, and neither is a budget that is exceeded by little.
        let mut calm = ProcessStatus {
            clock_faults: vec![ClockFault::default()],
            ..row(7)
        };
        calm.budget = Some(BudgetStatus {
            budget: Some(Budget {
                max_overhead_ppm: 20_000,
                ..Budget::default()
            }),
            overhead_ppm: Some(29_000),
            ..BudgetStatus::default()
        });
        // A process that should have been followed, and one that has ended.
        let not_followed = [std::process::id(), u32::MAX];
        let not_followed = not_followed.map(|pid| NotFollowed {
            pid,
            ..NotFollowed::default()
        });
        calm.group = Some(GroupStatus {
            not_followed: not_followed.into(),
            ..GroupStatus::default()
        });
        let rows = [calm];
        let told = text(&rows, &rows);
        let expected = format!("7: process {} comes from it", std::process::id());
        assert!(
            told.starts_with(&expected) && told.lines().count() == 1,
            "{told}"
        );
        // Its counters are those of another attach.
        let again = ProcessStatus {
            attached_wall_ns: 5,
            lost: 9999,
            ..row(7)
        };
        assert_eq!(
            Health::of(&[row(7)], &[again], &[], None, 1.0).problems(),
            0
        );
    }

    #[test]
    fn problems_of_policies_are_those_that_do_not_pass() {
        let refused = |reason: &str| PolicyRefusal {
            pid: 7,
            reason: reason.to_owned(),
            message: format!("process 7: {reason}"),
        };
        let good = PolicyStatus {
            name: "good".to_owned(),
            refused: vec![refused("no-sleds"), refused("busy")],
            ..PolicyStatus::default()
        };
        let bad = PolicyStatus {
            path: "/etc/x.toml".to_owned(),
            mistakes: vec![PolicyMistake {
                line: 3,
                column: 4,
                what: "no\u{1b}thing".to_owned(),
            }],
            refused: vec![refused("no-sleds"), refused("mode"), refused("permission")],
            ..PolicyStatus::default()
        };
        let health = Health::of(&[], &[], &[good, bad], None, 1.0);
        assert_eq!(health.problems(), 2);
        let mut text = Vec::new();
        health.render(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "policy /etc/x.toml: /etc/x.toml has 1 mistake, so it changes nothing: line 3, column \
             4: no\\u{1b}thing\n\
             policy /etc/x.toml: it cannot trace 2 processes: process 7: mode\n"
        );
    }
}
