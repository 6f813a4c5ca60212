//! Adds profiles up: of hosts, of runs, of times of one run. The calls of a stack in a thread are
//! added to the calls of the same stack in the same thread.
//!
//! ```text
//!  profile 0 ─┐  processes, threads, functions: found again, or added
//!  profile 1 ─┼─► stacks with the sums of their calls ─► profile
//!  profile 2 ─┘  times of calls: nanoseconds, or ticks of all profiles
//! ```
//!
//! A process is the same in two profiles if it has the same machine, boot, pid, time of its start,
//! program, and filter at its begin. Calls under different filters do not add up.

use std::collections::HashMap;
use std::hash::Hash;
use std::slice;

use super::coverage::{Written, add_coverage};
use super::ids::{Ids, Places};
use super::tables::add_tables;
use super::time::{SharedTime, Time, anchors, booted, is_one_boot};
use super::times_sum::TimesSum;
use super::unit::CommonUnit;
use crate::container::Completeness;
use crate::llvm::Format;
use crate::model::{
    ClockAnchor, FunctionId, MOST_STACKS, Missing, Process, ProcessId, Profile, ProfiledStack,
    Thread, ThreadId, Ticks, Times, Trace,
};
use crate::source::spool::Spool;
use crate::source::{OpenError, OpenedProfile};

/// A sum of profiles. The number of different stacks has a limit. Memory also grows with the number
/// of different durations of the calls of each stack, and with the number of modules of all
/// profiles.
#[derive(Debug)]
pub struct ProfileSum {
    /// The tables so far.
    spool: Spool,
    ids: Ids,
    machines: Machines,
    processes: HashMap<ProcessKey, ProcessId>,
    threads: HashMap<ThreadKey, ThreadId>,
    /// All stacks so far. A caller comes before its callees.
    stacks: Vec<ProfiledStack>,
    /// The index of each stack.
    places: HashMap<(ThreadId, Option<usize>, FunctionId), usize>,
    /// The times of each stack; shorter than `stacks` if the last ones have none.
    times: Vec<TimesSum>,
    missing: Missing,
    /// The first and the last moment of the clocks of all profiles, if they have one: the clock of
    /// the sum.
    anchors: Option<[ClockAnchor; 2]>,
    unit: CommonUnit,
    /// The coverage so far.
    written: Written,
    /// The format: our own one, or the one of the latest profile of another format.
    format: Format,
    /// The latest time at which one of the files was written.
    written_wall_ns: Option<u64>,
    /// The number of profiles that have durations of calls.
    timed: u64,
    /// The number of profiles that have stacks and no durations of calls.
    untimed: u64,
    /// The number of profiles without an end mark.
    unfinished: u64,
    /// The number of profiles whose counter did not keep time.
    faulty: u64,
}

/// The machines of all profiles, each from one boot to the next.
#[derive(Debug, Default)]
struct Machines {
    /// The boot times of each host, if known, and the index of that machine.
    known: HashMap<Option<String>, Vec<(Option<i128>, usize)>>,
    /// The moments that its profiles have, by its counter.
    moments: Vec<HashMap<Ticks, Ticks>>,
}

/// The identity of a process in all profiles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ProcessKey {
    machine: usize,
    pid: u32,
    start_time_ticks: u64,
    executable: String,
    /// Its filter at the begin of the profile.
    filter: Option<String>,
    /// The number of equal processes that come before it in the same profile: a process that runs
    /// its own program again by `exec` is another one there.
    earlier: u32,
}

/// The identity of a thread in all profiles.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ThreadKey {
    process: ProcessId,
    tid: u32,
    name: String,
    /// The number of equal threads that come before it in the same profile: the kernel reuses
    /// `tid`.
    earlier: u32,
}

// === impl ProfileSum ===

impl ProfileSum {
    /// The sum of no profile.
    ///
    /// # Errors
    ///
    /// Memory, or space for temporary files, is missing.
    pub fn new() -> Result<Self, OpenError> {
        Ok(Self {
            spool: Spool::new()?,
            ids: Ids::default(),
            machines: Machines::default(),
            processes: HashMap::new(),
            threads: HashMap::new(),
            stacks: Vec::new(),
            places: HashMap::new(),
            times: Vec::new(),
            missing: Missing::default(),
            anchors: None,
            unit: CommonUnit::default(),
            written: Written::default(),
            format: Format::Xtrace,
            written_wall_ns: None,
            timed: 0,
            untimed: 0,
            unfinished: 0,
            faulty: 0,
        })
    }

    /// Adds a profile. Profiles of overlapping times count the calls of that time twice.
    ///
    /// # Errors
    ///
    /// * [`OpenError::OtherUnit`]: the profile has another unit of time than the profiles before
    ///   it. The sum is as before.
    /// * [`OpenError::TooManyStacks`], or memory or space for temporary files is missing. The sum
    ///   has only a part of the profile.
    pub fn add(&mut self, opened: &OpenedProfile) -> Result<(), OpenError> {
        let profile = &opened.profile;
        let tables = profile.tables();
        self.unit.add_profile(profile)?;
        if opened.format != Format::Xtrace {
            self.format = opened.format;
        }
        self.written_wall_ns = self.written_wall_ns.max(opened.written_wall_ns);
        self.missing.add(profile.missing());
        let cut = tables.coverage().completeness != Completeness::Complete;
        self.unfinished += u64::from(cut);
        self.faulty += u64::from(!tables.clock().faults().is_empty());
        let mut places = Places::default();
        self.add_processes(tables, &mut places)?;
        self.add_threads(tables, &mut places)?;
        add_tables(tables, (&mut places, &mut self.ids), &mut self.spool)?;
        self.add_times_of(tables, &mut places)?;
        self.add_stacks(profile, &mut places)
    }

    /// The sum of all profiles that were added.
    ///
    /// # Errors
    ///
    /// Memory, or space for temporary files, is missing.
    pub fn finish(mut self) -> Result<OpenedProfile, OpenError> {
        let times = match self.untimed {
            0 => self.times.into_iter().map(TimesSum::finish).collect(),
            _ => Vec::new(),
        };
        let left_out = if self.untimed > 0 { self.timed } else { 0 };
        let notes = [
            ("profiles without an end mark, or cut", self.unfinished),
            (
                "profiles with wrong times: the processor's counter did not keep time, or the \
                 machine was suspended",
                self.faulty,
            ),
            (
                "profiles with durations of calls, which are left out because other profiles have \
                 none",
                left_out,
            ),
        ];
        let notes = notes.into_iter().filter(|(_, count)| *count > 0);
        let notes = notes.map(|(what, count)| (what.to_owned(), count));
        self.spool.writer.add_all(self.anchors.iter().flatten())?;
        let tables = self.spool.finish()?;
        Ok(OpenedProfile {
            profile: Profile::of_sums(tables, self.stacks, times, self.missing),
            format: self.format,
            written_wall_ns: self.written_wall_ns,
            notes: notes.collect(),
        })
    }

    fn add_processes(&mut self, tables: &Trace, places: &mut Places) -> Result<(), OpenError> {
        let filters = tables.coverage().filters.iter();
        let filters = filters.filter(|note| note.since.is_none());
        let filters: HashMap<_, _> = filters.map(|note| (note.process, &note.filter)).collect();
        let mut met = HashMap::<ProcessKey, u32>::new();
        for process in tables.processes() {
            let mut key = ProcessKey {
                machine: self.machines.index(process, tables),
                pid: process.pid,
                start_time_ticks: process.start_time_ticks,
                executable: process.executable.clone(),
                filter: filters.get(&process.id).copied().cloned(),
                earlier: 0,
            };
            key.earlier = next_of(&mut met, key.clone());
            // The kernel reuses pids: a process is identified only with the time of its start.
            let known = self.processes.get(&key).copied();
            if let Some(known) = known.filter(|_| process.start_time_ticks != 0) {
                places.set_process(process.id, known);
                continue;
            }
            let id = places.process(&mut self.ids, process.id)?;
            self.processes.insert(key, id);
            self.spool.writer.add(&Process {
                id,
                ..process.clone()
            })?;
            if let Some(origin) = tables.origin(process.id) {
                self.spool.writer.origin(id, *origin)?;
            }
        }
        Ok(())
    }

    fn add_threads(&mut self, tables: &Trace, places: &mut Places) -> Result<(), OpenError> {
        let mut met = HashMap::<ThreadKey, u32>::new();
        for thread in tables.threads() {
            let process = places.process(&mut self.ids, thread.process)?;
            let mut key = ThreadKey {
                process,
                tid: thread.tid,
                name: thread.name.clone(),
                earlier: 0,
            };
            key.earlier = next_of(&mut met, key.clone());
            if let Some(known) = self.threads.get(&key) {
                places.set_thread(thread.id, *known);
                continue;
            }
            let id = places.thread(&mut self.ids, thread.id)?;
            self.threads.insert(key, id);
            self.spool.writer.add(&Thread {
                id,
                process,
                ..thread.clone()
            })?;
        }
        Ok(())
    }

    /// Adds the clock and the coverage. The merged clock is the wall clock, which all machines
    /// have. Without the rate of the counter there is none.
    fn add_times_of(&mut self, tables: &Trace, places: &mut Places) -> Result<(), OpenError> {
        let by_wall = self.unit.is_nanoseconds();
        if by_wall {
            self.extend_clock(&anchors(slice::from_ref(tables), by_wall, self.unit));
        }
        let mut others = HashMap::new();
        let first = tables.processes().first();
        let machine = first.map(|process| self.machines.index(process, tables));
        let known = machine.and_then(|at| self.machines.moments.get_mut(at));
        let mut time = SharedTime {
            time: Time::new(tables, by_wall),
            known: known.unwrap_or(&mut others),
        };
        let ids = (places, &mut self.ids);
        add_coverage(tables, &mut time, ids, &mut self.spool, &mut self.written)
    }

    fn extend_clock(&mut self, anchors: &[ClockAnchor]) {
        let ([first, ..], [.., last]) = (anchors, anchors) else {
            return;
        };
        let [begin, end] = self.anchors.get_or_insert([*first, *last]);
        if first.ticks < begin.ticks {
            *begin = *first;
        }
        if last.ticks > end.ticks {
            *end = *last;
        }
    }

    fn add_stacks(&mut self, profile: &Profile, places: &mut Places) -> Result<(), OpenError> {
        let mut indexes = Vec::with_capacity(profile.stacks().len());
        let (mut timed, mut untimed) = (false, false);
        for (at, stack) in profile.stacks().iter().enumerate() {
            let thread = places.thread(&mut self.ids, stack.thread)?;
            let function = places.function_of_event(&mut self.ids, stack.function)?;
            let caller = stack.caller.and_then(|at| indexes.get(at)).copied();
            let index = self.index(thread, caller, function)?;
            indexes.push(index);
            if let Some(sum) = self.stacks.get_mut(index) {
                sum.calls = sum.calls.saturating_add(stack.calls);
                sum.self_ns = sum.self_ns.saturating_add(stack.self_ns);
            }
            match profile.times(at) {
                Some(times) => {
                    timed = true;
                    self.add_times(index, times, stack.calls);
                }
                None => untimed = true,
            }
        }
        self.timed += u64::from(timed);
        self.untimed += u64::from(untimed);
        Ok(())
    }

    /// The index of a stack, which is added if it is new.
    fn index(
        &mut self,
        thread: ThreadId,
        caller: Option<usize>,
        function: FunctionId,
    ) -> Result<usize, OpenError> {
        let key = (thread, caller, function);
        if let Some(index) = self.places.get(&key) {
            return Ok(*index);
        }
        let index = self.stacks.len();
        if index >= MOST_STACKS {
            return Err(OpenError::TooManyStacks { limit: MOST_STACKS });
        }
        self.stacks.push(ProfiledStack {
            thread,
            caller,
            function,
            calls: 0,
            self_ns: 0,
        });
        self.places.insert(key, index);
        Ok(index)
    }

    fn add_times(&mut self, index: usize, times: &Times, calls: u64) {
        if self.times.len() <= index {
            self.times.resize_with(index + 1, TimesSum::default);
        }
        if let Some(sum) = self.times.get_mut(index) {
            sum.add(times, calls);
        }
    }
}

/// The number of earlier calls with this key.
fn next_of<K: Eq + Hash>(met: &mut HashMap<K, u32>, key: K) -> u32 {
    let count = met.entry(key).or_default();
    let earlier = *count;
    *count = count.saturating_add(1);
    earlier
}

// === impl Machines ===

impl Machines {
    /// The index of the machine of a process, which is added if it is new.
    fn index(&mut self, process: &Process, tables: &Trace) -> usize {
        let booted = booted(tables.clock());
        let boots = self.known.entry(process.host.clone()).or_default();
        let same = boots.iter().find(|(known, _)| match (*known, booted) {
            (Some(known), Some(booted)) => is_one_boot(known, booted),
            (known, booted) => known == booted,
        });
        if let Some((_, index)) = same {
            return *index;
        }
        let index = self.moments.len();
        self.moments.push(HashMap::new());
        boots.push((booted, index));
        index
    }
}
