//! Compiling a selection of functions.

use xray_trace::instr_map::{CompiledSelection, Selection};

use crate::refusal::{Reason, Refusal, Result};

pub(crate) fn compile(selection: &Selection) -> Result<CompiledSelection> {
    CompiledSelection::new(selection)
        .map_err(|error| Refusal::new(Reason::Selection, error.to_string()))
}
