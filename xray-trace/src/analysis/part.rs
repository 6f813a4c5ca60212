//! Counts the calls of threads into a table.

use super::Filter;
use super::account::{Account, Counted, GroupBy, Subject};
use super::gathered::Gathered;
use super::histogram::{Histograms, Slot};
use super::stack::Steps;
use super::step::{Call, Notes, Open, Visitor};
use crate::function_map::FunctionMap;
use crate::model::{FunctionId, ModuleId, ProcessId, ThreadId, Trace};

/// Stands for a process or a module that is not known. An id like this could only be met in a hostile trace.
pub(super) const NOBODY: u32 = u32::MAX;

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

// === impl Part ===

impl Part {
    /// Counts the calls of a thread. `place` says whose a call is, and how many calls of the same subject it stands within.
    pub(super) fn add(
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

    pub(super) fn add_modules(
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
