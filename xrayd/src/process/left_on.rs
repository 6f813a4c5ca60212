//! Processes that have sleds on and no session: left by a daemon that is gone, inherited by a fork,
//! or traced by another xrayd. They are only looked at here.

use crate::{
    inject::{LeftCode, left_code, living_tracer},
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    sys::Memory,
    target::{Check, Outcome, ProcessState, Target},
};

/// The state of such a process.
pub(super) fn state(target: &Target) -> ProcessState {
    let pid = target.pid();
    let look = || -> Result<ProcessState> {
        let memory = Memory::open_to_read(pid, target.live_thread()?)
            .map_err(|error| Refusal::from_io(pid, "open its memory", &error))?;
        let maps = target.maps()?;
        if let Some(other) = living_tracer(&memory, &maps) {
            let message = format!("process {pid} is traced by another xrayd: {other}");
            return Ok(ProcessState::Refused(Refusal::new(Reason::Busy, message)));
        }
        Ok(match left_code(target, &memory, &maps)?.is_inherited {
            true => ProcessState::Inherited,
            false => ProcessState::LeftOn,
        })
    };
    look().unwrap_or_else(ProcessState::Refused)
}

/// False if a process surely has no code of xrayd in it: it has ended, or runs another program than
/// the one that was traced.
pub(super) fn may_have_code(pid: Pid, start_time: u64) -> bool {
    let look = || -> Result<bool> {
        let target = Target::open(pid)?;
        if target.start_time() != start_time {
            return Ok(false);
        }
        let memory = Memory::open_to_read(pid, target.live_thread()?)
            .map_err(|error| Refusal::from_io(pid, "open its memory", &error))?;
        let LeftCode {
            regions, others, ..
        } = left_code(&target, &memory, &target.maps()?)?;
        Ok(!regions.is_empty() || !others.is_empty())
    };
    look().unwrap_or_else(|refusal| !refusal.reason.leaves_nothing())
}

/// The row of the preflight about such a process.
pub(super) fn check(target: &Target, sleds_on: u64) -> Check {
    let off = || format!("xrayctl off {}", target.pid());
    let (outcome, finding, remedy) = match state(target) {
        ProcessState::Refused(Refusal { message, .. }) => (Outcome::Failed, message, String::new()),
        ProcessState::Inherited => {
            let finding = format!(
                "{sleds_on} sleds are on: the process was forked from a traced one, and records \
                 nothing"
            );
            (Outcome::Warning, finding, off())
        }
        ProcessState::Ready | ProcessState::LeftOn | ProcessState::Traced => {
            let finding = format!(
                "{sleds_on} sleds are on: an xrayd that is gone has left them on, and no daemon \
                 reads what they record"
            );
            (Outcome::Warning, finding, off())
        }
    };
    Check {
        reason: Reason::Busy,
        subject: "left on",
        outcome,
        finding,
        remedy,
    }
}
