//! Foreign logs as traces: logs by our sinks and by LLVM's tools come back unchanged.

use std::io::{Seek as _, Write as _};

use proptest::prelude::*;
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::llvm::Format;
use xray_trace::model::CallKind::{Enter, Exit, TailExit};
use xray_trace::model::{DataKind, Event, Trace};
use xray_trace::sink::{Fdr, Sink as _};
use xray_trace::source::{OpenError, Opened, Options, open};

use crate::common::{any_events, call, call_with, trace};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

fn opened(bytes: &[u8]) -> Result<Opened, OpenError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    open(file, &Options::default())
}

fn fdr(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    Fdr.write(trace, &mut bytes).unwrap();
    bytes
}

/// A thread's id; the function's id or the user event's data; the time; an argument.
type Happening = (u32, String, u64, Option<u64>);

fn happenings(trace: &Trace) -> Vec<Happening> {
    let mut all = Vec::new();
    let id = |function| trace.function(function).map(|known| known.xray_id);
    for mut steps in Steps::of_threads(trace) {
        let Some(tid) = trace.thread(steps.thread()).map(|thread| thread.tid) else {
            continue;
        };
        while let Some(step) = steps.next() {
            all.extend(match step {
                Step::Enter(open) => id(open.function)
                    .map(|id| (tid, format!("+{id}"), open.start.0, open.args.first())),
                Step::Leave(call) => id(call.open.function).map(|id| {
                    let how = if call.how == Ending::TailExit {
                        "tail "
                    } else {
                        ""
                    };
                    (tid, format!("{how}-{id}"), call.end.0, None)
                }),
                Step::Data(user_event) => {
                    let data = steps.data(&user_event).escape_ascii();
                    let what = match user_event.kind {
                        DataKind::Custom => format!("said {data}"),
                        DataKind::Kernel(_) => unreachable!("the trace has none"),
                        DataKind::Typed(number) => format!("said {number} {data}"),
                    };
                    Some((tid, what, user_event.ticks.0, None))
                }
                Step::Lost { .. } => None,
            });
        }
    }
    all
}

#[test]
fn a_flight_log_is_a_trace() {
    let events = [
        call(5_000_000_100, 0, Enter),
        call_with(5_000_000_110, 1, 77),
        call(5_000_000_300, 1, TailExit),
        call(9_999_999_999, 0, Exit),
    ];
    let original = trace(&NAMES, &[&events, &events]);
    let Opened {
        trace,
        format,
        notes,
    } = opened(&fdr(&original)).unwrap();
    assert!(matches!(format, Format::Fdr(_)), "{format:?}");
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(happenings(&trace), happenings(&original));
    assert_eq!(trace.threads().len(), 2);
    // A tick is a nanosecond in these traces, and the log has that rate.
    assert_eq!(trace.clock().monotonic_ns(events[3].ticks), 9_999_999_999);
    assert_eq!(
        trace.clock().wall_ns(events[0].ticks) / 1000,
        original.clock().wall_ns(events[0].ticks) / 1000
    );
}

#[test]
fn our_own_format_is_opened_as_it_is() {
    let original = trace(&NAMES, &[&[call(1, 0, Enter), call(2, 0, Exit)]]);
    let bytes = original.write(Vec::new(), &[]).unwrap();
    let Opened { trace, format, .. } = opened(&bytes).unwrap();
    assert_eq!(format, Format::Xtrace);
    assert_eq!(trace.functions(), original.functions());
    assert_eq!(happenings(&trace), happenings(&original));
}

#[test]
fn a_file_that_is_no_trace_is_reported() {
    for (bytes, expected) in [
        (&b""[..], "the file is empty"),
        (b"hello, world, this is text", "not a trace"),
        (&0x7872_6179_7072_6f66_u64.to_le_bytes(), "not a trace"),
    ] {
        let error = opened(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{bytes:?}: {error}");
    }
}

proptest! {
    #[test]
    fn any_trace_comes_back_from_a_flight_log(events in any_events(0..200)) {
        let events: Vec<Event> = events;
        let original = trace(&NAMES, &[&events]);
        let back = opened(&fdr(&original)).unwrap();
        prop_assert_eq!(happenings(&back.trace), happenings(&original));
    }

    #[test]
    fn cut_logs_are_an_error_or_a_trace(events in any_events(1..40), part in 0.0..1.0_f64) {
        let bytes = fdr(&trace(&NAMES, &[&events]));
        #[expect(clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a part of a length")]
        let cut = (bytes.len() as f64 * part) as usize;
        let _ = opened(&bytes[..cut]);
    }
}
