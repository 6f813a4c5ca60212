//! The thread that carries policies out. It is there while a policy is in force.
//!
//! ```text
//!  perf: a process was forked, or has executed a program ──┐
//!  a sweep of /proc: at the start, each minute, and each   ├─► look ─► match ─► attach, switch on
//!  half second to ten seconds where there is no perf ──────┘              │
//!  files, requests, expiry ───────────────────────────────────────────────┘
//! ```
//!
//! Looks after a perf event take a tenth of the thread's time at most, and sweeps without perf
//! events a hundredth. Attaches run several at a time, each bounded as an attach of a client is.

use std::{
    collections::HashSet,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender},
    },
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
    traced::release,
};
use crate::{
    lock::lock,
    pid::Pid,
    process::{Registry, in_parallel},
    refusal::{Reason, Refusal, Result},
    target::Subscription,
    toml_file::Mistake,
};

/// Time between two sweeps, where perf events tell of processes.
const SWEEP: Duration = Duration::from_secs(60);
/// The same bounds where they do not.
const SWEEP_WITHOUT_PERF: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(10));
/// Bounds of the pause from the begin of one look to the begin of the next.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Divisors of the time that looks and sweeps without perf events may take.
const SHARE: u32 = 10;
const SHARE_WITHOUT_PERF: u32 = 100;
/// The most attaches at the same time.
const AT_A_TIME: usize = 8;
/// The most policies that clients have applied.
const MOST_APPLIED: usize = 256;

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
    processes: Processes,
    subscription: Option<Subscription>,
    /// True once perf events were found to be forbidden, which was logged.
    is_deaf: bool,
    next_sweep: Instant,
    /// True until everything that earlier daemons have left was looked at.
    has_earlier: bool,
    last: Instant,
    took: Duration,
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
        let mut engine = Self {
            registry,
            folder,
            keeper,
            signal,
            policies: Vec::new(),
            broken: Vec::new(),
            processes: Processes::default(),
            subscription: None,
            is_deaf: false,
            next_sweep: now,
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
            if self.is_over() {
                return;
            }
            let next = self.round();
            *lock(&self.signal.latest) = self.statuses();
            if self.policies.is_empty() && self.broken.is_empty() && may_end() {
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
                let _ = answer.send(loaded);
            }
            Command::Apply(applied, answer) => {
                let (spec, text, expires) = *applied;
                let _ = answer.send(self.apply(spec, text, expires));
            }
            Command::Remove(name, answer) => {
                let _ = answer.send(self.remove(&name));
            }
            Command::Status(answer) => {
                let _ = answer.send(self.statuses());
            }
        }
    }

    fn statuses(&self) -> Vec<PolicyStatus> {
        let policies = self.policies.iter().map(Policy::status);
        policies.chain(self.broken.iter().cloned()).collect()
    }

    // --- the policies

    /// Takes up what clients have applied to an earlier daemon.
    fn take_applied(&mut self) {
        let kept = self.keeper.as_ref().map(|keeper| keeper.all());
        for kept in kept.unwrap_or_default() {
            if kept.path.is_some() {
                continue;
            }
            let KeptPolicy {
                name,
                text,
                expires,
                path: _,
            } = kept;
            let begun = match PolicySpec::parse(&text) {
                Ok(spec) if spec.name == name => {
                    let source = PolicySource::Applied;
                    Policy::new(&self.registry, (spec, text), source, expires)
                }
                Ok(_) | Err(_) => {
                    let message = format!("what was kept of the policy {name} is damaged");
                    Err(Refusal::new(Reason::Io, message))
                }
            };
            match begun {
                Ok(policy) => self.policies.push(policy),
                Err(refusal) => tracing::warn!(policy = name, %refusal, "a policy does not go on"),
            }
        }
    }

    /// Reads the folder of policies. A file with mistakes changes nothing.
    ///
    /// # Errors
    /// The folder cannot be read. Everything stays as it is.
    fn load(&mut self) -> Result<()> {
        let Some(folder) = self.folder.clone() else {
            return Ok(());
        };
        let files = folder::read(&folder).map_err(|error| {
            let message = format!("cannot read the policies in {}: {error}", folder.display());
            tracing::error!(message);
            Refusal::new(Reason::Io, message)
        })?;
        self.broken.clear();
        let kept = self.keeper.as_ref().map(|keeper| keeper.all());
        let kept = kept.unwrap_or_default();
        let mut names = HashSet::new();
        for PolicyFile { path, policy } in files {
            let taken = policy.and_then(|(spec, text)| self.take_file(&path, spec, text, &names));
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
        let is_gone = |policy: &Policy| {
            matches!(policy.source, PolicySource::File(_)) && !names.contains(&policy.spec.name)
        };
        let gone: Vec<String> = self
            .policies
            .iter()
            .filter(|policy| is_gone(policy))
            .map(|policy| policy.spec.name.clone())
            .collect();
        gone.iter().for_each(|name| self.drop_policy(name));
        for kept in &kept {
            if kept.path.is_some()
                && !names.contains(&kept.name)
                && let Some(keeper) = &self.keeper
            {
                keeper.forget(&kept.name);
            }
        }
        self.next_sweep = Instant::now();
        Ok(())
    }

    /// Puts the policy of a file in force. Returns its name.
    ///
    /// # Errors
    /// Its name is that of another policy, or its patterns exceed the quota.
    fn take_file(
        &mut self,
        path: &Path,
        spec: PolicySpec,
        text: String,
        names: &HashSet<String>,
    ) -> std::result::Result<String, Vec<Mistake>> {
        let name = spec.name.clone();
        let source = PolicySource::File(path.to_owned());
        if let Some(other) = self.find(&name)
            && (names.contains(&name) || other.source == PolicySource::Applied)
        {
            let place = match &other.source {
                PolicySource::File(path) => format!("in {}", path.display()),
                PolicySource::Applied => "applied by a client".to_owned(),
            };
            let what = format!("a policy {name:?} is {place}");
            return Err(vec![first_line(what)]);
        }
        let expires = spec.expires;
        if let Some(policy) = self.find_mut(&name)
            && *policy.text == *text
            && policy.expires == expires
        {
            policy.source = source;
            policy.mistakes.clear();
            return Ok(name);
        }
        self.begin((spec, text), source, expires)
            .map_err(|refusal| vec![first_line(refusal.message)])?;
        Ok(name)
    }

    /// Keeps what a file was before it had mistakes. Returns the name of that policy.
    fn stay(&mut self, path: &Path, mistakes: Vec<Mistake>, kept: &[KeptPolicy]) -> Option<String> {
        let source = PolicySource::File(path.to_owned());
        if !self.policies.iter().any(|policy| policy.source == source) {
            let kept = kept.iter().find(|kept| kept.path.as_deref() == Some(path));
            let before = kept.and_then(|kept| {
                let spec = PolicySpec::parse(&kept.text).ok()?;
                let is_free = self.find(&spec.name).is_none();
                is_free.then(|| (spec, kept.text.clone()))
            });
            if let Some((spec, text)) = before {
                let expires = spec.expires;
                // Without the room for its patterns, the file is none.
                let _ = self.begin((spec, text), source.clone(), expires);
            }
        }
        let mut policies = self.policies.iter_mut();
        if let Some(policy) = policies.find(|policy| policy.source == source) {
            policy.mistakes = mistakes;
            return Some(policy.spec.name.clone());
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
        expires: Option<u64>,
    ) -> Result<()> {
        let path = match &source {
            PolicySource::File(path) => Some(path.clone()),
            PolicySource::Applied => None,
        };
        let kept = KeptPolicy {
            name: spec.name.clone(),
            text: text.clone(),
            expires,
            path,
        };
        let mut policy = Policy::new(&self.registry, (spec, text), source, expires)?;
        let name = &kept.name;
        match self
            .policies
            .iter()
            .position(|other| other.spec.name == *name)
        {
            Some(at) => {
                let earlier = self.policies.remove(at);
                policy.replace(&self.registry, earlier);
                self.policies.insert(at, policy);
                tracing::info!(policy = name, "a policy has changed");
            }
            None => {
                self.policies.push(policy);
                tracing::info!(policy = name, "a policy is in force");
            }
        }
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
        self.begin((spec, text), PolicySource::Applied, expires)
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        let message = match self.find(name).map(|policy| &policy.source) {
            Some(PolicySource::Applied) => {
                self.drop_policy(name);
                return Ok(());
            }
            Some(PolicySource::File(path)) => format!(
                "the policy {name} is in {}: remove the file, and reload the daemon",
                path.display()
            ),
            None => format!("there is no policy {name}"),
        };
        Err(Refusal::new(Reason::Policy, message))
    }

    /// Ends a policy, and forgets it.
    fn drop_policy(&mut self, name: &str) {
        let at = self
            .policies
            .iter()
            .position(|policy| policy.spec.name == name);
        if let Some(at) = at {
            let mut policy = self.policies.remove(at);
            policy.end(&self.registry);
            tracing::info!(policy = name, "a policy is not in force any more");
            if let Some(keeper) = &self.keeper {
                keeper.forget(name);
            }
        }
    }

    fn find(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.spec.name == name)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Policy> {
        self.policies
            .iter_mut()
            .find(|policy| policy.spec.name == name)
    }

    // --- the processes

    /// Looks at processes, and switches on and off what is due. Returns when there is something to
    /// do next.
    fn round(&mut self) -> Option<Instant> {
        self.last = Instant::now();
        self.expire();
        if self.policies.iter().all(|policy| policy.has_expired) {
            self.subscription = None;
            self.processes = Processes::default();
            self.release_earlier();
            return None;
        }
        self.listen();
        for pid in self.looks_due() {
            self.consider(pid);
        }
        self.took = self.last.elapsed();
        let mut next = [
            Some(self.next_sweep),
            self.processes.next(),
            self.next_expiry(),
        ]
        .into_iter()
        .flatten()
        .min();
        for at in 0..self.policies.len() {
            let (of_policy, over) = self.settle(at);
            over.into_iter().for_each(|pid| self.consider(pid));
            next = next.into_iter().chain(of_policy).min();
        }
        self.release_earlier();
        next
    }

    fn expire(&mut self) {
        let now = SystemTime::now();
        for policy in &mut self.policies {
            if !policy.has_expired && policy.is_over(now) {
                tracing::info!(policy = policy.spec.name, "a policy has expired");
                policy.end(&self.registry);
                policy.has_expired = true;
                if let (Some(keeper), PolicySource::Applied) = (&self.keeper, &policy.source) {
                    keeper.forget(&policy.spec.name);
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
    fn looks_due(&mut self) -> HashSet<Pid> {
        let turned = self.subscription.as_ref().map(Subscription::take_turned);
        if matches!(turned, Some(None)) {
            // Some are not known. Further losses come soon, as a rule.
            self.next_sweep = self.next_sweep.min(self.last);
        }
        if self.next_sweep > self.last {
            let turned = turned.flatten().unwrap_or_default().into_iter();
            let turned = turned.filter_map(|pid| Pid::try_from(pid).ok());
            let turned = turned.filter(|pid| *pid != Pid::this());
            return turned.chain(self.processes.due(self.last)).collect();
        }
        let all = processes::all();
        let mut gone: HashSet<Pid> = self.policies.iter().flat_map(Policy::pids).collect();
        gone.retain(|pid| !all.contains(pid));
        for pid in gone {
            self.consider(pid);
        }
        self.processes.retain(&all);
        self.next_sweep = self.last + self.until_sweep();
        all
    }

    fn until_sweep(&self) -> Duration {
        let (least, most) = SWEEP_WITHOUT_PERF;
        match self.subscription {
            Some(_) => SWEEP,
            None => self
                .took
                .saturating_mul(SHARE_WITHOUT_PERF)
                .clamp(least, most),
        }
    }

    fn consider(&mut self, pid: Pid) {
        let seen = self.processes.look(pid);
        for policy in &mut self.policies {
            policy.consider(&self.registry, pid, seen.as_ref());
        }
    }

    /// Switches on and off what a policy wants in its processes. Returns when there is something to
    /// do next for it, and the processes whose sessions are over.
    fn settle(&mut self, at: usize) -> (Option<Instant>, Vec<Pid>) {
        let (mut round, over) = self.policies[at].round(&self.registry, Instant::now());
        for (wish, _) in &mut round.wishes {
            let others = self.policies.iter().enumerate();
            let mut others = others.filter(|(other, _)| *other != at);
            wish.is_first = !others.any(|(_, other)| other.has_on(wish.pid));
        }
        let policy = &self.policies[at];
        let (tracing, matching) = (Arc::clone(&policy.tracing), &policy.spec.matching);
        let (registry, signal) = (&self.registry, &self.signal);
        let outcomes = in_parallel(&round.wishes, AT_A_TIME, |(wish, _)| {
            // The daemon may have begun to end.
            let is_over = signal.over.load(Ordering::Acquire);
            (!is_over).then(|| tracing.switch_on(registry, matching, wish))
        });
        let policy = &mut self.policies[at];
        for ((wish, tries), outcome) in round.wishes.into_iter().zip(outcomes) {
            if let Some(outcome) = outcome {
                policy.note(wish.pid, outcome, tries);
            }
        }
        let next = round.next.into_iter().chain(policy.next_attempt()).min();
        (next, over)
    }

    /// Switches off what policies have left on that are not in force any more, once.
    fn release_earlier(&mut self) {
        if !std::mem::take(&mut self.has_earlier) {
            return;
        }
        for session in self.registry.sessions() {
            let pid = session.pid();
            for lease in session.policy_leases() {
                let mut policies = self.policies.iter();
                let is_in_force =
                    policies.any(|policy| policy.tracing.lease == lease && policy.has_on(pid));
                if !is_in_force {
                    release(&self.registry, &session, lease);
                }
            }
            if session.is_living() && session.is_left_by_policies() {
                // A daemon ended before it could detach.
                if let Err(refusal) = self.registry.detach(pid) {
                    tracing::warn!(%pid, %refusal, "cannot detach from a process");
                }
            }
        }
    }

    /// Waits until there is something to do, and not shorter than the pause after a look.
    fn wait(&self, next: Option<Instant>) {
        let (least, most) = PAUSE;
        let earliest = self.last + self.took.saturating_mul(SHARE).clamp(least, most);
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

/// A mistake of a whole file.
fn first_line(what: String) -> Mistake {
    Mistake {
        line: 1,
        column: 1,
        what,
    }
}
