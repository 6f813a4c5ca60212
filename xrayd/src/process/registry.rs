//! The registry: which processes are attached, and the order of attach, launch and detach. The
//! steps of an attach are in `attach`.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    fs,
    process::{Command, ExitStatus},
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{Receiver, SendError, sync_channel},
    },
    time::Instant,
};

use nix::sys::signal::{Signal, kill};
use sled_encoders::Capture;
use xray_trace::instr_map::Selection;

use super::{
    attach::{
        AttachOptions, AttachReport, Attached, Common, Prepared, lost_thread, prepare, unless_ended,
    },
    follow::{Follow, Follower},
    group::{Group, Root},
    parallel::{MOST_IN_A_CALL, in_parallel, in_parallel_until},
    session::Session,
    untraced::{LaunchThread, untraced},
};
use crate::{
    collect::Promises,
    control::{Patterns, Rules, patch_sites},
    liveness::{Liveness, NoAnswer},
    lock::lock,
    pid::Pid,
    process::launch,
    quotas::{Accounts, Quotas, Resource, Ticket},
    refusal::{Reason, Refusal, Result},
    store::Metering,
    target::{
        Caller, Check, Credentials, Functions, Objects, PerfWatcher, ProcessState, ProcessSummary,
        Sleds, Subject, Target, has_sleds, list, preflight,
    },
    types::{DetachReport, FunctionRow, Run, ToggleReport, Wanted},
};

/// The settings of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Limit on retained events of each process, in bytes.
    pub retain_bytes: u64,
    /// Limit on retained events of ended processes for each user, in bytes. The latest ended
    /// process is kept in any case.
    pub retain_exited_bytes: u64,
    /// Limits on the resources that sessions take of this process.
    pub quotas: Quotas,
}

/// Limit on sessions of ended processes that are kept for a user. Each holds the names of its
/// functions, too.
const EXITED_PER_USER: usize = 64;
/// Threads of a session: a control thread and a drain thread. A process that is followed from has
/// one more.
const SESSION_THREADS: u64 = 2;
/// Bytes of events that each process may retain in any case.
const LEAST_RETAINED: u64 = 1 << 20;

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
    group: Arc<Group>,
    /// `None` if it has no sleds.
    session: Option<Arc<Session>>,
    /// The result of the attach.
    pub report: AttachReport,
    /// The result of switching functions on.
    pub toggled: ToggleReport,
}

/// All sessions of a daemon.
#[derive(Debug, Clone)]
pub struct Registry(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    config: RegistryConfig,
    accounts: Arc<Accounts>,
    /// Memory of control groups that is promised to rings, by session.
    promises: Arc<Promises>,
    objects: Arc<Objects>,
    /// The watchers of mappings, and of forks, execs and exits.
    mappings: Arc<PerfWatcher>,
    processes: Arc<PerfWatcher>,
    /// The metrics of all sessions, if metrics are enabled.
    metering: Option<Arc<Metering>>,
    sessions: Mutex<HashMap<Pid, Entry>>,
    /// Process groups by their first processes. Never locked after `sessions`.
    groups: Mutex<HashMap<Pid, Arc<Group>>>,
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
            quotas: Quotas::NONE,
        }
    }
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
        match (&self.session, self.group.untraced()) {
            (Some(session), _) => session.source.control.resume(),
            (None, Some(untraced)) => untraced.resume(),
            (None, None) => Err(lost_thread(self.pid())),
        }
    }

    /// The exit status of the program, once it has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        match (&self.session, self.group.untraced()) {
            (Some(session), _) => session.source.control.exit_status(),
            (None, untraced) => untraced?.exit_status(),
        }
    }
}

// === impl Registry ===

impl Registry {
    /// An empty registry.
    pub fn new(config: RegistryConfig) -> Self {
        Self::with_metering(config, None)
    }

    /// An empty registry, whose sessions have metrics.
    pub(crate) fn with_metering(config: RegistryConfig, metering: Option<Arc<Metering>>) -> Self {
        let inner = Inner {
            accounts: Accounts::new(config.quotas),
            promises: Arc::default(),
            config,
            objects: Arc::default(),
            mappings: PerfWatcher::new(Subject::Mappings),
            processes: PerfWatcher::new(Subject::Processes),
            metering,
            sessions: Mutex::default(),
            groups: Mutex::default(),
        };
        Self(Arc::new(inner))
    }

    /// The settings of the registry.
    pub fn config(&self) -> &RegistryConfig {
        &self.0.config
    }

    /// Every process with sleds. Reads `/proc` and the programs' files.
    ///
    /// # Errors
    /// No thread for reading can be started.
    pub fn list(&self) -> Result<Vec<ProcessSummary>> {
        self.list_those(|_| true)
    }

    /// The processes with sleds that a caller may trace. Of other processes only the user is read.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn list_for(&self, caller: Caller) -> Result<Vec<ProcessSummary>> {
        self.list_those(move |target| {
            let own = caller.is_privileged() || caller.uid == target.uid();
            own && caller.check(target.pid()).is_ok()
        })
    }

    fn list_those(
        &self,
        may_see: impl Fn(&Target) -> bool + Send + Sync + 'static,
    ) -> Result<Vec<ProcessSummary>> {
        let registry = self.clone();
        list(Arc::clone(&self.0.objects), may_see, move |pid| {
            let session = registry.get(pid)?;
            let failed = session.failure().map(ProcessState::Refused);
            let root = session.kinship().map(|kinship| kinship.root);
            Some((failed.unwrap_or(ProcessState::Traced), root))
        })
    }

    /// Compiles a selection once for all processes that it is used in. It counts for the quota of
    /// the user `payer`. `None` stands for root.
    ///
    /// # Errors
    /// The selection is invalid, or the user's compiled patterns exceed the quota.
    pub fn compile(&self, payer: Option<u32>, selection: &Selection) -> Result<Arc<Patterns>> {
        Patterns::new(&self.0.accounts, payer, selection)
    }

    /// Checks whether a process can be traced. Changes nothing.
    ///
    /// # Errors
    /// Nothing can be checked: no such process, a zombie, or a kernel thread.
    pub fn preflight(&self, pid: Pid) -> Result<Vec<Check>> {
        let target = Target::open(pid)?;
        Ok(preflight(&target, &self.0.objects, false, Sleds::Needed)?.checks)
    }

    /// The session of a process.
    pub fn get(&self, pid: Pid) -> Option<Arc<Session>> {
        match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => Some(Arc::clone(session)),
            Some(Entry::Busy) | None => None,
        }
    }

    /// The group whose first process is `root`. `None` if that process has ended and another
    /// process has its pid and a session.
    pub fn group(&self, root: Pid) -> Option<Arc<Group>> {
        let group = self.groups_lock().get(&root).cloned()?;
        let session = self.get(root);
        let same = |session: &Arc<Session>| session.start_time() == group.start_time();
        session.as_ref().is_none_or(same).then_some(group)
    }

    /// The group that has a session as a member.
    pub fn group_of(&self, session: &Arc<Session>) -> Option<Arc<Group>> {
        self.groups().into_iter().find(|group| group.has(session))
    }

    /// All groups, ordered by first process.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups: Vec<_> = self.groups_lock().values().cloned().collect();
        groups.sort_unstable_by_key(|group| group.root());
        groups
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

    /// Attaches to a process, or finds its session. If the process is the first one of its group,
    /// the latest request decides what is followed from it.
    ///
    /// # Errors
    /// A refusal. The process is as it was. It may have been followed from another process whose
    /// group follows less.
    pub fn attach(&self, pid: Pid, options: AttachOptions) -> Result<Attached> {
        let (attached, is_new) = self.attach_session(pid, options)?;
        if is_new {
            self.0.share_retained();
            let root = Root::Traced(Arc::clone(&attached.session));
            if let Err(refusal) =
                self.found(Group::new(root, options, Rules::default()), options.follow)
            {
                if let Err(second) = self.end(&attached.session) {
                    tracing::warn!(%pid, %second, "cannot detach from a process");
                }
                return Err(refusal);
            }
        } else if options.follow != Follow::None {
            if let Some(group) = self.group(pid) {
                if let Some(caller) = options.caller {
                    group.check_caller(caller)?;
                }
                group.follow_for(options.caller);
                self.follow(&group, options.follow)?;
            } else if let Some(group) = self.group_of(&attached.session) {
                group.check_follows(pid, options.follow)?;
            } else if attached.session.kinship().is_some() {
                return Err(orphan(pid));
            } else {
                // The other attach has not created the group yet.
                return Err(busy(pid));
            }
        }
        Ok(attached)
    }

    /// Attaches to a process that comes from another one, for that one's group.
    ///
    /// # Errors
    /// As [`Self::attach`], or another attach came first.
    pub(super) fn attach_followed(&self, pid: Pid, options: AttachOptions) -> Result<Arc<Session>> {
        match self.attach_session(pid, options)? {
            (Attached { session, .. }, true) => Ok(session),
            (_, false) => Err(busy(pid)),
        }
    }

    /// The session of a process, and whether it is new.
    fn attach_session(&self, pid: Pid, options: AttachOptions) -> Result<(Attached, bool)> {
        let reserved = match self.reserve(pid)? {
            Reservation::Running(session) => {
                // The control thread notices the end of that process soon.
                if options
                    .start_time
                    .is_some_and(|start_time| start_time != session.start_time())
                {
                    return Err(busy(pid));
                }
                let report = AttachReport {
                    already: true,
                    notes: session.otherwise(&options).collect(),
                    ..AttachReport::default()
                };
                return Ok((Attached { session, report }, false));
            }
            Reservation::Free(reserved) => reserved,
        };
        let inner = Arc::clone(&self.0);
        let ticket = inner.ticket(options)?;
        let liveness = Liveness::new(pid);
        let of_thread = Arc::clone(&liveness);
        // The thread holds the reservation and the ticket. So a process whose files do not answer
        // has one thread that hangs, and counts as one of its user.
        let attach = move || {
            of_thread.looks_for_requests();
            let target = Target::open(pid)?;
            let start_time = target.start_time();
            let prepared = prepare(
                target,
                inner.common(ticket),
                inner.config.retain_bytes,
                options,
                None,
            )
            .map_err(|refusal| unless_ended(pid, start_time, refusal))?;
            Ok(Begun::Traced(Box::new(prepared), Some(reserved)))
        };
        let answered = start_control_thread(control_thread_name(pid), pid, &self.0, attach)?;
        let stands = liveness.watch().wait(&answered).map_err(|why| match why {
            NoAnswer::Ended => lost_thread(pid),
            // The receiver is gone then, so that the attach is undone when the thread goes on.
            NoAnswer::Hangs | NoAnswer::Refused | NoAnswer::Full => {
                liveness.refusal(NoAnswer::Refused)
            }
        })?;
        let Stands::Traced(attached, Some(reserved)) = stands? else {
            return Err(lost_thread(pid));
        };
        reserved.keep(&attached.session);
        // The process may have ended before the session was in the registry.
        self.0.drop_oldest_exited();
        Ok((attached, true))
    }

    /// Starts a program, attaches to it before its first instruction, and switches functions on.
    /// The program stands still until [`Launched::resume`].
    ///
    /// # Errors
    /// The program cannot be started, or the attach was refused. The program is killed then.
    pub fn launch(&self, options: LaunchOptions) -> Result<Launched> {
        let LaunchOptions {
            command,
            attach,
            selection,
            capture,
        } = options;
        let inner = Arc::clone(&self.0);
        let ticket = inner.ticket(attach)?;
        let start = move || {
            let mut command = command;
            // A program that cannot be traced is killed, because the user did not ask for an
            // untraced run.
            let started = launch::start(&mut command)?;
            let pid = started.undo.pid();
            // The name is that of any other control thread.
            if let Err(error) = fs::write("/proc/thread-self/comm", control_thread_name(pid)) {
                tracing::debug!(%error, "cannot name a thread");
            }
            let target = Target::open(pid)?;
            let awaited = attach.sleds == Sleds::Awaited;
            if attach.follow.execs() && !awaited && !has_sleds(pid, &inner.objects) {
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
            let prepared = prepare(
                target,
                inner.common(ticket),
                inner.config.retain_bytes,
                attach,
                Some(started),
            )?;
            Ok(Begun::Traced(Box::new(prepared), None))
        };
        let this = Pid::this();
        let answered = start_control_thread("ctl-launch".to_owned(), this, &self.0, start)?;
        let stands = answered.recv().map_err(|_| lost_thread(this))?;
        let (root, session, report) = match stands? {
            Stands::Traced(Attached { session, report }, _) => {
                let entry = Entry::Attached(Arc::clone(&session));
                self.lock().insert(session.pid(), entry);
                (Root::Traced(Arc::clone(&session)), Some(session), report)
            }
            Stands::Untraced(root) => (root, None, AttachReport::default()),
        };
        let group = Group::new(root, attach, Rules::default());
        let pid = group.root();
        let begun = self.found(group, attach.follow).and_then(|group| {
            let toggled = group.toggle(&selection, Wanted::On(capture), Run::Real);
            let toggled = toggled.into_iter().next().map(|(_, toggled)| toggled);
            Ok((group, toggled.transpose()?.unwrap_or_default()))
        });
        match begun {
            Ok((group, toggled)) => Ok(Launched {
                group,
                session,
                report,
                toggled,
            }),
            Err(refusal) => {
                // The user did not ask for an untraced run. The program is our child, so the pid is
                // still its own.
                if let Err(error) = kill(pid.as_nix(), Signal::SIGKILL) {
                    tracing::warn!(%error, "cannot kill a launched program");
                }
                if let Err(error) = self.detach(pid) {
                    tracing::warn!(%error, "cannot detach from a launched program");
                }
                Err(refusal)
            }
        }
    }

    /// Detaches from a process, and from the processes that are followed from it. Their retained
    /// events are dropped.
    ///
    /// # Errors
    /// The process is not attached, or its memory could not be written. The session is over in any
    /// case.
    pub fn detach(&self, pid: Pid) -> Result<DetachReport> {
        if let Some(group) = self.group(pid) {
            let reports = self.end_group(&group).into_iter();
            let mut own = reports
                .filter(|(of, _)| *of == pid)
                .map(|(_, report)| report);
            return own.next().unwrap_or_else(|| {
                Ok(DetachReport {
                    exited: true,
                    ..DetachReport::default()
                })
            });
        }
        let session = match self.lock().get(&pid) {
            Some(Entry::Attached(session)) => Arc::clone(session),
            Some(Entry::Busy) => return Err(busy(pid)),
            None => return Err(not_attached(pid)),
        };
        self.end(&session)
    }

    /// Detaches from all members of a group, several at a time, and ends the search. The reports
    /// are in the order in which the members joined.
    pub fn end_group(&self, group: &Arc<Group>) -> Vec<(Pid, Result<DetachReport>)> {
        self.end_groups(std::slice::from_ref(group))
    }

    fn end_groups(&self, groups: &[Arc<Group>]) -> Vec<(Pid, Result<DetachReport>)> {
        in_parallel(groups, MOST_IN_A_CALL, |group| group.stop_following());
        let sessions: Vec<_> = groups.iter().flat_map(|group| group.sessions()).collect();
        let reports = in_parallel(&sessions, MOST_IN_A_CALL, |session| {
            let report = match self.end(session) {
                // The process runs another program by now, or was detached from just now.
                Err(refusal)
                    if refusal.reason == Reason::NotAttached
                        || refusal.reason == Reason::Busy && session.has_exited() =>
                {
                    session.detach()
                }
                report => report,
            };
            (session.pid(), report)
        });
        for group in groups {
            self.forget(group);
        }
        reports
    }

    /// Ends exactly this session. Another session of the same pid, and sessions of processes that
    /// are followed from it, go on.
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
        let reserved = Reserved {
            registry: self.clone(),
            pid,
            before: None,
        };
        let report = session.detach();
        if session.is_living() && report.as_ref().is_err_and(|it| it.reason == Reason::Busy) {
            // Its thread hangs. It detaches later, if it ever goes on.
            reserved.keep(session);
            return report;
        }
        drop(reserved);
        for group in self.groups() {
            if group.forget(session) && group.is_empty() {
                self.forget(&group);
            }
        }
        self.0.share_retained();
        report
    }

    /// Detaches from every process, and waits for that until `deadline` at most.
    ///
    /// A process whose memory lies in a file system that does not answer can hold its own detach up
    /// for ever. Its report is `busy` then. All others are detached.
    pub fn detach_all(&self, deadline: Instant) -> Vec<(Pid, Result<DetachReport>)> {
        // Each group by itself: to end one may take for ever.
        let groups = self.groups();
        let roots: Vec<Pid> = groups.iter().map(|group| group.root()).collect();
        let registry = self.clone();
        let ended = in_parallel_until(deadline, groups, move |group| registry.end_group(group));
        let ended = roots.into_iter().zip(ended).flat_map(|(root, reports)| {
            reports.unwrap_or_else(|| vec![(root, Err(still_detaching(root)))])
        });
        let mut reports: Vec<_> = ended.collect();
        // A process whose attach is under way has no group yet.
        let reported: HashSet<Pid> = reports.iter().map(|(pid, _)| *pid).collect();
        let mut others: Vec<Pid> = self.lock().keys().copied().collect();
        others.retain(|pid| !reported.contains(pid));
        let registry = self.clone();
        let ended = in_parallel_until(deadline, others.clone(), move |pid| registry.detach(*pid));
        let ended = others.into_iter().zip(ended);
        reports.extend(
            ended.map(|(pid, report)| (pid, report.unwrap_or_else(|| Err(still_detaching(pid))))),
        );
        reports
    }

    /// The functions of a process that is not attached.
    ///
    /// # Errors
    /// The process cannot be read, or has no sleds.
    pub fn inspect(&self, pid: Pid) -> Result<Vec<FunctionRow>> {
        let target = Target::open(pid)?;
        let flight = preflight(&target, &self.0.objects, false, Sleds::Needed)?;
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
            .filter_map(|id| functions.row(id, None, 0))
            .collect())
    }

    /// The running session of `pid`, if there is one. Otherwise marks the pid as busy for the
    /// caller.
    fn reserve(&self, pid: Pid) -> Result<Reservation> {
        let mut sessions = self.lock();
        let before = match sessions.get(&pid) {
            Some(Entry::Busy) => return Err(busy(pid)),
            Some(Entry::Attached(session)) if !session.has_exited() => {
                if let Some(failed) = session.failure() {
                    return Err(failed);
                }
                return Ok(Reservation::Running(Arc::clone(session)));
            }
            // The pid may belong to a new process.
            Some(Entry::Attached(session)) => Some(Arc::clone(session)),
            None => None,
        };
        sessions.insert(pid, Entry::Busy);
        Ok(Reservation::Free(Reserved {
            registry: self.clone(),
            pid,
            before,
        }))
    }

    /// Adds a group. It replaces a group whose first process had the same pid.
    fn found(&self, group: Group, follow: Follow) -> Result<Arc<Group>> {
        let group = Arc::new(group);
        let before = self.groups_lock().insert(group.root(), Arc::clone(&group));
        if let Some(before) = before {
            before.stop_following();
        }
        if follow != Follow::None {
            self.follow(&group, follow)?;
        }
        Ok(group)
    }

    fn follow(&self, group: &Arc<Group>, follow: Follow) -> Result<()> {
        group.follow_by(follow, || Follower::spawn(&self.0, Arc::clone(group)))
    }

    /// Removes a group.
    fn forget(&self, group: &Arc<Group>) {
        self.groups_lock()
            .retain(|_, other| !Arc::ptr_eq(other, group));
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.0.objects
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pid, Entry>> {
        lock(&self.0.sessions)
    }

    fn groups_lock(&self) -> MutexGuard<'_, HashMap<Pid, Arc<Group>>> {
        lock(&self.0.groups)
    }
}

// === impl Inner ===

impl Inner {
    /// The state that sessions share.
    fn common(&self, ticket: Ticket) -> Common {
        Common {
            objects: Arc::clone(&self.objects),
            perf_watcher: Arc::clone(&self.mappings),
            metering: self.metering.clone(),
            promises: Arc::clone(&self.promises),
            ticket,
        }
    }

    /// The ticket of a new session, without its rings. Their size is known later.
    ///
    /// # Errors
    /// A quota would be exceeded.
    fn ticket(&self, options: AttachOptions) -> Result<Ticket> {
        let threads = match options.follow {
            Follow::None => SESSION_THREADS,
            Follow::Fork | Follow::Exec | Follow::All => SESSION_THREADS + 1,
        };
        self.accounts.take(
            options.caller.and_then(|caller| caller.payer()),
            &[
                (Resource::Sessions, 1),
                (Resource::Threads, threads),
                (Resource::Retained, self.config.retain_bytes),
            ],
        )
    }

    /// Gives every living process its share of retained events. The members of a group share the
    /// limit of one process, and the sessions that one user pays for share the user's quota.
    pub(super) fn share_retained(&self) {
        let (groups, strays) = self.all_sessions();
        let groups = groups.iter().map(|group| group.sessions());
        let groups = groups.chain(strays.into_iter().map(|stray| vec![stray]));
        let living = |sessions: Vec<Arc<Session>>| -> Vec<_> {
            let living = sessions.into_iter().filter(|session| session.is_living());
            living.collect()
        };
        let groups: Vec<Vec<Arc<Session>>> = groups.map(living).collect();
        let mut paid: HashMap<u32, u64> = HashMap::new();
        for uid in groups.iter().flatten().filter_map(|one| one.ticket.payer()) {
            *paid.entry(uid).or_default() += 1;
        }
        let retain_bytes = self.config.retain_bytes;
        let per_user = self.accounts.quotas().of(Resource::Retained).per_user;
        for group in groups {
            let members = u64::try_from(group.len()).unwrap_or(u64::MAX);
            for session in group {
                let payer = session.ticket.payer();
                let sessions = payer.and_then(|uid| paid.get(&uid)).copied();
                let most = sessions.map_or(u64::MAX, |sessions| per_user / sessions.max(1));
                let share = (retain_bytes / members.max(1)).min(most);
                session
                    .source
                    .output
                    .retain(share.max(LEAST_RETAINED.min(retain_bytes)));
            }
        }
    }

    /// All groups, and the sessions whose group is gone.
    fn all_sessions(&self) -> (Vec<Arc<Group>>, Vec<Arc<Session>>) {
        let groups: Vec<_> = lock(&self.groups).values().cloned().collect();
        let members = groups.iter().flat_map(|group| group.sessions());
        let members: HashSet<_> = members.map(|session| Arc::as_ptr(&session)).collect();
        let sessions = lock(&self.sessions);
        let attached = sessions.values().filter_map(|entry| match entry {
            Entry::Attached(session) => Some(session),
            Entry::Busy => None,
        });
        let strays = attached.filter(|session| !members.contains(&Arc::as_ptr(session)));
        (groups, strays.cloned().collect())
    }

    /// The watcher of forks, execs and exits.
    pub(crate) fn processes(&self) -> &Arc<PerfWatcher> {
        &self.processes
    }

    /// Drops ended sessions above a user's limits, the oldest first.
    fn drop_oldest_exited(&self) {
        let (groups, strays) = self.all_sessions();
        let all = groups.iter().flat_map(|group| group.sessions());
        let mut exited: Vec<_> = all
            .chain(strays)
            .filter_map(|session| Some((session.ended()?, session)))
            .collect();
        // The latest first.
        exited.sort_unstable_by_key(|(ended, session)| Reverse((*ended, session.pid())));
        let mut shares: HashMap<u32, (usize, u64)> = HashMap::new();
        for (_, session) in exited {
            let (pid, uid, bytes) = (session.pid(), session.uid(), session.retained_bytes());
            let (count, total) = shares.entry(uid).or_default();
            *count += 1;
            *total = total.saturating_add(bytes);
            let fits = *count <= EXITED_PER_USER && *total <= self.config.retain_exited_bytes;
            if *count > 1 && !fits {
                let mut sessions = lock(&self.sessions);
                if let Some(Entry::Attached(current)) = sessions.get(&pid)
                    && Arc::ptr_eq(current, &session)
                {
                    sessions.remove(&pid);
                }
                drop(sessions);
                for group in &groups {
                    group.drop_retained(&session);
                }
                tracing::warn!(
                    %pid,
                    uid,
                    bytes,
                    "dropped the retained events of an ended process, because newer ones need the \
                     room"
                );
            }
        }
        lock(&self.groups).retain(|_, group| !group.is_empty());
        self.share_retained();
    }
}

/// The result of [`Registry::reserve`].
#[derive(Debug)]
enum Reservation {
    Running(Arc<Session>),
    Free(Reserved),
}

/// A pid that is marked busy, until this is dropped or kept.
#[derive(Debug)]
struct Reserved {
    registry: Registry,
    pid: Pid,
    /// The session of an ended process with this pid. It stays if no new session replaces it.
    before: Option<Arc<Session>>,
}

// === impl Reserved ===

impl Reserved {
    fn keep(self, session: &Arc<Session>) {
        self.registry
            .lock()
            .insert(self.pid, Entry::Attached(Arc::clone(session)));
    }
}

impl Drop for Reserved {
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

/// The result of `begin` on a control thread, for that thread.
#[derive(Debug)]
enum Begun {
    /// A session, and the reservation of its pid where there is one.
    Traced(Box<Prepared>, Option<Reserved>),
    Untraced {
        launch_thread: Box<LaunchThread>,
        root: Root,
    },
}

/// The part of [`Begun`] for the thread that waits for it.
#[derive(Debug)]
enum Stands {
    Traced(Attached, Option<Reserved>),
    Untraced(Root),
}

/// Runs `begin` on a new thread, which then controls the new session until its end. The result
/// comes from the returned receiver. If that is gone by then, the session ends at once.
fn start_control_thread(
    name: String,
    pid: Pid,
    inner: &Arc<Inner>,
    begin: impl FnOnce() -> Result<Begun> + Send + 'static,
) -> Result<Receiver<Result<Stands>>> {
    let (answer, answered) = sync_channel(1);
    // A weak reference, so that a registry that is dropped drops its sessions, and their threads
    // detach.
    let inner = Arc::downgrade(inner);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || match begin() {
            Ok(Begun::Traced(prepared, reserved)) => {
                let Prepared {
                    session,
                    report,
                    controller,
                    commands,
                } = *prepared;
                let session = Arc::new(session);
                let attached = Attached { session, report };
                let sent = answer.send(Ok(Stands::Traced(attached, reserved)));
                let reserved = match sent {
                    // The receiver is gone. Without a session, the thread detaches.
                    Err(SendError(Ok(Stands::Traced(attached, reserved)))) => {
                        drop(attached);
                        reserved
                    }
                    _ => None,
                };
                controller.run(&commands);
                drop(reserved);
                if let Some(inner) = inner.upgrade() {
                    inner.drop_oldest_exited();
                }
            }
            Ok(Begun::Untraced {
                launch_thread,
                root,
            }) => {
                let _ = answer.send(Ok(Stands::Untraced(root)));
                launch_thread.run();
            }
            Err(refusal) => {
                let _ = answer.send(Err(refusal));
            }
        })
        .map_err(|error| Refusal::from_io(pid, "start a thread", &error))?;
    Ok(answered)
}

fn control_thread_name(pid: Pid) -> String {
    format!("ctl-{pid}")
}

fn busy(pid: Pid) -> Refusal {
    Refusal::new(
        Reason::Busy,
        format!("another attach or detach of process {pid} is under way"),
    )
}

fn still_detaching(pid: Pid) -> Refusal {
    let message = format!(
        "process {pid}: the detach has not ended yet; a file system that the process uses may not \
         answer"
    );
    Refusal::new(Reason::Busy, message)
}

/// The refusal for a followed process whose group was removed when the pid of its first process
/// became another process's.
fn orphan(pid: Pid) -> Refusal {
    let message = format!(
        "xrayd followed process {pid} from a process that has ended; detach from it, then attach \
         again"
    );
    Refusal::new(Reason::Followed, message)
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
    fn detaching_what_is_not_attached_says_so() {
        let registry = Registry::new(RegistryConfig::default());
        let refusal = registry.detach(Pid::this()).unwrap_err();
        assert_eq!(refusal.reason, Reason::NotAttached);
    }
}
