//! The kernel tracepoints that a client names.

use super::authorise::Authority;
use crate::{
    refusal::{Reason, Refusal},
    target::{KernelTracepoint, TracepointError},
};

/// The most tracepoints of a stream.
const MOST: usize = 16;

/// The tracepoints with these names. The kernel describes each of them.
pub(super) fn find(
    names: &[String],
    run_times: bool,
    authority: &Authority,
) -> Result<Vec<KernelTracepoint>, Refusal> {
    if names.len() > MOST {
        let message = format!(
            "{} kernel tracepoints are more than the {MOST} that a trace can have",
            names.len()
        );
        return Err(Refusal::new(Reason::Limit, message));
    }
    if !names.is_empty() && !run_times {
        let message = "kernel tracepoints are recorded with the run times of the threads, and the \
                       request leaves these out";
        return Err(Refusal::new(Reason::Selection, message));
    }
    let mut found: Vec<KernelTracepoint> = Vec::new();
    for name in names {
        authority.tracepoint(name)?;
        let tracepoint = KernelTracepoint::find(name).map_err(refusal)?;
        if found.iter().all(|known| known.id != tracepoint.id) {
            found.push(tracepoint);
        }
    }
    Ok(found)
}

fn refusal(error: TracepointError) -> Refusal {
    let reason = match &error {
        TracepointError::NoName(_) | TracepointError::Unknown(_) => Reason::Selection,
        TracepointError::NoFolder(_)
        | TracepointError::Unreadable(..)
        | TracepointError::Description(_) => Reason::Io,
    };
    Refusal::new(reason, error.to_string())
}
