//! The modules, functions, event types and tracepoints of a trace, added to the merged one.

use super::ids::{Ids, Places};
use crate::model::{EventType, Function, Module, Trace};
use crate::source::OpenError;
use crate::source::spool::Spool;

/// Adds the modules, the event types, and the functions and tracepoints that no trace has had so
/// far. The processes were added before.
pub(super) fn add_tables(
    trace: &Trace,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
) -> Result<(), OpenError> {
    for module in trace.modules() {
        let id = places.module(ids, module.id)?;
        let process = places.process(ids, module.process)?;
        spool.writer.add(&Module {
            id,
            process,
            ..module.clone()
        })?;
    }
    for function in trace.functions() {
        let module = trace.module(function.module);
        let (id, is_new) = places.function(ids, function, module)?;
        if is_new {
            let module = places.module(ids, function.module)?;
            spool.writer.add(&Function {
                id,
                module,
                ..function.clone()
            })?;
        }
    }
    for event_type in trace.event_types() {
        let process = places.process(ids, event_type.process)?;
        spool.writer.add(&EventType {
            process,
            ..event_type.clone()
        })?;
    }
    for (number, tracepoint) in trace.tracepoints() {
        if let Some(number) = places.add_tracepoint(ids, number, tracepoint)? {
            spool.writer.tracepoint(number, tracepoint)?;
        }
    }
    Ok(())
}
