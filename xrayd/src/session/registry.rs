//! Which processes are attached.

use std::{
    collections::HashMap,
    fs,
    process::{Command, ExitStatus},
    sync::{Arc, Mutex, MutexGuard, mpsc::sync_channel},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Uid, geteuid},
};

use super::{
    AttachOptions, Attached, DetachReport, FunctionRow, Session,
    attach::{Prepared, lost_thread, prepare},
    functions::Functions,
    sites::patch_sites,
};
use crate::{
    inject::Switch,
    launch,
    lock::lock,
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    session::{Run, ToggleReport},
    target::{Check, Objects, ProcessState, ProcessSummary, Target, list, preflight},
};
use xray_trace::instr_map::Selection;

/// What a registry is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Bytes of events retained per process.
    pub retain_bytes: u64,
    /// Bytes of events retained of processes that have ended, for each user together. The latest one is kept in any case.
    pub retain_exited_bytes: u64,
}

/// Sessions of processes that have ended that are kept for a user: each has its functions' names, too.
const EXITED_PER_USER: usize = 64;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: u32,
}

/// A program to be started and traced from its first instruction on.
#[derive(Debug)]
pub struct LaunchOptions {
    /// The program, its arguments, environment and descriptors.
    pub command: Command,
    /// How to attach.
    pub attach: AttachOptions,
    /// What to switch on.
    pub selection: Selection,
}

/// A program that was started and attached to and has not run yet.
#[derive(Debug)]
pub struct Launched {
    /// Its session.
    pub session: Arc<Session>,
    /// What attaching did.
    pub report: super::AttachReport,
    /// What was switched on.
    pub toggled: ToggleReport,
}

/// All sessions of a daemon.
#[derive(Debug, Clone)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RegistryConfig,
    objects: Arc<Objects>,
    sessions: Mutex<HashMap<Pid, Entry>>,
}

#[derive(Debug, Clone)]
enum Entry {
    /// An attach or detach is under way.
    Busy,
    Attached(Arc<Session>),
}

// === impl RegistryConfig ===

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            retain_bytes: 256 << 20,
            retain_exited_bytes: 1 << 30,
        }
    }
}

// === impl Caller ===

impl Caller {
    /// This process itself.
    pub fn this_process() -> Self {
        Self {
            uid: geteuid().as_raw(),
            pid: std::process::id(),
        }
    }

    /// True for root and for the owner of what is to be traced.
    pub fn may_trace(&self, owner: u32) -> bool {
        Uid::from_raw(self.uid).is_root() || self.uid == owner
    }
}

// === impl Launched ===

impl Launched {
    /// Lets the program run.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        self.session.control.resume()
    }

    /// How it ended, once it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.session.control.exit_status()
    }
}

// === impl Registry ===

impl Registry {
    /// An empty registry.
    pub fn new(config: RegistryConfig) -> Self {
        let inner = Inner {
            config,
            objects: Arc::default(),
            sessions: Mutex::default(),
        };
        Self(Arc::new(inner))
    }

    /// What it was made with.
    pub fn config(&self) -> &RegistryConfig {
        &self.0.config
    }

    /// Every process with sleds. Reads `/proc` and the programs' files.
    pub fn list(&self) -> Vec<ProcessSummary> {
        list(&self.0.objects, |pid| {
            let session = self.get(pid)?;
            let failed = session.failure().map(ProcessState::Refused);
            Some(failed.unwrap_or(ProcessState::Traced))
        })
    }

    /// Checks whether a process can be traced. Changes nothing.
    ///
    /// # Errors
    /// There is nothing to check: no such process, a zombie, a kernel thread.
    pub fn preflight(&self, pid: Pid) -> Result<Vec<Check>> {
        let target = Target::open(pid)?;
        Ok(preflight(&target, &self.0.objects, false)?.checks)
    }

    /// The user a process belongs to.
    ///
    /// # Errors
    /// Neither a session nor a process has this pid.
    pub fn owner(&self, pid: Pid) -> Result<u32> {
        if let Some(session) = self.get(pid)
            && session.ended().is_none()
        {
            return Ok(session.uid());
        }
        match (Target::open(pid), self.get(pid)) {
            (Ok(target), _) => Ok(target.uid()),
            (Err(_), Some(session)) => Ok(session.uid()),
            (Err(refusal), None) => Err(refusal),
        }
    }

    /// The session of a process.
    pub fn get(&self, pid: Pid) -> Option<Arc<Session>> {
        match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => Some(Arc::clone(session)),
            Some(Entry::Busy) | None => None,
        }
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.lock();
        let attached = sessions.values().filter_map(|entry| match entry {
            Entry::Attached(session) => Some(Arc::clone(session)),
            Entry::Busy => None,
        });
        attached.collect()
    }

    /// Attaches to a process, or finds the session that it has.
    ///
    /// # Errors
    /// A refusal; the process is as it was.
    pub fn attach(&self, pid: Pid, options: AttachOptions) -> Result<Attached> {
        let reserved = match self.reserve(pid)? {
            Reservation::Running(session) => {
                return Ok(Attached {
                    session,
                    report: super::AttachReport::default(),
                });
            }
            Reservation::Free(reserved) => reserved,
        };
        let inner = Arc::clone(&self.0);
        let attached = on_control_thread(control_thread_name(pid), pid, &self.0, move || {
            let target = Target::open(pid)?;
            prepare(
                target,
                Arc::clone(&inner.objects),
                inner.config.retain_bytes,
                options,
                None,
            )
        })?;
        reserved.keep(&attached.session);
        // It may have ended before it was there to be found.
        self.0.drop_oldest_exited();
        Ok(attached)
    }

    /// Starts a program, attaches to it before its first instruction, and switches functions on. It stands still until
    /// [`Launched::resume`].
    ///
    /// # Errors
    /// The program cannot be started, or a refusal; then it is killed.
    pub fn launch(&self, options: LaunchOptions) -> Result<Launched> {
        let LaunchOptions {
            command,
            attach,
            selection,
        } = options;
        let inner = Arc::clone(&self.0);
        let Attached { session, report } =
            on_control_thread("ctl-launch".to_owned(), Pid::this(), &self.0, move || {
                let mut command = command;
                // The child is killed if it cannot be traced: nobody asked for an untraced run.
                let started = launch::start(&mut command)?;
                let pid = started.undo.pid();
                // As the control thread of any other session.
                if let Err(error) = fs::write("/proc/thread-self/comm", control_thread_name(pid)) {
                    tracing::debug!(%error, "a thread keeps its name");
                }
                let target = Target::open(pid)?;
                prepare(
                    target,
                    Arc::clone(&inner.objects),
                    inner.config.retain_bytes,
                    attach,
                    Some(started),
                )
            })?;
        self.lock()
            .insert(session.pid(), Entry::Attached(Arc::clone(&session)));
        let toggled = match session.toggle(&selection, Switch::On, Run::Real) {
            Ok(toggled) => toggled,
            Err(refusal) => {
                // Nobody asked for an untraced run. It is our child, so the pid is still its own.
                if let Err(error) = kill(session.pid().as_nix(), Signal::SIGKILL) {
                    tracing::warn!(%error, "a launched program was not ended");
                }
                if let Err(error) = self.end(&session) {
                    tracing::warn!(%error, "a launched program was not detached from");
                }
                return Err(refusal);
            }
        };
        Ok(Launched {
            session,
            report,
            toggled,
        })
    }

    /// Detaches from a process. What was retained goes with the session.
    ///
    /// # Errors
    /// It is not attached, or its memory could not be written; the session is over in any case.
    pub fn detach(&self, pid: Pid) -> Result<DetachReport> {
        let session = match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => Arc::clone(session),
            Some(Entry::Busy) => return Err(busy(pid)),
            None => return Err(not_attached(pid)),
        };
        self.end(&session)
    }

    /// Ends this very session, not one that another process with the same pid may have by now.
    ///
    /// # Errors
    /// As [`Registry::detach`].
    pub fn end(&self, session: &Arc<Session>) -> Result<DetachReport> {
        let pid = session.pid();
        match self.lock().get_mut(&pid) {
            Some(entry) => match entry {
                Entry::Attached(current) if Arc::ptr_eq(current, session) => *entry = Entry::Busy,
                Entry::Attached(_) => return Err(not_attached(pid)),
                Entry::Busy => return Err(busy(pid)),
            },
            None => return Err(not_attached(pid)),
        }
        let _reserved = Reserved {
            registry: self,
            pid,
            before: None,
        };
        session.detach()
    }

    /// Detaches from everything.
    pub fn detach_all(&self) -> Vec<(Pid, Result<DetachReport>)> {
        let pids: Vec<Pid> = self.lock().keys().copied().collect();
        pids.into_iter()
            .map(|pid| (pid, self.detach(pid)))
            .collect()
    }

    /// The functions of a process that is not attached.
    ///
    /// # Errors
    /// It cannot be read, or has none.
    pub fn inspect(&self, pid: Pid) -> Result<Vec<FunctionRow>> {
        let target = Target::open(pid)?;
        let flight = preflight(&target, &self.0.objects, false)?;
        if flight.surveyed.is_empty() {
            flight.verdict()?;
        }
        let functions = Functions::new(pid);
        for (index, (module, survey)) in (0u32..).zip(flight.surveyed) {
            functions.add(module, patch_sites(&survey, index));
        }
        Ok(functions
            .all()
            .into_iter()
            .filter_map(|id| functions.row(id, false, 0))
            .collect())
    }

    /// The running session of `pid` if there is one; else the pid is marked busy for the caller.
    fn reserve(&self, pid: Pid) -> Result<Reservation<'_>> {
        let mut sessions = self.lock();
        let before = match sessions.get(&pid) {
            Some(Entry::Busy) => return Err(busy(pid)),
            Some(Entry::Attached(session)) if !session.has_exited() => {
                if let Some(failed) = session.failure() {
                    return Err(failed);
                }
                return Ok(Reservation::Running(Arc::clone(session)));
            }
            // The pid may live anew.
            Some(Entry::Attached(session)) => Some(Arc::clone(session)),
            None => None,
        };
        sessions.insert(pid, Entry::Busy);
        Ok(Reservation::Free(Reserved {
            registry: self,
            pid,
            before,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pid, Entry>> {
        lock(&self.0.sessions)
    }
}

// === impl Inner ===

impl Inner {
    /// Of what is retained of processes that have ended, drops what goes beyond a user's share, the oldest first.
    fn drop_oldest_exited(&self) {
        let mut sessions = lock(&self.sessions);
        let mut exited: Vec<_> = sessions
            .iter()
            .filter_map(|(&pid, entry)| match entry {
                Entry::Attached(session) => Some((
                    session.ended()?,
                    pid,
                    session.uid(),
                    session.retained_bytes(),
                )),
                Entry::Busy => None,
            })
            .collect();
        // The latest first.
        exited.sort_unstable_by(|one, other| other.cmp(one));
        let mut shares: HashMap<u32, (usize, u64)> = HashMap::new();
        for (_, pid, uid, bytes) in exited {
            let (count, total) = shares.entry(uid).or_default();
            *count += 1;
            *total = total.saturating_add(bytes);
            let fits = *count <= EXITED_PER_USER && *total <= self.config.retain_exited_bytes;
            if *count > 1 && !fits {
                sessions.remove(&pid);
                tracing::warn!(%pid, uid, bytes, "dropped what was retained of a process that has ended: newer ones take its room");
            }
        }
    }
}

/// What [`Registry::reserve`] found.
#[derive(Debug)]
enum Reservation<'a> {
    Running(Arc<Session>),
    Free(Reserved<'a>),
}

/// A pid marked busy, until it is dropped or kept.
#[derive(Debug)]
struct Reserved<'a> {
    registry: &'a Registry,
    pid: Pid,
    /// The session of a process that had this pid and has ended: it stays if nothing comes in its place.
    before: Option<Arc<Session>>,
}

// === impl Reserved ===

impl Reserved<'_> {
    fn keep(self, session: &Arc<Session>) {
        self.registry
            .lock()
            .insert(self.pid, Entry::Attached(Arc::clone(session)));
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut sessions = self.registry.lock();
        if !matches!(sessions.get(&self.pid), Some(Entry::Busy)) {
            return;
        }
        match self.before.take() {
            Some(session) => sessions.insert(self.pid, Entry::Attached(session)),
            None => sessions.remove(&self.pid),
        };
    }
}

/// Runs `attach` on a new thread, which goes on to control the session that it makes, until its end.
fn on_control_thread(
    name: String,
    pid: Pid,
    inner: &Arc<Inner>,
    attach: impl FnOnce() -> Result<Prepared> + Send + 'static,
) -> Result<Attached> {
    let (answer, answered) = sync_channel(1);
    // Not strong: a registry that is dropped drops its sessions, and the threads detach.
    let inner = Arc::downgrade(inner);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || match attach() {
            Ok(Prepared {
                session,
                report,
                controller,
                commands,
            }) => {
                let session = Arc::new(session);
                // If nobody waits any more the session is dropped, and the thread detaches.
                let _ = answer.send(Ok(Attached { session, report }));
                controller.run(&commands);
                if let Some(inner) = inner.upgrade() {
                    inner.drop_oldest_exited();
                }
            }
            Err(refusal) => {
                let _ = answer.send(Err(refusal));
            }
        })
        .map_err(|error| Refusal::from_io(pid, "start a thread", &error))?;
    answered.recv().map_err(|_| lost_thread(pid))?
}

fn control_thread_name(pid: Pid) -> String {
    format!("ctl-{pid}")
}

fn busy(pid: Pid) -> Refusal {
    Refusal::new(
        Reason::Busy,
        format!("process {pid}: another attach or detach is under way"),
    )
}

fn not_attached(pid: Pid) -> Refusal {
    Refusal::new(
        Reason::NotAttached,
        format!("process {pid} is not attached"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_owner_may_trace() {
        for (uid, owner, may) in [
            (0, 0, true),
            (0, 1000, true),
            (1000, 1000, true),
            (1000, 0, false),
            (1000, 1001, false),
        ] {
            assert_eq!(
                Caller { uid, pid: 1 }.may_trace(owner),
                may,
                "{uid} {owner}"
            );
        }
    }

    #[test]
    fn detaching_what_is_not_attached_says_so() {
        let registry = Registry::new(RegistryConfig::default());
        let refusal = registry.detach(Pid::this()).unwrap_err();
        assert_eq!(refusal.reason, Reason::NotAttached);
    }
}
