//! The policies as the rest of the daemon sees them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{
    engine::{Command, Engine, Signal},
    kept::PolicyKeeper,
    since_epoch,
    spec::PolicySpec,
    status::PolicyStatus,
};
use crate::{
    lock::lock,
    panics::message_of,
    pid::Pid,
    process::Registry,
    refusal::{Reason, Refusal, Result},
};

/// Requests that wait for the thread.
const MOST_REQUESTS: usize = 64;
/// The longest wait for an answer. The thread may be ending leases in processes that do not answer.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// The policies of a daemon.
#[derive(Debug, Clone)]
pub struct Policies(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    folder: Option<PathBuf>,
    keeper: Option<Arc<dyn PolicyKeeper>>,
    /// The thread, while there is one.
    running: Mutex<Option<Running>>,
    /// True once the sessions of an earlier daemon go on, and true once the daemon ends.
    is_begun: AtomicBool,
    is_stopped: AtomicBool,
}

#[derive(Debug)]
struct Running {
    commands: SyncSender<Command>,
    signal: Arc<Signal>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

// === impl Policies ===

impl Policies {
    /// The policies of this folder, and those that clients apply. Nothing is done before the first
    /// request.
    pub(crate) fn new(
        registry: Registry,
        folder: Option<PathBuf>,
        keeper: Option<Arc<dyn PolicyKeeper>>,
    ) -> Self {
        Self(Arc::new(Inner {
            registry,
            folder,
            keeper,
            running: Mutex::default(),
            is_begun: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        }))
    }

    /// Puts the policies of the folder in force, and those that clients have applied before.
    /// Requests before that are refused, because processes of policies may go on with sessions of
    /// an earlier daemon.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn begin(&self) -> Result<()> {
        self.0.is_begun.store(true, Ordering::Release);
        self.load()
    }

    /// Reads the folder, and puts its policies in force. A file with mistakes changes nothing.
    ///
    /// # Errors
    /// The folder cannot be read, or the thread does not answer.
    pub fn load(&self) -> Result<()> {
        self.request(Command::Load)?
    }

    /// Puts a policy in force, for so long, or until the moment in its text.
    ///
    /// # Errors
    /// The policy has no end, or a policy of a file has its name.
    pub fn apply(&self, policy: (PolicySpec, String), lasts: Option<Duration>) -> Result<()> {
        let (spec, text) = policy;
        let now = since_epoch().as_secs();
        let expires = match lasts {
            Some(lasts) => Some(now.saturating_add(lasts.as_secs().max(1))),
            None => spec.expires,
        };
        let message = match expires {
            None => {
                "a policy that is applied has an end: --for 24h, or expires in its text".to_owned()
            }
            Some(expires) if expires <= now => {
                format!("the policy {} has expired already", spec.name)
            }
            Some(_) => {
                let applied = Box::new((spec, text, expires));
                return self.request(|answer| Command::Apply(applied, answer))?;
            }
        };
        Err(Refusal::new(Reason::Policy, message))
    }

    /// Ends a policy that was applied.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.request(|answer| Command::Remove(name.to_owned(), answer))?
    }

    /// The state of all policies.
    ///
    /// # Errors
    /// The thread does not answer.
    pub fn statuses(&self) -> Result<Vec<PolicyStatus>> {
        if lock(&self.0.running).is_none() {
            return Ok(Vec::new());
        }
        self.request(Command::Status)
    }

    /// The state of all policies after the thread's last round. Does not wait.
    pub(crate) fn latest(&self) -> Vec<PolicyStatus> {
        let running = lock(&self.0.running);
        running
            .as_ref()
            .map(|running| lock(&running.signal.latest).clone())
            .unwrap_or_default()
    }

    /// Ends the thread, and leaves all processes as they are. Waits for attaches that are under
    /// way, up to `time`.
    pub(crate) fn stop(&self, time: Duration) {
        self.0.is_stopped.store(true, Ordering::Release);
        let Some(running) = lock(&self.0.running).take() else {
            return;
        };
        running.signal.over.store(true, Ordering::Release);
        running.signal.ring();
        // Both outcomes are an end of the wait.
        let _ = running.ended.recv_timeout(time);
    }

    fn request<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T> {
        let (answer, answered) = sync_channel(1);
        self.send(command(answer))?;
        answered.recv_timeout(ANSWER_TIME).map_err(|_| {
            let message = format!("the policies do not answer within {ANSWER_TIME:?}");
            Refusal::new(Reason::Busy, message)
        })
    }

    fn send(&self, command: Command) -> Result<()> {
        let mut running = lock(&self.0.running);
        let is_begun = self.0.is_begun.load(Ordering::Acquire);
        if !is_begun || self.0.is_stopped.load(Ordering::Acquire) {
            let message = match is_begun {
                true => "the daemon is about to end",
                false => "the daemon still goes on with the sessions of an earlier one",
            };
            return Err(Refusal::new(Reason::Busy, message.to_owned()));
        }
        let command = match &*running {
            Some(thread) => match thread.signal.send(&thread.commands, command) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(_)) => {
                    let message = "too many requests wait for the policies".to_owned();
                    return Err(Refusal::new(Reason::TooMany, message));
                }
                // It has panicked, which is logged.
                Err(TrySendError::Disconnected(command)) => command,
            },
            None => command,
        };
        let begun = self.start(command)?;
        *running = Some(begun);
        Ok(())
    }

    /// Starts the thread, with its first request.
    fn start(&self, first: Command) -> Result<Running> {
        let failed =
            |what: &str, error: std::io::Error| Refusal::from_io(Pid::this(), what, &error);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_flags(flags)
            .map_err(|errno| failed("create an eventfd", errno.into()))?;
        let signal = Arc::new(Signal {
            eventfd: Arc::new(eventfd),
            over: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            latest: Mutex::default(),
        });
        let (commands, received) = sync_channel(MOST_REQUESTS);
        let (ends, ended) = sync_channel(0);
        if !matches!(first, Command::Load(_)) {
            let (answer, _) = sync_channel(1);
            // The queue has room.
            let _ = signal.send(&commands, Command::Load(answer));
        }
        let _ = signal.send(&commands, first);
        let (policies, of_thread) = (self.clone(), Arc::clone(&signal));
        let run = move || {
            let _ends: SyncSender<()> = ends;
            // Nothing of the engine is used after a panic.
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let Inner {
                    registry,
                    folder,
                    keeper,
                    ..
                } = &*policies.0;
                let engine = Engine::new(
                    registry.clone(),
                    folder.clone(),
                    keeper.clone(),
                    Arc::clone(&of_thread),
                );
                engine.run(&received, || policies.may_end(&of_thread));
            }));
            if let Err(payload) = ran {
                let message = message_of(&*payload);
                tracing::error!(
                    message,
                    "a thread panicked: no policy is carried out any more"
                );
            }
        };
        let thread = thread::Builder::new().name("policies".to_owned());
        thread
            .spawn(run)
            .map_err(|error| failed("start a thread", error))?;
        Ok(Running {
            commands,
            signal,
            ended,
        })
    }

    /// True if no request waits for the thread. None comes any more then.
    fn may_end(&self, signal: &Arc<Signal>) -> bool {
        let mut running = lock(&self.0.running);
        let is_own = |running: &Running| Arc::ptr_eq(&running.signal, signal);
        if !running.as_ref().is_some_and(is_own) {
            return true;
        }
        // Requests are sent under the lock.
        let is_idle = signal.waiting.load(Ordering::Acquire) == 0;
        if is_idle {
            *running = None;
        }
        is_idle
    }
}

// === impl Signal ===

impl Signal {
    /// Sends a request, and wakes the thread.
    fn send(
        &self,
        commands: &SyncSender<Command>,
        command: Command,
    ) -> std::result::Result<(), TrySendError<Command>> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let sent = commands.try_send(command);
        match sent {
            Ok(()) => self.ring(),
            Err(_) => {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
            }
        }
        sent
    }

    pub(super) fn ring(&self) {
        // The write fails only if the counter would overflow. The thread wakes up then as well.
        let _ = self.eventfd.write(1);
    }
}
