//! What the writer of a trace and a reader of a live stream ask a process.

use std::{any::Any, fmt, sync::Arc};

use xray_trace::{
    instr_map::Selection,
    model::{
        ClockAnchor, DutyWindow, FilterNote, Function, FunctionId, Lifetime, Module, ModuleId,
        Process, Rest,
    },
};

use crate::{
    pid::Pid,
    refusal::{Refusal, Result},
    types::FunctionRow,
};

/// A module with what numbers its functions.
#[derive(Debug, Clone)]
pub struct NumberedModule {
    /// As the process describes it.
    pub module: Module,
    /// The id of its first function in the process.
    pub first: FunctionId,
    /// How many it has.
    pub functions: u32,
    /// What the same file is the same allocation of.
    pub file: Arc<dyn Any + Send + Sync>,
}

/// What a process knows of itself.
pub trait Tables {
    /// A function, by the process's own ids.
    fn function(&self, id: FunctionId) -> Option<Function>;
    /// All modules that there are and were, by id.
    fn modules(&self) -> Vec<NumberedModule>;
    /// For which times they were loaded, those that were not there all the time.
    fn lifetimes(&self) -> Vec<Lifetime>;
    /// For which times functions were off, to keep to a budget.
    fn rests(&self) -> Vec<Rest>;
    /// In which times everything was recorded, with a duty cycle.
    fn duty(&self) -> Vec<DutyWindow>;
    /// Which filters were in force from when on, in order of time.
    fn filters(&self) -> Vec<FilterNote>;
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
