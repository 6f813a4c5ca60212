//! The table of functions: how often, how long. Also of threads, processes and modules.

use super::Filter;
use super::histogram::{Histograms, Slot};
use super::stack::{Call, Ending, Notes, Open, Siblings, Steps, Visitor};
use super::threads::by_thread;
use crate::function_map::FunctionMap;
use crate::model::{FunctionId, ModuleId, ProcessId, ThreadId, Trace, XrayIds};

/// What calls are counted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum GroupBy {
    /// By the function that was called.
    #[default]
    Function,
    /// By the thread that called.
    Thread,
    /// By the process of that thread.
    Process,
    /// By the module that the function is in.
    Module,
}

/// Which calls are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// All.
    #[default]
    All,
    /// Those within a call of the same function, and those that had such a one within them.
    Recursive,
}

/// How to count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AccountOptions {
    /// What there is a row for.
    pub by: GroupBy,
    /// Which calls are counted.
    pub counted: Counted,
    /// What to make of calls without an exit.
    pub siblings: Siblings,
}

/// The table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// A row per subject with calls, at first in order of id.
    pub rows: Vec<AccountRow>,
    /// What was met that is not an ordinary call, in the threads that were wanted.
    pub notes: Notes,
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A function.
    Function(FunctionId),
    /// A thread.
    Thread(ThreadId),
    /// A process; `None` if the trace does not tell which process a thread belongs to.
    Process(Option<ProcessId>),
    /// A module; `None` if the trace does not tell which module a function is in.
    Module(Option<ModuleId>),
}

/// What is known of one subject's calls. Times are in nanoseconds and of calls whose exit was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountRow {
    /// Whose.
    pub subject: Subject,
    /// How many calls there were.
    pub calls: u64,
    /// How many of these calls saw no exit. No time is counted for them.
    pub unfinished: u64,
    /// Time within it, including what it called. A call within a counted call of the same subject is not counted again.
    pub total_ns: u64,
    /// Time within it, without traced functions that it called; never more than `total_ns`.
    pub self_ns: u64,
    /// The sum of the durations of all calls: a call within a call counts twice.
    pub sum_ns: u64,
    /// The durations of single calls. `None` if no call finished.
    pub durations: Option<Distribution>,
}

/// The durations of single calls, in nanoseconds. `min`, `mean` and `max` are exact; the others are exact up to 256 calls, and
/// off by less than 1 % beyond. Each is a duration that stands at its rank, as in `llvm-xray account`: the median of `n` calls
/// is number `n/2` from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The shortest.
    pub min_ns: u64,
    /// The sum, divided by how many there are, rounded down.
    pub mean_ns: u64,
    /// The one in the middle.
    pub median_ns: u64,
    /// Longer than 9 in 10.
    pub p90_ns: u64,
    /// Longer than 99 in 100.
    pub p99_ns: u64,
    /// Longer than 999 in 1000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What to sort the table by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// The subject's id.
    Id,
    /// The subject's name.
    Name,
    /// How many calls.
    Calls,
    /// How many calls with an exit.
    Finished,
    /// How many calls without an exit.
    Unfinished,
    /// Time within.
    Total,
    /// Time within, without what was called.
    SelfTime,
    /// The sum of all durations.
    Sum,
    /// The shortest call.
    Min,
    /// The mean call.
    Mean,
    /// The call in the middle.
    Median,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The longest call.
    Max,
}

/// Which end of the table is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The least first.
    Ascending,
    /// The greatest first.
    Descending,
}

/// The durations of calls, as they are gathered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durations {
    finished: u64,
    sum_ns: u64,
    /// The greatest number if there are none.
    min_ns: u64,
    max_ns: u64,
}

/// What is gathered about one subject. It fills one line of a processor's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Gathered {
    unfinished: u64,
    total_ns: u64,
    self_ns: u64,
    durations: Durations,
    /// What only subjects have whose calls stand within one another.
    recursion: Option<Box<Recursion>>,
}

#[derive(Debug, Default)]
struct Recursion {
    /// Per open call within which counted calls of the same subject have ended, outermost first: their time, which its own
    /// will include.
    within_ns: Vec<u64>,
    /// A call of the same function ended within the outermost one that is open.
    met: bool,
}

/// What is gathered about some threads.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Per subject, its index in `subjects`, + 1; 0 if it has none.
    indexes: FunctionMap<u32>,
    subjects: Vec<(FunctionId, Slot)>,
    /// What was gathered about each of `subjects`.
    gathered: Vec<Gathered>,
    histograms: Histograms,
    notes: Notes,
}

/// Counts calls whose place is known from themselves.
struct Placed<'a, P> {
    part: &'a mut Part,
    filter: &'a Filter,
    counted: Counted,
    place: P,
}

/// Counts calls by module.
struct InModules<'a> {
    part: &'a mut Part,
    trace: &'a Trace,
    filter: &'a Filter,
    counted: Counted,
    /// How many calls are open in each.
    open: FunctionMap<usize>,
}

/// Makes the table.
#[must_use]
pub fn account(trace: &Trace, filter: &Filter, options: AccountOptions) -> Account {
    let look = |part: &mut Part, steps: Steps<'_>| match options.by {
        GroupBy::Function => part.add(steps, filter, options.counted, |call| {
            (call.open.function.0, call.open.nesting as usize)
        }),
        // Every call of a thread stands within all others that are open.
        GroupBy::Thread => {
            let thread = steps.thread().0;
            part.add(steps, filter, options.counted, |call| {
                (thread, call.open.depth)
            });
        }
        GroupBy::Process => {
            let thread = trace.thread(steps.thread());
            let process = thread.map_or(NOBODY, |thread| thread.process.0);
            part.add(steps, filter, options.counted, |call| {
                (process, call.open.depth)
            });
        }
        GroupBy::Module => part.add_modules(steps, trace, filter, options.counted),
    };
    let parts = by_thread(trace, filter, options.siblings, look);
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    parts.for_each(|part| all.merge(part));
    all.into_account(options.by)
}

/// Stands for a process or a module that is not known. An id like this could only be met in a hostile trace.
const NOBODY: u32 = u32::MAX;

// === impl Subject ===

impl Subject {
    /// The function, if it is one.
    #[must_use]
    pub fn function(self) -> Option<FunctionId> {
        match self {
            Self::Function(id) => Some(id),
            Self::Thread(_) | Self::Process(_) | Self::Module(_) => None,
        }
    }

    /// Its name for people.
    #[must_use]
    pub fn name(self, trace: &Trace) -> std::borrow::Cow<'_, str> {
        let unknown = || "(unknown)".into();
        match self {
            Self::Function(id) => trace.function_name(id),
            Self::Thread(id) => trace.thread(id).map_or_else(
                || format!("#{}", id.0).into(),
                |thread| thread.name.as_str().into(),
            ),
            Self::Process(id) => id
                .and_then(|id| trace.process(id))
                .map_or_else(unknown, |process| process.command.as_str().into()),
            Self::Module(id) => id
                .and_then(|id| trace.module(id))
                .map_or_else(unknown, |module| module.path.as_str().into()),
        }
    }
}

// === impl Account ===

impl Account {
    /// Sorts the rows; equal ones by id.
    pub fn sort(&mut self, trace: &Trace, by: SortBy, direction: Direction) {
        let duration = |row: &AccountRow, which: fn(&Distribution) -> u64| {
            row.durations.as_ref().map_or(0, which)
        };
        let key = |row: &AccountRow| match by {
            SortBy::Id | SortBy::Name => 0,
            SortBy::Calls => row.calls,
            SortBy::Finished => row.calls - row.unfinished,
            SortBy::Unfinished => row.unfinished,
            SortBy::Total => row.total_ns,
            SortBy::SelfTime => row.self_ns,
            SortBy::Sum => row.sum_ns,
            SortBy::Min => duration(row, |durations| durations.min_ns),
            SortBy::Mean => duration(row, |durations| durations.mean_ns),
            SortBy::Median => duration(row, |durations| durations.median_ns),
            SortBy::P90 => duration(row, |durations| durations.p90_ns),
            SortBy::P99 => duration(row, |durations| durations.p99_ns),
            SortBy::P999 => duration(row, |durations| durations.p999_ns),
            SortBy::Max => duration(row, |durations| durations.max_ns),
        };
        let ids = XrayIds::new(trace);
        self.rows.sort_by(|one, other| {
            let order = match by {
                // The id that is shown; foreign logs name functions in any order.
                SortBy::Id => {
                    let id = |row: &AccountRow| match row.subject {
                        Subject::Function(function) => Some(ids.shown(function)),
                        _ => None,
                    };
                    let order = id(one).cmp(&id(other));
                    order.then_with(|| one.subject.cmp(&other.subject))
                }
                SortBy::Name => one.subject.name(trace).cmp(&other.subject.name(trace)),
                _ => key(one).cmp(&key(other)),
            };
            let order = match direction {
                Direction::Ascending => order,
                Direction::Descending => order.reverse(),
            };
            order.then_with(|| one.subject.cmp(&other.subject))
        });
    }
}

// === impl Durations ===

impl Default for Durations {
    fn default() -> Self {
        Self {
            finished: 0,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Durations {
    #[inline(always)]
    pub(super) fn add(&mut self, duration: u64) {
        self.min_ns = self.min_ns.min(duration);
        self.max_ns = self.max_ns.max(duration);
        self.finished += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration);
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.finished += other.finished;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    pub(super) fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// What they come to; `None` if there are none.
    pub(super) fn distribution(
        &self,
        slot: Slot,
        histograms: &mut Histograms,
    ) -> Option<Distribution> {
        let ranks = histograms.ranks(slot, [500, 900, 990, 999])?;
        let within = |ns: u64| ns.clamp(self.min_ns, self.max_ns);
        let [median_ns, p90_ns, p99_ns, p999_ns] = ranks.map(within);
        Some(Distribution {
            min_ns: self.min_ns,
            mean_ns: self.sum_ns.checked_div(self.finished)?,
            median_ns,
            p90_ns,
            p99_ns,
            p999_ns,
            max_ns: self.max_ns,
        })
    }
}

// === impl Part ===

impl Part {
    /// Counts the calls of a thread. `place` says whose a call is, and how many calls of the same subject it stands within.
    fn add(
        &mut self,
        mut steps: Steps<'_>,
        filter: &Filter,
        counted: Counted,
        place: impl Fn(&Call) -> (u32, usize),
    ) {
        steps.visit(&mut Placed {
            part: self,
            filter,
            counted,
            place,
        });
        self.notes.add(steps.notes());
    }

    fn add_modules(
        &mut self,
        mut steps: Steps<'_>,
        trace: &Trace,
        filter: &Filter,
        counted: Counted,
    ) {
        steps.visit(&mut InModules {
            part: self,
            trace,
            filter,
            counted,
            open: FunctionMap::default(),
        });
        self.notes.add(steps.notes());
    }

    /// A call of that subject's ended, within `level` others of it.
    #[inline(always)]
    fn count(
        &mut self,
        call: &Call,
        subject: u32,
        level: usize,
        filter: &Filter,
        counted: Counted,
    ) {
        if let Some(slot) = self.leave(call, subject, level, filter, counted) {
            self.histograms.add(slot, call.duration_ns());
        }
    }

    /// The same, but for the call's duration. If that counts, says where.
    #[inline(always)]
    pub(super) fn leave(
        &mut self,
        call: &Call,
        subject: u32,
        level: usize,
        filter: &Filter,
        counted: Counted,
    ) -> Option<Slot> {
        let wants = filter.wants_call(&call.open);
        let index = self.indexes.entry(FunctionId(subject));
        if *index == 0 && !wants {
            return None;
        }
        let index = match index.checked_sub(1) {
            Some(index) => index as usize,
            None => self.create(FunctionId(subject))?,
        };
        let gathered = &mut self.gathered[index];
        let counts = match counted {
            Counted::All => wants,
            Counted::Recursive => gathered.recurs(call) && wants,
        };
        gathered
            .leave(call, level, counts)
            .then(|| self.subjects[index].1)
    }

    /// Takes in durations of a subject that were gathered elsewhere.
    pub(super) fn add_durations(&mut self, subject: u32, others: &Histograms, other: Slot) {
        let index = self.indexes.entry(FunctionId(subject)).checked_sub(1);
        if let Some(index) = index {
            let (_, slot) = self.subjects[index as usize];
            self.histograms.merge(slot, others, other);
        }
    }

    /// A duration of a subject that is gathered nowhere else.
    pub(super) fn add_duration(&mut self, slot: Slot, duration: u64) {
        self.histograms.add(slot, duration);
    }

    /// Makes room for a subject; `None` if there are more than can be counted.
    #[cold]
    fn create(&mut self, subject: FunctionId) -> Option<usize> {
        let index = self.subjects.len();
        let slot = self.histograms.create()?;
        self.subjects.push((subject, slot));
        self.gathered.push(Gathered::default());
        *self.indexes.entry(subject) = u32::try_from(index + 1).ok()?;
        Some(index)
    }

    /// Takes note of what was met in a thread.
    pub(super) fn note(&mut self, notes: Notes) {
        self.notes.add(notes);
    }

    /// The table, of subjects of that kind.
    pub(super) fn into_account(self, by: GroupBy) -> Account {
        let Self {
            subjects,
            gathered,
            mut histograms,
            notes,
            indexes: _,
        } = self;
        let known = |id: u32| (id != NOBODY).then_some(id);
        let rows = subjects
            .into_iter()
            .zip(gathered)
            .filter(|(_, gathered)| gathered.calls() > 0);
        let rows = rows.map(|((FunctionId(id), slot), gathered)| {
            let subject = match by {
                GroupBy::Function => Subject::Function(FunctionId(id)),
                GroupBy::Thread => Subject::Thread(ThreadId(id)),
                GroupBy::Process => Subject::Process(known(id).map(ProcessId)),
                GroupBy::Module => Subject::Module(known(id).map(ModuleId)),
            };
            gathered.row(subject, slot, &mut histograms)
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|row| row.subject);
        Account { rows, notes }
    }

    /// Takes in what was gathered about other threads.
    pub(super) fn merge(&mut self, mut other: Self) {
        self.notes.add(other.notes);
        other.histograms.count();
        for ((subject, slot), gathered) in other.subjects.into_iter().zip(other.gathered) {
            let index = match self.indexes.entry(subject).checked_sub(1) {
                Some(index) => Some(index as usize),
                None => self.create(subject),
            };
            if let Some(index) = index {
                self.gathered[index].merge(gathered);
                let (_, own_slot) = self.subjects[index];
                self.histograms.merge(own_slot, &other.histograms, slot);
            }
        }
    }
}

// === impl Placed ===

impl<P: Fn(&Call) -> (u32, usize)> Visitor for Placed<'_, P> {
    #[inline(always)]
    fn enter(&mut self, _: &Open) {}

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        let (subject, level) = (self.place)(call);
        self.part
            .count(call, subject, level, self.filter, self.counted);
    }
}

// === impl InModules ===

impl InModules<'_> {
    fn module(&self, function: FunctionId) -> u32 {
        let function = self.trace.function(function);
        function.map_or(NOBODY, |found| found.module.0)
    }
}

impl Visitor for InModules<'_> {
    fn enter(&mut self, open: &Open) {
        *self.open.entry(FunctionId(self.module(open.function))) += 1;
    }

    fn leave(&mut self, call: &Call) {
        let module = self.module(call.open.function);
        let level = self.open.entry(FunctionId(module));
        *level = level.saturating_sub(1);
        self.part
            .count(call, module, *level, self.filter, self.counted);
    }
}

// === impl Gathered ===

impl Gathered {
    fn calls(&self) -> u64 {
        self.durations.finished + self.unfinished
    }

    /// Whether a call that ends was part of a recursion.
    fn recurs(&mut self, call: &Call) -> bool {
        let within = call.open.nesting > 0;
        match &mut self.recursion {
            None if !within => false,
            recursion => {
                let recursion = recursion.get_or_insert_default();
                std::mem::replace(&mut recursion.met, within) || within
            }
        }
    }

    /// A call within `level` others of the same subject ended. If it does not count, those within it do all the same.
    /// Says whether it has a duration that counts.
    #[inline(always)]
    fn leave(&mut self, call: &Call, level: usize, counts: bool) -> bool {
        let finished = counts && call.how != Ending::Closed;
        let duration = call.duration_ns();
        if finished {
            self.self_ns = self.self_ns.saturating_add(call.self_ns);
            self.durations.add(duration);
        } else {
            self.unfinished += u64::from(counts);
        }
        let time = if level == 0 && self.recursion.is_none() {
            if finished { duration } else { 0 }
        } else {
            self.recursive(level, finished.then_some(duration))
        };
        self.total_ns = self.total_ns.saturating_add(time);
        finished
    }

    /// What the total grows by if there are calls within calls.
    #[inline(never)]
    fn recursive(&mut self, level: usize, duration: Option<u64>) -> u64 {
        let recursion = self.recursion.get_or_insert_default();
        recursion.leave(level, duration)
    }

    fn merge(&mut self, other: Self) {
        let Self {
            unfinished,
            total_ns,
            self_ns,
            durations,
            recursion: _,
        } = other;
        self.unfinished += unfinished;
        self.total_ns = self.total_ns.saturating_add(total_ns);
        self.self_ns = self.self_ns.saturating_add(self_ns);
        self.durations.merge(durations);
    }

    fn row(self, subject: Subject, slot: Slot, histograms: &mut Histograms) -> AccountRow {
        let durations = self.durations.distribution(slot, histograms);
        AccountRow {
            subject,
            calls: self.calls(),
            unfinished: self.unfinished,
            total_ns: self.total_ns,
            self_ns: self.self_ns,
            sum_ns: self.durations.sum_ns(),
            durations,
        }
    }
}

// === impl Recursion ===

impl Recursion {
    /// A call within `level` others ended, and took so long if that is known and counts. Says what the subject's total grows by.
    fn leave(&mut self, level: usize, duration: Option<u64>) -> u64 {
        let within = self.within_ns.get(level).copied().unwrap_or(0);
        self.within_ns.truncate(level);
        // Where its own time is not known, that of the finished calls within it is.
        let time = duration.unwrap_or(within);
        if level == 0 {
            return time;
        }
        if time > 0 {
            if self.within_ns.len() < level {
                self.within_ns.resize(level, 0);
            }
            let outer = &mut self.within_ns[level - 1];
            *outer = outer.saturating_add(time);
        }
        0
    }
}
