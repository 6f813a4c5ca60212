//! Goes through a whole trace once, for data that its tables do not have: the number of calls, and
//! the open calls at the begins of blocks, which make an index of time.

use super::Filter;
use super::stack::Steps;
use super::step::{Call, Open, Siblings, Visitor};
use super::threads::by_thread;
use crate::container::{Block, OpenCalls, OpenCallsEncoder};
use crate::model::Trace;

/// Bytes of events for each byte of the index, approximately.
pub const SPACING: u64 = 64;

/// The results of going through a trace.
#[derive(Debug, Default)]
pub struct Survey {
    /// The number of calls.
    pub calls: u64,
    /// Blocks whose events could not all be unpacked.
    pub damaged_blocks: u64,
    /// The index for [`Trace::write_indexed`], by thread.
    pub index: Vec<OpenCalls>,
}

/// Counts the begins of calls.
struct Entries<'a>(&'a mut u64);

// === impl Survey ===

impl Survey {
    /// Goes through a trace. A byte of the index covers at least `spacing` bytes of events, usually
    /// [`SPACING`].
    #[must_use]
    pub fn new(trace: &Trace, spacing: u64) -> Self {
        let look = |survey: &mut Self, steps: Steps<'_>| survey.add(steps, spacing);
        let parts = by_thread(trace, &Filter::default(), Siblings::Closed, look);
        let mut all = Self::default();
        for part in parts {
            let Self {
                calls,
                damaged_blocks,
                index,
            } = part;
            all.calls += calls;
            all.damaged_blocks += damaged_blocks;
            all.index.extend(index);
        }
        all.index
            .sort_by_key(|open| (open.thread, open.first_block));
        all
    }

    fn add(&mut self, mut steps: Steps<'_>, spacing: u64) {
        let len = |block: &&Block| block.encoded_len() as u64;
        let mut encoder = OpenCallsEncoder::new(steps.thread(), spacing);
        while let Some(block) = steps.blocks().first() {
            encoder.block(steps.open_calls(), len(block));
            steps.visit_block(&mut Entries(&mut self.calls));
        }
        self.index.extend(encoder.finish());
        self.damaged_blocks += steps.notes().damaged_blocks;
    }
}

// === impl Entries ===

impl Visitor for Entries<'_> {
    #[inline(always)]
    fn enter(&mut self, _: &Open) {
        *self.0 += 1;
    }

    #[inline(always)]
    fn leave(&mut self, _: &Call) {}
}
