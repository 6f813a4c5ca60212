//! Between the contract's messages and the engine's types. Nothing behind this file knows the messages.

use std::{num::NonZeroU64, time::Duration};

use nix::unistd::{Uid, User};
use xray_trace::{
    instr_map::{Candidate, CompiledSelection, Rule, Selection},
    model::{Birth, SourceLine},
};
use xrayd_proto::v1;

use super::authorise::Deed;
use crate::{
    Pid,
    refusal::{Reason, Refusal},
    session::{
        AttachOptions, AttachReport, Capture, DetachReport, FamilyStatus, Finding, Follow,
        FunctionRow, Kinship, LoanId, ModuleStatus, NotFollowed, Noticing, Phase, Run, Since,
        SkippedSleds, Status, Switch, ThreadLoss, ToggleReport, Wanted,
    },
    target::{Check, Outcome, ProcessState, ProcessSummary, Sleds},
};

/// Characters of a command line that are passed on: a list of processes has to fit a message.
const MAX_COMMAND: usize = 4096;

// === inward ===

/// A selection that must be there.
pub(super) fn required_selection(selection: Option<v1::Selection>) -> Result<Selection, Refusal> {
    selection
        .ok_or_else(|| bad_selection("a selection is needed"))
        .and_then(self::selection)
}

/// What is to be done to functions.
#[derive(Debug)]
pub(super) enum Toggle {
    /// Switched until somebody switches them again.
    ForGood(Selection, Wanted, Run),
    /// Switched on for a while.
    Lend(Selection, LoanId, Capture, Run),
    /// Made what they were.
    TakeBack(LoanId),
}

impl Toggle {
    /// What of that must be allowed.
    pub(super) fn deed(&self) -> Deed {
        match self {
            Self::ForGood(..) | Self::Lend(..) => Deed::Use,
            Self::TakeBack(_) => Deed::Release,
        }
    }
}

/// What a request to switch functions means; `loan` is 0 where it is for good.
pub(super) fn toggle(
    selection: Option<v1::Selection>,
    to: Wanted,
    loan: u64,
    run: Run,
) -> Result<Toggle, Refusal> {
    let loan = NonZeroU64::new(loan).map(LoanId);
    match (loan, to) {
        (None, to) => Ok(Toggle::ForGood(required_selection(selection)?, to, run)),
        (Some(to), Wanted::On(capture)) => {
            let selection = required_selection(selection)?;
            Ok(Toggle::Lend(selection, to, capture, run))
        }
        (Some(_), Wanted::Off) if selection.is_some() => Err(bad_selection(
            "a loan is taken back as a whole: no functions can be selected",
        )),
        (Some(_), Wanted::Off) if run == Run::Dry => Err(bad_selection(
            "what taking a loan back would do cannot be told",
        )),
        (Some(from), Wanted::Off) => Ok(Toggle::TakeBack(from)),
    }
}

/// What is wanted of the functions that a selection matches.
pub(super) fn wanted(switch: Switch, capture: Option<v1::Capture>) -> Result<Wanted, Refusal> {
    let refused = |message: String| Err(Refusal::new(Reason::Limit, message));
    match (switch, capture) {
        (switch, None) => Ok(switch.into()),
        (Switch::Off, Some(_)) => {
            refused("what is switched off records nothing: no values can be named".to_owned())
        }
        (Switch::On, Some(v1::Capture { arguments, result })) => {
            let Some(capture) = Capture::NONE.with_arguments(arguments) else {
                let most = Capture::MOST_ARGUMENTS;
                return refused(format!(
                    "{arguments} arguments: at most {most} are in registers and can be recorded"
                ));
            };
            Ok(Wanted::On(if result {
                capture.with_result()
            } else {
                capture
            }))
        }
    }
}

/// A selection that includes something.
pub(super) fn selection(selection: v1::Selection) -> Result<Selection, Refusal> {
    let v1::Selection { include, exclude } = selection;
    if include.is_empty() {
        return Err(bad_selection("the selection includes nothing"));
    }
    let rules = |rules: Vec<v1::Rule>| rules.into_iter().map(rule).collect::<Result<_, _>>();
    let selection = Selection {
        include: rules(include)?,
        exclude: rules(exclude)?,
    };
    // Bad patterns are refused here, before any process is looked at.
    compile(&selection)?;
    Ok(selection)
}

fn rule(rule: v1::Rule) -> Result<Rule, Refusal> {
    use v1::rule::Rule as Wire;
    let v1::Rule { rule } = rule;
    Ok(
        match rule.ok_or_else(|| bad_selection("a rule says nothing"))? {
            Wire::Function(name) => Rule::Function(name),
            Wire::Glob(glob) => Rule::Glob(glob),
            Wire::Regex(regex) => Rule::Regex(regex),
            Wire::Module(module) => Rule::Module(module),
            Wire::Source(source) => Rule::Source(source),
            Wire::Id(id) => Rule::Id(id),
            Wire::All(true) => Rule::All,
            Wire::All(false) => return Err(bad_selection("a rule says `all` is false")),
        },
    )
}

fn compile(selection: &Selection) -> Result<CompiledSelection, Refusal> {
    CompiledSelection::new(selection).map_err(|error| bad_selection(&error.to_string()))
}

fn bad_selection(problem: &str) -> Refusal {
    Refusal::new(Reason::Selection, problem)
}

/// The rows that a selection means.
pub(super) fn matching(
    rows: Vec<FunctionRow>,
    selection: &Selection,
) -> Result<Vec<FunctionRow>, Refusal> {
    let selection = compile(selection)?;
    let candidate = |row: &FunctionRow| {
        selection.matches(&Candidate {
            id: row.id.0,
            module: &row.module,
            symbol: row.symbol.as_deref(),
            name: &row.name,
            source: row.source.as_ref().map(|source| source.file.as_str()),
        })
    };
    Ok(rows.into_iter().filter(candidate).collect())
}

/// Zeros mean the defaults; the registry checks the ranges.
pub(super) fn attach_options(request: v1::AttachRequest) -> AttachOptions {
    let follow = match request.follow() {
        v1::Follow::Unspecified => Follow::None,
        v1::Follow::Fork => Follow::Fork,
        v1::Follow::Exec => Follow::Exec,
        v1::Follow::All => Follow::All,
    };
    let v1::AttachRequest {
        pid: _,
        ring_bytes,
        max_threads,
        start_time,
        follow: _,
        await_sleds,
    } = request;
    let default = AttachOptions::default();
    AttachOptions {
        ring_bytes: if ring_bytes == 0 {
            default.ring_bytes
        } else {
            ring_bytes
        },
        max_threads: if max_threads == 0 {
            default.max_threads
        } else {
            max_threads
        },
        start_time: (start_time != 0).then_some(start_time),
        follow,
        sleds: if await_sleds {
            Sleds::Awaited
        } else {
            Sleds::Needed
        },
        ..default
    }
}

// === outward ===

pub(super) fn refusal(refusal: Refusal) -> v1::Refusal {
    let Refusal { reason, message } = refusal;
    v1::Refusal {
        reason: reason.id().to_owned(),
        message,
    }
}

pub(super) fn process(process: ProcessSummary) -> v1::ProcessInfo {
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

/// The login name, or the number where it has none.
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

pub(super) fn preflight(pid: Pid, checks: Vec<Check>) -> v1::PreflightResponse {
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

pub(super) fn status(status: Status) -> v1::ProcessStatus {
    let Status {
        pid,
        uid,
        command,
        phase,
        kinship,
        executed,
        failure,
        functions,
        functions_on,
        functions_with_values,
        threads,
        events,
        events_per_second,
        lost,
        losses,
        ring_use_permille,
        ring_bytes,
        max_threads,
        copied_bytes,
        retained_bytes,
        retained_events,
        evicted_events,
        attached_wall_ns,
        modules,
        noticing,
    } = status;
    let told: u64 = losses.iter().map(|loss| loss.lost).sum();
    let (noticing, noticing_why) = match noticing {
        Noticing::Idle => ("idle", String::new()),
        Noticing::Perf => ("perf", String::new()),
        Noticing::Maps(why) => ("maps", why),
    };
    v1::ProcessStatus {
        pid: pid.as_u32(),
        command: shorten(command),
        mode: "stream".to_owned(),
        state: phase_name(phase).to_owned(),
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
        copied_bytes,
        retained_bytes,
        retained_events,
        evicted_events,
        attached_wall_ns,
        uid,
        failure: failure.unwrap_or_default(),
        modules: modules.into_iter().map(module).collect(),
        noticing: noticing.to_owned(),
        noticing_why,
        kinship: kinship.map(self::kinship),
        family: None,
        executed,
        losses: losses.into_iter().map(thread_loss).collect(),
        lost_by_others: lost.saturating_sub(told),
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

/// The rows of a family's processes: its state stands in that of its root, if it is more than one process.
pub(super) fn family(
    status: FamilyStatus,
    mut rows: Vec<v1::ProcessStatus>,
) -> Vec<v1::ProcessStatus> {
    let FamilyStatus {
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
                state: "untraced".to_owned(),
                ..v1::ProcessStatus::default()
            },
        );
    }
    let follow = match follow {
        Follow::None => "none",
        Follow::Fork => "fork",
        Follow::Exec => "exec",
        Follow::All => "all",
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
    let (noticing, noticing_why) = match finding {
        None => ("", String::new()),
        Some(Finding::Perf) => ("perf", String::new()),
        Some(Finding::Looks(why)) => ("looks", why),
    };
    let family = v1::FamilyStatus {
        follow: follow.to_owned(),
        over,
        traced,
        followed,
        missed,
        dropped,
        untraced,
        not_followed: not_followed.collect(),
        noticing: noticing.to_owned(),
        noticing_why,
    };
    // Of a root that became another program, the latest.
    if let Some(row) = rows.iter_mut().rev().find(|row| row.pid == root) {
        row.family = Some(family);
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

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Tracing => "tracing",
        Phase::Detaching => "detaching",
        Phase::Failed => "failed",
        Phase::Exited => "exited",
    }
}

/// What every chunk of a fetched trace says beside its bytes.
pub(super) fn retained(statuses: &[Status]) -> v1::TraceChunk {
    v1::TraceChunk {
        data: Vec::new(),
        events: statuses.iter().map(|status| status.retained_events).sum(),
        lost: statuses
            .iter()
            .fold(0, |lost, status| status.lost.saturating_add(lost)),
        reader_lost: 0,
    }
}

pub(super) fn attach_report(report: AttachReport) -> v1::AttachReport {
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

pub(super) fn detach_report(pid: Pid, report: DetachReport) -> v1::DetachReport {
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

pub(super) fn detach_refused(pid: Pid, why: Refusal) -> v1::DetachReport {
    v1::DetachReport {
        pid: pid.as_u32(),
        refusal: Some(refusal(why)),
        ..v1::DetachReport::default()
    }
}

pub(super) fn toggle_report(pid: Pid, report: ToggleReport) -> v1::ToggleReport {
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

pub(super) fn toggle_refused(pid: Pid, why: Refusal) -> v1::ToggleReport {
    v1::ToggleReport {
        pid: pid.as_u32(),
        refusal: Some(refusal(why)),
        ..v1::ToggleReport::default()
    }
}

pub(super) fn function(pid: Pid, row: FunctionRow) -> v1::FunctionInfo {
    let FunctionRow {
        id,
        module,
        name,
        symbol,
        source,
        sleds,
        event_sleds,
        enabled,
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
        calls,
        xray_id,
        address,
        capture: (!capture.is_none()).then(|| v1::Capture {
            arguments: capture.arguments().into(),
            result: capture.has_result(),
        }),
    }
}

/// `file:line`, or the file alone where the line is not known.
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
    use xray_trace::model::FunctionId;

    use super::*;

    fn rules(rules: &[v1::rule::Rule]) -> Vec<v1::Rule> {
        rules
            .iter()
            .map(|rule| v1::Rule {
                rule: Some(rule.clone()),
            })
            .collect()
    }

    fn check_bad(selection: v1::Selection, expected: &str) {
        let refusal = super::selection(selection).unwrap_err();
        assert_eq!(refusal.reason, Reason::Selection);
        assert!(refusal.message.contains(expected), "{}", refusal.message);
    }

    #[test]
    fn every_kind_of_rule_comes_in() {
        use v1::rule::Rule as Wire;
        let text = |text: &str| text.to_owned();
        let include = rules(&[
            Wire::Function(text("f")),
            Wire::Glob(text("ns::*")),
            Wire::Regex(text("^a")),
            Wire::Module(text("libx.so")),
            Wire::Source(text("src/*")),
            Wire::Id(7),
        ]);
        let exclude = rules(&[Wire::All(true)]);
        let selection = selection(v1::Selection { include, exclude }).unwrap();
        assert_eq!(
            selection.include,
            [
                Rule::Function(text("f")),
                Rule::Glob(text("ns::*")),
                Rule::Regex(text("^a")),
                Rule::Module(text("libx.so")),
                Rule::Source(text("src/*")),
                Rule::Id(7),
            ]
        );
        assert_eq!(selection.exclude, [Rule::All]);
    }

    #[test]
    fn a_selection_that_means_nothing_is_refused() {
        use v1::rule::Rule as Wire;
        let of = |include| v1::Selection {
            include,
            exclude: Vec::new(),
        };
        check_bad(of(Vec::new()), "includes nothing");
        check_bad(of(vec![v1::Rule { rule: None }]), "says nothing");
        check_bad(of(rules(&[Wire::All(false)])), "is false");
        check_bad(of(rules(&[Wire::Regex("(".to_owned())])), "(");
        check_bad(of(rules(&[Wire::Glob("[".to_owned())])), "[");
        assert_eq!(
            required_selection(None).unwrap_err().reason,
            Reason::Selection
        );
    }

    #[test]
    fn a_loan_is_taken_back_as_a_whole_and_at_once() {
        let all = || {
            let include = rules(&[v1::rule::Rule::All(true)]);
            let exclude = Vec::new();
            Some(v1::Selection { include, exclude })
        };
        let on = Wanted::On(Capture::NONE);
        let real = |selection, to, loan| toggle(selection, to, loan, Run::Real);
        assert!(matches!(real(all(), on, 0), Ok(Toggle::ForGood(..))));
        assert!(matches!(real(all(), on, 7), Ok(Toggle::Lend(..))));
        assert!(matches!(
            real(None, Wanted::Off, 7),
            Ok(Toggle::TakeBack(LoanId(number))) if number.get() == 7
        ));
        for refused in [
            real(None, on, 7),
            real(None, Wanted::Off, 0),
            real(all(), Wanted::Off, 7),
            toggle(None, Wanted::Off, 7, Run::Dry),
        ] {
            assert_eq!(refused.unwrap_err().reason, Reason::Selection);
        }
    }

    #[test]
    fn zeros_in_an_attach_request_mean_the_defaults() {
        let default = AttachOptions::default();
        let options = attach_options(v1::AttachRequest::default());
        assert_eq!(
            (options.ring_bytes, options.max_threads, options.start_time),
            (default.ring_bytes, default.max_threads, None)
        );
        assert_eq!(options.follow, Follow::None);
        let request = v1::AttachRequest {
            pid: 1,
            ring_bytes: 1 << 16,
            max_threads: 3,
            start_time: 9,
            follow: v1::Follow::All.into(),
            await_sleds: true,
        };
        let options = attach_options(request);
        assert_eq!(
            (options.ring_bytes, options.max_threads, options.start_time),
            (1 << 16, 3, Some(9))
        );
        assert_eq!(options.follow, Follow::All);
        assert_eq!(options.sleds, Sleds::Awaited);
    }

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
    fn rows_are_matched_by_the_same_rules_as_a_sessions() {
        let row = |id, name: &str| FunctionRow {
            id: FunctionId(id),
            module: "/usr/bin/demo".to_owned(),
            name: name.to_owned(),
            symbol: None,
            source: None,
            sleds: 2,
            event_sleds: 0,
            enabled: false,
            capture: Capture::NONE,
            calls: 0,
            xray_id: id + 1,
            address: 0,
        };
        let selection = Selection {
            include: vec![Rule::Glob("a*".to_owned())],
            exclude: vec![Rule::Id(1)],
        };
        let rows = matching(vec![row(0, "ab"), row(1, "ac"), row(2, "b")], &selection).unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].name, "ab");
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
