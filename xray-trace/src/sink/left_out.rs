//! Counts data of a trace that formats of calls alone, or of sums, leave out.

use super::Report;
use crate::analysis::{Ending, Step};

/// Counts of the data that such a format leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeftOut {
    arguments: u64,
    results: u64,
    data: u64,
    closed: u64,
    lost: u64,
}

// === impl LeftOut ===

impl LeftOut {
    #[inline]
    pub(super) fn see(&mut self, step: &Step) {
        match step {
            Step::Enter(open) => self.arguments += u64::from(!open.args.is_empty()),
            Step::Leave(call) => {
                self.closed += u64::from(call.how == Ending::Closed);
                self.results += u64::from(call.result.is_some());
            }
            Step::Data(_) => self.data += 1,
            Step::Lost { events, .. } => self.lost = self.lost.saturating_add(*events),
        }
    }

    pub(super) fn tell(self, report: &mut Report) {
        let Self {
            arguments,
            results,
            data,
            closed,
            lost,
        } = self;
        report.leave_out("arguments of calls", arguments);
        report.leave_out("results of calls", results);
        report.leave_out("custom and typed events", data);
        report.leave_out(
            "missing exits, assumed where the call was last seen open",
            closed,
        );
        report.leave_out("lost events", lost);
    }
}
