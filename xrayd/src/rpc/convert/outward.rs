//! Conversion of types of the engine to answers. Nothing is decided here.

use std::time::Duration;

use nix::unistd::{Uid, User};
use xray_trace::model::{Birth, ClockFault, ClockFaultKind, SourceLine};
use xrayd_proto::v1;

use crate::{
    Pid,
    process::{AttachReport, Finding, Follow, GroupStatus, NotFollowed, SkippedSleds},
    refusal::Refusal,
    target::{Check, Outcome, ProcessState, ProcessSummary},
    types::{
        Budget, BudgetStatus, CallFilter, DetachReport, Detection, Duty, Filter, FunctionRow,
        Kinship, Mode, ModuleStatus, Overhead, Phase, Settings, Since, Status, Suppressed,
        ThreadLoss, ToggleReport, Window,
    },
};

/// Limit on the length of a command line in a message, in bytes. A list of processes has to fit a
/// message.
const MAX_COMMAND: usize = 4096;

pub(crate) fn refusal(refusal: Refusal) -> v1::Refusal {
    let Refusal { reason, message } = refusal;
    v1::Refusal {
        reason: reason.id().to_owned(),
        message,
    }
}

pub(crate) fn process(process: ProcessSummary) -> v1::ProcessInfo {
    let ProcessSummary {
        pid,
        uid,
        start_time,
        unit,
        command,
        modules,
        functions,
        state,
        root,
    } = process;
    let (state, refused) = match state {
        ProcessState::Ready => (v1::ProcessState::Ready, None),
        ProcessState::Traced => (v1::ProcessState::Traced, None),
        ProcessState::Refused(why) => (v1::ProcessState::Refused, Some(refusal(why))),
    };
    v1::ProcessInfo {
        pid: pid.as_u32(),
        uid,
        user: user(uid),
        unit,
        command: shorten(command),
        modules,
        functions,
        state: state.into(),
        refusal: refused,
        start_time,
        root: root.map_or(0, Pid::as_u32),
    }
}

/// The login name of a user. A user without a name is shown by number.
fn user(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}

fn shorten(mut command: String) -> String {
    if command.len() > MAX_COMMAND {
        let boundary = (0..=MAX_COMMAND)
            .rev()
            .find(|at| command.is_char_boundary(*at));
        command.truncate(boundary.unwrap_or(0));
    }
    command
}

pub(crate) fn preflight(pid: Pid, checks: Vec<Check>) -> v1::PreflightResponse {
    let ready = checks.iter().all(|check| check.outcome != Outcome::Failed);
    v1::PreflightResponse {
        pid: pid.as_u32(),
        checks: checks.into_iter().map(check).collect(),
        ready,
    }
}

fn check(check: Check) -> v1::Check {
    let Check {
        reason,
        subject,
        outcome,
        finding,
        remedy,
    } = check;
    let result = match outcome {
        Outcome::Ok => v1::CheckResult::Ok,
        Outcome::Warning => v1::CheckResult::Warning,
        Outcome::Failed => v1::CheckResult::Failed,
    };
    v1::Check {
        id: reason.id().to_owned(),
        subject: subject.to_owned(),
        result: result.into(),
        finding,
        remedy,
    }
}

pub(crate) fn status(status: Status) -> v1::ProcessStatus {
    let Status {
        pid,
        uid,
        command,
        phase,
        kinship,
        executed,
        failure,
        mode,
        functions,
        functions_on,
        functions_with_values,
        threads,
        events,
        events_per_second,
        filtered,
        left_out,
        filter: what,
        budget: came,
        clock_faults,
        lost,
        losses,
        ring_use_permille,
        ring_bytes,
        max_threads,
        rings_refused,
        copied_bytes,
        retained_bytes,
        retained_events,
        overwritten_events,
        triggers,
        attached_wall_ns,
        modules,
        detection,
    } = status;
    let reported = losses
        .iter()
        .fold(0_u64, |reported, loss| reported.saturating_add(loss.lost));
    let (detection, detection_why) = match detection {
        Detection::Idle => (v1::Detection::Idle, String::new()),
        Detection::Perf => (v1::Detection::Perf, String::new()),
        Detection::Maps(why) => (v1::Detection::Polling, why),
    };
    v1::ProcessStatus {
        pid: pid.as_u32(),
        command: shorten(command),
        mode: self::mode(mode).into(),
        filter: Some(filter(what)),
        budget: Some(budget_status(came)),
        clock_faults: clock_faults.into_iter().map(clock_fault).collect(),
        filtered,
        left_out,
        state: session_state(phase).into(),
        functions,
        functions_on,
        functions_with_values,
        threads,
        events,
        events_per_second,
        lost,
        ring_use_permille,
        ring_bytes,
        max_threads,
        rings_refused: rings_refused.unwrap_or_default(),
        copied_bytes,
        retained_bytes,
        retained_events,
        overwritten_events,
        attached_wall_ns,
        uid,
        failure: failure.unwrap_or_default(),
        modules: modules.into_iter().map(module).collect(),
        detection: detection.into(),
        detection_why,
        kinship: kinship.map(self::kinship),
        group: None,
        executed,
        losses: losses.into_iter().map(thread_loss).collect(),
        lost_by_others: lost.saturating_sub(reported),
        triggers,
    }
}

fn clock_fault(fault: ClockFault) -> v1::ClockFault {
    let ClockFault {
        from_ns,
        to_ns,
        kind,
    } = fault;
    let kind = match kind {
        ClockFaultKind::Backwards => v1::ClockFaultKind::Backwards,
        ClockFaultKind::Rate => v1::ClockFaultKind::Rate,
        ClockFaultKind::Suspended => v1::ClockFaultKind::Suspended,
    };
    v1::ClockFault {
        from_ns,
        to_ns,
        kind: kind.into(),
    }
}

fn thread_loss(loss: ThreadLoss) -> v1::ThreadLoss {
    let ThreadLoss { tid, name, lost } = loss;
    v1::ThreadLoss { tid, name, lost }
}

fn kinship(kinship: Kinship) -> v1::Kinship {
    let Kinship {
        root,
        parent,
        by,
        within,
    } = kinship;
    v1::Kinship {
        root: root.as_u32(),
        parent: parent.as_u32(),
        by_exec: by == Birth::Exec,
        within_ns: nanoseconds(within),
    }
}

/// The rows of a group's processes. The row of the first process also has the state of the group,
/// if processes are followed.
pub(crate) fn group(
    status: GroupStatus,
    mut rows: Vec<v1::ProcessStatus>,
) -> Vec<v1::ProcessStatus> {
    let GroupStatus {
        root,
        uid,
        command,
        root_is_traced,
        follow,
        over,
        traced,
        followed,
        missed,
        dropped,
        untraced,
        not_followed,
        finding,
    } = status;
    let root = root.as_u32();
    if follow == Follow::None {
        return rows;
    }
    if !root_is_traced {
        rows.insert(
            0,
            v1::ProcessStatus {
                pid: root,
                uid,
                command: shorten(command),
                state: v1::SessionState::Untraced.into(),
                ..v1::ProcessStatus::default()
            },
        );
    }
    let follow = match follow {
        Follow::None => v1::Follow::Unspecified,
        Follow::Fork => v1::Follow::Fork,
        Follow::Exec => v1::Follow::Exec,
        Follow::All => v1::Follow::All,
    };
    let not_followed = not_followed.into_iter().map(|process| {
        let NotFollowed {
            pid,
            command,
            refusal: why,
        } = process;
        v1::NotFollowed {
            pid: pid.as_u32(),
            command: shorten(command),
            refusal: Some(refusal(why)),
        }
    });
    let (detection, detection_why) = match finding {
        None => (v1::Detection::Unspecified, String::new()),
        Some(Finding::Perf) => (v1::Detection::Perf, String::new()),
        Some(Finding::Looks(why)) => (v1::Detection::Polling, why),
    };
    let group = v1::GroupStatus {
        follow: follow.into(),
        over,
        traced,
        followed,
        missed,
        dropped,
        untraced,
        not_followed: not_followed.collect(),
        detection: detection.into(),
        detection_why,
    };
    // A first process that has called `exec` has several rows. The latest one gets the state.
    if let Some(row) = rows.iter_mut().rev().find(|row| row.pid == root) {
        row.group = Some(group);
    }
    rows
}

fn module(status: ModuleStatus) -> v1::ModuleStatus {
    let ModuleStatus {
        path,
        build_id,
        functions,
        functions_on,
        copied_bytes,
        armed,
        refusal: refused,
    } = status;
    v1::ModuleStatus {
        path,
        build_id: build_id.map(|id| id.to_string()).unwrap_or_default(),
        functions,
        functions_on,
        copied_bytes,
        armed_within_ns: armed.map_or(0, |armed| nanoseconds(armed.within)),
        armed_measured: armed.is_some_and(|armed| armed.since == Since::Mapping),
        refusal: refused.map(refusal),
    }
}

fn session_state(phase: Phase) -> v1::SessionState {
    match phase {
        Phase::Tracing => v1::SessionState::Tracing,
        Phase::Detaching => v1::SessionState::Detaching,
        Phase::Failed => v1::SessionState::Failed,
        Phase::Exited => v1::SessionState::Exited,
    }
}

/// The fields of every chunk of a fetched trace, without its bytes. The copies took `within`.
pub(crate) fn retained(statuses: &[Status], within: Duration) -> v1::TraceChunk {
    v1::TraceChunk {
        data: Vec::new(),
        events: statuses.iter().map(|status| status.retained_events).sum(),
        lost: statuses
            .iter()
            .fold(0, |lost, status| status.lost.saturating_add(lost)),
        reader_lost: 0,
        copied_within_ns: nanoseconds(within),
        entries: 0,
        indexed: false,
    }
}

pub(crate) fn attach_report(report: AttachReport) -> v1::AttachReport {
    let AttachReport {
        already,
        adopted,
        stopped,
        skipped,
        refused_modules,
        notes,
    } = report;
    let (stopped_tid, stopped_ns) =
        stopped.map_or((0, 0), |(tid, time)| (tid.as_u32(), nanoseconds(time)));
    v1::AttachReport {
        adopted,
        stopped_ns,
        stopped_tid,
        skipped: skipped
            .into_iter()
            .map(|SkippedSleds { reason, sleds }| v1::SkippedSleds { reason, sleds })
            .collect(),
        refused_modules: refused_modules
            .into_iter()
            .map(|(path, why)| v1::RefusedModule {
                path,
                refusal: Some(refusal(why)),
            })
            .collect(),
        notes,
        already,
    }
}

pub(crate) fn detach_report(pid: Pid, report: DetachReport) -> v1::DetachReport {
    let DetachReport {
        sleds_off,
        sleds_on,
        text_bytes_compared,
        text_bytes_different,
        exited,
        events,
        lost,
    } = report;
    v1::DetachReport {
        pid: pid.as_u32(),
        sleds_off,
        sleds_on,
        text_bytes_compared,
        text_bytes_different,
        exited,
        events,
        lost,
        refusal: None,
    }
}

pub(crate) fn detach_refused(pid: Pid, why: Refusal) -> v1::DetachReport {
    v1::DetachReport {
        pid: pid.as_u32(),
        refusal: Some(refusal(why)),
        ..v1::DetachReport::default()
    }
}

/// Converts a filter.
fn filter(filter: Filter) -> v1::Filter {
    let Filter {
        modules,
        window: Window {
            from_wall_ns,
            until_wall_ns,
        },
        calls:
            CallFilter {
                shortest,
                max_depth,
                one_in,
                inside,
                threads,
            },
    } = filter;
    v1::Filter {
        min_duration_ns: u64::try_from(shortest.as_nanos()).unwrap_or(u64::MAX),
        max_depth,
        one_in,
        inside,
        threads,
        modules,
        from_wall_ns,
        until_wall_ns: match until_wall_ns {
            u64::MAX => 0,
            until => until,
        },
    }
}

/// The report of a process whose settings were changed: the previous ones, or the refusal.
pub(crate) fn settings_report(pid: Pid, before: Result<Settings, Refusal>) -> v1::SettingsReport {
    let (before, refusal) = match before {
        Ok(before) => (Some(settings(before)), None),
        Err(refused) => (None, Some(refusal(refused))),
    };
    v1::SettingsReport {
        pid: pid.as_u32(),
        before,
        refusal,
    }
}

fn settings(settings: Settings) -> v1::Settings {
    let Settings {
        mode: its_mode,
        filter: its_filter,
        budget: its_budget,
    } = settings;
    v1::Settings {
        mode: mode(its_mode).into(),
        filter: Some(filter(its_filter)),
        budget: Some(budget(its_budget)),
    }
}

/// Converts a limit on the cost of tracing.
fn budget(budget: Budget) -> v1::Budget {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match budget {
        Budget::None => v1::Budget::default(),
        Budget::Overhead(Overhead { ppm, keep }) => v1::Budget {
            max_overhead_ppm: ppm,
            duty: None,
            keep,
        },
        Budget::Duty(Duty { on, every }) => v1::Budget {
            duty: Some(v1::DutyCycle {
                on_ns: ns(on),
                every_ns: ns(every),
            }),
            ..v1::Budget::default()
        },
    }
}

fn budget_status(status: BudgetStatus) -> v1::BudgetStatus {
    let BudgetStatus {
        budget: wanted,
        overhead,
        event_ns,
        suppressed,
        unrecorded,
        top,
        windows,
    } = status;
    let suppressed_function = |function: Suppressed| v1::SuppressedFunction {
        id: function.function.0,
        name: function.name,
        suppressed: function.suppressed,
        unrecorded_estimate: function.unrecorded,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share, not below 0; what is beyond all bounds is the greatest number"
    )]
    let ppm = |share: f64| (share * 1e6).round() as u64;
    v1::BudgetStatus {
        budget: Some(budget(wanted)),
        overhead_ppm: overhead.map(ppm),
        event_ns,
        suppressed,
        unrecorded_estimate: unrecorded,
        top: top.into_iter().map(suppressed_function).collect(),
        windows,
    }
}

fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Flight => v1::Mode::Flight,
        Mode::Stream => v1::Mode::Stream,
        Mode::Profile => v1::Mode::Profile,
        Mode::Count => v1::Mode::Count,
    }
}

pub(crate) fn toggle_report(pid: Pid, report: ToggleReport) -> v1::ToggleReport {
    let ToggleReport {
        matched,
        changed,
        sleds,
        foreign,
        copied_bytes,
        elapsed,
        stopped,
        restaged,
        sample,
        copied_by_module,
    } = report;
    let modules = copied_by_module.into_iter();
    let modules = modules.map(|(path, copied_bytes)| v1::ModuleCopies { path, copied_bytes });
    v1::ToggleReport {
        pid: pid.as_u32(),
        matched,
        changed,
        sleds,
        foreign,
        copied_bytes,
        elapsed_ns: nanoseconds(elapsed),
        stopped_ns: nanoseconds(stopped),
        restaged,
        sample,
        refusal: None,
        modules: modules.collect(),
    }
}

pub(crate) fn toggle_refused(pid: Pid, why: Refusal) -> v1::ToggleReport {
    v1::ToggleReport {
        pid: pid.as_u32(),
        refusal: Some(refusal(why)),
        ..v1::ToggleReport::default()
    }
}

pub(crate) fn function(pid: Pid, row: FunctionRow) -> v1::FunctionInfo {
    let FunctionRow {
        id,
        module,
        name,
        symbol,
        source,
        sleds,
        event_sleds,
        enabled,
        suppressed,
        capture,
        calls,
        xray_id,
        address,
    } = row;
    v1::FunctionInfo {
        pid: pid.as_u32(),
        id: id.0,
        module,
        name,
        symbol: symbol.unwrap_or_default(),
        source: source.map(source_line).unwrap_or_default(),
        sleds,
        event_sleds,
        enabled,
        suppressed,
        calls,
        xray_id,
        address,
        capture: (!capture.is_none()).then(|| v1::Capture {
            arguments: capture.arguments().into(),
            result: capture.has_result(),
        }),
    }
}

/// `file:line`, or only the file if the line is unknown.
fn source_line(source: SourceLine) -> String {
    match source {
        SourceLine { file, line: 0 } => file,
        SourceLine { file, line } => format!("{file}:{line}"),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Reason;

    #[test]
    fn a_refused_process_says_why() {
        let summary = ProcessSummary {
            pid: Pid::try_from(7).unwrap(),
            uid: 0,
            start_time: 5,
            unit: "x.service".to_owned(),
            command: "é".repeat(MAX_COMMAND),
            modules: 1,
            functions: 2,
            state: ProcessState::Refused(Refusal::new(Reason::ForeignTracer, "gdb")),
            root: None,
        };
        let info = process(summary);
        assert_eq!(info.user, "root");
        assert_eq!(info.state(), v1::ProcessState::Refused);
        assert_eq!(info.refusal.unwrap().reason, "foreign-tracer");
        assert_eq!(info.command.len(), MAX_COMMAND);
    }

    #[test]
    fn a_user_without_a_name_is_shown_by_number() {
        assert_eq!(user(4_000_000_000), "4000000000");
    }

    #[test]
    fn a_source_line_is_file_and_line() {
        let file = || "src/a.rs".to_owned();
        assert_eq!(
            source_line(SourceLine {
                file: file(),
                line: 12
            }),
            "src/a.rs:12"
        );
        assert_eq!(
            source_line(SourceLine {
                file: file(),
                line: 0
            }),
            "src/a.rs"
        );
    }

    #[test]
    fn one_failed_check_is_enough() {
        let check = |outcome| Check {
            reason: Reason::Zombie,
            subject: "state",
            outcome,
            finding: String::new(),
            remedy: String::new(),
        };
        let pid = Pid::try_from(1).unwrap();
        let ready = |outcomes: &[Outcome]| {
            preflight(
                pid,
                outcomes.iter().map(|outcome| check(*outcome)).collect(),
            )
            .ready
        };
        assert!(ready(&[Outcome::Ok, Outcome::Warning]));
        assert!(!ready(&[Outcome::Ok, Outcome::Failed, Outcome::Ok]));
    }
}
