//! The thread that carries policies out. It is there while there are policies.
//!
//! ```text
//!  perf: a process was forked, or has executed a program ─┐
//!  a sweep of /proc: at the start, each minute, and each  ├─► look ─► match ─► attach, switch on
//!  half second to ten seconds where there is no perf ─────┘              (a thread for each, up
//!  files, requests, expiry ──────────────────────────────────────────────┘ to eight at a time)
//! ```
//!
//! The thread waits for no process: looks leave those out that do not answer (`target/walk.rs`),
//! and attaches have threads of their own. Looks after a perf event take a tenth of the thread's
//! time at most, and sweeps without perf events a hundredth.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
};

use super::{
    folder::{self, MOST_FILES, PolicyFile},
    kept::{KeptPolicy, PolicyKeeper},
    policy::Policy,
    processes::{self, Processes},
    spec::PolicySpec,
    status::{PolicySource, PolicyStatus},
    traced::{Wish, detach_if_left, end_lease, leases_in, settle_budget},
};
use crate::{
    lock::lock,
    pid::Pid,
    process::{Registry, Session},
    refusal::{Reason, Refusal, Result},
    target::Subscription,
    toml_file::Mistake,
    types::LeaseId,
};

/// Time between two sweeps, where perf events tell of processes.
const SWEEP: Duration = Duration::from_secs(60);
/// The same bounds where they do not.
const SWEEP_WITHOUT_PERF: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(10));
/// The shortest time between two sweeps because perf events were lost.
const SWEEP_AFTER_LOSS: Duration = Duration::from_secs(1);
/// The shortest pause from the begin of one look to the begin of the next.
const PAUSE: Duration = Duration::from_millis(10);
/// Divisors of the time that looks and sweeps without perf events may take.
const SHARE: u32 = 10;
const SHARE_WITHOUT_PERF: u32 = 100;
/// The most attaches at the same time.
const AT_A_TIME: usize = 8;
/// The pause before a process is let go that did not answer.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The most policies that clients have applied.
const MOST_APPLIED: usize = 256;
/// The most policies that are remembered after their end.
const MOST_EXPIRED: usize = 32;

/// A request to the engine.
#[derive(Debug)]
pub(super) enum Command {
    /// Reads the folder of policies again.
    Load(SyncSender<Result<()>>),
    /// Puts a policy in force.
    Apply(
        Box<(PolicySpec, String, Option<u64>)>,
        SyncSender<Result<()>>,
    ),
    /// Ends a policy that was applied.
    Remove(String, SyncSender<Result<()>>),
    /// Tells the state of all policies.
    Status(SyncSender<Vec<PolicyStatus>>),
}

/// What the thread shares with its handle.
#[derive(Debug)]
pub(super) struct Signal {
    pub(super) eventfd: Arc<EventFd>,
    /// True if the daemon ends, and leaves processes as they are.
    pub(super) over: AtomicBool,
    /// The number of requests that wait for the thread.
    pub(super) waiting: AtomicUsize,
    /// The state of the policies after the last round.
    pub(super) latest: Mutex<Vec<PolicyStatus>>,
}

/// The policies in force, and the processes that they are for.
#[derive(Debug)]
pub(super) struct Engine {
    registry: Registry,
    folder: Option<PathBuf>,
    keeper: Option<Arc<dyn PolicyKeeper>>,
    signal: Arc<Signal>,
    /// The oldest first.
    policies: Vec<Policy>,
    /// Files that have never been policies.
    broken: Vec<PolicyStatus>,
    /// Policies that clients have applied and that have expired.
    expired: Vec<PolicyStatus>,
    processes: Processes,
    /// Processes that clients have detached from, with their start times.
    left_alone: HashMap<Pid, u64>,
    /// Leases that are to end.
    left: Vec<Left>,
    attaches: Attaches,
    subscription: Option<Subscription>,
    /// True once perf events were found to be forbidden, which was logged.
    is_deaf: bool,
    next_sweep: Instant,
    last_sweep: Instant,
    sweep_took: Duration,
    /// True until everything that earlier daemons have left was looked at.
    has_earlier: bool,
    last: Instant,
    took: Duration,
}

/// A lease of a policy that is to end in a process.
#[derive(Debug)]
struct Left {
    session: Arc<Session>,
    lease: LeaseId,
    next: Instant,
}

/// The attaches that are under way.
#[derive(Debug)]
struct Attaches {
    running: usize,
    results: Receiver<Attach>,
    sender: SyncSender<Attach>,
}

/// The outcome of an attach.
#[derive(Debug)]
struct Attach {
    lease: LeaseId,
    process: (Pid, u64),
    tries: u32,
    outcome: Result<Arc<Session>>,
}

// === impl Engine ===

impl Engine {
    pub(super) fn new(
        registry: Registry,
        folder: Option<PathBuf>,
        keeper: Option<Arc<dyn PolicyKeeper>>,
        signal: Arc<Signal>,
    ) -> Self {
        let now = Instant::now();
        // Room for one outcome of each attach.
        let (sender, results) = sync_channel(AT_A_TIME);
        let mut engine = Self {
            registry,
            folder,
            keeper,
            signal,
            policies: Vec::new(),
            broken: Vec::new(),
            expired: Vec::new(),
            processes: Processes::default(),
            left_alone: HashMap::new(),
            left: Vec::new(),
            attaches: Attaches {
                running: 0,
                results,
                sender,
            },
            subscription: None,
            is_deaf: false,
            next_sweep: now,
            last_sweep: now,
            sweep_took: Duration::ZERO,
            has_earlier: true,
            last: now,
            took: Duration::ZERO,
        };
        engine.take_applied();
        engine
    }

    /// Carries out requests and policies until the daemon ends, or until there is nothing to do.
    /// `may_end` is asked then.
    pub(super) fn run(mut self, commands: &Receiver<Command>, may_end: impl Fn() -> bool) {
        loop {
            while let Ok(command) = commands.try_recv() {
                self.signal.waiting.fetch_sub(1, Ordering::AcqRel);
                self.carry_out(command);
            }
            let next = self.round();
            if self.is_over() {
                return;
            }
            *lock(&self.signal.latest) = self.statuses();
            let is_idle = self.policies.is_empty()
                && self.broken.is_empty()
                && self.expired.is_empty()
                && self.left.is_empty()
                && self.attaches.running == 0;
            if is_idle && may_end() {
                return;
            }
            self.wait(next);
        }
    }

    fn is_over(&self) -> bool {
        self.signal.over.load(Ordering::Acquire)
    }

    fn carry_out(&mut self, command: Command) {
        // The one who asked may have stopped waiting.
        match command {
            Command::Load(answer) => {
                let loaded = self.load();
                self.let_go();
                let _ = answer.send(loaded);
            }
            Command::Apply(applied, answer) => {
                let (spec, text, expires) = *applied;
                let _ = answer.send(self.apply(spec, text, expires));
            }
            Command::Remove(name, answer) => {
                let removed = self.remove(&name);
                self.let_go();
                let _ = answer.send(removed);
            }
            Command::Status(answer) => {
                let _ = answer.send(self.statuses());
            }
        }
    }

    fn statuses(&self) -> Vec<PolicyStatus> {
        let policies = self.policies.iter().map(Policy::status);
        let others = self.expired.iter().chain(&self.broken).cloned();
        policies.chain(others).collect()
    }

    // --- the policies

    /// Takes up what clients have applied to an earlier daemon.
    fn take_applied(&mut self) {
        for kept in self.kept() {
            if kept.path.is_none() {
                self.take_kept(kept, PolicySource::Applied);
            }
        }
    }

    fn kept(&self) -> Vec<KeptPolicy> {
        let kept = self.keeper.as_ref().map(|keeper| keeper.all());
        kept.unwrap_or_default()
    }

    /// Puts a policy in force as an earlier daemon has kept it.
    fn take_kept(&mut self, kept: KeptPolicy, source: PolicySource) {
        let KeptPolicy {
            name,
            text,
            since,
            expires,
            path: _,
        } = kept;
        let begun = match PolicySpec::parse(&text) {
            Ok(spec) if spec.name == name => {
                Policy::new(&self.registry, (spec, text), source, (since, expires), true)
            }
            Ok(_) | Err(_) => {
                let message = format!("what was kept of the policy {name} is not usable");
                Err(Refusal::new(Reason::Policy, message))
            }
        };
        match begun {
            Ok(policy) => self.policies.push(policy),
            Err(refusal) => tracing::warn!(policy = name, %refusal, "a policy does not go on"),
        }
    }

    /// Reads the folder of policies. A file with mistakes changes nothing.
    ///
    /// # Errors
    /// The folder cannot be read. Everything stays as it is, also what an earlier daemon has kept.
    fn load(&mut self) -> Result<()> {
        let Some(folder) = self.folder.clone() else {
            return Ok(());
        };
        self.broken.clear();
        let kept = self.kept();
        let files = match folder::read(&folder) {
            Ok(files) => files,
            Err(error) => {
                let message = format!("cannot read the policies in {}: {error}", folder.display());
                tracing::error!(message);
                for kept in kept {
                    if let Some(path) = kept.path.clone()
                        && self.find(&kept.name).is_none()
                    {
                        self.take_kept(kept, PolicySource::File(path));
                    }
                }
                let source = PolicySource::File(folder);
                let mistakes = vec![first_line(message.clone())];
                self.broken.push(PolicyStatus::of_broken(source, mistakes));
                return Err(Refusal::new(Reason::Io, message));
            }
        };
        // The names of the files that are policies.
        let named: HashMap<PathBuf, String> = files
            .iter()
            .filter_map(|file| {
                let (spec, _) = file.policy.as_ref().ok()?;
                Some((file.path.clone(), spec.name.clone()))
            })
            .collect();
        let mut names = HashSet::new();
        for PolicyFile { path, policy } in files {
            let taken = policy.and_then(|(spec, text)| {
                self.check_name(&path, &spec.name, &names, &named)?;
                self.take_file(&path, spec, text, &kept)
            });
            match taken {
                Ok(name) => {
                    names.insert(name);
                }
                Err(mistakes) => {
                    for mistake in &mistakes {
                        tracing::error!(
                            file = %path.display(),
                            %mistake,
                            "a policy has a mistake, so its file changes nothing"
                        );
                    }
                    names.extend(self.stay(&path, mistakes, &kept));
                }
            }
        }
        let is_gone = |policy: &&Policy| {
            matches!(policy.source, PolicySource::File(_)) && !names.contains(&policy.name)
        };
        let gone = self.policies.iter().filter(is_gone);
        let gone: Vec<String> = gone.map(|policy| policy.name.clone()).collect();
        gone.iter().for_each(|name| self.drop_policy(name));
        for kept in &kept {
            if kept.path.is_some()
                && !names.contains(&kept.name)
                && let Some(keeper) = &self.keeper
            {
                keeper.forget(&kept.name);
            }
        }
        self.policies.sort_by_key(|policy| policy.since);
        self.next_sweep = Instant::now();
        Ok(())
    }

    /// Checks that the name of a file's policy is no other policy's.
    fn check_name(
        &self,
        path: &Path,
        name: &str,
        names: &HashSet<String>,
        named: &HashMap<PathBuf, String>,
    ) -> std::result::Result<(), Vec<Mistake>> {
        let place = match self.find(name).map(|other| &other.source) {
            Some(PolicySource::Applied) => "applied by a client".to_owned(),
            // The file in force keeps the name, while it has it.
            Some(PolicySource::File(other))
                if other != path
                    && (names.contains(name)
                        || named.get(other).is_some_and(|its| its == name)) =>
            {
                format!("in {}", other.display())
            }
            Some(PolicySource::File(_)) | None => return Ok(()),
        };
        Err(vec![first_line(format!("a policy {name:?} is {place}"))])
    }

    /// Puts the policy of a file in force. Returns its name.
    ///
    /// # Errors
    /// Its patterns exceed the quota.
    fn take_file(
        &mut self,
        path: &Path,
        spec: PolicySpec,
        text: String,
        kept: &[KeptPolicy],
    ) -> std::result::Result<String, Vec<Mistake>> {
        let (name, expires) = (spec.name.clone(), spec.expires);
        let source = PolicySource::File(path.to_owned());
        if let Some(policy) = self.find_mut(&name)
            && *policy.text == *text
            && policy.source == source
        {
            policy.mistakes.clear();
            // The clock may have been set.
            policy.has_expired = false;
            return Ok(name);
        }
        let kept = kept.iter().find(|kept| kept.name == name);
        let earlier = kept.and_then(|kept| PolicySpec::parse(&kept.text).ok());
        let adopts = earlier.is_some_and(|earlier| earlier.trace == spec.trace);
        let since = kept.map(|kept| kept.since);
        self.begin((spec, text), source, (since, expires), adopts)
            .map_err(|refusal| vec![first_line(refusal.message)])?;
        Ok(name)
    }

    /// Keeps what a file was before it had mistakes. Returns the name of that policy.
    fn stay(&mut self, path: &Path, mistakes: Vec<Mistake>, kept: &[KeptPolicy]) -> Option<String> {
        let source = PolicySource::File(path.to_owned());
        if !self.policies.iter().any(|policy| policy.source == source) {
            let kept = kept.iter().find(|kept| kept.path.as_deref() == Some(path));
            let kept = kept.filter(|kept| self.find(&kept.name).is_none());
            if let Some(kept) = kept {
                self.take_kept(kept.clone(), source.clone());
            }
        }
        let mut policies = self.policies.iter_mut();
        if let Some(policy) = policies.find(|policy| policy.source == source) {
            policy.mistakes = mistakes;
            return Some(policy.name.clone());
        }
        if self.broken.len() < MOST_FILES {
            self.broken.push(PolicyStatus::of_broken(source, mistakes));
        }
        None
    }

    /// Puts a policy in force, in the place of an earlier version of itself.
    ///
    /// # Errors
    /// The patterns of its selection exceed the quota.
    fn begin(
        &mut self,
        (spec, text): (PolicySpec, String),
        source: PolicySource,
        (since, expires): (Option<u64>, Option<u64>),
        adopts: bool,
    ) -> Result<()> {
        let name = spec.name.clone();
        let at = self.policies.iter().position(|other| other.name == name);
        let since = at.map(|at| self.policies[at].since).or(since);
        let kept = KeptPolicy {
            name: name.clone(),
            text: text.clone(),
            since: since.unwrap_or_else(now),
            expires,
            path: match &source {
                PolicySource::File(path) => Some(path.clone()),
                PolicySource::Applied => None,
            },
        };
        // What this thread has switched on itself it switches off itself.
        let adopts = adopts && at.is_none();
        let times = (kept.since, expires);
        let mut policy = Policy::new(&self.registry, (spec, text), source, times, adopts)?;
        match at {
            Some(at) => {
                let earlier = self.policies.remove(at);
                let lease = policy.tracing.lease;
                for session in policy.replace(earlier) {
                    // An attach ends what is left.
                    if let Err(refusal) = end_lease(&self.registry, &session, lease) {
                        tracing::debug!(pid = %session.pid(), %refusal, "a lease goes on");
                    }
                }
                self.policies.insert(at, policy);
                tracing::info!(policy = name, "a policy has changed");
            }
            None => {
                self.policies.push(policy);
                tracing::info!(policy = name, "a policy is in force");
            }
        }
        self.expired.retain(|status| status.name != name);
        if let Some(keeper) = &self.keeper {
            keeper.keep(&kept);
        }
        self.next_sweep = Instant::now();
        Ok(())
    }

    fn apply(&mut self, spec: PolicySpec, text: String, expires: Option<u64>) -> Result<()> {
        let name = &spec.name;
        match self.find(name).map(|policy| &policy.source) {
            Some(PolicySource::File(path)) => {
                let message = format!(
                    "the policy {name} is in {}: change the file",
                    path.display()
                );
                return Err(Refusal::new(Reason::Policy, message));
            }
            Some(PolicySource::Applied) => {}
            None => {
                let applied = |policy: &&Policy| policy.source == PolicySource::Applied;
                if self.policies.iter().filter(applied).count() >= MOST_APPLIED {
                    let message = format!("clients have applied {MOST_APPLIED} policies already");
                    return Err(Refusal::new(Reason::TooMany, message));
                }
            }
        }
        self.begin((spec, text), PolicySource::Applied, (None, expires), false)
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        let message = match self.find(name).map(|policy| &policy.source) {
            Some(PolicySource::Applied) => {
                self.drop_policy(name);
                return Ok(());
            }
            Some(PolicySource::File(path)) => format!(
                "the policy {name} is in {}: remove the file, and reload the policies",
                path.display()
            ),
            None => {
                let before = self.expired.len();
                self.expired.retain(|status| status.name != name);
                if self.expired.len() < before {
                    return Ok(());
                }
                format!("there is no policy {name}")
            }
        };
        Err(Refusal::new(Reason::Policy, message))
    }

    /// Ends a policy, and forgets it.
    fn drop_policy(&mut self, name: &str) {
        let at = self.policies.iter().position(|policy| policy.name == name);
        if let Some(at) = at {
            let policy = self.policies.remove(at);
            self.end(policy);
            tracing::info!(policy = name, "a policy is not in force any more");
            if let Some(keeper) = &self.keeper {
                keeper.forget(name);
            }
        }
    }

    /// Has everything switched off that a policy has on.
    fn end(&mut self, mut policy: Policy) -> Policy {
        let lease = policy.tracing.lease;
        for session in policy.end() {
            self.leave(session, lease);
        }
        policy
    }

    fn leave(&mut self, session: Arc<Session>, lease: LeaseId) {
        let next = Instant::now();
        self.left.push(Left {
            session,
            lease,
            next,
        });
    }

    fn find(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Policy> {
        self.policies.iter_mut().find(|policy| policy.name == name)
    }

    // --- the processes

    /// Looks at processes, and switches on and off what is due. Returns when there is something to
    /// do next.
    fn round(&mut self) -> Option<Instant> {
        self.last = Instant::now();
        self.expire();
        self.collect();
        if self.policies.iter().all(|policy| policy.has_expired) {
            self.subscription = None;
            self.processes = Processes::default();
            self.left_alone.clear();
            self.leave_earlier();
            self.let_go();
            return self.left.iter().map(|left| left.next).min();
        }
        self.listen();
        let has_looked = match self.looks_due() {
            Ok(due) => self.consider(due),
            Err(error) => Err(error),
        };
        if let Err(error) = &has_looked {
            tracing::warn!(%error, "policies cannot look at processes");
            self.next_sweep = self.last + SWEEP_WITHOUT_PERF.1;
        }
        self.took = self.last.elapsed();
        let mut next: Vec<Instant> = Vec::new();
        next.push(self.next_sweep);
        next.extend(self.processes.next());
        next.extend(self.next_expiry());
        for at in 0..self.policies.len() {
            next.extend(self.settle(at));
        }
        if has_looked.is_ok() {
            self.leave_earlier();
        }
        self.let_go();
        next.extend(self.left.iter().map(|left| left.next));
        next.into_iter().min()
    }

    fn expire(&mut self) {
        let now = SystemTime::now();
        for at in (0..self.policies.len()).rev() {
            let policy = &self.policies[at];
            if policy.has_expired || !policy.is_over(now) {
                continue;
            }
            tracing::info!(policy = policy.name, "a policy has expired");
            let policy = self.policies.remove(at);
            let mut policy = self.end(policy);
            policy.has_expired = true;
            match policy.source {
                PolicySource::File(_) => self.policies.insert(at, policy),
                PolicySource::Applied => {
                    if let Some(keeper) = &self.keeper {
                        keeper.forget(&policy.name);
                    }
                    if self.expired.len() == MOST_EXPIRED {
                        self.expired.remove(0);
                    }
                    self.expired.push(policy.status());
                }
            }
        }
    }

    /// The next end of a policy. The clock may be set, so it is looked at each minute.
    fn next_expiry(&self) -> Option<Instant> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()?;
        let policies = self.policies.iter().filter(|policy| !policy.has_expired);
        let left = policies
            .filter_map(|policy| Duration::from_secs(policy.expires?).checked_sub(now))
            .min()?;
        Some(self.last + left.min(SWEEP))
    }

    /// Begins to listen to forks and executed programs.
    fn listen(&mut self) {
        if self.subscription.is_some() || self.is_deaf {
            return;
        }
        match self
            .registry
            .watch_processes(Arc::<EventFd>::clone(&self.signal.eventfd))
        {
            Ok(subscription) => {
                subscription.to_all();
                self.subscription = Some(subscription);
                self.next_sweep = self.last;
            }
            Err(why) => {
                self.is_deaf = true;
                tracing::info!(
                    %why,
                    "policies look for processes in /proc, because there are no perf events"
                );
            }
        }
    }

    /// The processes that are to be looked at now.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    fn looks_due(&mut self) -> io::Result<HashSet<Pid>> {
        let turned = self.subscription.as_ref().map(Subscription::take_turned);
        if matches!(turned, Some(None)) {
            // Some are not known.
            let pause = self.sweep_took.saturating_mul(SHARE).max(SWEEP_AFTER_LOSS);
            self.next_sweep = self.next_sweep.min(self.last_sweep + pause);
        }
        if self.next_sweep > self.last {
            let turned = turned.flatten().unwrap_or_default().into_iter();
            let turned = turned.filter_map(|pid| Pid::try_from(pid).ok());
            let turned = turned.filter(|pid| *pid != Pid::this());
            return Ok(turned.chain(self.processes.due(self.last)).collect());
        }
        let all = processes::all()?;
        let mut gone: HashSet<Pid> = self.policies.iter().flat_map(Policy::pids).collect();
        gone.retain(|pid| !all.contains(pid));
        for pid in gone {
            self.note_gone(pid);
        }
        self.processes.retain(&all);
        self.left_alone.retain(|pid, _| all.contains(pid));
        Ok(all)
    }

    /// Looks at processes, and takes note of what policies are for them.
    ///
    /// # Errors
    /// No thread can be started.
    fn consider(&mut self, pids: HashSet<Pid>) -> io::Result<()> {
        let is_sweep = self.next_sweep <= self.last;
        let mut missing = pids;
        for look in processes::look_at(missing.iter().copied().collect())? {
            let pid = look.pid;
            missing.remove(&pid);
            let seen = self.processes.note(look);
            if seen.is_new {
                self.left_alone.remove(&pid);
            }
            for at in 0..self.policies.len() {
                let policy = &mut self.policies[at];
                let lease = policy.tracing.lease;
                if let Some(session) = policy.consider(pid, Some(&seen)) {
                    self.leave(session, lease);
                }
            }
        }
        for pid in missing {
            if self.processes.note_missing(pid) {
                self.note_gone(pid);
            }
        }
        if is_sweep {
            self.last_sweep = self.last;
            self.sweep_took = self.last.elapsed();
            let (least, most) = SWEEP_WITHOUT_PERF;
            let pause = match self.subscription {
                Some(_) => SWEEP,
                None => self
                    .sweep_took
                    .saturating_mul(SHARE_WITHOUT_PERF)
                    .clamp(least, most),
            };
            self.next_sweep = self.last + pause;
        }
        Ok(())
    }

    fn note_gone(&mut self, pid: Pid) {
        self.left_alone.remove(&pid);
        for at in 0..self.policies.len() {
            let policy = &mut self.policies[at];
            let lease = policy.tracing.lease;
            if let Some(session) = policy.consider(pid, None) {
                self.leave(session, lease);
            }
        }
    }

    /// Begins what a policy wants in its processes. Returns when there is something to do next for
    /// it.
    fn settle(&mut self, at: usize) -> Option<Instant> {
        let now = Instant::now();
        let round = self.policies[at].round(now, &self.left_alone);
        let lease = self.policies[at].tracing.lease;
        let mut next = round.next;
        let over: HashSet<Pid> = round.over.iter().map(|(pid, _)| *pid).collect();
        self.left_alone.extend(round.over);
        if !over.is_empty() && self.consider(over).is_err() {
            // The sweep looks again.
            self.next_sweep = now;
        }
        for session in round.left {
            self.leave(session, lease);
        }
        for session in round.failed {
            if session.is_by_policy()
                && let Err(refusal) = self.registry.end(&session)
            {
                tracing::warn!(pid = %session.pid(), %refusal, "cannot end a failed session");
            }
        }
        for (wish, tries) in round.wishes {
            let pid = wish.pid;
            // Another policy decides on the settings first.
            let is_taken = self.policies.iter().any(|other| other.is_attaching(pid));
            if is_taken || self.attaches.running >= AT_A_TIME || !self.policies[at].has(pid) {
                // The end of an attach wakes the thread.
                continue;
            }
            let mut others = self.policies.iter().enumerate();
            let is_first = !others.any(|(other, policy)| other != at && policy.has_on(pid));
            let wish = Wish { is_first, ..wish };
            if let Err(error) = self.attach(at, wish, tries) {
                tracing::warn!(%pid, %error, "cannot start a thread that attaches");
                next = Some(now + TRY_AGAIN);
            }
        }
        next
    }

    /// Begins to attach to a process, in a thread of its own.
    fn attach(&mut self, at: usize, wish: Wish, tries: u32) -> io::Result<()> {
        let policy = &mut self.policies[at];
        let (registry, tracing) = (self.registry.clone(), Arc::clone(&policy.tracing));
        let (sender, signal) = (self.attaches.sender.clone(), Arc::clone(&self.signal));
        let pid = wish.pid;
        let attach = move || {
            let outcome = tracing.switch_on(&registry, &wish);
            // The engine may have ended with the daemon.
            let _ = sender.send(Attach {
                lease: tracing.lease,
                process: (wish.pid, wish.start_time),
                tries,
                outcome,
            });
            signal.ring();
        };
        let thread = thread::Builder::new().name(format!("policy-{pid}"));
        thread.spawn(attach)?;
        policy.begin_attach(pid);
        self.attaches.running += 1;
        Ok(())
    }

    /// Takes note of the attaches that have ended.
    fn collect(&mut self) {
        while let Ok(ended) = self.attaches.results.try_recv() {
            self.attaches.running -= 1;
            let Attach {
                lease,
                process,
                tries,
                outcome,
            } = ended;
            let mut policies = self.policies.iter_mut();
            let policy = policies.find(|policy| policy.tracing.lease == lease);
            let is_wanted = policy.is_some_and(|policy| policy.note(process, &outcome, tries));
            match outcome {
                Ok(session) if is_wanted => self.settle_budget(&session),
                // The policy has ended meanwhile, or is not for the process any more.
                Ok(session) => self.leave(session, lease),
                Err(_) => {}
            }
        }
    }

    /// Gives a process the budget that keeps to those of all policies.
    fn settle_budget(&self, session: &Arc<Session>) {
        let pid = session.pid();
        let policies = self.policies.iter().filter(|policy| policy.has_on(pid));
        let budgets = policies.map(|policy| &policy.tracing.trace.settings.budget);
        settle_budget(&self.registry, session, budgets);
    }

    /// Ends leases that are to end, and detaches from processes that nothing needs any more. What
    /// does not answer is tried again.
    fn let_go(&mut self) {
        let now = Instant::now();
        for mut left in std::mem::take(&mut self.left) {
            if left.next > now {
                self.left.push(left);
                continue;
            }
            if let Err(refusal) = self.let_go_of(&left) {
                tracing::debug!(pid = %left.session.pid(), %refusal, "cannot let a process go");
                left.next = Instant::now() + TRY_AGAIN;
                self.left.push(left);
            }
        }
    }

    fn let_go_of(&self, left: &Left) -> Result<()> {
        let Left { session, lease, .. } = left;
        let pid = session.pid();
        if !session.is_living() {
            return Ok(());
        }
        // The policy may be for the process again.
        let mut policies = self.policies.iter();
        let is_wanted = |policy: &Policy| policy.tracing.lease == *lease && policy.has_on(pid);
        if !policies.any(is_wanted) {
            end_lease(&self.registry, session, *lease)?;
        }
        match self.policies.iter().any(|policy| policy.has_on(pid)) {
            true => {
                self.settle_budget(session);
                Ok(())
            }
            false => detach_if_left(&self.registry, session),
        }
    }

    /// Lets go of what earlier daemons have on for policies that are not in force any more, once.
    fn leave_earlier(&mut self) {
        if self.is_over() || !std::mem::take(&mut self.has_earlier) {
            return;
        }
        for session in self.registry.sessions() {
            let pid = session.pid();
            let leases = leases_in(&self.registry, &session);
            let is_in_force = |lease: &LeaseId| {
                let mut policies = self.policies.iter();
                policies.any(|policy| policy.tracing.lease == *lease && policy.has(pid))
            };
            let others: Vec<LeaseId> = leases
                .iter()
                .filter(|lease| !is_in_force(lease))
                .copied()
                .collect();
            for lease in others {
                self.leave(Arc::clone(&session), lease);
            }
            let is_left = leases.is_empty() && session.is_living() && session.is_left_by_policies();
            let is_for = |policy: &Policy| policy.has(pid);
            // A daemon ended before it could detach.
            if is_left
                && !self.policies.iter().any(is_for)
                && let Err(refusal) = detach_if_left(&self.registry, &session)
            {
                tracing::warn!(%pid, %refusal, "cannot detach from a process");
            }
        }
    }

    /// Waits until there is something to do, and not shorter than the pause after a look.
    fn wait(&self, next: Option<Instant>) {
        let earliest = self.last + self.took.saturating_mul(SHARE).max(PAUSE);
        let mut is_rung = false;
        loop {
            let until = match is_rung {
                true => Some(earliest),
                false => next.map(|next| next.max(earliest)),
            };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) || self.is_over() {
                return;
            }
            // A request does not wait for the pause after a look.
            if self.signal.waiting.load(Ordering::Acquire) > 0 {
                return;
            }
            // Rounded up, because a wait that ends too early would be repeated at once.
            let timeout = left.map_or(PollTimeout::NONE, |left| {
                let left = left.as_micros().div_ceil(1000);
                PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
            });
            let mut fds = [PollFd::new(self.signal.eventfd.as_fd(), PollFlags::POLLIN)];
            // An error such as an interruption is a wait that ends early.
            let _ = poll(&mut fds, timeout);
            is_rung |= self.signal.eventfd.read().is_ok();
        }
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// A mistake of a whole file.
fn first_line(what: String) -> Mistake {
    Mistake {
        line: 1,
        column: 1,
        what,
    }
}
