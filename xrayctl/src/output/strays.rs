//! Exits without an entry, a line each.

use xray_trace::analysis::Stray;
use xray_trace::model::{CallKind, Trace};

use super::text;

/// An exit without an entry in the words of `llvm-xray stack`, and behind them the calls that were open in its thread, innermost
/// first.
pub(crate) fn line(stray: &Stray, trace: &Trace) -> String {
    let Stray {
        thread,
        function,
        kind,
        ticks,
        open,
    } = stray;
    let tid = trace.thread(*thread).map_or(thread.0, |thread| thread.tid);
    let name = |function| text::printable(&trace.function_name(function));
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
