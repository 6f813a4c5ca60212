//! Traces from our own exports in JSON lines, CSV and trace events, and from trace events of other
//! programs. The tests of both, and helpers, are here.

mod chrome;
mod ctf;
mod perf;
mod rows;

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::PathBuf;

use proptest::prelude::*;
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::llvm::{Format, Mode};
use xray_trace::model::Trace;
use xray_trace::sink;
use xray_trace::source::{OpenError, Opened, Options, open};

use crate::any_trace::any_trace;
use crate::common::{any_events, trace};

const GOLDEN: [&str; 4] = ["calls", "processes", "snapshot", "cut"];

fn opened_in(bytes: &[u8], mode: Mode) -> Result<Opened, OpenError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    let options = Options {
        mode,
        ..Options::default()
    };
    open(file, &options)
}

fn opened(text: &str) -> Opened {
    opened_in(text.as_bytes(), Mode::Strict).unwrap()
}

fn error(text: &str) -> String {
    opened_in(text.as_bytes(), Mode::Strict)
        .unwrap_err()
        .to_string()
}

fn salvaged(text: &str) -> Opened {
    opened_in(text.as_bytes(), Mode::Salvage).unwrap()
}

fn exported(trace: &Trace, format: &str) -> String {
    let Some(sink::Format::File(sink)) = sink::by_name(format) else {
        panic!("{format} is a file");
    };
    let mut bytes = Vec::new();
    sink.write(trace, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn golden(name: &str) -> Trace {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let file = File::open(path.join(name).with_extension("xtrace")).unwrap();
    open(file, &Options::default()).unwrap().trace
}

/// The steps of all threads as text: time, thread, `+` or `-` and a function, data.
fn steps(trace: &Trace) -> Vec<String> {
    let mut all = Vec::new();
    for mut steps in Steps::of_threads(trace) {
        let thread = trace.thread(steps.thread()).unwrap();
        let process = trace.process(thread.process).unwrap();
        let (pid, tid) = (process.pid, thread.tid);
        while let Some(step) = steps.next() {
            let what = match step {
                Step::Enter(open) => {
                    let args = match open.args.as_slice() {
                        [] => String::new(),
                        args => format!(" {args:?}"),
                    };
                    let name = trace.function_name(open.function);
                    format!("{} +{name}{args}", open.start_ns)
                }
                Step::Leave(call) => {
                    let how = match call.how {
                        Ending::Normal => "",
                        Ending::TailExit => " tail",
                        Ending::Closed => " closed",
                    };
                    let result = call.result.map(|result| format!(" = {result}"));
                    let name = trace.function_name(call.open.function);
                    let result = result.unwrap_or_default();
                    format!("{} -{name}{result}{how}", call.end_ns)
                }
                Step::Data(event) => {
                    let data = steps.data(&event).escape_ascii().to_string();
                    format!("{} {:?} {data}", event.ns, event.kind)
                }
                Step::Lost { ticks, events } => format!("{} lost {events}", ticks.0),
            };
            all.push(format!("{pid}/{tid} {what}"));
        }
    }
    all
}

/// Trace events without the fields of a process and a thread.
fn of_thread(events: &[&str]) -> String {
    let events: Vec<_> = events
        .iter()
        .map(|event| format!("{{\"pid\":1,\"tid\":2,{event}}}"))
        .collect();
    format!("[{}]", events.join(",\n"))
}

/// The notes as text, in order.
fn notes(opened: &Opened) -> Vec<String> {
    let notes = opened.notes.iter();
    notes
        .map(|(what, count)| format!("{count} {what}"))
        .collect()
}

#[test]
fn exports_of_golden_traces_come_back_unchanged() {
    for name in GOLDEN {
        let original = golden(name);
        for (format, expected) in [
            ("jsonl", Format::JsonLines),
            ("csv", Format::Csv),
            ("chrome", Format::Chrome),
        ] {
            let text = exported(&original, format);
            let back = opened(&text);
            assert_eq!(back.format, expected, "{name}");
            assert_eq!(back.notes, [], "{name} as {format}");
            let again = exported(&back.trace, format);
            // An imported trace has a clock, even if the original has only one anchor.
            let text = text.replace("one anchor: a tick is shown as a nanosecond", "measured");
            let mut lines = text.lines().zip(again.lines());
            let other = lines.find(|(one, other)| one != other);
            assert!(text == again, "{name} as {format}: {other:?}");
        }
    }
}

#[test]
fn event_types_with_one_number_and_other_names_stay_apart() {
    const RENUMBERED: &str =
        "2 types of typed events that got a free number, because another type has theirs";
    let types = [(7, "a"), (7, "b"), (7, "a"), (7, ""), (65535, "c")];
    let rows = types.map(|(number, name)| {
        format!(
            "{{\"time_ns\":1,\"pid\":1,\"tid\":2,\"event\":\"typed\",\"event_type\":{number},\
             \"event_type_name\":\"{name}\",\"data\":\"x\"}}\n"
        )
    });
    let events = types.map(|(number, name)| {
        let name = match name {
            "" => format!("typed event {number}"),
            name => name.to_owned(),
        };
        let args = format!(r#""args":{{"data":"x","type":"{number}"}}"#);
        format!(r#""ph":"i","ts":0.001,"name":"{name}",{args}"#)
    });
    for text in [
        rows.concat(),
        of_thread(&events.each_ref().map(String::as_str)),
    ] {
        let back = opened(&text);
        let numbers = [7, 65535, 7, 7, 65534];
        assert_eq!(
            steps(&back.trace),
            numbers.map(|number| format!("1/2 1 Typed({number}) x"))
        );
        let types = back.trace.event_types().iter();
        let types: Vec<_> = types.map(|known| (known.number, &*known.name)).collect();
        assert_eq!(types, [(7, "a"), (65534, "c"), (65535, "b")]);
        assert_eq!(notes(&back), [RENUMBERED]);
    }
}

/// The lines of trace events without the data that an import cannot have: the end of a call without
/// an exit, and the size of data that the export has escaped.
fn comparable(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let end = match line {
            _ if line.contains("no exit seen") => line.find("\"ts\":"),
            _ if line.contains("\\\\x") => line.find(",\"size\":"),
            _ => None,
        };
        line[..end.unwrap_or(line.len())].trim_end_matches(['}', ','])
    });
    lines.collect::<Vec<_>>().join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_of_any_trace_come_back_unchanged(trace in any_trace()) {
        for format in ["jsonl", "csv"] {
            let text = exported(&trace, format);
            let back = opened(&text);
            prop_assert_eq!(&back.notes, &[]);
            prop_assert_eq!(exported(&back.trace, format), text);
        }
    }

    #[test]
    fn trace_events_of_any_trace_come_back_unchanged(trace in any_trace()) {
        let text = exported(&trace, "chrome");
        let back = opened(&text);
        prop_assert_eq!(&back.notes, &[]);
        let again = exported(&back.trace, "chrome");
        prop_assert_eq!(comparable(&again), comparable(&text));
    }

    #[test]
    fn cut_and_changed_exports_are_an_error_or_a_trace(
        events in any_events(1..40),
        cut in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let trace = trace(&["a", "b,\"", "c", "d", "e", "f", "g", "h"], &[&events]);
        for format in ["jsonl", "csv", "chrome"] {
            let mut bytes = exported(&trace, format).into_bytes();
            for (place, byte) in &changes {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            for mode in [Mode::Strict, Mode::Salvage] {
                if let Ok(back) = opened_in(&bytes, mode) {
                    let _ = steps(&back.trace);
                }
            }
        }
    }
}
