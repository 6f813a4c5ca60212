//! The tables of one process, for traces: its description, its functions and modules, and what was
//! not recorded on purpose.

use std::{any::Any, sync::Arc};

use xray_trace::model::{
    DutyWindow, FilterNote, Function, FunctionId, Gap, Lifetime, Process, Suppression,
};

use crate::{
    control::Shared,
    store::{NumberedModule, Tables},
    target::Functions,
};

/// The tables of one process.
#[derive(Debug)]
pub(crate) struct ProcessTables {
    /// Its description.
    pub(crate) process: Process,
    /// Its functions. The controller adds those of libraries that are loaded later.
    pub(crate) functions: Arc<Functions>,
    /// What the controller publishes.
    pub(crate) shared: Arc<Shared>,
    /// What an earlier daemon did not record on purpose.
    pub(crate) earlier: EarlierChoices,
}

/// What an earlier daemon did not record of a process on purpose. The function ids are those of
/// this daemon.
#[derive(Debug, Default)]
pub(crate) struct EarlierChoices {
    pub(crate) suppressions: Vec<Suppression>,
    pub(crate) duty: Vec<DutyWindow>,
    pub(crate) filters: Vec<FilterNote>,
}

/// The tables of one process without source lines. To read those, the daemon may have to wait for a
/// file.
pub(super) struct SourcelessTables<'a>(pub(super) &'a ProcessTables);

// === impl ProcessTables ===

impl Tables for ProcessTables {
    fn function(&self, id: FunctionId) -> Option<Function> {
        self.functions.describe(id)
    }

    fn modules(&self) -> Vec<NumberedModule> {
        let modules = self.functions.modules();
        let numbered = modules.iter().map(|loaded| NumberedModule {
            module: loaded.describe(self.process.id),
            first: FunctionId(loaded.first()),
            functions: u32::try_from(loaded.functions().count()).unwrap_or(u32::MAX),
            file: Arc::clone(&loaded.module.object) as Arc<dyn Any + Send + Sync>,
        });
        numbered.collect()
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        let modules = self.functions.modules();
        let lifetimes = modules.iter().flat_map(|loaded| loaded.lifetimes());
        lifetimes.collect()
    }

    fn suppressions(&self) -> Vec<Suppression> {
        let mut all = self.earlier.suppressions.clone();
        all.extend(self.shared.history.suppressions(self.process.id));
        all
    }

    fn duty(&self) -> Vec<DutyWindow> {
        let mut all = self.earlier.duty.clone();
        all.extend(self.shared.history.windows(self.process.id));
        all
    }

    fn gaps(&self) -> Vec<Gap> {
        let process = self.process.id;
        let gaps = self.shared.gaps().into_iter();
        gaps.map(|gap| Gap { process, ..gap }).collect()
    }

    fn filters(&self) -> Vec<FilterNote> {
        let notes = self.shared.filter_notes().into_iter();
        let notes = notes.map(|(since, filter)| FilterNote {
            process: self.process.id,
            since: Some(since),
            filter,
        });
        self.earlier.filters.iter().cloned().chain(notes).collect()
    }
}

// === impl SourcelessTables ===

impl Tables for SourcelessTables<'_> {
    fn function(&self, id: FunctionId) -> Option<Function> {
        self.0.functions.describe_without_source(id)
    }

    fn modules(&self) -> Vec<NumberedModule> {
        self.0.modules()
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        self.0.lifetimes()
    }

    fn suppressions(&self) -> Vec<Suppression> {
        self.0.suppressions()
    }

    fn duty(&self) -> Vec<DutyWindow> {
        self.0.duty()
    }

    fn gaps(&self) -> Vec<Gap> {
        self.0.gaps()
    }

    fn filters(&self) -> Vec<FilterNote> {
        self.0.filters()
    }
}
