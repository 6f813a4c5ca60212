//! The control thread, as its session sees it: commands go in, and what it tells is read here.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd as _,
    process::ExitStatus,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};

use sled_encoders::Capture;
use xray_trace::{
    instr_map::CompiledSelection,
    model::{ClockAnchor, FunctionId, Ticks},
};

use super::{
    filter::Filtering,
    leases::{Lease, Leases},
    patterns::Patterns,
    rules::{Rules, Wishes},
    states::States,
};
use crate::{
    collect::{DrainHandle, Moment, RingCopies},
    control::governor::History,
    inject::Choice,
    lock::lock,
    pid::Pid,
    quotas::Ticket,
    refusal::{Reason, Refusal, Result},
    store::{Ask, EventStore, ProfileSums},
    sys::{PidFd, ticks_now},
    target::{Ending, Functions, Indexes, Load, RefusedModule},
    types::{
        DetachReport, Economy, Filter, LeaseId, Mode, Noticing, Phase, Run, ToggleReport, Wanted,
    },
};

/// Filters of which a trace tells.
const MOST_FILTER_NOTES: usize = 256;

/// What a session asks of its control thread.
#[derive(Debug)]
pub(crate) enum Command {
    Toggle {
        request: Box<ToggleRequest>,
        answer: SyncSender<Result<ToggleReport>>,
    },
    TakeBack {
        from: LeaseId,
        answer: SyncSender<Result<ToggleReport>>,
    },
    Begin {
        rules: Rules,
        /// Of these modules; what has come since is for the rules.
        wishes: Wishes,
        of: Indexes,
        answer: SyncSender<Result<()>>,
    },
    Look {
        answer: SyncSender<Result<()>>,
    },
    /// Has calls counted, or recorded again.
    Count {
        count: Counting,
        answer: SyncSender<Result<()>>,
    },
    /// Has these calls recorded; `None` for all.
    Choose {
        choice: Option<Choice>,
        answer: SyncSender<Result<()>>,
    },
    /// Has tracing cost no more; says what it was allowed before.
    Economize {
        economy: Economy,
        answer: SyncSender<Result<Economy>>,
    },
    NameTypes {
        answer: SyncSender<Result<()>>,
    },
    Resume {
        answer: SyncSender<Result<()>>,
    },
    Detach {
        answer: SyncSender<Result<DetachReport>>,
    },
}

/// What becomes of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counting {
    /// They are counted.
    On,
    /// They are recorded.
    Off,
}

/// What somebody wants switched.
#[derive(Debug)]
pub(crate) struct ToggleRequest {
    /// The functions, also of libraries that come later.
    pub(crate) patterns: Arc<Patterns>,
    /// What it means in modules that have come since.
    pub(crate) later: Option<CompiledSelection>,
    /// What it matches in these modules.
    pub(crate) ids: Vec<FunctionId>,
    pub(crate) of: Indexes,
    pub(crate) to: Wanted,
    /// Whose it is, if it is switched on for a while only.
    pub(crate) loan: Option<LeaseId>,
    pub(crate) run: Run,
}

/// The control thread, as the session sees it.
#[derive(Debug)]
pub(crate) struct Control {
    pid: Pid,
    commands: SyncSender<Command>,
    /// Wakes who waits for commands.
    bell: Arc<EventFd>,
    shared: Arc<Shared>,
    output: Arc<EventStore>,
}

/// What the control thread tells.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) phase: AtomicU8,
    /// Once what was attached to is gone with an `exec`: when it was last seen to be there. Written by the control thread.
    pub(crate) executed: OnceLock<Instant>,
    pub(crate) copied: AtomicU64,
    pub(crate) states: States,
    /// What of that is for a while only. Written by the control thread.
    pub(crate) loans: Mutex<Leases>,
    /// What tracing may cost, and what came of it. Written by the control thread.
    pub(crate) history: History,
    /// Filters that were set, the latest last, as options, and since when each was in force.
    filter_notes: Mutex<VecDeque<(Ticks, String)>>,
    /// Which events are kept. Locked before `drain`.
    pub(super) filtering: Mutex<Filtering>,
    /// Modules with sleds that are loaded and cannot be traced. Written by the control thread.
    refused: Mutex<Vec<RefusedModule>>,
    /// Written by the control thread.
    noticing: Mutex<Noticing>,
    /// Until the rings are finished.
    pub(crate) drain: Mutex<Option<DrainHandle>>,
    /// Once the target has ended or the session has failed: when, and what a detach is told. Written by the control thread,
    /// taken by the detach.
    pub(super) epitaph: Mutex<Option<(Instant, Result<DetachReport>)>>,
    /// How the process has ended, once it has. Written by the control thread.
    pub(crate) ending: OnceLock<Ending>,
    /// Of a process that was started by us, once it has ended.
    pub(crate) exit_status: Mutex<Option<ExitStatus>>,
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(functions: usize, refused: Vec<RefusedModule>, drain: DrainHandle) -> Self {
        Self {
            phase: AtomicU8::new(Phase::Tracing as u8),
            executed: OnceLock::new(),
            copied: AtomicU64::new(0),
            states: States::new(functions),
            loans: Mutex::default(),
            history: History::default(),
            filter_notes: Mutex::default(),
            filtering: Mutex::default(),
            refused: Mutex::new(refused),
            noticing: Mutex::default(),
            drain: Mutex::new(Some(drain)),
            epitaph: Mutex::new(None),
            ending: OnceLock::new(),
            exit_status: Mutex::new(None),
        }
    }

    /// A module cannot be traced.
    pub(crate) fn refuse(&self, module: RefusedModule) {
        lock(&self.refused).push(module);
    }

    /// Forgets the refused modules that are not `loaded` any more.
    pub(super) fn keep_refused(&self, loaded: impl Fn(&Load) -> bool) {
        lock(&self.refused).retain(|module| loaded(&module.load));
    }

    /// Modules have come: events of some may be kept, or not.
    pub(super) fn refilter(&self, functions: &Functions) {
        let filtering = lock(&self.filtering);
        if filtering.is_by_module()
            && let Some(drain) = &*lock(&self.drain)
        {
            drain.keep(filtering.keep(functions), filtering.threads());
        }
    }

    /// What is to be written anew now that modules have come; `None` if nothing is.
    pub(super) fn rechoose(&self, pid: Pid, functions: &Functions) -> Option<Choice> {
        let filtering = lock(&self.filtering);
        if !filtering.is_by_function() {
            return None;
        }
        filtering.choice(pid, functions).unwrap_or_else(|error| {
            tracing::warn!(pid = pid.as_raw(), %error, "calls inside a library's functions are left out");
            None
        })
    }

    /// How libraries that come are noticed.
    pub(crate) fn noticing(&self) -> Noticing {
        lock(&self.noticing).clone()
    }

    pub(super) fn set_noticing(&self, noticing: Noticing) {
        *lock(&self.noticing) = noticing;
    }

    pub(crate) fn phase(&self) -> Phase {
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
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn new(
        pid: Pid,
        shared: Arc<Shared>,
        output: Arc<EventStore>,
    ) -> io::Result<(Self, Commands)> {
        let (commands, received) = sync_channel(4);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let control = Self {
            pid,
            commands,
            bell: Arc::clone(&bell),
            shared,
            output,
        };
        Ok((control, Commands { received, bell }))
    }

    pub(crate) fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// If the process has become another program by `exec`: when it was last seen not to have.
    pub(crate) fn executed(&self) -> Option<Instant> {
        self.shared.executed.get().copied()
    }

    pub(crate) fn copied_bytes(&self) -> u64 {
        self.shared.copied.load(Ordering::Relaxed)
    }

    /// How many functions may record.
    pub(crate) fn functions_on(&self) -> u32 {
        match self.phase() {
            Phase::Tracing | Phase::Detaching => self.shared.states.functions_on(),
            Phase::Failed | Phase::Exited => 0,
        }
    }

    /// What is recorded of the function's calls; `None` if every sled of it is known to be off.
    pub(crate) fn recorded(&self, id: FunctionId) -> Option<Capture> {
        self.shared.states.recorded(id)
    }

    /// Who has the function on loan, if anybody has.
    pub(crate) fn loan(&self, id: FunctionId) -> Option<Lease> {
        lock(&self.shared.loans).get(id).cloned()
    }

    /// Of how many functions values are recorded.
    pub(crate) fn functions_with_values(&self) -> u32 {
        match self.phase() {
            Phase::Tracing | Phase::Detaching => self.shared.states.functions_with_values(),
            Phase::Failed | Phase::Exited => 0,
        }
    }

    /// Modules with sleds that are loaded and cannot be traced.
    pub(crate) fn refused(&self) -> Vec<RefusedModule> {
        lock(&self.shared.refused).clone()
    }

    pub(crate) fn noticing(&self) -> Noticing {
        self.shared.noticing()
    }

    /// How the process has ended, if it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.shared.ending.get().copied()
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        *lock(&self.shared.exit_status)
    }

    /// Has the drain read what is there, and names of event types read that it met.
    pub(crate) fn flush(&self) {
        if let Some(drain) = &*lock(&self.shared.drain) {
            drain.flush();
        }
        self.name_types();
    }

    /// Asks what rings, at most so many bytes, and the output hold. `None` if the session is over: all that there is, is in the output.
    pub(crate) fn ask_for_pictures(
        &self,
        bytes: u64,
        moment: Moment,
    ) -> Option<Receiver<RingCopies>> {
        let drain = lock(&self.shared.drain);
        drain.as_ref()?.ask_for_pictures(bytes, moment)
    }

    /// What somebody asks of sums, once everything that is there now is in them.
    pub(crate) fn profile(&self, ask: Ask) -> Option<ProfileSums> {
        let drain = lock(&self.shared.drain);
        let answer = drain.as_ref().and_then(|drain| drain.profile(ask));
        drop(drain);
        // A session that is over has everything in its sums.
        answer.unwrap_or_else(|| self.output.profiles.answer(ask))
    }

    /// Which events are kept.
    pub(crate) fn filter(&self) -> Filter {
        lock(&self.shared.filtering).filter().clone()
    }

    /// The filters that were set, as options, and since when each was in force.
    pub(crate) fn filter_notes(&self) -> Vec<(Ticks, String)> {
        lock(&self.shared.filter_notes).iter().cloned().collect()
    }

    /// From now on these are; says which were. `attached` is a moment in the past.
    ///
    /// # Errors
    /// A filter that means nothing.
    pub(crate) fn set_filter(
        &self,
        filter: &Filter,
        attached: ClockAnchor,
        functions: &Functions,
        take: impl FnOnce(usize) -> Result<Ticket>,
    ) -> Result<Filter> {
        let mut filtering = Filtering::new(self.pid, filter, attached)?;
        filtering.pay(take)?;
        let choice = filtering.choice(self.pid, functions)?;
        let mut current = lock(&self.shared.filtering);
        let before = std::mem::replace(&mut *current, filtering);
        if let Some(drain) = &*lock(&self.shared.drain) {
            drain.keep(current.keep(functions), current.threads());
        }
        drop(current);
        let now = ticks_now();
        self.ask(|answer| Command::Choose { choice, answer })?;
        if before.filter() != filter {
            let mut notes = lock(&self.shared.filter_notes);
            if notes.len() == MOST_FILTER_NOTES {
                notes.pop_front();
            }
            notes.push_back((now, filter.note()));
        }
        Ok(before.filter().clone())
    }

    /// What tracing may cost, and what came of it.
    pub(crate) fn history(&self) -> &History {
        &self.shared.history
    }

    /// From now on it may cost so much; says how much it was before.
    ///
    /// # Errors
    /// The process has ended, or its memory cannot be written.
    pub(crate) fn economize(&self, economy: Economy) -> Result<Economy> {
        self.ask(|answer| Command::Economize { economy, answer })
    }

    /// Has names of event types read for a picture that was taken. What types are met in rings that nobody reads along is not known before they are developed.
    pub(crate) fn name_pictured_types(&self) {
        if self.output.mode() == Mode::Flight {
            // A control thread that has ended has read what it could.
            let _ = self.ask(|answer| Command::NameTypes { answer });
        }
        self.name_types();
    }

    fn name_types(&self) {
        if self.output.event_types.is_wanting() {
            // Likewise.
            let _ = self.ask(|answer| Command::NameTypes { answer });
        }
    }

    /// Switches what a selection matches: `ids`, and what is among modules that came after the first `modules`. One toggle at a time.
    ///
    /// # Errors
    /// The target cannot be written, or has ended. What was being switched on is as it was before then, or counts as on.
    pub(crate) fn toggle(&self, request: ToggleRequest) -> Result<ToggleReport> {
        let request = Box::new(request);
        self.ask(|answer| Command::Toggle { request, answer })
    }

    /// Puts back what was lent.
    ///
    /// # Errors
    /// As [`Self::toggle`]. What could not be switched back then counts as on; the loan is over.
    pub(crate) fn take_back(&self, from: LeaseId) -> Result<ToggleReport> {
        self.ask(|answer| Command::TakeBack { from, answer })
    }

    /// Takes these rules, and switches on these functions, which are of these modules, and what the rules name in modules that came, or
    /// came back, after those.
    ///
    /// # Errors
    /// As [`Self::toggle`].
    pub(crate) fn begin(&self, rules: Rules, wishes: Wishes, of: Indexes) -> Result<()> {
        self.ask(|answer| Command::Begin {
            rules,
            wishes,
            of,
            answer,
        })
    }

    /// Looks for libraries that came or went.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn look(&self) -> Result<()> {
        self.ask(|answer| Command::Look { answer })
    }

    /// Has calls counted, or recorded again.
    ///
    /// # Errors
    /// The process has ended, or its memory cannot be written.
    pub(crate) fn count(&self, count: Counting) -> Result<()> {
        self.ask(|answer| Command::Count { count, answer })
    }

    /// Lets a process that was started by us go.
    pub(crate) fn resume(&self) -> Result<()> {
        self.ask(|answer| Command::Resume { answer })
    }

    pub(crate) fn detach(&self) -> Result<DetachReport> {
        self.ask(|answer| Command::Detach { answer })
            .or_else(|refusal| {
                // The control thread ends with its target.
                let epitaph = lock(&self.shared.epitaph).take();
                epitaph.map_or(Err(refusal), |(_, report)| report)
            })
    }

    /// When the target ended or the session failed, unless that was after a detach.
    pub(crate) fn ended(&self) -> Option<Instant> {
        lock(&self.shared.epitaph).as_ref().map(|(when, _)| *when)
    }

    /// Why nothing can be done with a session that has failed.
    pub(crate) fn failed(&self) -> Refusal {
        let message = format!(
            "process {}: its session has failed ({}); detach, then attach again",
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
        // One that has been rung so often that it overflows is heard all the same.
        let _ = self.bell.write(1);
        answered.recv().unwrap_or_else(|_| {
            // The thread has ended, or it panicked and lets the process go. How that ends is known
            // when it takes no command any more.
            let (answer, ended) = sync_channel(1);
            if self.commands.send(Command::Look { answer }).is_ok() {
                let _ = ended.recv();
            }
            Err(gone())
        })
    }
}

/// The commands of one session, for its control thread.
#[derive(Debug)]
pub(crate) struct Commands {
    received: Receiver<Command>,
    bell: Arc<EventFd>,
}

// === impl Commands ===

impl Commands {
    /// Rung, it has [`Self::next`] return.
    pub(crate) fn bell(&self) -> Arc<EventFd> {
        Arc::clone(&self.bell)
    }

    /// The next command. Waits for it until the bell is rung, the process has ended, or the time is over.
    ///
    /// # Errors
    /// None came, or none will come any more.
    pub(crate) fn next(
        &self,
        patience: Duration,
        end: &PidFd,
    ) -> std::result::Result<Command, RecvTimeoutError> {
        match self.received.try_recv() {
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Ok(command) => return Ok(command),
        }
        let mut fds = [
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(end.as_fd(), PollFlags::POLLIN),
        ];
        // Rounded up: a wait that ends too early would be begun again and again.
        let milliseconds = patience.as_micros().div_ceil(1000);
        let milliseconds = u16::try_from(milliseconds).unwrap_or(u16::MAX);
        // An error, as an interruption, is a wait that ends early.
        let _ = poll(&mut fds, PollTimeout::from(milliseconds));
        // Before looking: what comes after that rings it again.
        let _ = self.bell.read();
        self.received.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }
}
