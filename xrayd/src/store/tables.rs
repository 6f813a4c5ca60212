//! The traits through which a trace writer and a live stream read a process.
//!
//! They are implemented in `process` and `export`.

use std::{any::Any, fmt, sync::Arc};

use xray_trace::{
    instr_map::Selection,
    model::{
        ClockAnchor, DutyWindow, FilterNote, Function, FunctionId, Gap, Lifetime, Module, ModuleId,
        Process, Suppression,
    },
};

use crate::{
    pid::Pid,
    refusal::{Refusal, Result},
    types::FunctionRow,
};

/// A module, and the numbering of its functions.
#[derive(Debug, Clone)]
pub struct NumberedModule {
    /// The module's description.
    pub module: Module,
    /// The id of its first function in the process.
    pub first: FunctionId,
    /// The number of its functions.
    pub functions: u32,
    /// The identity of its file: modules of the same file share this allocation.
    pub file: Arc<dyn Any + Send + Sync>,
}

/// The tables of a process: functions, modules, and times in which something was not recorded.
pub trait Tables {
    /// A function, by the process's own ids.
    fn function(&self, id: FunctionId) -> Option<Function>;
    /// All present and past modules, by id.
    fn modules(&self) -> Vec<NumberedModule>;
    /// The times for which modules were loaded that were not there all the time.
    fn lifetimes(&self) -> Vec<Lifetime>;
    /// The times for which functions were suppressed to keep to a budget.
    fn suppressions(&self) -> Vec<Suppression>;
    /// The times in which all functions recorded, with a duty cycle.
    fn duty(&self) -> Vec<DutyWindow>;
    /// The filters that were in force, with their begins, in order of time.
    fn filters(&self) -> Vec<FilterNote>;
    /// The times in which an unknown number of events was lost, in order of time.
    fn gaps(&self) -> Vec<Gap>;
}

/// A process whose events a live stream carries.
pub trait TracedProcess: fmt::Debug + Send + Sync {
    /// Its pid.
    fn pid(&self) -> Pid;
    /// Its description in a trace.
    fn process(&self) -> Process;
    /// Its functions and modules, and what was not recorded on purpose.
    fn tables(&self) -> &dyn Tables;
    /// The clock anchors taken so far.
    fn anchors(&self) -> Vec<ClockAnchor>;
    /// The functions that a selection matches, by id; all without one.
    ///
    /// # Errors
    /// A selection that cannot be compiled.
    fn functions(&self, selection: Option<&Selection>) -> Result<Vec<FunctionRow>>;
    /// The number of functions that there have been so far.
    fn functions_known(&self) -> usize;
    /// The path of a module.
    fn module_path(&self, id: ModuleId) -> String;
    /// The reason why its session has failed, if it has.
    fn failure(&self) -> Option<Refusal>;
}
