//! A target that rewrites the instructions of a borrowed thread, and a target whose thread never
//! executes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, not_run, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xrayd::{
    Reason, Refusal,
    process::{AttachOptions, Registry},
};

use crate::support::{detach, pid, registry, tid};

/// The program rewrites its text as soon as it is traced. It may be too late in one try.
const TRIES: usize = 20;

/// Borrows the main thread. The answer comes in bounded time, or the program is killed.
fn attach_to_main(target: &Target) -> Result<(Registry, Result<(), Refusal>)> {
    let raw = target.pid();
    let main = pid(raw)?;
    let options = AttachOptions {
        thread: Some(tid(raw)?),
        ..AttachOptions::default()
    };
    let (answer, answered) = mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let registry = registry();
            let attached = registry.attach(main, options).map(|_| ());
            // The test may have given up.
            drop(answer.send((registry, attached)));
        });
        let attached = answered.recv_timeout(DEADLINE);
        if attached.is_err() {
            kill(NixPid::from_raw(raw), Signal::SIGKILL)?;
        }
        attached.context("no answer: the attach hangs")
    })
}

/// Tries until an attach is refused: then the rewritten instruction was executed.
fn is_rewritten_in_vain(how: &str, wanted: Reason) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    let other = dir.path().join("other");
    if how == "wide" {
        fs::write(&file, "")?;
    }
    for _ in 0..TRIES {
        let arguments = [how.as_ref(), file.as_os_str(), other.as_os_str()];
        let mut target = Target::spawn(Fixture::Rewriter, arguments)?;
        // The answer shows that all threads have begun.
        ensure!(target.ask("call", "called")? == "called");
        let before = ProcessState::of(target.pid())?;
        let (registry, attached) = attach_to_main(&target)?;
        ensure!(!other.exists(), "{how}: a forbidden call was made");
        let after = ProcessState::of(target.pid())?;
        ensure!(after == before, "{how}: {after:#?} instead of {before:#?}");
        ensure!(target.ask("call", "called")? == "called");
        if attached.is_ok() {
            detach(&registry, &target)?;
        }
        ensure!(target.ask("call", "called")? == "called");
        target.still_running()?;
        if let Err(refusal) = attached {
            ensure!(refusal.reason == wanted, "{how}: {refusal}");
            ensure!(target.ask("count", "rewritten")? == "rewritten 1", "{how}");
            ensure!(
                refusal
                    .message
                    .contains(&format!("process {}", target.pid())),
                "{refusal}"
            );
            return Ok(());
        }
    }
    not_run("rewritten instructions", "this machine attaches too fast")
}

/// The thread spins instead of making its call.
#[test]
fn a_thread_that_never_comes_to_its_call_is_given_back() -> Result<()> {
    is_rewritten_in_vain("spin", Reason::StopTimeout)
}

/// The fault is not the program's own.
#[test]
fn a_thread_that_faults_instead_of_making_its_call_is_given_back() -> Result<()> {
    is_rewritten_in_vain("fault", Reason::Io)
}

#[test]
fn no_forbidden_call_is_made_by_a_borrowed_thread() -> Result<()> {
    is_rewritten_in_vain("call", Reason::Io)
}

/// The same number means another call in the 32-bit table.
#[test]
fn no_call_of_32_bits_is_made_by_a_borrowed_thread() -> Result<()> {
    is_rewritten_in_vain("wide", Reason::Io)
}

/// A control group of the second version that can be frozen, for one process. It is removed in the
/// end.
struct Freezer {
    path: PathBuf,
}

// === impl Freezer ===

impl Freezer {
    /// `None` if no group can be made here, which is reported.
    fn of(target: &Target) -> Result<Option<Freezer>> {
        let name = format!("xrayd-test-freezer-{}", target.pid());
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let path = Path::new(root).join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let freezer = Freezer { path };
            if freezer.path.join("cgroup.freeze").exists() {
                fs::write(freezer.path.join("cgroup.procs"), target.pid().to_string())?;
                return Ok(Some(freezer));
            }
        }
        not_run("a frozen process", "no control group can be frozen here")?;
        Ok(None)
    }

    fn freeze(&self, frozen: bool) -> Result<()> {
        let wanted = u8::from(frozen);
        fs::write(self.path.join("cgroup.freeze"), wanted.to_string())?;
        wait_until(DEADLINE, "it is frozen, or not", || {
            let events = fs::read_to_string(self.path.join("cgroup.events"))?;
            Ok(events.contains(&format!("frozen {wanted}")).then_some(()))
        })
    }
}

impl Drop for Freezer {
    #[expect(clippy::print_stderr, reason = "nobody else can be told")]
    fn drop(&mut self) {
        let emptied = wait_until(DEADLINE, "the group is empty", || {
            Ok(fs::remove_dir(&self.path).is_ok().then_some(()))
        });
        if let Err(error) = emptied {
            eprintln!("{} stays: {error:#}", self.path.display());
        }
    }
}

/// The borrowed thread stops, and then makes no call before it is thawed (P6).
#[test]
fn a_frozen_process_is_given_back() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "1", "--calls", "100"])?;
    let Some(freezer) = Freezer::of(&target)? else {
        return Ok(());
    };
    freezer.freeze(true)?;
    let (_, attached) = attach_to_main(&target)?;
    freezer.freeze(false)?;
    let refusal = attached.err().context("a frozen thread made calls")?;
    ensure!(refusal.reason == Reason::StopTimeout, "{refusal}");
    let (registry, attached) = attach_to_main(&target)?;
    attached?;
    target.ask("go", "result ")?;
    detach(&registry, &target)?;
    target.kill()?;
    drop(freezer);
    Ok(())
}
