//! The thread `ctl-<pid>`: everything that changes the target after attach, and the watch on its life.

use std::{
    process::{Child, ExitStatus},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use shm_ring::Producer;
use xray_trace::model::FunctionId;

use super::{Output, Phase, Run, Switch, ToggleReport, functions::Functions};
use crate::{
    collect::DrainHandle,
    inject::{PatchReport, PatchSite, Patcher, clear_live, is_ours_still},
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::{Claim, Memory, ptrace::Stopped},
    target::{Maps, Target},
};

/// How often the target's life is checked.
const WATCH_EVERY: Duration = Duration::from_millis(20);
/// Pause between the two last drains of a detach: longer than any thread stays in a trampoline.
const SETTLE: Duration = Duration::from_millis(5);

/// What a detach found, its proof included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DetachReport {
    /// Sleds read back and found off.
    pub sleds_off: u64,
    /// Sleds that could not be switched off, because somebody else's bytes stand there.
    pub sleds_on: u64,
    /// Bytes of text outside sleds that were compared with the file.
    pub text_bytes_compared: u64,
    /// Those that differ.
    pub text_bytes_different: u64,
    /// The process had ended already.
    pub exited: bool,
    /// Events recorded in the session.
    pub events: u64,
    /// Events lost in the session.
    pub lost: u64,
}

#[derive(Debug)]
enum Command {
    Toggle {
        sites: Vec<PatchSite>,
        to: Switch,
        run: Run,
        answer: SyncSender<Result<(PatchReport, u64)>>,
    },
    Resume {
        answer: SyncSender<Result<()>>,
    },
    Detach {
        answer: SyncSender<Result<DetachReport>>,
    },
}

/// The control thread, as the session sees it.
#[derive(Debug)]
pub(crate) struct Control {
    pid: Pid,
    commands: SyncSender<Command>,
    shared: Arc<Shared>,
}

/// What the control thread tells.
#[derive(Debug)]
pub(crate) struct Shared {
    phase: AtomicU8,
    copied: AtomicU64,
    functions_on: AtomicU32,
    /// By function. Written under the lock by `Control::toggle`, which holds it for the whole toggle.
    on: Mutex<Vec<bool>>,
    /// Until the rings are finished.
    drain: Mutex<Option<DrainHandle>>,
    /// Of a process that was started by us, once it has ended.
    exit_status: Mutex<Option<ExitStatus>>,
}

/// What the control thread owns.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) target: Target,
    pub(crate) memory: Arc<Memory>,
    pub(crate) patcher: Patcher,
    /// Every usable sled, by address.
    pub(crate) sites: Vec<PatchSite>,
    /// Address of the table's mapping.
    pub(crate) table: TargetAddr,
    pub(crate) output: Arc<Output>,
    pub(crate) shared: Arc<Shared>,
    /// A process that we started and have not let go yet.
    pub(crate) held: Option<Stopped>,
    /// A process that we started: to be collected when it ends.
    pub(crate) child: Option<Child>,
    /// Keeps other tracers away until the process is let go.
    pub(crate) claim: Option<Claim>,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(functions: usize, drain: DrainHandle) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Tracing as u8),
            copied: AtomicU64::new(0),
            functions_on: AtomicU32::new(0),
            on: Mutex::new(vec![false; functions]),
            drain: Mutex::new(Some(drain)),
            exit_status: Mutex::new(None),
        }
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            value if value == Phase::Tracing as u8 => Phase::Tracing,
            value if value == Phase::Detaching as u8 => Phase::Detaching,
            _ => Phase::Exited,
        }
    }
}

// === impl Control ===

impl Control {
    /// The session's end, and the end that [`Controller::run`] serves.
    pub(super) fn new(pid: Pid, shared: Arc<Shared>) -> (Self, Commands) {
        let (commands, received) = sync_channel(4);
        (
            Self {
                pid,
                commands,
                shared,
            },
            Commands(received),
        )
    }

    pub(super) fn phase(&self) -> Phase {
        self.shared.phase()
    }

    pub(super) fn copied_bytes(&self) -> u64 {
        self.shared.copied.load(Ordering::Relaxed)
    }

    pub(super) fn functions_on(&self) -> u32 {
        self.shared.functions_on.load(Ordering::Relaxed)
    }

    pub(super) fn is_on(&self, id: FunctionId) -> bool {
        lock(&self.shared.on)
            .get(id.0 as usize)
            .copied()
            .unwrap_or(false)
    }

    pub(super) fn exit_status(&self) -> Option<ExitStatus> {
        *lock(&self.shared.exit_status)
    }

    /// Has the drain read what is there.
    pub(super) fn flush(&self) {
        if let Some(drain) = &*lock(&self.shared.drain) {
            drain.flush();
        }
    }

    /// Switches `ids` and fills `report`.
    pub(super) fn toggle(
        &self,
        ids: Vec<FunctionId>,
        functions: &Functions,
        to: Switch,
        run: Run,
        report: &mut ToggleReport,
    ) -> Result<()> {
        let mut on = lock(&self.shared.on);
        let wanted = to == Switch::On;
        let changing: Vec<FunctionId> = ids
            .into_iter()
            .filter(|id| on.get(id.0 as usize).is_some_and(|&is| is != wanted))
            .collect();
        let mut sites: Vec<PatchSite> = changing
            .iter()
            .flat_map(|&id| functions.sites(id))
            .copied()
            .collect();
        sites.sort_unstable_by_key(|site| site.address);
        report.changed = u32::try_from(changing.len()).unwrap_or(u32::MAX);
        let started = Instant::now();
        let (patched, copied) = self.ask(|answer| Command::Toggle {
            sites,
            to,
            run,
            answer,
        })?;
        report.elapsed = started.elapsed();
        report.sleds = patched.sleds;
        report.foreign = patched.foreign;
        report.copied_bytes = copied;
        if run == Run::Real {
            for id in changing {
                if let Some(is) = on.get_mut(id.0 as usize) {
                    *is = wanted;
                }
            }
            let count = on.iter().filter(|&&is| is).count();
            self.shared
                .functions_on
                .store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Lets a process that was started by us go.
    pub(super) fn resume(&self) -> Result<()> {
        self.ask(|answer| Command::Resume { answer })
    }

    pub(super) fn detach(&self) -> Result<DetachReport> {
        self.ask(|answer| Command::Detach { answer })
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<Result<T>>) -> Command) -> Result<T> {
        let gone = || {
            let message = format!("the session of process {} is over", self.pid);
            Refusal::new(Reason::NotAttached, message)
        };
        let (answer, answered) = sync_channel(1);
        self.commands.send(command(answer)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }
}

/// The commands of one session, for its control thread.
#[derive(Debug)]
pub(super) struct Commands(Receiver<Command>);

// === impl Controller ===

impl Controller {
    /// Serves the session until it is detached.
    pub(super) fn run(mut self, commands: &Commands) {
        loop {
            let command = commands.0.recv_timeout(WATCH_EVERY);
            if self.shared.phase() == Phase::Tracing && self.is_gone() {
                self.end_of_target();
            }
            match command {
                Ok(Command::Toggle {
                    sites,
                    to,
                    run,
                    answer,
                }) => {
                    // Whoever asked may have gone; the toggle stands all the same.
                    let _ = answer.send(self.toggle(&sites, to, run));
                }
                Ok(Command::Resume { answer }) => {
                    let _ = answer.send(self.resume());
                }
                Ok(Command::Detach { answer }) => {
                    let _ = answer.send(self.detach());
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Err(error) = self.detach() {
                        tracing::error!(pid = self.target.pid().as_raw(), %error, "detach failed");
                    }
                    break;
                }
            }
        }
        self.reap_at_leisure();
    }

    /// True if the process has ended or has become another program by `exec`.
    fn is_gone(&self) -> bool {
        self.target.has_exited() || !is_ours_still(&self.memory, self.table)
    }

    /// The program is no more: keep what it recorded up to its last event.
    fn end_of_target(&mut self) {
        let drain = lock(&self.shared.drain).take();
        if let Some(drain) = drain {
            drain.finish(Producer::Gone);
        }
        self.output.close();
        self.claim = None;
        self.collect_child();
        self.shared.functions_on.store(0, Ordering::Relaxed);
        self.shared
            .phase
            .store(Phase::Exited as u8, Ordering::Release);
        tracing::info!(pid = self.target.pid().as_raw(), "target exited");
    }

    fn collect_child(&mut self) {
        let Some(child) = &mut self.child else { return };
        match child.try_wait() {
            Ok(Some(status)) => {
                *lock(&self.shared.exit_status) = Some(status);
                self.child = None;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "cannot collect a child"),
        }
    }

    /// A child that outlives its session is collected by a thread that waits for nothing else.
    fn reap_at_leisure(&mut self) {
        self.collect_child();
        let Some(mut child) = self.child.take() else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let reaper = std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || {
                if let Ok(status) = child.wait() {
                    *lock(&shared.exit_status) = Some(status);
                }
            });
        if let Err(error) = reaper {
            tracing::warn!(%error, "a child will not be collected before the daemon ends");
        }
    }

    fn toggle(&mut self, sites: &[PatchSite], to: Switch, run: Run) -> Result<(PatchReport, u64)> {
        match self.shared.phase() {
            Phase::Tracing => {}
            Phase::Detaching | Phase::Exited => return Err(self.target.exited()),
        }
        if run == Run::Dry {
            let report = PatchReport {
                sleds: sites.len() as u64,
                foreign: 0,
            };
            return Ok((report, self.patcher.would_copy(sites)));
        }
        if to == Switch::On {
            self.output.arm(true);
            if let Some(drain) = &*lock(&self.shared.drain) {
                drain.wake();
            }
        }
        let before = self.patcher.copied_bytes();
        let result = self.patch(sites, to);
        let after = self.patcher.copied_bytes();
        self.shared.copied.store(after, Ordering::Relaxed);
        Ok((result?, after - before))
    }

    fn patch(&mut self, sites: &[PatchSite], to: Switch) -> Result<PatchReport> {
        let maps = self.maps()?;
        match self.patcher.switch(&self.memory, &maps, sites, to) {
            Err(_) if self.target.has_exited() => Err(self.target.exited()),
            result => result,
        }
    }

    fn maps(&self) -> Result<Maps> {
        let pid = self.target.pid();
        let tid = self.target.live_thread()?;
        Maps::read(pid, tid).map_err(|error| Refusal::from_io(pid, "read its maps", &error))
    }

    fn resume(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let pid = self.target.pid();
        held.release()
            .map(drop)
            .map_err(|error| Refusal::new(Reason::Io, format!("process {pid}: {error}")))
    }

    fn detach(&mut self) -> Result<DetachReport> {
        if self.shared.phase() == Phase::Exited {
            return Ok(self.totals(DetachReport {
                exited: true,
                ..DetachReport::default()
            }));
        }
        self.shared
            .phase
            .store(Phase::Detaching as u8, Ordering::Release);
        let sites = std::mem::take(&mut self.sites);
        let result = self.switch_off_and_prove(&sites);
        let drain = lock(&self.shared.drain).take();
        if let Some(drain) = drain {
            let producer = if self.target.has_exited() {
                Producer::Gone
            } else {
                Producer::Alive
            };
            drain.finish(producer);
        }
        self.output.close();
        self.claim = None;
        self.shared
            .phase
            .store(Phase::Exited as u8, Ordering::Release);
        let resumed = self.resume();
        match result {
            Err(_) if self.is_gone() => Ok(self.totals(DetachReport {
                exited: true,
                ..DetachReport::default()
            })),
            Err(refusal) => Err(refusal),
            Ok(report) => resumed.map(|()| self.totals(report)),
        }
    }

    fn switch_off_and_prove(&mut self, sites: &[PatchSite]) -> Result<DetachReport> {
        let patched = self.patch(sites, Switch::Off)?;
        if patched.foreign > 0 {
            tracing::warn!(
                pid = self.target.pid().as_raw(),
                sleds = patched.foreign,
                "sleds left to somebody else"
            );
        }
        // A thread that took a sled just now is in a trampoline; it is out long before the second look.
        for _ in 0..2 {
            if let Some(drain) = &*lock(&self.shared.drain) {
                drain.flush();
            }
            std::thread::sleep(SETTLE);
        }
        clear_live(&self.memory, self.table)
            .map_err(|error| Refusal::from_io(self.target.pid(), "write to the table", &error))?;
        let maps = self.maps()?;
        let proof = self.patcher.prove(&self.memory, &maps, sites)?;
        Ok(DetachReport {
            sleds_off: proof.sleds_off,
            sleds_on: proof.sleds_on,
            text_bytes_compared: proof.compared,
            text_bytes_different: proof.different,
            ..DetachReport::default()
        })
    }

    fn totals(&self, report: DetachReport) -> DetachReport {
        let counters = self.output.counters();
        DetachReport {
            events: counters.events,
            lost: counters.lost,
            ..report
        }
    }
}

/// What these locks guard is whole between statements; a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
