//! Finding the processes that come from one that is traced. No tracer stays with them, so nobody tells: they are looked for.
//!
//! ```text
//!             a look finds it         it has sleds, and the policy means it
//!  (unknown) ─────────────────► watched ─────────────────────────────────► traced
//!                                  ▲  ▲                                      │
//!                exec, no sleds ───┘  └────────────────────────── exec ──────┘
//!                                                      detached by somebody, or exec that is not followed
//!                                     traced ─────────────────────────────────────────────────────────────► left
//! ```
//!
//! Whoever is watched or traced has its children looked for. A child is told from a fork of its parent by what it runs
//! ([`Program`]): after `exec` it is another program, be it the same file.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    AttachOptions, Family, Kinship, Phase, Session,
    registry::{Inner, Registry},
};
use xray_trace::model::Birth;

use crate::{
    pid::Pid,
    refusal::{Reason, Refusal, Result},
    target::{
        Children, Glance, Incarnation, Objects, Program, age_of, command_of, has_sleds, is_older,
        is_there,
    },
};

/// Between looks.
const PACE: Duration = Duration::from_millis(4);
/// Looking takes one in so many parts of the time at most, and seeing what programs have loaded.
const SHARE: u32 = 100;
const SHARE_OF_READING: u32 = 2;
/// Processes that are known of at most, those without sleds among them.
const MOST_KNOWN: usize = 4096;
/// Tries to attach, after which it is told that one failed; it is tried on, ever more seldom.
const TOLD_AFTER: u32 = 5;
const SELDOM: Duration = Duration::from_secs(1);

/// Which processes are traced besides the one that is attached to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follow {
    /// None.
    #[default]
    None,
    /// Those that it forks, and that those fork, for as long as they run the same program.
    Fork,
    /// The program that it becomes by `exec`.
    Exec,
    /// Everything that comes from it, whichever program it runs.
    All,
}

/// A process with sleds that comes from a traced one and is not traced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFollowed {
    /// Its id.
    pub pid: Pid,
    /// Its command line.
    pub command: String,
    /// Why.
    pub refusal: Refusal,
}

/// The thread that looks.
#[derive(Debug)]
pub(super) struct Follower {
    /// Dropping it ends the thread.
    alive: SyncSender<()>,
    thread: JoinHandle<()>,
}

/// What the thread knows.
#[derive(Debug)]
struct Search {
    family: Arc<Family>,
    known: BTreeMap<Pid, Known>,
    /// When the last look began, and how long it took.
    last: Instant,
    cost: Cost,
    /// There were too many, which was told.
    full: bool,
}

/// How long a look took, without attaching.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// To see who is there.
    looking: Duration,
    /// To see what programs have loaded, which includes parsing their files when they come for the first time.
    reading: Duration,
}

/// A process of the tree.
#[derive(Debug)]
struct Known {
    parent: Pid,
    start_time: u64,
    /// What it runs, and how it came to.
    program: Program,
    incarnation: Option<Incarnation>,
    by: Birth,
    /// When it did not run it yet; `None` if it was there before anybody looked.
    before: Option<Instant>,
    /// When it was last seen to run it.
    seen: Instant,
    /// It was seen to have sleds.
    sleds: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not traced, but will be if it gets sleds or can be attached to: when to try again, if that is of any use before it becomes
    /// another program, and how often that failed.
    Watched {
        next: Option<Instant>,
        tries: u32,
    },
    Traced(Arc<Session>),
    /// Nobody's business any more.
    Left,
}

// === impl Follow ===

impl Follow {
    /// Whether children are followed.
    pub fn forks(self) -> bool {
        matches!(self, Self::Fork | Self::All)
    }

    /// Whether who becomes another program is followed.
    pub fn execs(self) -> bool {
        matches!(self, Self::Exec | Self::All)
    }
}

// === impl Follower ===

impl Follower {
    /// Begins to look for those that come from the family's first process.
    ///
    /// # Errors
    /// It has ended, or there can be no thread.
    pub(super) fn spawn(registry: &Arc<Inner>, family: Arc<Family>) -> Result<Self> {
        let (alive, stop) = sync_channel(0);
        // Not strong: a registry that is dropped drops its sessions.
        let registry = Arc::downgrade(registry);
        let root = family.root();
        let search =
            Search::new(family).map_err(|error| Refusal::from_io(root, "look at it", &error))?;
        let thread = std::thread::Builder::new()
            .name(format!("follow-{root}"))
            .spawn(move || search.run(&registry, &stop))
            .map_err(|error| Refusal::from_io(root, "start a thread", &error))?;
        Ok(Self { alive, thread })
    }

    /// Ends it, and waits for its end.
    pub(super) fn stop(self) {
        let Self { alive, thread } = self;
        drop(alive);
        if thread.join().is_err() {
            tracing::error!("a thread that follows processes panicked");
        }
    }
}

// === impl Search ===

impl Search {
    fn new(family: Arc<Family>) -> io::Result<Self> {
        let root = family.root();
        let state = match family.root_session() {
            Some(session) => State::Traced(session),
            None => State::watched(),
        };
        let seen = Instant::now();
        let its = |glance: &Glance| glance.start_time == family.start_time();
        let first = Glance::at(root)?.filter(its).map(|glance| Known {
            parent: root,
            start_time: glance.start_time,
            program: glance.program,
            incarnation: Incarnation::of(root),
            by: Birth::Exec,
            before: None,
            seen,
            sleds: false,
            state,
        });
        Ok(Self {
            family,
            known: first.map(|known| (root, known)).into_iter().collect(),
            last: Instant::now(),
            cost: Cost::default(),
            full: false,
        })
    }

    /// Looks until nobody can come any more, or nobody is interested.
    fn run(mut self, registry: &Weak<Inner>, stop: &Receiver<()>) {
        let mut first = true;
        loop {
            let Some(registry) = registry.upgrade() else {
                break;
            };
            let before = std::mem::replace(&mut self.last, Instant::now());
            self.look(&Registry(registry), (!first).then_some(before));
            first = false;
            if self.is_over() {
                break;
            }
            let pause = self.cost.pause().saturating_sub(self.last.elapsed());
            if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        self.family.finish();
    }

    /// Nobody is left who could start anybody.
    fn is_over(&self) -> bool {
        let left = |known: &Known| matches!(known.state, State::Left);
        self.known.values().all(left)
    }

    /// Finds who has come since `before`, and does for everybody what is to be done.
    fn look(&mut self, registry: &Registry, before: Option<Instant>) {
        if self.family.follow().forks() {
            self.find_children(before);
        }
        let pids: Vec<Pid> = self.known.keys().copied().collect();
        let (mut reading, mut attaching) = (Duration::ZERO, Duration::ZERO);
        for pid in pids {
            if !self.visit(pid) {
                continue;
            }
            let begun = Instant::now();
            let ready = self.read(pid, registry.objects());
            reading += begun.elapsed();
            if ready {
                let begun = Instant::now();
                self.attach(pid, registry);
                attaching += begun.elapsed();
            }
        }
        let watched = |known: &&Known| matches!(known.state, State::Watched { .. });
        let untraced = self.known.values().filter(watched).count();
        let untraced = u32::try_from(untraced).unwrap_or(u32::MAX);
        self.family.tell(|news| news.untraced = untraced);
        self.cost = Cost {
            looking: self.last.elapsed().saturating_sub(reading + attaching),
            reading,
        };
    }

    fn find_children(&mut self, before: Option<Instant>) {
        let children = Children::now();
        let left = |known: &Known| matches!(known.state, State::Left);
        let parents = self.known.iter().filter(|(_, known)| !left(known));
        let mut parents: Vec<Pid> = parents.map(|(&pid, _)| pid).collect();
        while let Some(parent) = parents.pop() {
            let Some(of) = self.known.get(&parent) else {
                continue;
            };
            let start_time = of.start_time;
            let (program, incarnation) = (of.program, of.incarnation);
            let traced = matches!(of.state, State::Traced(_));
            let mut found = Vec::new();
            for pid in children.of(parent) {
                // One who follows does not follow itself.
                if self.known.contains_key(&pid) || pid == Pid::this() {
                    continue;
                }
                // It may have ended without its parent's knowing it yet, or be another one's by now; what cannot be looked at is
                // found again.
                let seen = Instant::now();
                if let Ok(Some(glance)) = Glance::at(pid)
                    && glance.parent == Some(parent)
                {
                    found.push((pid, seen, glance));
                }
            }
            // Asked afterwards: then it was there all the time, and its number was no other process's.
            if found.is_empty() || !is_there(parent, start_time) {
                continue;
            }
            for (pid, seen, glance) in found {
                if self.known.len() >= MOST_KNOWN {
                    self.tell_full();
                    return;
                }
                let own = Incarnation::of(pid);
                let by = match glance.program == program && may_be_same(own, incarnation) {
                    true => Birth::Fork,
                    false => Birth::Exec,
                };
                // Who has lived for longer had another parent before, or was one too many.
                let before = before.filter(|before| !is_older(glance.start_time, before.elapsed()));
                let known = Known {
                    parent,
                    start_time: glance.start_time,
                    program: glance.program,
                    incarnation: own,
                    by,
                    before,
                    seen,
                    sleds: traced && by == Birth::Fork,
                    state: State::watched(),
                };
                self.known.insert(pid, known);
                parents.push(pid);
            }
        }
    }

    fn tell_full(&mut self) {
        if !std::mem::replace(&mut self.full, true) {
            tracing::warn!(
                root = %self.family.root(),
                "more than {MOST_KNOWN} processes come from this one: the rest are not followed"
            );
        }
    }

    /// Sees what became of a process. True if it may be attached to, if it has sleds.
    fn visit(&mut self, pid: Pid) -> bool {
        let Some(known) = self.known.get_mut(&pid) else {
            return false;
        };
        let follow = self.family.follow();
        let now = Instant::now();
        // Of what cannot be looked at nothing is known; the next look may be luckier.
        let Ok(glance) = Glance::at(pid) else {
            return false;
        };
        let its = |glance: &Glance| glance.start_time == known.start_time;
        let Some(Glance { program, .. }) = glance.filter(its) else {
            if known.sleds && matches!(known.state, State::Watched { .. }) {
                self.family.tell(|news| news.missed += 1);
            }
            self.known.remove(&pid);
            return false;
        };
        let is_another = program != known.program;
        match &known.state {
            State::Left => return false,
            State::Traced(session) => match (session.control.phase(), session.control.executed()) {
                (Phase::Tracing | Phase::Detaching, _) => return false,
                // That its program looks like another one was seen since, or not at all.
                (Phase::Exited, Some(still)) if follow.execs() => {
                    known.becomes(pid, program, Some(still));
                }
                // It is on its way out; or somebody let it go.
                (Phase::Exited, None) if !is_another && session.ended().is_some() => return false,
                (Phase::Exited | Phase::Failed, _) => {
                    known.state = State::Left;
                    return false;
                }
            },
            State::Watched { .. } if is_another => known.becomes(pid, program, Some(known.seen)),
            State::Watched { .. } => {}
        }
        known.seen = now;
        let meant = known.is_meant(follow);
        meant
            && matches!(known.state, State::Watched { next: Some(next), .. } if next <= Instant::now())
    }

    /// Sees whether a process has sleds. True if it is to be attached to.
    fn read(&mut self, pid: Pid, objects: &Objects) -> bool {
        let follow = self.family.follow();
        let Some(known) = self.known.get_mut(&pid) else {
            return false;
        };
        // It may have become itself, without address space randomisation, and nobody knows when.
        if !may_be_same(Incarnation::of(pid), known.incarnation) {
            known.becomes(pid, known.program, None);
            if !known.is_meant(follow) {
                return false;
            }
        }
        known.sleds = has_sleds(pid, objects);
        if !known.sleds {
            known.state.failed(None);
        }
        known.sleds
    }

    fn attach(&mut self, pid: Pid, registry: &Registry) {
        let tried = self.try_to_attach(pid, registry);
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        match tried {
            Ok(Some(session)) => known.state = State::Traced(session),
            Ok(None) => known.state = State::Left,
            Err(refusal) => match refusal.reason {
                // The next look tells.
                Reason::NoSuchProcess
                | Reason::Zombie
                | Reason::TargetExited
                | Reason::PidReused => {}
                reason => {
                    if known.state.failed(Some(reason)) {
                        tracing::warn!(%pid, root = %self.family.root(), %refusal, "not followed");
                        let command = command_of(pid);
                        let told = NotFollowed {
                            pid,
                            command,
                            refusal,
                        };
                        self.family.tell(|news| news.add_not_followed(told));
                    }
                }
            },
        }
    }

    /// Attaches and switches on; `None` if somebody has attached to it by itself.
    fn try_to_attach(&self, pid: Pid, registry: &Registry) -> Result<Option<Arc<Session>>> {
        let Some(known) = self.known.get(&pid) else {
            return Ok(None);
        };
        let other = registry.get(pid);
        if other.is_some_and(|session| !session.has_exited()) {
            return Ok(None);
        }
        let (root, uid) = (self.family.root(), self.family.uid());
        let options = AttachOptions {
            start_time: Some(known.start_time),
            thread: None,
            // Whoever may trace the first one may trace this one as well, or it is not traced.
            owner: (uid != 0).then_some(uid),
            follow: Follow::None,
            ..self.family.options()
        };
        self.family.has_room()?;
        let session = registry.attach_followed(pid, options)?;
        let parent = match (known.by, self.known.get(&known.parent)) {
            (Birth::Fork, Some(parent)) => match &parent.state {
                State::Traced(session) => Some(Arc::clone(session)),
                State::Watched { .. } | State::Left => None,
            },
            _ => None,
        };
        let kinship = || Kinship {
            root,
            parent: known.parent,
            by: known.by,
            within: match known.before {
                Some(before) => before.elapsed(),
                None => age_of(known.start_time),
            },
        };
        let retain = registry.config().retain_bytes;
        let adopted = self
            .family
            .adopt(&session, parent.as_deref(), kinship, retain);
        if let Err(refusal) = adopted {
            if let Err(second) = registry.end(&session) {
                tracing::warn!(%pid, %second, "a process that was not followed was not let go");
            }
            return Err(refusal);
        }
        let kinship = session.kinship();
        tracing::info!(
            %pid,
            %root,
            parent = %known.parent,
            by = ?known.by,
            within_us = kinship.map(|kinship| kinship.within.as_micros()),
            "followed"
        );
        Ok(Some(session))
    }
}

// === impl Cost ===

impl Cost {
    /// From the beginning of one look to that of the next.
    fn pause(self) -> Duration {
        let Self { looking, reading } = self;
        let least = looking
            .saturating_mul(SHARE)
            .max(reading.saturating_mul(SHARE_OF_READING));
        // However long it took: the machine may have been busy, or asleep.
        PACE.max(least).min(SELDOM)
    }
}

// === impl Known ===

impl Known {
    /// It runs another program, or the same from the beginning; at `before` it did not.
    fn becomes(&mut self, pid: Pid, program: Program, before: Option<Instant>) {
        self.program = program;
        self.incarnation = Incarnation::of(pid);
        self.by = Birth::Exec;
        self.before = before;
        self.sleds = false;
        self.state = State::watched();
    }

    /// Whether it is to be traced, as it came to run what it runs; if not, it is left.
    fn is_meant(&mut self, follow: Follow) -> bool {
        let meant = match self.by {
            Birth::Fork => follow.forks(),
            Birth::Exec => follow.execs(),
        };
        if !meant {
            self.state = State::Left;
        }
        meant
    }
}

/// Whether nothing tells one run of a program from another.
fn may_be_same(one: Option<Incarnation>, other: Option<Incarnation>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

// === impl State ===

impl State {
    /// To be looked at soon.
    fn watched() -> Self {
        Self::Watched {
            next: Some(Instant::now()),
            tries: 0,
        }
    }

    /// A try failed. True if that is to be told now.
    fn failed(&mut self, why: Option<Reason>) -> bool {
        let Self::Watched { next, tries } = self else {
            return false;
        };
        *tries = tries.saturating_add(1);
        if why.is_some_and(is_lasting) {
            *next = None;
            return true;
        }
        let pause = PACE.saturating_mul(1 << (*tries).min(10)).min(SELDOM);
        *next = Some(Instant::now() + pause);
        why.is_some() && *tries == TOLD_AFTER
    }
}

/// Whether a process that was refused for this will be refused for it again, for as long as it runs the same program.
fn is_lasting(reason: Reason) -> bool {
    match reason {
        Reason::Permission
        | Reason::Not64Bit
        | Reason::Tsc
        | Reason::SeccompStrict
        | Reason::SeccompFilter
        | Reason::AlreadyPatched
        | Reason::KernelThread
        | Reason::OtherVersion
        | Reason::MemoryWrite => true,
        Reason::NoSuchProcess
        | Reason::NoSleds
        | Reason::ForeignTracer
        | Reason::Zombie
        | Reason::PidReused
        | Reason::Busy
        | Reason::TooMany
        // Others end.
        | Reason::Limit
        | Reason::TargetExited
        | Reason::NotAttached
        | Reason::SessionFailed
        | Reason::Selection
        | Reason::NoMemory
        | Reason::ThreadId
        | Reason::StopTimeout
        | Reason::Io
        | Reason::Launch => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is looked for is found within a second, also if the last look took minutes.
    #[test]
    fn a_look_that_took_long_does_not_make_blind() {
        let pause = |looking, reading| {
            let (looking, reading) = (
                Duration::from_micros(looking),
                Duration::from_micros(reading),
            );
            Cost { looking, reading }.pause()
        };
        assert_eq!(pause(10, 0), PACE);
        assert_eq!(pause(100, 0), Duration::from_millis(10));
        assert_eq!(pause(10, 100_000), Duration::from_millis(200));
        assert_eq!(pause(10, 3_000_000), SELDOM);
        assert_eq!(pause(60_000_000, 0), SELDOM);
        assert_eq!(pause(u64::MAX, u64::MAX), SELDOM);
    }

    #[test]
    fn a_process_is_tried_ever_more_seldom_and_told_of_once() {
        let mut state = State::watched();
        let told: Vec<u32> = (1..=50)
            .filter(|_| state.failed(Some(Reason::Busy)))
            .collect();
        assert_eq!(told, [TOLD_AFTER]);
        let State::Watched {
            next: Some(next), ..
        } = state
        else {
            panic!("{state:?}");
        };
        assert!(next <= Instant::now() + SELDOM);
        // Without sleds, nobody is told.
        let mut plain = State::watched();
        assert!(!(1..=50).any(|_| plain.failed(None)));
        let mut lasting = State::watched();
        assert!(lasting.failed(Some(Reason::Permission)));
        assert!(matches!(lasting, State::Watched { next: None, .. }));
    }
}
