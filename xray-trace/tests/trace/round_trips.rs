//! Traces that are written in formats which we also read come back unchanged: our own format, and
//! LLVM's formats as far as they can hold them.

use std::collections::BTreeMap;
use std::io::{Seek as _, Write as _};

use proptest::prelude::*;
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::model::{DataKind, Event, FunctionId, Trace};
use xray_trace::sink::{self, Format};
use xray_trace::source::{Options, open};

use crate::any_trace::any_trace;

/// An event of a thread: time, processor (0 if unknown), kind, and an argument.
type Happening = (u64, u16, String, Option<u64>);
/// The events by process and thread.
type Happenings = BTreeMap<(u32, u32), Vec<Happening>>;

/// The data that a format of LLVM keeps.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    /// Calls by the ids of functions, and processors up to 255.
    Calls,
    /// Also user events with data, and all processors.
    Words,
    /// Also the names of functions, but only user events that are text.
    NamesAndTexts,
}

/// Each program numbers its functions from 1. LLVM's formats have the program's number above 24
/// bits with the function's.
fn happenings(trace: &Trace, keeps: Keeps) -> Happenings {
    let label = |id: FunctionId| {
        let known = trace.function(id)?;
        let number = known.module.0 << 24 | known.xray_id;
        Some(match keeps {
            Keeps::NamesAndTexts => format!("{number} {}", known.name),
            Keeps::Calls | Keeps::Words => number.to_string(),
        })
    };
    let mut all = Happenings::new();
    for mut steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let process = trace.process(thread.process).unwrap();
        let mut happenings = Vec::new();
        while let Some(step) = steps.next() {
            let cpu = steps.processor().unwrap_or(0);
            let cpu = if keeps == Keeps::Calls && cpu > 255 {
                0
            } else {
                cpu
            };
            happenings.extend(match step {
                Step::Enter(open) => label(open.function)
                    .map(|label| (open.start.0, cpu, format!("+{label}"), open.args.first())),
                Step::Leave(call) => label(call.open.function).map(|label| {
                    let tail = call.how == Ending::TailExit;
                    let how = if tail { "tail " } else { "" };
                    (call.end.0, cpu, format!("{how}-{label}"), None)
                }),
                Step::Data(user_event) => {
                    let data = steps.data(&user_event);
                    let data = match keeps {
                        Keeps::Calls => continue,
                        Keeps::Words if data.is_empty() => continue,
                        Keeps::Words => data.escape_ascii().to_string(),
                        Keeps::NamesAndTexts => String::from_utf8_lossy(data).into_owned(),
                    };
                    let what = match user_event.kind {
                        DataKind::Custom => format!("said {data}"),
                        DataKind::Kernel(_) => unreachable!("the trace has none"),
                        DataKind::Typed(number) => format!("said {number} {data}"),
                    };
                    Some((user_event.ticks.0, cpu, what, None))
                }
                Step::Lost { .. } => None,
            });
        }
        if !happenings.is_empty() {
            all.insert((process.pid, thread.tid), happenings);
        }
    }
    all
}

fn exported(trace: &Trace, format: &str) -> Vec<u8> {
    let Some(Format::File(sink)) = sink::by_name(format) else {
        panic!("{format} is no format of one file");
    };
    let mut bytes = Vec::new();
    sink.write(trace, &mut bytes).unwrap();
    bytes
}

fn opened(bytes: &[u8]) -> Trace {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    let opened = open(file, &Options::default()).unwrap();
    assert!(opened.notes.is_empty(), "{:?}", opened.notes);
    opened.trace
}

/// Every event of every thread, with its data.
fn events(trace: &Trace) -> Vec<(Event, Vec<u8>)> {
    let mut all = Vec::new();
    for block in trace.blocks_by_thread().into_values().flatten() {
        let mut events = block.events();
        while let Some(event) = events.next() {
            let event = event.unwrap();
            let data = match event.body {
                xray_trace::model::EventBody::Data { data, .. } => events.data(data).to_vec(),
                _ => Vec::new(),
            };
            all.push((event, data));
        }
    }
    all
}

proptest! {
    #[test]
    fn any_trace_comes_back_from_our_own_format(original in any_trace()) {
        let back = opened(&exported(&original, "xtrace"));
        prop_assert_eq!(back.processes(), original.processes());
        prop_assert_eq!(back.modules(), original.modules());
        prop_assert_eq!(back.functions(), original.functions());
        prop_assert_eq!(back.threads(), original.threads());
        prop_assert_eq!(&back.coverage().losses, &original.coverage().losses);
        prop_assert_eq!(back.clock().anchors(), original.clock().anchors());
        prop_assert_eq!(events(&back), events(&original));
    }

    #[test]
    fn any_trace_comes_back_from_llvms_formats(original in any_trace()) {
        for (format, keeps) in [
            ("fdr", Keeps::Words),
            ("basic", Keeps::Calls),
            ("yaml", Keeps::NamesAndTexts),
        ] {
            let back = opened(&exported(&original, format));
            prop_assert_eq!(happenings(&back, keeps), happenings(&original, keeps), "{}", format);
        }
    }
}
