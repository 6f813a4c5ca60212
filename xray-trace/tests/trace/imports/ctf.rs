//! Traces in the Common Trace Format.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use xray_trace::llvm::Format;
use xray_trace::llvm::Mode;
use xray_trace::model::Trace;
use xray_trace::source::{OpenError, Opened, Options, open_folder};

use super::{GOLDEN, exported as exported_as, golden, notes, steps};
use crate::any_trace::any_trace;
use crate::common::{any_events, trace};
use crate::sinks::export_folder;

/// The head of a metadata with a clock, integers, and packets with sizes, as LTTng writes it.
const HEAD: &str = r#"/* CTF 1.8 */
typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
typealias integer { size = 64; align = 8; signed = false; } := unsigned long;
trace {
	major = 1; minor = 8;
	uuid = "0f9d8a4c-4bb7-4b3f-9d3b-1f2e3d4c5b6a";
	byte_order = le;
	packet.header := struct { uint32_t magic; uint8_t uuid[16]; uint32_t stream_id; };
};
env { domain = "ust"; tracer_major = 2; };
clock { name = "monotonic"; freq = 2000000000; offset = 17; };
typealias integer { size = 27; align = 1; signed = false; map = clock.monotonic.value; } := uint27_clock_monotonic_t;
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := uint64_clock_monotonic_t;
struct packet_context {
	uint64_clock_monotonic_t timestamp_begin;
	uint64_clock_monotonic_t timestamp_end;
	uint64_t content_size;
	uint64_t packet_size;
	uint32_t cpu_id;
};
struct event_header_compact {
	enum : integer { size = 5; align = 1; signed = false; } { compact = 0 ... 30, extended = 31 } id;
	variant <id> {
		struct { uint27_clock_monotonic_t timestamp; } compact;
		struct { uint32_t id; uint64_clock_monotonic_t timestamp; } extended;
	} v;
} align(8);
stream {
	id = 0;
	event.header := struct event_header_compact;
	packet.context := struct packet_context;
	event.context := struct {
		integer { size = 32; align = 8; signed = true; } _vpid;
		integer { size = 32; align = 8; signed = true; } _vtid;
		integer { size = 8; align = 8; signed = true; encoding = UTF8; } _procname[17];
	};
};
event {
	name = "lttng_ust_cyg_profile:func_entry"; id = 0; stream_id = 0; loglevel = 12;
	fields := struct { unsigned long _addr; unsigned long _call_site; };
};
event {
	name = "lttng_ust_cyg_profile_fast:func_exit"; id = 1; stream_id = 0;
	fields := struct { };
};
event {
	name = "my:other"; id = 2; stream_id = 0;
	fields := struct {
		floating_point { exp_dig = 8; mant_dig = 24; align = 8; } _f;
		uint8_t __n_length;
		uint8_t _n[ __n_length ];
		string _text;
	};
};
"#;

/// Files of a trace, in a folder of their own.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn opened_in(dir: &Path, mode: Mode) -> Result<Opened, OpenError> {
    let options = Options {
        mode,
        ..Options::default()
    };
    open_folder(dir, &options)
}

fn error(dir: &Path) -> String {
    opened_in(dir, Mode::Strict).unwrap_err().to_string()
}

/// The steps of each thread in their order.
fn by_thread(trace: &Trace) -> Vec<String> {
    let mut steps = steps(trace);
    let thread = |step: &str| step.split(' ').next().unwrap_or_default().to_owned();
    steps.sort_by_key(|step| thread(step));
    steps
}

/// The rows of a trace, without what the format does not hold: ids of functions, modules, and the
/// processes of types.
fn rows(trace: &Trace) -> Vec<String> {
    let text = exported_as(trace, "jsonl");
    let rows = text.lines().map(|row| {
        let mut row: serde_json::Value = serde_json::from_str(row).unwrap();
        let fields = row.as_object_mut().unwrap();
        let is_call = ["enter", "exit", "tail-exit"].contains(&fields["event"].as_str().unwrap());
        for field in ["function_id", "module", "event_type_name"] {
            fields.remove(field);
        }
        let name = fields.get("function").and_then(serde_json::Value::as_str);
        // The import names a function without a name by its number.
        if !is_call || name.is_some_and(|name| name.starts_with('#')) {
            fields.remove("function");
        }
        row.to_string()
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

/// A folder with the export `ctf` of a trace.
fn exported(trace: &Trace) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    export_folder("ctf", trace, &in_it(&dir));
    dir
}

fn in_it(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("ctf")
}

/// Bytes of a packet before its events.
const BEFORE: usize = 24 + 36;

/// A packet of LTTng with these events. It ends with four bytes that are no content.
fn packet(begin: u64, events: &[Vec<u8>]) -> Vec<u8> {
    let events = events.concat();
    let size = 8 * (BEFORE + events.len()) as u64;
    let mut packet = 0xc1fc_1fc1_u32.to_le_bytes().to_vec();
    // The uuid and the number of the stream.
    packet.extend([0; 20]);
    for word in [begin, begin + 1000, size, size + 32] {
        packet.extend(word.to_le_bytes());
    }
    // The number of the processor.
    packet.extend([0; 4]);
    packet.extend(events);
    packet.extend([0; 4]);
    packet
}

/// An event of LTTng in the thread 8 of the process 7.
fn event(id: u32, time: u64, is_extended: bool, fields: &[u8]) -> Vec<u8> {
    let mut event = match is_extended {
        false => (id | (time as u32) << 5).to_le_bytes().to_vec(),
        true => {
            let mut head = vec![31];
            head.extend(id.to_le_bytes());
            head.extend(time.to_le_bytes());
            head
        }
    };
    event.extend(7_u32.to_le_bytes());
    event.extend(8_u32.to_le_bytes());
    let mut name = b"server".to_vec();
    name.resize(17, 0);
    event.extend(name);
    event.extend(fields);
    event
}

fn entry(time: u64, address: u64) -> Vec<u8> {
    let fields = [address.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    event(0, time, false, &fields)
}

#[test]
fn exports_of_golden_traces_come_back_unchanged() {
    for name in GOLDEN {
        let original = golden(name);
        let back = opened_in(&in_it(&exported(&original)), Mode::Strict).unwrap();
        assert_eq!(back.format, Format::Ctf, "{name}");
        assert_eq!(back.notes, [], "{name}");
        assert!(by_thread(&back.trace) == by_thread(&original), "{name}");
        let names = |trace: &Trace| {
            let threads = trace.threads().iter();
            let names = threads.map(|thread| (thread.tid, thread.name.clone()));
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert_eq!(names(&back.trace), names(&original), "{name}");
    }
}

/// Headers of both kinds, times with few bits that go over their end, two files with events of one
/// thread, and metadata in packets.
#[test]
fn calls_of_lttng_are_read() {
    let begin = (1 << 27) - 10;
    let one = [
        entry(begin, 0x1000),
        entry(begin + 4, 0x2000),
        // The low bits begin anew.
        event(1, (begin + 20) & 0x7ff_ffff, false, &[]),
    ];
    let other = [
        event(2, begin + 6, true, b"\0\0\x80\x3f\x03abctext\0"),
        event(1, begin + (1 << 30), true, &[]),
        // An exit without an entry.
        event(1, begin + (1 << 30) + 2, true, &[]),
    ];
    let mut packed = Vec::new();
    for text in [&HEAD[..100], &HEAD[100..]] {
        let size = ((37 + text.len()) * 8) as u32;
        packed.extend(0x75d1_1d57_u32.to_le_bytes());
        packed.extend([0; 20]);
        packed.extend(size.to_le_bytes());
        packed.extend((size + 64).to_le_bytes());
        packed.extend([0, 0, 0, 1, 8]);
        packed.extend(text.as_bytes());
        packed.extend([0; 8]);
    }
    let streams = [packet(begin, &one), packet(begin, &other)];
    for metadata in [HEAD.as_bytes(), &packed] {
        let dir = folder(&[
            ("metadata", metadata),
            ("channel_0", &streams[0]),
            ("channel_1", &streams[1]),
        ]);
        // LTTng's own index.
        fs::create_dir(dir.path().join("index")).unwrap();
        let back = opened_in(dir.path(), Mode::Strict).unwrap();
        let at = |ticks: u64| (begin + ticks) / 2;
        let expected = [
            format!("7/8 {} +0x1000", at(0)),
            format!("7/8 {} +0x2000", at(4)),
            format!("7/8 {} -0x2000", at(20)),
            format!("7/8 {} -0x1000", at(1 << 30)),
        ];
        assert_eq!(steps(&back.trace), expected);
        assert_eq!(
            notes(&back),
            ["1 events that are no calls", "1 calls without a function"]
        );
        let thread = back.trace.threads().first().unwrap();
        assert_eq!(&*thread.name, "server");
    }
}

#[test]
fn metadata_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    assert!(error(dir.path()).contains("no file 'metadata'"));
    let deep = "struct { ".repeat(40);
    let mut nested = String::from("struct { } := t0;");
    nested = format!("typealias {nested}\n");
    for index in 1..40 {
        nested.push_str(&format!(
            "typealias struct {{ t{} x; }} := t{index};\n",
            index - 1
        ));
    }
    for (text, why) in [
        ("trace {\n  major = ; };", "line 2 of the metadata"),
        ("event { name = \"a\" }", "in the place of ';'"),
        (
            "stream { event.header := nothing; };",
            "there is no type 'nothing'",
        ),
        (
            "typealias integer { size = 65; } := a;",
            "an integer without a size from 1 to 64",
        ),
        (
            "typealias integer { size = 8; align = 3; } := a;",
            "the alignment 3",
        ),
        ("enum { a } ;", "an enumeration without a type"),
        ("{\"type\": \"preamble\"}", "at the begin of a declaration"),
        ("trace {", "it ends too early"),
        ("/* ", "a comment without an end"),
        (deep.as_str(), "more than 32 types are within each other"),
        (nested.as_str(), "more than 32 types are within each other"),
    ] {
        let dir = folder(&[("metadata", text.as_bytes())]);
        let error = error(dir.path());
        assert!(error.contains(why), "{text}: {error}");
    }
    let packet = [&0x75d1_1d57_u32.to_le_bytes()[..], &[0; 40]].concat();
    let dir = folder(&[("metadata", &packet)]);
    assert!(error(dir.path()).contains("a wrong size"));
}

#[test]
fn damaged_packets_are_reported_or_left_out() {
    let good = packet(100, &[entry(100, 0x1000), event(1, 110, false, &[])]);
    let later = packet(300, &[entry(300, 0x2000), event(1, 310, false, &[])]);
    let cut = &later[..later.len() - 20];
    // Behind the first event, and no event is cut.
    let between = &later[..BEFORE + entry(300, 0x2000).len()];
    let mut unknown = good.clone();
    unknown[BEFORE] |= 3;
    let mut no_packet = later.clone();
    no_packet[0] = 0;
    let steps_of = |bytes: &[u8]| {
        let dir = folder(&[("metadata", HEAD.as_bytes()), ("a", bytes)]);
        steps(&opened_in(dir.path(), Mode::Strict).unwrap().trace)
    };
    for (bytes, kept, offset, why) in [
        ([&good[..], cut].concat(), &good, good.len(), "ends within"),
        (
            [&good[..], between].concat(),
            &good,
            good.len(),
            "the file ends within the packet",
        ),
        (
            [&unknown[..], &later].concat(),
            &later,
            0,
            "does not describe an event",
        ),
        (
            [&good[..], &no_packet].concat(),
            &good,
            good.len(),
            "its number is wrong",
        ),
    ] {
        let dir = folder(&[("metadata", HEAD.as_bytes()), ("a", &bytes)]);
        let error = error(dir.path());
        let place = format!("packet of a at offset {offset}: ");
        assert!(error.starts_with(&place) && error.contains(why), "{error}");
        let back = opened_in(dir.path(), Mode::Salvage).unwrap();
        assert_eq!(notes(&back), [format!("1 left out: {error}")]);
        let found = steps(&back.trace);
        let expected = steps_of(kept);
        assert!(
            expected.iter().all(|step| found.contains(step)),
            "{found:?}"
        );
    }
    // Calls without threads.
    let bare = HEAD.replace("_vtid", "other");
    let dir = folder(&[("metadata", bare.as_bytes()), ("a", &good)]);
    assert!(error(dir.path()).contains("add-context"));
}

/// Small traces of other tools: the begin and the end of a call at the times 5 and 9 in the thread
/// 2 of the process 1.
#[test]
fn other_descriptions_are_understood() {
    let fields = "u32 vpid; u32 vtid; u32 function;";
    let events = format!(
        "event {{ name = \"function_enter\"; id = 0; fields := struct {{ {fields} }}; }};
         event {{ name = \"function_exit\"; id = 1; fields := struct {{ {fields} }}; }};"
    );
    let little = "typealias integer { size = 8; } := u8; typealias integer { size = 32; } := u32;
        trace { byte_order = le; };";
    let big = "typealias integer { size = 8; } := u8; typealias integer { size = 32; } := u32;
        trace { byte_order = be; };";
    let header = "stream { event.header := struct { u8 id; u32 timestamp; }; };";
    let bytes = |order: fn(u32) -> [u8; 4]| {
        let event = |id: u8, time: u32| {
            let words = [time, 1, 2, 3].map(order).concat();
            [&[id][..], &words].concat()
        };
        [event(0, 5), event(1, 9)].concat()
    };
    // A declaration within a block holds only there.
    let scoped = "struct hidden { typealias integer { size = 8; } := u32; u32 x; };";
    let underscored = "typedef integer { size = 8; } _t; struct unused { _t x; };";
    let (le, be) = (bytes(u32::to_le_bytes), bytes(u32::to_be_bytes));
    for (text, bytes) in [
        (format!("{little}{header}{events}"), &le),
        (format!("{big}{header}{events}"), &be),
        (format!("{little}{scoped}{header}{events}"), &le),
        (format!("{little}{underscored}{header}{events}"), &le),
    ] {
        let dir = folder(&[("metadata", text.as_bytes()), ("a", bytes)]);
        let back =
            opened_in(dir.path(), Mode::Strict).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(steps(&back.trace), ["1/2 5 +#3", "1/2 9 -#3"], "{text}");
    }
}

/// Discarded events are losses of the trace, and a gap in the numbers of packets is noted.
#[test]
fn what_lttng_discarded_is_told() {
    let counted = HEAD.replace(
        "	uint32_t cpu_id;\n};",
        "	uint32_t cpu_id;\n	uint64_t packet_seq_num;\n	uint64_t events_discarded;\n};",
    );
    let packet = |begin: u64, sequence: u64, discarded: u64| {
        let mut packet = packet(
            begin,
            &[entry(begin, 0x1000), event(1, begin + 2, false, &[])],
        );
        let words = [sequence, discarded].map(u64::to_le_bytes).concat();
        packet.splice(BEFORE..BEFORE, words);
        for at in [40, 48] {
            let size = u64::from_le_bytes(*packet[at..].first_chunk().unwrap()) + 128;
            packet[at..at + 8].copy_from_slice(&size.to_le_bytes());
        }
        packet
    };
    let bytes = [packet(100, 4, 0), packet(200, 5, 20), packet(300, 8, 25)].concat();
    let dir = folder(&[("metadata", counted.as_bytes()), ("a", &bytes)]);
    let back = opened_in(dir.path(), Mode::Strict).unwrap();
    assert_eq!(back.trace.totals().lost, 25);
    assert_eq!(
        notes(&back),
        ["2 packets that are missing, with an unknown number of events"]
    );
    assert_eq!(back.trace.totals().calls, 6);
}

/// None of these takes long, or much memory.
#[test]
fn hostile_descriptions_are_refused() {
    let mut empty = String::from("struct a0 { };");
    for index in 1..31 {
        let field = format!("struct a{} ", index - 1);
        let fields: Vec<_> = (0..10).map(|at| format!("{field} p{at};")).collect();
        empty.push_str(&format!("struct a{index} {{ {} }};", fields.concat()));
    }
    empty.push_str("trace { packet.header := struct a30; }; stream { };");
    let words = format!(
        "typealias integer {{ size = 8; }} := {};",
        "int ".repeat(1 << 20)
    );
    let bits = "typealias integer { size = 1; align = 1; } := bit;
        stream { packet.context := struct { bit x[5000]; }; event.header := struct { bit id; }; };
        event { id = 0; }; event { id = 1; };";
    for (text, why) in [
        (empty.as_str(), "an event has too many fields"),
        (words.as_str(), "a type has more than 8 words"),
        (bits, "its head has more than 64 fields"),
        (
            "clock { freq = 1; }; clock { freq = 2; };",
            "the clocks have different frequencies",
        ),
    ] {
        let dir = folder(&[("metadata", text.as_bytes()), ("a", &[0; 10_000])]);
        let error = error(dir.path());
        assert!(error.contains(why), "{why}: {error}");
    }
}

/// Calls that are deeper than what is remembered get no wrong functions.
#[test]
fn deep_calls_end_as_they_began() {
    const DEPTH: u64 = 70_000;
    let mut events = Vec::new();
    for depth in 0..DEPTH {
        events.push(entry(depth, 0x1000 + depth));
    }
    for depth in 0..DEPTH {
        events.push(event(1, DEPTH + depth, false, &[]));
    }
    let dir = folder(&[("metadata", HEAD.as_bytes()), ("a", &packet(0, &events))]);
    let back = opened_in(dir.path(), Mode::Strict).unwrap();
    let unknown = DEPTH - (1 << 16);
    assert_eq!(
        notes(&back),
        [format!("{unknown} calls without a function")]
    );
    let steps = steps(&back.trace);
    assert_eq!(
        steps.last().unwrap(),
        &format!("7/8 {} -0x1000", (2 * DEPTH - 1) / 2)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exports_of_any_trace_come_back_unchanged(trace in any_trace()) {
        let back = opened_in(&in_it(&exported(&trace)), Mode::Strict).unwrap();
        prop_assert_eq!(&back.notes, &[]);
        prop_assert_eq!(rows(&back.trace), rows(&trace));
    }

    #[test]
    fn cut_and_changed_exports_are_an_error_or_a_trace(
        events in any_events(1..40),
        cut in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        file in any::<prop::sample::Index>(),
    ) {
        let trace = trace(&["a", "b", "c", "d", "e", "f", "g", "h"], &[&events]);
        let dir = exported(&trace);
        let mut files: Vec<_> = fs::read_dir(in_it(&dir)).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let path = &files[file.index(files.len())];
        let mut bytes = fs::read(path).unwrap();
        for (place, byte) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        fs::write(path, bytes).unwrap();
        for mode in [Mode::Strict, Mode::Salvage] {
            if let Ok(back) = opened_in(&in_it(&dir), mode) {
                let _ = steps(&back.trace);
            }
        }
    }
}
