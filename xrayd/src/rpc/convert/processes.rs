//! Answers about processes that can be traced, and what speaks against it.

use nix::unistd::{Uid, User};
use xrayd_proto::v1;

use super::refusal;
use crate::{
    Pid,
    target::{Check, Outcome, ProcessState, ProcessSummary},
};

/// Limit on the length of a command line in a message, in bytes. A list of processes has to fit a
/// message.
const MAX_COMMAND: usize = 4096;

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
        ProcessState::LeftOn => (v1::ProcessState::LeftOn, None),
        ProcessState::Inherited => (v1::ProcessState::Inherited, None),
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

pub(super) fn shorten(mut command: String) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::{Reason, Refusal};

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
