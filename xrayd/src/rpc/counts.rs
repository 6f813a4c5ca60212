//! Answers with counts of calls, thread by thread. The drain counts, not this file.

use std::{collections::BTreeMap, sync::Arc};

use xray_trace::model::FunctionId;
use xrayd_proto::v1;

use crate::{
    Pid,
    process::{ProcessOrGroup, Session},
    refusal::{Reason, Refusal},
    store::CallCounts,
    types::Mode,
};

/// Functions in one message.
const FUNCTIONS_PER_MESSAGE: usize = 1000;

/// The counts of the processes in `traced`.
///
/// # Errors
/// No calls are counted.
pub(super) fn get(
    traced: &ProcessOrGroup,
    pid: Pid,
) -> Result<Vec<(Arc<Session>, CallCounts)>, Refusal> {
    let mut counted = Vec::new();
    for session in traced.sessions() {
        if let Some(counts) = session.call_counts()? {
            counted.push((session, counts));
        }
    }
    if counted.is_empty() {
        let message = format!(
            "process {pid}: the daemon has no counts of its calls; use `xrayctl mode {}` first",
            Mode::Count
        );
        return Err(Refusal::new(Reason::Mode, message));
    }
    Ok(counted)
}

/// The counts of a process as messages.
pub(super) fn messages(
    session: &Session,
    counts: &CallCounts,
) -> impl Iterator<Item = v1::CallCounts> {
    let pid = session.pid().as_u32();
    let threads = counts
        .threads()
        .map(|of| (of.thread.tid, of.thread.name.as_str(), &of.calls));
    let ended = [(0, "", counts.ended())];
    let ended = ended.into_iter().filter(|(.., calls)| !calls.is_empty());
    let last = v1::CallCounts {
        pid,
        unnamed: counts.unnamed(),
        ..v1::CallCounts::default()
    };
    threads
        .chain(ended)
        .flat_map(move |(tid, thread, calls)| {
            let functions: Vec<v1::FunctionCalls> = rows(session, calls).collect();
            let parts: Vec<v1::CallCounts> = functions
                .chunks(FUNCTIONS_PER_MESSAGE)
                .map(|part| v1::CallCounts {
                    pid,
                    tid,
                    thread: thread.to_owned(),
                    functions: part.to_vec(),
                    unnamed: 0,
                })
                .collect();
            parts
        })
        .chain([last])
}

fn rows(
    session: &Session,
    calls: &BTreeMap<FunctionId, u64>,
) -> impl Iterator<Item = v1::FunctionCalls> {
    calls.iter().filter_map(|(&id, &calls)| {
        let (module, name) = session.as_ref().tables.functions.name(id)?;
        Some(v1::FunctionCalls {
            id: id.0,
            name,
            module,
            calls,
        })
    })
}
