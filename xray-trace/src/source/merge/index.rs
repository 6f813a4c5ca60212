//! The index of a trace, moved into the merged one: the calls that are open at the begins of
//! blocks. Without it, an analysis of a window would follow each thread from its first event on.

use std::collections::HashSet;
use std::io;

use super::ids::{Ids, Places};
use super::time::Moments;
use crate::container::{OpenCall, OpenCallsEncoder};
use crate::model::{ThreadId, Trace};
use crate::source::OpenError;
use crate::source::spool::Spool;

/// Adds the index of a trace whose blocks were added. The entries count the blocks of a thread, so
/// the threads in `cut`, which lack blocks or events, have no index.
pub(super) fn add_index(
    trace: &Trace,
    time: &mut impl Moments,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
    cut: &HashSet<ThreadId>,
) -> Result<(), OpenError> {
    for (thread, sections) in trace.index().filter(|(thread, _)| !cut.contains(thread)) {
        let mut encoder = OpenCallsEncoder::new(places.thread(ids, thread)?, 0);
        let mut moved = Vec::new();
        for section in sections {
            section.each(|block, open| {
                moved.clear();
                for call in open {
                    moved.push(OpenCall {
                        function: places.function_of_event(ids, call.function)?,
                        start: time.at(call.start),
                        args: call.args,
                    });
                }
                encoder.entry(block, moved.iter().copied());
                Ok::<(), io::Error>(())
            })?;
        }
        for section in encoder.finish() {
            spool.writer.open_calls(&section)?;
        }
    }
    Ok(())
}
