//! Counts the calls of threads into a table. The sums of a subject are in `gathered`.

use super::account_table::{Account, GroupBy, OnCpu, Subject};
use super::counted_calls::CountedCalls;
use super::gathered::Gathered;
use super::histogram::{Histograms, Slot};
use super::stack::Steps;
use super::step::{Call, Notes, Open, Visitor};
use crate::function_map::FunctionMap;
use crate::model::{FunctionId, ModuleId, ProcessId, ThreadId, Trace};

/// The subject of calls without a known process or module. Only a hostile trace can contain such an
/// id.
pub(super) const NOBODY: u32 = u32::MAX;

/// The counts of some threads.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The slot of each subject's durations. All other data of a subject has the same index.
    slots: FunctionMap<Option<Slot>>,
    subjects: Vec<FunctionId>,
    gathered: Vec<Gathered>,
    histograms: Histograms,
    /// The time on a processor of each subject; shorter than `subjects` if it is not known.
    on_cpu: Vec<OnCpu>,
    notes: Notes,
}

/// Counts calls whose subject follows from themselves.
pub(super) struct Placed<'a, P> {
    part: &'a mut Part,
    calls: CountedCalls<'a>,
    place: P,
}

/// Counts calls by module.
struct InModules<'a> {
    part: &'a mut Part,
    trace: &'a Trace,
    calls: CountedCalls<'a>,
    /// The number of open calls of each module.
    open: FunctionMap<usize>,
}

// === impl Part ===

impl Part {
    /// Counts the calls of a thread. `place` returns the subject of a call, and the number of calls
    /// of the same subject around it.
    pub(super) fn add(
        &mut self,
        mut steps: Steps<'_>,
        calls: CountedCalls<'_>,
        place: impl Fn(&Call) -> (u32, usize),
    ) {
        self.visit(&mut steps, calls, place);
        self.notes.add(steps.notes());
    }

    /// The same without the irregularities of the thread.
    pub(super) fn visit(
        &mut self,
        steps: &mut Steps<'_>,
        calls: CountedCalls<'_>,
        place: impl Fn(&Call) -> (u32, usize),
    ) {
        steps.visit(&mut self.visitor(calls, place));
    }

    /// A visitor that counts the calls of a thread.
    pub(super) fn visitor<'a, P: Fn(&Call) -> (u32, usize)>(
        &'a mut self,
        calls: CountedCalls<'a>,
        place: P,
    ) -> Placed<'a, P> {
        Placed {
            part: self,
            calls,
            place,
        }
    }

    pub(super) fn add_modules(
        &mut self,
        mut steps: Steps<'_>,
        trace: &Trace,
        calls: CountedCalls<'_>,
    ) {
        steps.visit(&mut InModules {
            part: self,
            trace,
            calls,
            open: FunctionMap::default(),
        });
        self.notes.add(steps.notes());
    }

    /// Counts the end of a call of this subject, within `level` others of it.
    #[inline(always)]
    pub(super) fn count(
        &mut self,
        call: &Call,
        subject: u32,
        level: usize,
        calls: CountedCalls<'_>,
    ) {
        if let Some(slot) = self.leave(call, subject, level, calls) {
            self.histograms.add(slot, call.duration_ns());
        }
    }

    /// The same without the call's duration. Returns the slot of the duration, if that counts.
    #[inline(always)]
    pub(super) fn leave(
        &mut self,
        call: &Call,
        subject: u32,
        level: usize,
        calls: CountedCalls<'_>,
    ) -> Option<Slot> {
        let wants = calls.wants(&call.open);
        let slot = match *self.slots.entry(FunctionId(subject)) {
            Some(slot) => slot,
            None if wants => self.create(FunctionId(subject))?,
            None => return None,
        };
        let gathered = &mut self.gathered[slot.index()];
        let counts = (!calls.recursive() || gathered.recurs(call)) && wants;
        let finished = gathered.leave(call, level, counts);
        if finished && level == 0 && call.off_cpu.is_some() {
            self.add_on_cpu(call, slot);
        }
        finished.then_some(slot)
    }

    /// Adds the time on a processor of a call that is not within another one of its subject.
    #[inline(never)]
    fn add_on_cpu(&mut self, call: &Call, slot: Slot) {
        if let Some(ns) = call.on_cpu_ns() {
            let of_ns = call.duration_ns();
            self.merge_on_cpu(slot, OnCpu { ns, of_ns });
        }
    }

    fn merge_on_cpu(&mut self, slot: Slot, other: OnCpu) {
        if self.on_cpu.len() <= slot.index() {
            self.on_cpu.resize(slot.index() + 1, OnCpu::default());
        }
        self.on_cpu[slot.index()].add(other);
    }

    /// Adds durations of a subject that are in `others`.
    pub(super) fn add_durations(&mut self, subject: u32, others: &Histograms, other: Slot) {
        if let Some(slot) = *self.slots.entry(FunctionId(subject)) {
            self.histograms.merge(slot, others, other);
        }
    }

    /// Adds a duration of a subject that is nowhere else.
    pub(super) fn add_duration(&mut self, slot: Slot, duration: u64) {
        self.histograms.add(slot, duration);
    }

    /// Creates a subject; `None` if there are too many.
    #[cold]
    fn create(&mut self, subject: FunctionId) -> Option<Slot> {
        let slot = self.histograms.create()?;
        self.subjects.push(subject);
        self.gathered.push(Gathered::default());
        *self.slots.entry(subject) = Some(slot);
        Some(slot)
    }

    /// Adds the irregularities of a thread.
    pub(super) fn note(&mut self, notes: Notes) {
        self.notes.add(notes);
    }

    /// The table with subjects of this kind.
    pub(super) fn into_account(self, by: GroupBy) -> Account {
        self.into_account_with(by, |_, _| ()).0
    }

    /// The table, and the result of `look` for the durations of each row.
    pub(super) fn into_account_with<T>(
        self,
        by: GroupBy,
        look: impl Fn(&Histograms, Slot) -> T,
    ) -> (Account, Vec<T>) {
        let Self {
            subjects,
            gathered,
            mut histograms,
            on_cpu,
            notes,
            slots: _,
        } = self;
        let known = |id: u32| (id != NOBODY).then_some(id);
        let rows = subjects.into_iter().zip(gathered).enumerate();
        let rows = rows.filter_map(|(index, (FunctionId(id), gathered))| {
            let subject = match by {
                GroupBy::Function => Subject::Function(FunctionId(id)),
                GroupBy::Thread => Subject::Thread(ThreadId(id)),
                GroupBy::Process => Subject::Process(known(id).map(ProcessId)),
                GroupBy::Module => Subject::Module(known(id).map(ModuleId)),
            };
            let slot = Slot::new(index)?;
            let mut row = gathered.row(subject, slot, &mut histograms);
            row.on_cpu = on_cpu.get(index).copied().filter(|on_cpu| on_cpu.of_ns > 0);
            (row.calls > 0).then(|| (row, look(&histograms, slot)))
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(row, _)| row.subject);
        let (rows, looked_at) = rows.into_iter().unzip();
        (Account { rows, notes }, looked_at)
    }

    /// Merges the counts of other threads.
    pub(super) fn merge(&mut self, mut other: Self) {
        if self.subjects.is_empty() {
            std::mem::swap(self, &mut other);
        }
        self.notes.add(other.notes);
        let others = other.subjects.into_iter().zip(other.gathered);
        for (index, (subject, gathered)) in others.enumerate() {
            let own = match *self.slots.entry(subject) {
                None => self.create(subject),
                own => own,
            };
            if let (Some(own), Some(slot)) = (own, Slot::new(index)) {
                self.gathered[own.index()].merge(gathered);
                self.histograms.merge(own, &other.histograms, slot);
                if let Some(on_cpu) = other.on_cpu.get(index) {
                    self.merge_on_cpu(own, *on_cpu);
                }
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
        self.part.count(call, subject, level, self.calls);
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
        self.part.count(call, module, *level, self.calls);
    }
}
