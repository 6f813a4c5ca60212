//! The index of a trace, moved into the merged one: the calls that are open at the begins of
//! blocks. Without it, an analysis of a window would follow each thread from its first event on.

use std::collections::HashMap;
use std::io;

use super::ids::{Ids, NO_THREAD, Places};
use super::time::Moments;
use crate::container::{Block, OpenCall, OpenCallsEncoder};
use crate::model::{ThreadId, Ticks, Trace};
use crate::source::OpenError;
use crate::source::spool::Spool;

/// The blocks of a thread that were added to the merged trace.
#[derive(Debug, Default)]
pub(super) struct ThreadBlocks {
    count: u64,
    /// The begin of the latest block.
    begin: Option<Ticks>,
    /// True if blocks or events are missing, or if the blocks get another order.
    are_changed: bool,
}

// === impl ThreadBlocks ===

impl ThreadBlocks {
    /// Adds the next block. `is_as_before` is false if the block is left out or lacks events.
    pub(super) fn add(&mut self, block: &Block, is_as_before: bool) {
        // The merged trace has its blocks in order of their begins.
        let is_next = self.begin.is_none_or(|begin| begin <= block.first);
        self.are_changed |= !is_as_before || !is_next;
        self.begin = Some(block.first);
        self.count += 1;
    }
}

/// Adds the index of a trace whose blocks were added. The entries count the blocks of a thread, so
/// threads with changed blocks have no index. Neither has the thread that all traces share.
pub(super) fn add_index(
    trace: &Trace,
    time: &mut impl Moments,
    (places, ids): (&mut Places, &mut Ids),
    spool: &mut Spool,
    threads: &HashMap<ThreadId, ThreadBlocks>,
) -> Result<(), OpenError> {
    for (thread, sections) in trace.index() {
        let blocks = threads.get(&thread).filter(|blocks| !blocks.are_changed);
        let Some(blocks) = blocks.filter(|_| thread != NO_THREAD) else {
            continue;
        };
        let mut encoder = OpenCallsEncoder::new(places.thread(ids, thread)?, 0);
        let mut moved = Vec::new();
        for section in sections {
            section.each(blocks.count, |block, kept, open| {
                moved.truncate(kept);
                for call in open.iter().skip(kept) {
                    moved.push(OpenCall {
                        function: places.function_of_event(ids, call.function)?,
                        start: time.at(call.start),
                        args: call.args,
                    });
                }
                encoder.entry(block, kept, &moved);
                Ok::<(), io::Error>(())
            })?;
        }
        for section in encoder.finish() {
            spool.writer.open_calls(&section)?;
        }
    }
    Ok(())
}
