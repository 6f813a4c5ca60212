//! Answers about functions.

use xray_trace::model::SourceLine;
use xrayd_proto::v1;

use crate::{
    Pid,
    types::{Capture, FunctionRow},
};

pub(crate) fn function(pid: Pid, row: FunctionRow) -> v1::FunctionInfo {
    let FunctionRow {
        id,
        module,
        name,
        symbol,
        source,
        sleds,
        event_sleds,
        enabled,
        suppressed,
        capture,
        calls,
        xray_id,
        address,
        size,
        always_instrumented,
    } = row;
    v1::FunctionInfo {
        pid: pid.as_u32(),
        id: id.0,
        module,
        name,
        symbol: symbol.unwrap_or_default(),
        source: source.map(source_line).unwrap_or_default(),
        sleds,
        event_sleds,
        enabled,
        suppressed,
        calls,
        xray_id,
        address,
        size,
        always_instrumented,
        capture: (!capture.is_none()).then(|| self::capture(capture)),
    }
}

pub(crate) fn capture(capture: Capture) -> v1::Capture {
    v1::Capture {
        arguments: capture.arguments().into(),
        result: capture.has_result(),
    }
}

/// `file:line`, or only the file if the line is unknown.
fn source_line(source: SourceLine) -> String {
    match source {
        SourceLine { file, line: 0 } => file,
        SourceLine { file, line } => format!("{file}:{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_line_is_file_and_line() {
        let file = || "src/a.rs".to_owned();
        assert_eq!(
            source_line(SourceLine {
                file: file(),
                line: 12
            }),
            "src/a.rs:12"
        );
        assert_eq!(
            source_line(SourceLine {
                file: file(),
                line: 0
            }),
            "src/a.rs"
        );
    }
}
