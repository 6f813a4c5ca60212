//! Messages about traces that do not show, or not for every call, when threads had a processor.

use std::path::Path;

use xray_trace::analysis::{Filter, LeastTimes, Order, Shown, Tree, TreeLine};
use xray_trace::model::Trace;

use crate::failure::Failure;
use crate::output::units;

/// The error for a file that does not have when threads had a processor.
pub(crate) fn no_run_times(file: &Path) -> anyhow::Error {
    let what = format!(
        "{} does not have when threads had a processor: traces of record have it, unless it was \
         left out with --no-sched",
        file.display()
    );
    Failure::Usage(what).into()
}

/// A note on calls that meet no bound on their time with or without a processor, because that time
/// is not known. `None` if there is no such call.
pub(crate) fn note_on_unknown(trace: &Trace, filter: &Filter, least: LeastTimes) -> Option<String> {
    let shown = Shown {
        least: LeastTimes::of_duration(least.duration_ns),
        levels: None,
    };
    let ended = Tree::new(trace, filter, shown, Order::ByThread).filter_map(|line| match line {
        TreeLine::Leaf(call) | TreeLine::End(call) => Some(call),
        TreeLine::Begin(_) | TreeLine::Data { .. } | TreeLine::Lost { .. } => None,
    });
    let unknown = ended.filter(|call| call.off_cpu.is_none()).count() as u64;
    (unknown > 0).then(|| {
        let calls = units::counted(unknown, "call");
        format!("{calls} may be left out: it is not known when their threads had a processor")
    })
}
