//! What the thread `ctl-<pid>` does: everything that changes the target after attach, and the watch on its life.

use std::{
    process::Child,
    sync::{Arc, atomic::Ordering, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use shm_ring::Producer;

use super::{
    Output, Phase, Run, Switch,
    control::{Command, Commands, Shared},
};
use crate::{
    inject::{PatchReport, PatchSite, Patcher, SETTLE, clear_live, is_ours_still},
    lock::lock,
    pid::TargetAddr,
    refusal::{Reason, Refusal, Result},
    sys::{Claim, Memory, ptrace::Stopped},
    target::{Maps, Target, memory_room},
};

/// How often the target's life is checked.
const WATCH_EVERY: Duration = Duration::from_millis(20);

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

/// What the control thread owns.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) target: Target,
    pub(super) memory: Arc<Memory>,
    pub(super) patcher: Patcher,
    /// Every usable sled, by address.
    pub(super) sites: Vec<PatchSite>,
    /// Address of the table's mapping.
    pub(super) table: TargetAddr,
    pub(super) output: Arc<Output>,
    pub(super) shared: Arc<Shared>,
    /// A process that we started and have not let go yet.
    pub(super) held: Option<Stopped>,
    /// A process that we started: to be collected when it ends.
    pub(super) child: Option<Child>,
    /// Keeps other tracers away until the process is let go.
    pub(super) claim: Option<Claim>,
}

// === impl Controller ===

impl Controller {
    /// Serves the session until it is detached or its target has ended. A command that comes meanwhile finds nobody.
    pub(super) fn run(mut self, commands: &Commands) {
        loop {
            let command = commands.0.recv_timeout(WATCH_EVERY);
            if self.is_gone() {
                self.end_of_target();
                break;
            }
            if self.output.failure().is_some() {
                self.end_of_drain();
                break;
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

    /// True if the process has ended or the address space that was attached to is gone with an `exec`.
    fn has_no_memory(&self) -> bool {
        self.target.has_exited() || self.memory.read_u64(self.table).is_err()
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
        let report = self.totals(DetachReport {
            exited: true,
            ..DetachReport::default()
        });
        self.leave(Phase::Exited, Ok(report));
        tracing::info!(pid = self.target.pid().as_raw(), "target exited");
    }

    /// Events are not read any more: let the program go, and keep what it recorded until somebody has asked what happened.
    fn end_of_drain(&mut self) {
        let report = self.let_go();
        let pid = self.target.pid().as_raw();
        match &report {
            Ok(_) => tracing::error!(pid, "a drain thread panicked: the session has failed"),
            Err(error) => {
                tracing::error!(pid, %error, "a drain thread panicked, and its process could not be let go")
            }
        }
        self.leave(Phase::Failed, report);
    }

    /// The session is over and stays to be looked at; a detach will be told `report`.
    fn leave(&self, phase: Phase, report: Result<DetachReport>) {
        *lock(&self.shared.epitaph) = Some((Instant::now(), report));
        self.shared.phase.store(phase as u8, Ordering::Release);
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
        if run == Run::Dry {
            let report = PatchReport {
                sleds: sites.len() as u64,
                foreign: 0,
            };
            return Ok((report, self.patcher.would_copy(sites)));
        }
        if to == Switch::On {
            self.has_room_for(self.patcher.would_copy(sites))?;
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

    /// Pages that are written become private to the process, which could bring the OOM killer upon it.
    fn has_room_for(&self, bytes: u64) -> Result<()> {
        let pid = self.target.pid();
        match memory_room(pid) {
            Some(room) if room.bytes < bytes => {
                let message = format!(
                    "process {pid}: {bytes} bytes of its text would become private, and its control group {} has room for {} bytes",
                    room.group.display(),
                    room.bytes
                );
                Err(Refusal::new(Reason::NoMemory, message))
            }
            _ => Ok(()),
        }
    }

    fn patch(&mut self, sites: &[PatchSite], to: Switch) -> Result<PatchReport> {
        let Self {
            patcher,
            memory,
            target,
            ..
        } = self;
        match patcher.switch(memory, || maps_of(target), sites, to) {
            Err(_) if self.target.has_exited() => Err(self.target.exited()),
            result => result,
        }
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
        let report = self.let_go();
        self.shared
            .phase
            .store(Phase::Exited as u8, Ordering::Release);
        report
    }

    fn let_go(&mut self) -> Result<DetachReport> {
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
        let resumed = self.resume();
        match result {
            Err(_) if self.has_no_memory() => Ok(self.totals(DetachReport {
                exited: true,
                ..DetachReport::default()
            })),
            Err(refusal) => Err(refusal),
            Ok(report) => resumed.map(|()| self.totals(report)),
        }
    }

    fn switch_off_and_prove(&mut self, sites: &[PatchSite]) -> Result<DetachReport> {
        let patched = self.patch(sites, Switch::Off);
        // A thread that took a sled just now is in a trampoline; it is out long before the second look.
        for _ in 0..2 {
            if let Some(drain) = &*lock(&self.shared.drain) {
                drain.flush();
            }
            std::thread::sleep(SETTLE);
        }
        // Above all where a sled could not be switched off: each thread that still takes it stops recording at the end
        // of its chunk.
        clear_live(&self.memory, self.table)
            .map_err(|error| Refusal::from_io(self.target.pid(), "write to the table", &error))?;
        let patched = patched?;
        if patched.foreign > 0 {
            tracing::warn!(
                pid = self.target.pid().as_raw(),
                sleds = patched.foreign,
                "sleds left to somebody else"
            );
        }
        let maps = maps_of(&self.target)?;
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

/// Its maps now.
pub(super) fn maps_of(target: &Target) -> Result<Maps> {
    let pid = target.pid();
    let tid = target.live_thread()?;
    Maps::read(pid, tid).map_err(|error| Refusal::from_io(pid, "read its maps", &error))
}
