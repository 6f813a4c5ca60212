//! The Common Trace Format, read by `babeltrace2`.

use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use xray_trace::model::{CallKind, DataKind, EventBody, Trace};

use super::{NAMES, busy, export_folder, rich, run};
use crate::any_trace::any_trace;
use crate::common::{file, trace};

/// The output of `babeltrace2` for a directory: a line for each event, in order of time.
fn babeltrace(path: &Path) -> Vec<String> {
    let mut command = Command::new("babeltrace2");
    command.args(["--clock-seconds", "--no-delta"]).arg(path);
    let text = run(&mut command, "babeltrace2");
    text.lines().map(str::to_owned).collect()
}

/// The same lines, from the trace.
fn expected(trace: &Trace) -> Vec<String> {
    let first = trace.clock().anchors().first();
    let apart = first.map_or(0, |anchor| anchor.wall_ns - anchor.monotonic_ns);
    let mut lines = Vec::new();
    for (id, blocks) in trace.blocks_by_thread() {
        let thread = trace.thread(id).unwrap();
        let process = trace.process(thread.process).unwrap();
        let context = format!(
            "{{ vpid = {}, vtid = {}, process = \"{}\", thread = \"{}\" }}",
            process.pid, thread.tid, process.command, thread.name
        );
        for block in blocks {
            let mut events = block.events();
            while let Some(event) = events.next() {
                let event = event.unwrap();
                let (name, fields) = match event.body {
                    EventBody::Call {
                        function,
                        kind,
                        values,
                    } => {
                        let label = trace.function(function);
                        // The name as it is printed, in quotes.
                        let label = label
                            .map(|known| known.name.replace('\\', "\\\\").replace('"', "\\\""));
                        let label =
                            label.map_or("<unknown>".to_owned(), |name| format!("\"{name}\""));
                        let label = format!("function = ( {label} : container = {} )", function.0);
                        match (kind, values.as_slice()) {
                            (CallKind::Enter, []) => ("function_enter", label),
                            (CallKind::Enter, args) => {
                                let values = args.iter().enumerate();
                                let values =
                                    values.map(|(at, value)| format!(" [{at}] = 0x{value:X}"));
                                let values = values.collect::<Vec<_>>().join(",");
                                let count = args.len();
                                let fields =
                                    format!("{label}, count = {count}, args = [{values} ]");
                                ("function_enter_args", fields)
                            }
                            (CallKind::Exit, [result]) => (
                                "function_exit_result",
                                format!("{label}, result = 0x{result:X}"),
                            ),
                            (CallKind::Exit, _) => ("function_exit", label),
                            (CallKind::TailExit, _) => ("function_tail_exit", label),
                        }
                    }
                    EventBody::Data { kind, data } => {
                        let bytes = events.data(data).iter().enumerate();
                        let bytes = bytes.map(|(at, byte)| format!(" [{at}] = 0x{byte:X}"));
                        let bytes = bytes.collect::<Vec<_>>().join(",");
                        let (original_size, size) = (data.size(), data.len());
                        let data = format!(
                            "original_size = {original_size}, size = {size}, data = [{bytes} ]"
                        );
                        match kind {
                            DataKind::Custom => ("custom_event", data),
                            DataKind::Kernel(_) => unreachable!("the trace has none"),
                            DataKind::Typed(number) => {
                                ("typed_event", format!("{}, {data}", label(trace, number)))
                            }
                        }
                    }
                    EventBody::Cpu { cpu } => ("processor", format!("cpu = {cpu}")),
                    EventBody::Unwound { calls } => ("calls_unwound", format!("calls = {calls}")),
                    EventBody::UnmatchedExit => ("exits_astray", "exits = 1".to_owned()),
                    EventBody::Lost { events } => ("events_lost", format!("events = {events}")),
                };
                let ns = apart + trace.clock().monotonic_ns(event.ticks);
                let (s, ns) = (ns / 1_000_000_000, ns % 1_000_000_000);
                lines.push(format!("[{s}.{ns:09}] {name}: {context}, {{ {fields} }}"));
            }
        }
    }
    lines
}

/// A type as it is printed: with all names that programs have given it, each once. A name is at its
/// first place in the metadata.
fn label(trace: &Trace, number: u16) -> String {
    if trace.event_types().is_empty() {
        return format!("type = {number}");
    }
    let mut names = Vec::new();
    for known in trace.event_types() {
        if !names.contains(&known.name.as_str()) {
            names.push(known.name.as_str());
        }
    }
    let named = |name: &str| {
        let mut types = trace.event_types().iter();
        types.any(|known| known.number == number && known.name == name)
    };
    names.retain(|name| named(name));
    let names = names.into_iter().map(|name| {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{escaped}\"")
    });
    let names = match names.collect::<Vec<_>>() {
        names if names.is_empty() => "<unknown>".to_owned(),
        names => names.join(", "),
    };
    format!("type = ( {names} : container = {number} )")
}

/// Checks the lines of the reader. The order of threads with equal times is up to the reader.
fn check(trace: &Trace) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.ctf");
    export_folder("ctf", trace, &path);
    let (mut read, mut expected) = (babeltrace(&path), expected(trace));
    assert!(read.is_sorted_by_key(|line| line.split(']').next().unwrap().to_owned()));
    read.sort();
    expected.sort();
    assert_eq!(read, expected);
}

#[test]
fn babeltrace_reads_every_event() {
    check(&rich());
}

#[test]
fn babeltrace_reads_many_packets() {
    check(&trace(&NAMES, &[&busy(1000, 5000), &busy(1100, 10)]));
}

#[test]
fn babeltrace_reads_a_trace_without_functions() {
    let trace = Trace::read(file(&[], &[&busy(5, 1)]).as_slice()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.ctf");
    export_folder("ctf", &trace, &path);
    let read = babeltrace(&path);
    assert_eq!(read.len(), 6);
    assert!(read[1].ends_with("{ function = 1 }"), "{}", read[1]);
}

#[test]
fn only_losses_without_a_place_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let report = export_folder("ctf", &rich(), &dir.path().join("rich.ctf"));
    let unplaced = ("lost events at an unknown place".to_owned(), 4);
    assert_eq!((report.calls, report.left_out), (5, vec![unplaced]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn babeltrace_reads_any_trace(trace in any_trace()) {
        check(&trace);
    }
}

/// Names come from untrusted files.
#[test]
fn names_of_any_kind_do_not_break_the_description() {
    let names = [
        "\"; };",
        "\\",
        "line\nbreak",
        "*/",
        "${x}",
        "\u{7f}",
        "",
        "nul\0byte",
    ];
    let trace = trace(&names, &[&busy(5, 2)]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.ctf");
    export_folder("ctf", &trace, &path);
    assert_eq!(babeltrace(&path).len(), 10);
}
