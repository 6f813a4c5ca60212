//! Which recorders there are: one for each process that a policy with files traces, and one for
//! each trigger of the policy. Each second the supervisor asks the daemon which these are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use xrayd_proto::v1::{
    ListPoliciesRequest, Mode, PolicyOutput, PolicyStatus, PolicyTrigger, TracedProcess,
};

use crate::config::Config;
use crate::daemon::Daemon;
use crate::recorder::{self, Order, Periods};
use crate::retention::{self, Keep, KeepAll};
use crate::store::Store;

/// The time between two questions about processes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while no policy has files.
const LOOK_RARELY: Duration = Duration::from_secs(5);
/// The questions between two looks at what is kept.
const RETAIN_EVERY: u32 = 10;
/// The looks in a row in which a process is not traced until its recorder ends. A daemon that
/// starts takes a moment to find its processes.
const MOST_MISSED: u32 = 3;
/// The time in which the daemon answers.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long recorders may take to end when the relay does.
const END_TIME: Duration = Duration::from_secs(20);

/// Starts and ends recorders.
#[derive(Debug)]
pub(crate) struct Supervisor {
    daemon: Daemon,
    store: Store,
    all: KeepAll,
    recorders: BTreeMap<Key, Running>,
    /// What is kept of each policy that has files.
    keep: BTreeMap<String, Keep>,
    /// True while the daemon does not answer.
    is_silent: bool,
    /// The answers of the daemon so far.
    answers: u32,
}

/// A policy, and what of it is recorded.
type Key = (String, Subject);

/// What a recorder is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Process(u32),
    /// A trigger among those of the policy.
    Trigger(u32),
}

/// What is recorded of it.
#[derive(Debug, Clone, PartialEq)]
enum Work {
    /// Also the time before, of which nothing is recorded.
    Files(Mode, Periods, (Duration, Duration)),
    Moments(PolicyTrigger),
    /// The rest of what an earlier relay has recorded.
    Rest,
}

#[derive(Debug)]
struct Running {
    what: Work,
    /// The looks in a row in which the process was not among the traced ones.
    missed: u32,
    orders: watch::Sender<Order>,
    task: JoinHandle<()>,
}

// === impl Supervisor ===

impl Supervisor {
    pub(crate) fn new(daemon: Daemon, store: Store, config: &Config) -> Self {
        let bytes = |mib: u64| mib.saturating_mul(1 << 20);
        Self {
            daemon,
            store,
            all: KeepAll {
                bytes: bytes(config.keep_mib),
                leave: bytes(config.leave_mib),
            },
            recorders: BTreeMap::new(),
            keep: BTreeMap::new(),
            is_silent: false,
            answers: 0,
        }
    }

    /// Runs until `stopped`, and ends all recorders then.
    pub(crate) async fn run(mut self, stopped: impl Future<Output = ()>) {
        let mut stopped = std::pin::pin!(stopped);
        for round in 0_u32.. {
            tokio::select! {
                () = &mut stopped => break,
                () = self.look() => {}
            }
            if round % RETAIN_EVERY == 0 {
                self.retain().await;
            }
            let pause = match self.recorders.is_empty() && self.keep.is_empty() {
                true => LOOK_RARELY,
                false => LOOK_EVERY,
            };
            tokio::select! {
                () = &mut stopped => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        for running in self.recorders.values() {
            running.orders.send_replace(Order::Pause);
        }
        let ends = async {
            for running in std::mem::take(&mut self.recorders).into_values() {
                // The panic hook has logged a panic.
                let _ = running.task.await;
            }
        };
        if tokio::time::timeout(END_TIME, ends).await.is_err() {
            tracing::warn!("some recorders did not end in time: their files are cut");
        }
        self.retain().await;
    }

    /// Asks which processes are traced, and starts and ends recorders.
    async fn look(&mut self) {
        let mut rpc = self.daemon.own_rpc();
        let listed = rpc.list_policies(ListPoliciesRequest::default());
        let listed = tokio::time::timeout(ANSWER_TIME, listed).await;
        let listed = listed.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")));
        let policies = match listed {
            Ok(listed) => {
                if std::mem::take(&mut self.is_silent) {
                    tracing::info!("the daemon answers again");
                }
                listed.into_inner().policies
            }
            Err(status) => {
                // The recorders notice by themselves that their streams end.
                if !std::mem::replace(&mut self.is_silent, true) {
                    tracing::warn!(why = status.message(), "the daemon does not answer");
                }
                return;
            }
        };
        self.keep.clear();
        let mut wanted = BTreeMap::new();
        for policy in policies {
            self.note(policy, &mut wanted);
        }
        self.end_others(&wanted).await;
        // A daemon that starts takes a moment to find its processes.
        self.answers = self.answers.saturating_add(1);
        if self.answers == MOST_MISSED {
            self.finish_earlier(&wanted);
        }
        for (key, what) in wanted {
            if !self.recorders.contains_key(&key) {
                self.start(key, what);
            }
        }
        let mut counts = BTreeMap::<&str, u64>::new();
        let names: BTreeSet<&str> = self.keep.keys().map(String::as_str).collect();
        let processes = self.recorders.keys();
        let processes = processes.filter(|(_, what)| matches!(what, Subject::Process(_)));
        for (policy, _) in processes {
            *counts.entry(policy).or_default() += 1;
        }
        for policy in names {
            let count = counts.get(policy).copied().unwrap_or(0);
            self.store
                .counters
                .change(policy, |numbers| numbers.recorders = count);
        }
    }

    /// Finishes the recordings of an earlier relay whose processes are not traced any more. Removes
    /// the marks of triggers that no policy has any more.
    fn finish_earlier(&mut self, wanted: &BTreeMap<Key, Work>) {
        for (policy, number, mark) in self.store.watch_marks().unwrap_or_default() {
            let key = (policy, Subject::Trigger(number.saturating_sub(1)));
            if !wanted.contains_key(&key) && !self.recorders.contains_key(&key) {
                mark.remove();
            }
        }
        let marked = self.store.marked().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot list the processes of an earlier relay");
            Vec::new()
        });
        for place in marked {
            let key = (place.policy.clone(), Subject::Process(place.pid));
            if !wanted.contains_key(&key) && !self.recorders.contains_key(&key) {
                let daemon = self.daemon.clone();
                let task = tokio::spawn(async move { recorder::finish(&daemon, &place).await });
                let (orders, _) = watch::channel(Order::End);
                self.recorders.insert(
                    key,
                    Running {
                        what: Work::Rest,
                        missed: 0,
                        orders,
                        task,
                    },
                );
            }
        }
    }

    /// Notes what a policy wants.
    fn note(&mut self, policy: PolicyStatus, wanted: &mut BTreeMap<Key, Work>) {
        let mode = policy.mode();
        let PolicyStatus {
            name,
            traced,
            output,
            triggers,
            has_expired,
            ..
        } = policy;
        let Some(output) = output.filter(|_| is_plain(&name)) else {
            return;
        };
        let PolicyOutput {
            every_ns,
            file_bytes,
            keep_bytes,
            keep_ns,
        } = output;
        self.keep.insert(
            name.clone(),
            Keep {
                bytes: keep_bytes,
                age: (keep_ns > 0).then(|| Duration::from_nanos(keep_ns)),
            },
        );
        let periods = Periods {
            every: Duration::from_nanos(every_ns),
            file_bytes,
        };
        for process in traced {
            let key = (name.clone(), Subject::Process(process.pid));
            wanted.insert(key, Work::Files(mode, periods, unrecorded(&process)));
        }
        let triggers = triggers.into_iter().filter(|_| !has_expired);
        for (index, trigger) in (0..).zip(triggers) {
            let key = (name.clone(), Subject::Trigger(index));
            wanted.insert(key, Work::Moments(trigger));
        }
    }

    /// Ends recorders of processes that are not traced any more, or otherwise than before. Those
    /// that have ended are removed.
    async fn end_others(&mut self, wanted: &BTreeMap<Key, Work>) {
        let mut ended = Vec::new();
        for (key, running) in &mut self.recorders {
            let is_same = wanted
                .get(key)
                .is_some_and(|work| work.is_same(&running.what));
            running.missed = match is_same {
                true => 0,
                false => running.missed + 1,
            };
            if wanted.contains_key(key) && running.missed > 0 {
                // Its settings have changed: the next recorder goes on.
                running.orders.send_replace(Order::Pause);
            } else if running.missed >= MOST_MISSED {
                running.orders.send_replace(Order::End);
            }
            if running.task.is_finished() {
                ended.push(key.clone());
            }
        }
        for key in ended {
            if let Some(running) = self.recorders.remove(&key) {
                // The panic hook has logged a panic.
                let _ = running.task.await;
            }
        }
    }

    fn start(&mut self, key: Key, what: Work) {
        let (policy, subject) = &key;
        let (orders, received) = watch::channel(Order::GoOn);
        let daemon = self.daemon.clone();
        let place = |pid| self.store.place(policy, pid);
        let task = match (*subject, &what) {
            (Subject::Process(pid), Work::Files(mode, periods, unrecorded)) => {
                let what = (*mode, *periods, *unrecorded);
                let files = recorder::run(daemon, place(pid), what, received);
                tokio::spawn(files)
            }
            (Subject::Trigger(index), Work::Moments(trigger)) => {
                let trigger = (index, trigger.clone());
                tokio::spawn(recorder::trigger::run(daemon, place(0), trigger, received))
            }
            _ => return,
        };
        let running = Running {
            what,
            missed: 0,
            orders,
            task,
        };
        self.recorders.insert(key, running);
    }

    /// Removes old files, and writes the numbers for metrics.
    async fn retain(&self) {
        let (store, keep, all) = (self.store.clone(), self.keep.clone(), self.all);
        let work =
            move || retention::apply(&store, &keep, all).and_then(|()| store.write_counters());
        let retained = tokio::task::spawn_blocking(work).await;
        // The panic hook has logged a panic.
        if let Ok(Err(error)) = retained {
            tracing::error!(%error, "cannot remove old files, or write metrics");
        }
    }
}

/// The time of a new process, or of a new policy, of which nothing is recorded.
fn unrecorded(process: &TracedProcess) -> (Duration, Duration) {
    let since = Duration::from_nanos(process.meant_since_ns);
    let until = Duration::from_nanos(process.traced_since_ns);
    (since, until.max(since))
}

// === impl Work ===

impl Work {
    /// True if a recorder with the other work does this one.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files(mode, periods, _), Self::Files(its, other, _)) => {
                (mode, periods) == (its, other)
            }
            _ => self == other,
        }
    }
}

/// True for a name that a policy can have. It becomes a folder's name.
fn is_plain(name: &str) -> bool {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.chars().all(is_plain)
}
