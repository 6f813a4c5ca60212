//! The handle of a session to its controller: commands go in, and answers come back. What the
//! controller publishes is in `shared`.

use std::sync::{
    Arc,
    mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
};

use super::{
    request::{Command, ToggleRequest},
    rules::{RuleEffect, Rules},
    settings::PreparedUpdate,
    shared::Shared,
};
use crate::{
    collect::{Asked, Moment, RingCopies},
    liveness::{Liveness, MOST_REQUESTS, NoAnswer},
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    store::{Ask, EventStore, ProfileSums},
    target::Indexes,
    tasks::{LateWaker, WakeAtEnd},
    types::{DetachReport, LeaseId, Mode, Phase, Run, Settings, ToggleReport, Wanted},
};

/// The session's handle to its controller.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) pid: Pid,
    commands: SyncSender<Command>,
    /// Behind the sender. The controller detaches when no sender is left.
    _end: WakeAtEnd,
    /// Wakes the controller for commands.
    waker: LateWaker,
    /// No wait for the controller lasts for ever.
    liveness: Arc<Liveness>,
    pub(crate) shared: Arc<Shared>,
    output: Arc<EventStore>,
}

// === impl Control ===

impl Control {
    /// The session's handle, and the commands for the controller.
    pub(crate) fn new(pid: Pid, shared: Arc<Shared>, output: Arc<EventStore>) -> (Self, Commands) {
        let (commands, received) = sync_channel(MOST_REQUESTS);
        let waker = LateWaker::default();
        let control = Self {
            pid,
            commands,
            _end: WakeAtEnd(waker.clone()),
            waker,
            liveness: Liveness::new(pid),
            shared,
            output,
        };
        let commands = Commands {
            received,
            waker: control.waker.clone(),
            liveness: Arc::clone(&control.liveness),
        };
        (control, commands)
    }

    /// Has the controller look whether the process still runs its program.
    pub(crate) fn look_for_exec(&self) {
        self.waker.wake();
    }

    /// Makes the drain read all rings, and then the controller the names of event types that
    /// the drain met.
    ///
    /// # Errors
    /// The drain hangs, so events are in the rings that it has not read.
    pub(crate) fn flush(&self) -> Result<()> {
        if let Some(drain) = self.shared.drain() {
            drain.flush()?;
        }
        self.name_types();
        Ok(())
    }

    /// Requests copies of rings, of this many bytes at most, and the retained events. `None` if the
    /// session is over: the event store has all events then.
    pub(crate) fn ask_for_copies(
        &self,
        bytes: u64,
        moment: Moment,
    ) -> Result<Option<Asked<RingCopies>>> {
        let drain = self.shared.drain();
        drain
            .map(|drain| drain.ask_for_copies(bytes, moment))
            .transpose()
    }

    /// Answers a request about sums after all events so far are in them.
    ///
    /// # Errors
    /// The drain hangs.
    pub(crate) fn profile(&self, ask: Ask) -> Result<Option<ProfileSums>> {
        let answer = match self.shared.drain() {
            Some(drain) => drain.profile(ask)?,
            None => None,
        };
        // The sums of a session that is over have all events.
        Ok(answer.unwrap_or_else(|| self.output.profiles.answer(ask)))
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Settings {
        self.shared.settings(self.output.mode())
    }

    /// Changes settings. Returns the settings before.
    ///
    /// # Errors
    /// The change is refused, or the process has ended or cannot be written. The settings are as
    /// before then.
    pub(crate) fn update(&self, prepared: PreparedUpdate) -> Result<Settings> {
        let prepared = Box::new(prepared);
        self.ask(|answer| Command::Update { prepared, answer })
    }

    /// Reads the names of event types for copies of rings. In mode flight no thread reads the rings
    /// along, so their types are unknown until the copies are decoded.
    pub(crate) fn name_copied_types(&self) {
        if self.output.mode() == Mode::Flight {
            // A controller that has ended has read all names that it could.
            let _ = self.ask(|answer| Command::NameTypes { answer });
        }
        self.name_types();
    }

    fn name_types(&self) {
        if self.output.event_types.is_wanting() {
            // The same holds here.
            let _ = self.ask(|answer| Command::NameTypes { answer });
        }
    }

    /// Switches the functions that a selection matches. One toggle runs at a time.
    ///
    /// # Errors
    /// The target cannot be written, or has ended. Functions that were being switched on are as
    /// before, or count as on.
    pub(crate) fn toggle(&self, request: ToggleRequest) -> Result<ToggleReport> {
        let request = Box::new(request);
        match (request.to.wanted, request.run) {
            (Wanted::Off, Run::Real) => self.undo(|answer| Command::Toggle { request, answer }),
            _ => self.ask(|answer| Command::Toggle { request, answer }),
        }
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As [`Self::toggle`]. Functions that could not be switched back count as on. The lease is
    /// over all the same.
    pub(crate) fn release(&self, from: LeaseId) -> Result<ToggleReport> {
        self.undo(|answer| Command::Release { from, answer })
    }

    /// Takes over rules, and switches on the functions of `effect`, which are in the modules `of`.
    /// Modules that were loaded, or loaded again, after those are switched by the rules.
    ///
    /// # Errors
    /// As [`Self::toggle`].
    pub(crate) fn begin(&self, rules: Rules, effect: RuleEffect, of: Indexes) -> Result<()> {
        self.ask(|answer| Command::Begin {
            rules,
            effect,
            of,
            answer,
        })
    }

    /// Looks for libraries that were loaded or unloaded.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn look(&self) -> Result<()> {
        self.ask(|answer| Command::Look { answer })
    }

    /// Has events recorded if a reader waits for them.
    ///
    /// # Errors
    /// The controller hangs, or memory cannot be written.
    pub(crate) fn settle(&self) -> Result<()> {
        self.ask(|answer| Command::Settle { answer })
    }

    /// Lets a process run that xrayd started.
    pub(crate) fn resume(&self) -> Result<()> {
        self.ask(|answer| Command::Resume { answer })
    }

    /// Ends the session, and leaves its process as it is for a later daemon.
    ///
    /// # Errors
    /// The controller hangs, or the session is over.
    pub(crate) fn leave(&self) -> Result<()> {
        self.ask(|answer| Command::Leave { answer })
    }

    pub(crate) fn detach(&self) -> Result<DetachReport> {
        self.undo(|answer| Command::Detach { answer })
            .or_else(|refusal| {
                // The controller ends with its target.
                let final_report = lock(&self.shared.final_report).take();
                final_report.map_or(Err(refusal), |(_, report)| report)
            })
    }

    /// The refusal of every request to a failed session.
    pub(crate) fn failed(&self) -> Refusal {
        let message = format!(
            "process {}: its session has failed ({}); detach, then attach again",
            self.pid,
            self.output.failure.get().map_or("", String::as_str)
        );
        Refusal::new(Reason::SessionFailed, message)
    }

    /// Hands a command over, and waits for the answer. A controller that hangs does not get it.
    fn ask<T>(&self, command: impl FnOnce(SyncSender<Result<T>>) -> Command) -> Result<T> {
        self.wait_for(command, |command| {
            self.liveness.send(&self.commands, command)
        })
    }

    /// The same for a command that undoes something. A controller that hangs carries it out
    /// later.
    fn undo<T>(&self, command: impl FnOnce(SyncSender<Result<T>>) -> Command) -> Result<T> {
        self.wait_for(command, |command| {
            self.liveness.send_anyway(&self.commands, command)
        })
    }

    fn wait_for<T>(
        &self,
        command: impl FnOnce(SyncSender<Result<T>>) -> Command,
        send: impl FnOnce(Command) -> std::result::Result<(), NoAnswer>,
    ) -> Result<T> {
        let gone = || match self.shared.ended() {
            Some(_) if self.shared.phase() == Phase::Failed => self.failed(),
            Some(_) => {
                let message = format!("process {} has ended", self.pid);
                Refusal::new(Reason::TargetExited, message)
            }
            None => {
                let message = format!("the session of process {} has ended", self.pid);
                Refusal::new(Reason::NotAttached, message)
            }
        };
        let no_answer = |why| match why {
            NoAnswer::Ended => gone(),
            NoAnswer::Hangs | NoAnswer::Refused | NoAnswer::Full => self.liveness.refusal(why),
        };
        let (answer, answered) = sync_channel(1);
        send(command(answer)).map_err(no_answer)?;
        self.waker.wake();
        let answer = self.liveness.watch().wait(&answered);
        if answer.as_ref().err() == Some(&NoAnswer::Ended) {
            // The thread has ended, or it panicked and detaches from the process. The result of
            // that is known when it takes no command any more.
            let (answer, ended) = sync_channel(1);
            let sent = self.liveness.send(&self.commands, Command::Look { answer });
            self.waker.wake();
            let _ = sent.and_then(|()| self.liveness.watch().wait(&ended));
        }
        answer.map_err(no_answer)?
    }
}

/// The commands of one session, for its controller.
#[derive(Debug)]
pub(crate) struct Commands {
    received: Receiver<Command>,
    waker: LateWaker,
    liveness: Arc<Liveness>,
}

// === impl Commands ===

impl Commands {
    /// The liveness of the task that takes the commands.
    pub(crate) fn liveness(&self) -> &Arc<Liveness> {
        &self.liveness
    }

    /// Wakes the task that takes the commands.
    pub(crate) fn waker(&self) -> LateWaker {
        self.waker.clone()
    }

    /// The next command.
    ///
    /// # Errors
    /// There is none, or all senders are gone.
    pub(crate) fn next(&self) -> std::result::Result<Command, TryRecvError> {
        self.received.try_recv()
    }
}
