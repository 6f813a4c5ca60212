//! Exits without an entry, a line each.

use xray_trace::analysis::UnmatchedExit;
use xray_trace::model::{CallKind, Trace};

use super::{Names, text};

/// An exit without an entry in the words of `llvm-xray stack`, followed by the open calls of its
/// thread, innermost first.
pub(crate) fn line(exit: &UnmatchedExit, trace: &Trace, names: Names) -> String {
    let UnmatchedExit {
        thread,
        function,
        kind,
        ticks,
        open,
    } = exit;
    let tid = trace.thread(*thread).map_or(thread.0, |thread| thread.tid);
    let name = |function| text::printable(&names.show(&trace.function_name(function)));
    let kind = match kind {
        CallKind::Enter => "Fn Entry",
        CallKind::Exit => "Fn Exit",
        CallKind::TailExit => "Fn Tail Exit",
    };
    let open: Vec<_> = open.iter().map(|function| name(*function)).collect();
    let stack = if open.is_empty() {
        "(empty stack)".to_owned()
    } else {
        open.join(" < ")
    };
    format!(
        "Found record {{FuncId: \"{}\", ThreadId: \"{tid}\", RecordType: \"{kind}\"}} with no matching function entry, at tick {}; its thread's stack: {stack}",
        name(*function),
        ticks.0
    )
}
