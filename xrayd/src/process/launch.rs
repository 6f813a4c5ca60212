//! Starting a program, and stopping it before its `main`, at a point where its thread-local storage
//! is set up. The attach itself follows in `attach`.
//!
//! A trampoline reads the thread id through the thread pointer, so no sled may be switched on
//! before that is valid. In a dynamic program it is valid when the loader hands over, at the
//! program's entry point. A static program sets it up itself. So it runs to the system call by
//! which a thread library announces its thread, and then in single steps until the thread id is in
//! its place.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use nix::{
    libc,
    sys::{
        signal::{Signal, kill as send_signal},
        wait::{WaitStatus, waitpid},
    },
};

use super::attach::Started;
use crate::{
    inject::finds_thread_id,
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::{
        Memory,
        ptrace::{Stopped, TraceError},
        spawn_traced,
    },
};

/// Limit on the time until the entry point. The loader may have thousands of libraries to relocate.
const LOADER_PATIENCE: Duration = Duration::from_secs(60);
/// Limit on instructions between the announcing call and the store of its result.
const STEPS: usize = 512;
/// Limit on system calls that a static program makes before it announces its thread.
const CALLS: usize = 512;
/// include/uapi/linux/auxvec.h
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const INT3: [u8; 1] = [0xcc];

/// Starts `command` and brings it to the point where its sleds can be switched on.
pub(crate) fn start(command: &mut Command) -> Result<Started> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed =
        |why: String| Refusal::new(Reason::Launch, format!("cannot start {program}: {why}"));
    let child = spawn_traced(command).map_err(|error| failed(error.to_string()))?;
    let pid = Pid::try_from(child.id()).map_err(|error| failed(error.to_string()))?;
    match waitpid(pid.as_nix(), None) {
        Ok(WaitStatus::Stopped(..)) => {}
        Ok(status) => {
            return Err(failed(format!(
                "it ended before its first instruction: {status:?}"
            )));
        }
        Err(errno) => return Err(failed(errno.to_string())),
    }
    let undo = KillOnDrop::new(pid);
    let thread =
        Stopped::adopt(pid.leader(), Instant::now()).map_err(|error| failed(error.to_string()))?;
    let mut started = Started {
        undo,
        child,
        thread,
    };
    bring_to_start(pid, &mut started.thread).map_err(|error| failed(error.to_string()))?;
    Ok(started)
}

/// Kills a child when dropped, unless it is disarmed. It has to be dropped before the stopped
/// thread, which runs on when it is dropped.
#[derive(Debug)]
pub(super) struct KillOnDrop {
    pid: Pid,
    armed: bool,
}

// === impl KillOnDrop ===

impl KillOnDrop {
    fn new(pid: Pid) -> Self {
        Self { pid, armed: true }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if self.armed {
            // The kill may fail because the child has ended. It is our child, so the pid is still
            // its own.
            let _ = send_signal(self.pid.as_nix(), Signal::SIGKILL);
            let _ = waitpid(self.pid.as_nix(), None);
        }
    }
}

fn bring_to_start(pid: Pid, thread: &mut Stopped) -> std::result::Result<(), TraceError> {
    let failed = |what, source| TraceError::Failed {
        what,
        tid: pid.leader(),
        source,
    };
    let memory =
        Memory::open(pid, pid.leader()).map_err(|error| failed("opening the memory", error))?;
    let auxiliary =
        fs::read(format!("/proc/{pid}/auxv")).map_err(|error| failed("reading auxv", error))?;
    let value = |key| auxiliary_value(&auxiliary, key);
    match (value(AT_BASE), value(AT_ENTRY)) {
        (Some(base), Some(entry)) if base != 0 => {
            let mut original = [0];
            let at = TargetAddr(entry);
            memory
                .read(at, &mut original)
                .map_err(|error| failed("reading the entry point", error))?;
            memory
                .write(at, &INT3)
                .map_err(|error| failed("setting a breakpoint", error))?;
            thread.run_to_breakpoint(entry, LOADER_PATIENCE)?;
            memory
                .write(at, &original)
                .map_err(|error| failed("removing a breakpoint", error))
        }
        _ => {
            thread.run_past_system_call(libc::SYS_set_tid_address, CALLS, LOADER_PATIENCE)?;
            for _ in 0..STEPS {
                if finds_thread_id(&memory, pid, pid.leader(), thread.registers().fs_base) {
                    return Ok(());
                }
                thread.step(LOADER_PATIENCE)?;
            }
            Err(failed(
                "starting",
                std::io::Error::other("it keeps its thread id at no known place"),
            ))
        }
    }
}

fn auxiliary_value(auxiliary: &[u8], key: u64) -> Option<u64> {
    let (words, _) = auxiliary.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs
        .iter()
        .map(|[key, value]| (u64::from_le_bytes(*key), u64::from_le_bytes(*value)))
        .find_map(|(found, value)| (found == key).then_some(value))
}
