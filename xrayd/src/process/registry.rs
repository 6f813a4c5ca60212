//! The registry: the order of attach, launch and detach. The steps of an attach are in `attach`.
//! The look-ups are in `session_table`.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};
use shm_ring::Geometry;
use xray_trace::instr_map::Selection;

use super::{
    attach::{Attached, Beginning, Common, EarlierSession, prepare, unless_ended},
    attach_options::AttachOptions,
    attach_report::AttachReport,
    attach_thread::{Begun, Stands, attach_thread_name, start_attach_thread},
    follow::{Follow, Sessions, start_search},
    group::{Group, Root},
    inherited,
    launch::{self, LaunchOptions, Launched},
    left_on,
    parallel::{MOST_IN_A_CALL, in_parallel, in_parallel_until},
    refusals::{busy, lost_thread, no_descriptors, orphan, still_detaching},
    retention::Retention,
    session::Session,
    session_record::KeptForNext,
    session_table::{Reservation, SessionTable},
};
use crate::{
    collect::{Collectors, Promises},
    control::{Controllers, Patterns, Rules, patch_sites},
    liveness::{Liveness, NoAnswer},
    pid::Pid,
    quotas::{Accounts, Quotas, Resource, Ticket},
    refusal::{Reason, Refusal, Result},
    store::Metering,
    sys::DescriptorRoom,
    target::{
        Caller, Check, Functions, Launch, Objects, PerfUnavailable, PerfWatcher, ProcessState,
        ProcessSummary, Sleds, Subject, Subscriber, Subscription, Target, list, preflight,
    },
    types::{DetachReport, FunctionRow, Run, Wanted},
};

/// The settings of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Limit on retained events of each process, in bytes.
    pub retain_bytes: u64,
    /// Limit on retained events of ended processes for each user, in bytes. The latest ended
    /// process is kept in any case.
    pub retain_exited_bytes: u64,
    /// Limit on retained events of all living processes together, in bytes. The same limit holds
    /// for the ended processes of each user.
    pub retain_together_bytes: u64,
    /// Limits on the resources that sessions take of this process.
    pub quotas: Quotas,
}

/// Threads that a session may take: a worker of each pool that hangs in the target's memory. A
/// process that is followed from has one more.
const SESSION_THREADS: u64 = 2;

/// The most threads that read rings, while none of them hangs.
const MOST_COLLECTORS: usize = 8;

/// The least and the most threads that control sessions, while none of them hangs. A step can take
/// tens of milliseconds, mostly in the kernel.
const LEAST_CONTROLLERS: usize = 4;
const MOST_CONTROLLERS: usize = 8;

/// All sessions of a daemon.
#[derive(Debug, Clone)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: RegistryConfig,
    accounts: Arc<Accounts>,
    /// Memory of control groups that is promised to rings, by session.
    promises: Arc<Promises>,
    /// The threads that read rings.
    collectors: Collectors,
    controllers: Controllers,
    objects: Arc<Objects>,
    /// The watchers of mappings, and of forks, execs and exits.
    mappings: Arc<PerfWatcher>,
    processes: Arc<PerfWatcher>,
    /// The metrics of all sessions, if metrics are enabled.
    metering: Option<Arc<Metering>>,
    /// What outlives the daemon. `None`: nothing.
    kept: Option<KeptForNext>,
    table: Arc<SessionTable>,
    retention: Retention,
}

// === impl RegistryConfig ===

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            retain_bytes: 256 << 20,
            retain_exited_bytes: 1 << 30,
            retain_together_bytes: u64::MAX,
            quotas: Quotas::NONE,
        }
    }
}

// === impl Registry ===

impl Registry {
    /// An empty registry.
    pub fn new(config: RegistryConfig) -> Self {
        Self::of_daemon(config, None, None)
    }

    /// An empty registry. Its sessions have metrics and outlive the daemon if there is a place for
    /// that.
    pub(crate) fn of_daemon(
        config: RegistryConfig,
        metering: Option<Arc<Metering>>,
        kept: Option<KeptForNext>,
    ) -> Self {
        let accounts = Accounts::new(config.quotas);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let collectors = processors.clamp(2, MOST_COLLECTORS);
        let table = Arc::<SessionTable>::default();
        let inner = Inner {
            retention: Retention {
                table: Arc::clone(&table),
                accounts: Arc::clone(&accounts),
                retain_bytes: config.retain_bytes,
                retain_exited_bytes: config.retain_exited_bytes.min(config.retain_together_bytes),
                retain_together_bytes: config.retain_together_bytes,
            },
            accounts,
            promises: Arc::default(),
            config,
            collectors: Collectors::new(collectors),
            controllers: Controllers::new(processors.clamp(LEAST_CONTROLLERS, MOST_CONTROLLERS)),
            objects: Arc::default(),
            mappings: PerfWatcher::new(Subject::Mappings),
            processes: PerfWatcher::new(Subject::Processes),
            metering,
            kept,
            table,
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

    /// The processes with sleds that `may_see` admits.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn list_those(
        &self,
        may_see: impl Fn(&Target) -> bool + Send + Sync + 'static,
    ) -> Result<Vec<ProcessSummary>> {
        let registry = self.clone();
        let known = move |pid| {
            let session = registry.get(pid)?;
            let failed = session.failure().map(ProcessState::Refused);
            let root = session.kinship().map(|kinship| kinship.root);
            Some((failed.unwrap_or(ProcessState::Traced), root))
        };
        let table = Arc::clone(&self.0.table);
        let with_sleds_on = move |target: &Target| match table.has(target.pid()) {
            // An attach or a detach of this daemon is under way.
            true => ProcessState::Refused(busy(target.pid())),
            false => left_on::state(target),
        };
        list(Arc::clone(&self.0.objects), may_see, known, with_sleds_on)
    }

    /// Begins a subscription to forks and executed programs.
    ///
    /// # Errors
    /// The kernel does not allow it.
    pub(crate) fn watch_processes(
        &self,
        subscriber: Arc<dyn Subscriber>,
    ) -> std::result::Result<Subscription, PerfUnavailable> {
        self.0.processes.listen(subscriber)
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
        let flight = preflight(&target, &self.0.objects, Launch::ByOthers, Sleds::Needed)?;
        let sleds_on = flight.sleds_on();
        let mut checks = flight.checks;
        if sleds_on > 0 && !self.0.table.has(pid) {
            checks.push(left_on::check(&target, sleds_on));
        }
        Ok(checks)
    }

    /// The session of a process.
    pub fn get(&self, pid: Pid) -> Option<Arc<Session>> {
        self.0.table.get(pid)
    }

    /// The group whose first process is `root`. `None` if that process has ended and another
    /// process has its pid and a session.
    pub fn group(&self, root: Pid) -> Option<Arc<Group>> {
        self.0.table.group(root)
    }

    /// The group that has a session as a member.
    pub fn group_of(&self, session: &Arc<Session>) -> Option<Arc<Group>> {
        self.groups()
            .into_iter()
            .find(|group| group.members.has(session))
    }

    /// All groups, ordered by first process.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.0.table.groups()
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.0.table.sessions()
    }

    /// Attaches to a process, or finds its session. If the process is the first one of its group,
    /// the latest request decides what is followed from it.
    ///
    /// # Errors
    /// A refusal. The process is as it was. It may have been followed from another process whose
    /// group follows less.
    pub fn attach(&self, pid: Pid, options: AttachOptions) -> Result<Attached> {
        let (attached, is_new) = self.attach_session(pid, options.clone(), EarlierSession::Any)?;
        if is_new {
            self.0.retention.share_retained();
            let root = Root::Traced(Arc::clone(&attached.session));
            let follow = options.follow;
            let group = Group::new(root, options, Rules::default());
            if let Err(refusal) = self.found(group, follow) {
                if let Err(second) = self.end(&attached.session) {
                    tracing::warn!(%pid, %second, "cannot detach from a process");
                }
                return Err(refusal);
            }
        } else if options.follow != Follow::None && !options.by_policy {
            // A policy has only those processes followed to which it attaches.
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

    /// The session of a process, and whether it is new.
    pub(super) fn attach_session(
        &self,
        pid: Pid,
        options: AttachOptions,
        earlier: EarlierSession,
    ) -> Result<(Attached, bool)> {
        let reserved = match self.0.table.reserve(pid)? {
            Reservation::Running(session) => {
                // The controller notices the end of that process soon.
                if options
                    .start_time
                    .is_some_and(|start_time| start_time != session.start_time())
                {
                    return Err(busy(pid));
                }
                let rings = Geometry::new(session.ring_bytes, session.max_threads).ok();
                let mode = session.source.output.mode();
                let report = AttachReport::already(&options, rings, mode);
                return Ok((Attached { session, report }, false));
            }
            Reservation::Free(reserved) => reserved,
        };
        if matches!(earlier, EarlierSession::Any) {
            check_descriptors()?;
        }
        let inner = Arc::clone(&self.0);
        let ticket = inner.ticket(&options)?;
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
                Beginning::Running(earlier),
            )
            .map_err(|refusal| unless_ended(pid, start_time, refusal))?;
            Ok(Begun::Traced(Box::new(prepared), Some(reserved)))
        };
        let name = attach_thread_name(pid);
        let answered =
            start_attach_thread(name, pid, &self.0.controllers, attach, self.after_session())?;
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
        self.0.retention.drop_oldest_exited();
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
        check_descriptors()?;
        let ticket = inner.ticket(&attach)?;
        let (follow, options) = (attach.follow, attach.clone());
        let start = move || {
            let common = inner.common(ticket);
            launch::begin(command, common, inner.config.retain_bytes, options)
        };
        let (this, name) = (Pid::this(), "attach-launch".to_owned());
        let answered =
            start_attach_thread(name, this, &self.0.controllers, start, self.after_session())?;
        let stands = answered.recv().map_err(|_| lost_thread(this))?;
        let (root, session, report) = match stands? {
            Stands::Traced(Attached { session, report }, _) => {
                self.0.table.insert(&session);
                (Root::Traced(Arc::clone(&session)), Some(session), report)
            }
            Stands::Untraced(root) => (root, None, AttachReport::default()),
        };
        let group = Group::new(root, attach, Rules::default());
        let pid = group.root();
        let begun = self.found(group, follow).and_then(|group| {
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
        self.end(&self.0.table.attached(pid)?)
    }

    /// Switches off what a daemon that is gone has left on in a process, with the proof of a
    /// detach. Also returns the number of sleds that were on.
    ///
    /// # Errors
    /// No xrayd has attached to the process, one traces it now, or it cannot be attached to.
    pub fn switch_off(&self, pid: Pid, options: AttachOptions) -> Result<(u64, DetachReport)> {
        if !self.0.table.has(pid)
            && let Some(switched) = inherited::switch_off(pid, &self.0.objects, &options)?
        {
            return Ok(switched);
        }
        let (attached, is_new) = self.attach_session(pid, options, EarlierSession::Left)?;
        if !is_new {
            let message = format!(
                "process {pid} is traced by this daemon: detach from it, or disable its functions"
            );
            return Err(Refusal::new(Reason::Busy, message));
        }
        Ok((attached.report.left_on, self.end(&attached.session)?))
    }

    /// Switches off what processes have on by their parents. The processes descend from `of`, which
    /// were just detached from, and have no session. Waits until `deadline` at most. `options`
    /// gives the options of an attach to a process. A process without options is left alone.
    pub(crate) fn end_children(
        &self,
        of: &[Pid],
        deadline: Instant,
        options: impl Fn(Pid) -> Option<AttachOptions> + Send + Sync + 'static,
    ) -> Vec<(Pid, Result<DetachReport>)> {
        let children = inherited::descendants(of, |pid| self.0.table.has(pid));
        let inner = Arc::clone(&self.0);
        let ended = in_parallel_until(deadline, children.clone(), move |pid| {
            let switched = inherited::switch_off(*pid, &inner.objects, &options(*pid)?);
            switched.transpose()
        });
        let ended = children
            .into_iter()
            .zip(ended.into_iter().map(Option::flatten));
        ended
            .filter_map(|(pid, outcome)| Some((pid, outcome?.map(|(_, report)| report))))
            .collect()
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
            self.0.table.remove_group(group);
        }
        reports
    }

    /// Ends exactly this session. Another session of the same pid, and sessions of processes that
    /// are followed from it, go on.
    ///
    /// # Errors
    /// As [`Registry::detach`].
    pub fn end(&self, session: &Arc<Session>) -> Result<DetachReport> {
        let reserved = self.0.table.reserve_for_end(session)?;
        let report = session.detach();
        if session.is_living() && report.as_ref().is_err_and(|it| it.reason == Reason::Busy) {
            // Its thread hangs. It detaches later, if it ever goes on.
            reserved.keep(session);
            return report;
        }
        session.drop_record();
        drop(reserved);
        for group in self.groups() {
            if group.members.forget(session) && group.is_empty() {
                self.0.table.remove_group(&group);
            }
        }
        self.0.retention.share_retained();
        report
    }

    /// Ends all sessions, and leaves their processes as they are for a later daemon. Waits until
    /// `deadline` at most, as [`Self::detach_all`] does.
    pub(crate) fn leave_all(&self, deadline: Instant) -> Vec<(Pid, Result<()>)> {
        let groups = self.groups();
        in_parallel(&groups, MOST_IN_A_CALL, |group| group.stop_following());
        let mut sessions = self.sessions();
        sessions.retain(|session| session.is_living());
        let pids: Vec<Pid> = sessions.iter().map(|session| session.pid()).collect();
        let left = in_parallel_until(deadline, sessions, |session| session.leave());
        let left = pids.into_iter().zip(left);
        left.map(|(pid, left)| (pid, left.unwrap_or_else(|| Err(still_detaching(pid)))))
            .collect()
    }

    /// The longest time for which a session has been waiting for a worker of its pool.
    pub(crate) fn longest_wait(&self) -> Duration {
        let Inner {
            collectors,
            controllers,
            ..
        } = &*self.0;
        collectors.longest_wait().max(controllers.longest_wait())
    }

    /// What outlives the daemon. `None`: nothing.
    pub(super) fn kept(&self) -> Option<&KeptForNext> {
        self.0.kept.as_ref()
    }

    /// The table of sessions and groups.
    pub(super) fn table(&self) -> &Arc<SessionTable> {
        &self.0.table
    }

    /// Drops ended sessions above a user's limits.
    pub(super) fn drop_oldest_exited(&self) {
        self.0.retention.drop_oldest_exited();
    }

    /// The ticket of a new session, without its rings.
    ///
    /// # Errors
    /// A quota would be exceeded.
    pub(super) fn ticket(&self, options: &AttachOptions) -> Result<Ticket> {
        self.0.ticket(options)
    }

    /// The accounts of the quotas.
    pub(super) fn accounts(&self) -> &Arc<Accounts> {
        &self.0.accounts
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
        let mut others = self.0.table.pids();
        others.retain(|pid| !reported.contains(pid));
        let registry = self.clone();
        let ended = in_parallel_until(deadline, others.clone(), move |pid| registry.detach(*pid));
        let ended = others.into_iter().zip(ended);
        reports.extend(
            ended.map(|(pid, report)| (pid, report.unwrap_or_else(|| Err(still_detaching(pid))))),
        );
        let detached: Vec<Pid> = reports.iter().map(|(pid, _)| *pid).collect();
        reports.extend(self.end_children(&detached, deadline, |_| Some(AttachOptions::default())));
        reports
    }

    /// The functions of a process that is not attached.
    ///
    /// # Errors
    /// The process cannot be read, or has no sleds.
    pub fn inspect(&self, pid: Pid) -> Result<Vec<FunctionRow>> {
        let target = Target::open(pid)?;
        let flight = preflight(&target, &self.0.objects, Launch::ByOthers, Sleds::Needed)?;
        if flight.surveyed.is_empty() {
            flight.verdict()?;
        }
        let functions = Functions::new(pid);
        for (index, (module, survey)) in (0u32..).zip(flight.surveyed) {
            functions.add(module, patch_sites(&survey, index).collect());
        }
        Ok(functions
            .all()
            .into_iter()
            .filter_map(|id| functions.row(id, None, 0))
            .collect())
    }

    /// Adds a group. It replaces a group whose first process had the same pid.
    pub(super) fn found(&self, group: Group, follow: Follow) -> Result<Arc<Group>> {
        let group = Arc::new(group);
        let before = self.0.table.insert_group(&group);
        if let Some(before) = before {
            before.stop_following();
        }
        if follow != Follow::None {
            self.follow(&group, follow)?;
        }
        for session in group.sessions() {
            group.record(&session);
        }
        Ok(group)
    }

    fn follow(&self, group: &Arc<Group>, follow: Follow) -> Result<()> {
        group.follow_by(follow, || {
            // A weak reference, so that a registry that is dropped drops its sessions.
            let inner = Arc::downgrade(&self.0);
            let registry = move || inner.upgrade().map(Self);
            start_search(Arc::clone(group), &self.0.processes, registry)
        })
    }

    /// The last step of a controller, when its session has ended.
    fn after_session(&self) -> impl FnOnce() + Send + use<> {
        // A weak reference, so that a registry that is dropped drops its sessions, and their
        // threads detach.
        let inner = Arc::downgrade(&self.0);
        move || {
            if let Some(inner) = inner.upgrade() {
                inner.retention.drop_oldest_exited();
            }
        }
    }
}

impl Sessions for Registry {
    fn objects(&self) -> &Objects {
        &self.0.objects
    }

    fn is_attached(&self, pid: Pid) -> bool {
        self.get(pid).is_some_and(|session| !session.has_exited())
    }

    fn attach_followed(&self, pid: Pid, options: AttachOptions) -> Result<Arc<Session>> {
        match self.attach_session(pid, options, EarlierSession::Any)? {
            (Attached { session, .. }, true) => Ok(session),
            (_, false) => Err(busy(pid)),
        }
    }

    fn end_followed(&self, session: &Arc<Session>) -> Result<()> {
        self.end(session).map(drop)
    }

    fn share_retained(&self) {
        self.0.retention.share_retained();
    }
}

/// Checks that the daemon has descriptors left for one more session. Without any, it could neither
/// serve a client nor detach. What an earlier daemon has left is gone on with in any case.
fn check_descriptors() -> Result<()> {
    match DescriptorRoom::look() {
        Ok(DescriptorRoom {
            is_enough: true, ..
        }) => Ok(()),
        Ok(DescriptorRoom { most, spare, .. }) => Err(no_descriptors(most, spare)),
        Err(error) => {
            tracing::warn!(%error, "cannot look how many descriptors are free");
            Ok(())
        }
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
            collectors: self.collectors.clone(),
            kept: self.kept.clone(),
            ticket,
        }
    }

    /// The ticket of a new session, without its rings. Their size is known later.
    ///
    /// # Errors
    /// A quota would be exceeded.
    fn ticket(&self, options: &AttachOptions) -> Result<Ticket> {
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
