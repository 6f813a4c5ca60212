//! Starting a program, and stopping it before its `main`, at a point where its thread-local storage
//! is set up. The attach itself follows in `attach`, and the order of both is in `registry`.
//!
//! A trampoline reads the thread id through the thread pointer, so no sled may be switched on
//! before that is valid. In a dynamic program it is valid when the loader hands over, at the
//! program's entry point. A static program sets it up itself. So it runs to the system call by
//! which a thread library announces its thread, and then in single steps until the thread id is in
//! its place.

use std::{
    fs,
    process::{Command, ExitStatus},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    libc,
    sys::wait::{WaitStatus, waitpid},
};
use sled_encoders::Capture;
use xray_trace::instr_map::Selection;

use super::{
    attach::{Beginning, Common, prepare},
    attach_options::AttachOptions,
    attach_report::AttachReport,
    attach_thread::{Begun, attach_thread_name},
    group::{Group, Root},
    refusals::lost_thread,
    session::Session,
    started::{KillOnDrop, Started},
    untraced::untraced,
};
use crate::{
    inject::finds_thread_id,
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::{
        Memory,
        ptrace::{Stopped, TraceError},
        spawn_traced,
    },
    target::{Credentials, Sleds, Target, has_sleds},
    types::ToggleReport,
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

/// A program to be started and traced from its first instruction on.
#[derive(Debug)]
pub struct LaunchOptions {
    /// The program, its arguments, environment and descriptors.
    pub command: Command,
    /// The options of the attach, which include what is followed. A program without sleds is
    /// started only if its children or the programs it becomes are followed.
    pub attach: AttachOptions,
    /// The functions to switch on.
    pub selection: Selection,
    /// The values to record with their calls.
    pub capture: Capture,
}

/// A program that was started and attached to, and that has not run yet.
#[derive(Debug)]
pub struct Launched {
    pub(super) group: Arc<Group>,
    /// `None` if it has no sleds.
    pub(super) session: Option<Arc<Session>>,
    /// The result of the attach.
    pub report: AttachReport,
    /// The result of switching functions on.
    pub toggled: ToggleReport,
}

// === impl Launched ===

impl Launched {
    /// The pid of the program.
    pub fn pid(&self) -> Pid {
        self.group.root()
    }

    /// The session of the program. `None` if it has no sleds.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.as_ref()
    }

    /// The group of the program and of the processes that come from it.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Lets the program run.
    ///
    /// # Errors
    /// The program has ended.
    pub fn resume(&self) -> Result<()> {
        match (&self.session, &self.group.untraced) {
            (Some(session), _) => session.source.control.resume(),
            (None, Some(untraced)) => untraced.resume(),
            (None, None) => Err(lost_thread(self.pid())),
        }
    }

    /// The exit status of the program, once it has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        match (&self.session, &self.group.untraced) {
            (Some(session), _) => session.source.control.shared.exit_status(),
            (None, untraced) => untraced.as_ref()?.exit_status(),
        }
    }
}

/// Starts `command`, and prepares its session, on the thread that will control the session. A
/// program without sleds gets no session if the options follow it through `exec`.
pub(super) fn begin(
    mut command: Command,
    common: Common,
    retain_bytes: u64,
    options: AttachOptions,
) -> Result<Begun> {
    // A program that cannot be traced is killed, because the user did not ask for an untraced run.
    let started = start(&mut command)?;
    let pid = started.undo.pid();
    // The name is as for any other attach.
    if let Err(error) = fs::write("/proc/thread-self/comm", attach_thread_name(pid)) {
        tracing::debug!(%error, "cannot name a thread");
    }
    let target = Target::open(pid)?;
    let awaited = options.sleds == Sleds::Awaited;
    if options.follow.execs() && !awaited && !has_sleds(pid, &common.objects) {
        let credentials = Credentials::of(pid).ok_or_else(|| target.exited())?;
        let command = target.command();
        let start_time = target.start_time();
        let (program, launch_thread) = untraced(started);
        let launch_thread = Box::new(launch_thread);
        let root = Root::Untraced {
            program,
            start_time,
            credentials,
            command,
        };
        return Ok(Begun::Untraced {
            launch_thread,
            root,
        });
    }
    let beginning = Beginning::Started(Box::new(started));
    let prepared = prepare(target, common, retain_bytes, options, beginning)?;
    Ok(Begun::Traced(Box::new(prepared), None))
}

/// Starts `command` and brings it to the point where its sleds can be switched on.
fn start(command: &mut Command) -> Result<Started> {
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
