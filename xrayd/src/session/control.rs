//! The control thread, as its session sees it: commands go in, and what it tells is read here.

use std::{
    process::ExitStatus,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Instant,
};

use xray_trace::model::FunctionId;

use super::{DetachReport, Output, Phase, Run, Switch, ToggleReport, functions::Functions};
use crate::{
    collect::DrainHandle,
    inject::{PatchReport, PatchSite},
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
};

/// What a session asks of its control thread.
#[derive(Debug)]
pub(super) enum Command {
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
    output: Arc<Output>,
}

/// What the control thread tells.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) phase: AtomicU8,
    pub(super) copied: AtomicU64,
    /// Functions that are not off. Written with `states`.
    functions_on: AtomicU32,
    /// By function. Written under the lock by `Control::toggle`, which holds it for the whole toggle.
    states: Mutex<Vec<State>>,
    /// Until the rings are finished.
    pub(super) drain: Mutex<Option<DrainHandle>>,
    /// Once the target has ended or the session has failed: when, and what a detach is told. Written by the control thread,
    /// taken by the detach.
    pub(super) epitaph: Mutex<Option<(Instant, Result<DetachReport>)>>,
    /// Of a process that was started by us, once it has ended.
    pub(super) exit_status: Mutex<Option<ExitStatus>>,
}

/// What is known of a function's sleds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    On,
    /// A toggle is under way or failed half way: any of them may be on.
    Unsure,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(functions: usize, drain: DrainHandle) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Tracing as u8),
            copied: AtomicU64::new(0),
            functions_on: AtomicU32::new(0),
            states: Mutex::new(vec![State::Off; functions]),
            drain: Mutex::new(Some(drain)),
            epitaph: Mutex::new(None),
            exit_status: Mutex::new(None),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            value if value == Phase::Tracing as u8 => Phase::Tracing,
            value if value == Phase::Detaching as u8 => Phase::Detaching,
            value if value == Phase::Failed as u8 => Phase::Failed,
            _ => Phase::Exited,
        }
    }
}

// === impl Control ===

impl Control {
    /// The session's end, and the end that [`Controller::run`] serves.
    pub(super) fn new(pid: Pid, shared: Arc<Shared>, output: Arc<Output>) -> (Self, Commands) {
        let (commands, received) = sync_channel(4);
        (
            Self {
                pid,
                commands,
                shared,
                output,
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

    /// How many functions may record.
    pub(super) fn functions_on(&self) -> u32 {
        match self.phase() {
            Phase::Tracing | Phase::Detaching => self.shared.functions_on.load(Ordering::Relaxed),
            Phase::Failed | Phase::Exited => 0,
        }
    }

    /// True unless every sled of the function is known to be off.
    pub(super) fn is_on(&self, id: FunctionId) -> bool {
        lock(&self.shared.states)
            .get(id.0 as usize)
            .is_some_and(|&state| state != State::Off)
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

    /// Switches `ids` and fills `report`. One toggle at a time.
    ///
    /// # Errors
    /// The target cannot be written, or has ended. What was being switched on is off again then, or counts as on.
    pub(super) fn toggle(
        &self,
        ids: Vec<FunctionId>,
        functions: &Functions,
        to: Switch,
        run: Run,
        report: &mut ToggleReport,
    ) -> Result<()> {
        let mut states = lock(&self.shared.states);
        let wanted = match to {
            Switch::On => State::On,
            Switch::Off => State::Off,
        };
        let changing: Vec<FunctionId> = ids
            .into_iter()
            .filter(|id| {
                states
                    .get(id.0 as usize)
                    .is_some_and(|&state| state != wanted)
            })
            .collect();
        let mut sites: Vec<PatchSite> = changing
            .iter()
            .flat_map(|&id| functions.sites(id))
            .copied()
            .collect();
        sites.sort_unstable_by_key(|site| site.address);
        report.changed = u32::try_from(changing.len()).unwrap_or(u32::MAX);
        let mut set = |state| {
            for id in &changing {
                if let Some(place) = states.get_mut(id.0 as usize) {
                    *place = state;
                }
            }
            let count = states.iter().filter(|&&state| state != State::Off).count();
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.shared.functions_on.store(count, Ordering::Relaxed);
            count
        };
        if run == Run::Real {
            // Before anything is written: what may be on never counts as off.
            set(State::Unsure);
        }
        let started = Instant::now();
        let asked = self.switch(sites.clone(), to, run);
        report.elapsed = started.elapsed();
        if run == Run::Real {
            let state = match (&asked, to) {
                (Ok(_), _) => wanted,
                // Who is told that nothing was switched on finds nothing on.
                (Err(_), Switch::On) if self.switch(sites, Switch::Off, run).is_ok() => State::Off,
                (Err(_), _) => State::Unsure,
            };
            // Under the lock, as is the arming by whoever switches something on.
            if set(state) == 0 {
                self.output.arm(false);
            }
        }
        let (patched, copied) = asked?;
        report.sleds = patched.sleds;
        report.foreign = patched.foreign;
        report.copied_bytes = copied;
        Ok(())
    }

    fn switch(&self, sites: Vec<PatchSite>, to: Switch, run: Run) -> Result<(PatchReport, u64)> {
        self.ask(|answer| Command::Toggle {
            sites,
            to,
            run,
            answer,
        })
    }

    /// Lets a process that was started by us go.
    pub(super) fn resume(&self) -> Result<()> {
        self.ask(|answer| Command::Resume { answer })
    }

    pub(super) fn detach(&self) -> Result<DetachReport> {
        self.ask(|answer| Command::Detach { answer })
            .or_else(|refusal| {
                // The control thread ends with its target.
                let epitaph = lock(&self.shared.epitaph).take();
                epitaph.map_or(Err(refusal), |(_, report)| report)
            })
    }

    /// When the target ended or the session failed, unless that was after a detach.
    pub(super) fn ended(&self) -> Option<Instant> {
        lock(&self.shared.epitaph).as_ref().map(|(when, _)| *when)
    }

    /// Why nothing can be done with a session that has failed.
    pub(super) fn failed(&self) -> Refusal {
        let message = format!(
            "process {}: a bug in xrayd ended its session ({}); detach, then attach again",
            self.pid,
            self.output.failure().unwrap_or_default()
        );
        Refusal::new(Reason::SessionFailed, message)
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<Result<T>>) -> Command) -> Result<T> {
        let gone = || match self.ended() {
            Some(_) if self.phase() == Phase::Failed => self.failed(),
            Some(_) => {
                let message = format!("process {} has ended", self.pid);
                Refusal::new(Reason::TargetExited, message)
            }
            None => {
                let message = format!("the session of process {} is over", self.pid);
                Refusal::new(Reason::NotAttached, message)
            }
        };
        let (answer, answered) = sync_channel(1);
        self.commands.send(command(answer)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }
}

/// The commands of one session, for its control thread.
#[derive(Debug)]
pub(super) struct Commands(pub(super) Receiver<Command>);

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use xray_trace::model::ProcessId;

    use super::*;

    /// A control thread without a target: `answer` says what becomes of a toggle.
    fn control(
        functions: usize,
        mut answer: impl FnMut(Switch) -> Result<()> + Send + 'static,
    ) -> (Control, JoinHandle<()>) {
        let shared = Arc::new(Shared {
            phase: AtomicU8::new(Phase::Tracing as u8),
            copied: AtomicU64::new(0),
            functions_on: AtomicU32::new(0),
            states: Mutex::new(vec![State::Off; functions]),
            drain: Mutex::new(None),
            epitaph: Mutex::new(None),
            exit_status: Mutex::new(None),
        });
        let output = Arc::new(Output::new(ProcessId(0), functions, 0));
        let (control, commands) = Control::new(Pid::this(), shared, Arc::clone(&output));
        let thread = std::thread::spawn(move || {
            for command in commands.0 {
                if let Command::Toggle {
                    to, answer: asker, ..
                } = command
                {
                    if to == Switch::On {
                        output.arm(true);
                    }
                    let result = answer(to).map(|()| (PatchReport::default(), 0));
                    asker.send(result).unwrap();
                }
            }
        });
        (control, thread)
    }

    fn toggle(control: &Control, id: u32, to: Switch) -> Result<()> {
        let functions = Functions::new(Pid::this(), Vec::new(), Vec::new());
        let mut report = ToggleReport::default();
        control.toggle(vec![FunctionId(id)], &functions, to, Run::Real, &mut report)
    }

    fn refused() -> Result<()> {
        Err(Refusal::new(Reason::MemoryWrite, "no".to_owned()))
    }

    #[test]
    fn events_are_expected_as_long_as_any_client_has_something_on() {
        let (control, thread) = control(2, |_| Ok(()));
        std::thread::scope(|scope| {
            for id in 0..2 {
                let control = &control;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        toggle(control, id, Switch::On).unwrap();
                        assert!(control.output.is_armed());
                        toggle(control, id, Switch::Off).unwrap();
                    }
                });
            }
        });
        assert!(!control.output.is_armed());
        drop(control);
        thread.join().unwrap();
    }

    #[test]
    fn what_could_not_be_switched_on_is_switched_off_again() {
        let (control, _) = control(1, |to| match to {
            Switch::On => refused(),
            Switch::Off => Ok(()),
        });
        toggle(&control, 0, Switch::On).unwrap_err();
        assert_eq!(control.functions_on(), 0);
        assert!(!control.is_on(FunctionId(0)));
        assert!(!control.output.is_armed());
    }

    #[test]
    fn what_may_be_on_counts_as_on_and_can_be_switched_either_way() {
        for to in [Switch::On, Switch::Off] {
            let mut refusals = 2;
            let (control, _) = control(1, move |_| {
                if refusals == 0 {
                    return Ok(());
                }
                refusals -= 1;
                refused()
            });
            toggle(&control, 0, Switch::On).unwrap_err();
            assert_eq!(control.functions_on(), 1);
            assert!(control.is_on(FunctionId(0)));
            assert!(control.output.is_armed());
            toggle(&control, 0, to).unwrap();
            assert_eq!(control.is_on(FunctionId(0)), to == Switch::On);
        }
    }
}
