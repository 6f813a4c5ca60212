//! The worked example in `docs/trace-format.md` equals the output of the writer, and the reader
//! reads it.

use crate::common::{Enter, Exit, TailExit, anchor, blocks, call, call_with, lost};
use xray_trace::FileAddr;
use xray_trace::analysis::Survey;
use xray_trace::container::{Completeness, OpenCall, OpenCallsEncoder, Writer};
use xray_trace::model::{
    BuildId, Event, Function, FunctionId, Module, ModuleId, Process, ProcessId, SourceLine, Thread,
    ThreadId, Ticks, Trace, Values,
};

fn events() -> [Event; 9] {
    [
        call(1000, 0, Enter),
        call(1100, 1, Enter),
        call(1110, 1, Exit),
        call(1130, 1, Enter),
        call(1140, 1, Exit),
        call(6000, 1, Enter),
        call_with(6001, 1, 300),
        lost(6002, 5),
        call(6002 + (1 << 36), 0, TailExit),
    ]
}

/// The open calls at the begin of the second block.
fn open_calls() -> [OpenCall; 2] {
    [(0, 1000), (1, 6000)].map(|(function, start)| OpenCall {
        function: FunctionId(function),
        start: Ticks(start),
        args: Values::NONE,
    })
}

fn example() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let process = Process {
        id: ProcessId(0),
        pid: 4242,
        start_time_ticks: 77,
        command: "demo".into(),
        executable: "/bin/demo".into(),
        host: None,
    };
    writer.add(&process).unwrap();
    let module = Module {
        id: ModuleId(0),
        process: ProcessId(0),
        path: "/bin/demo".into(),
        build_id: Some(BuildId(vec![0xab, 0xcd])),
        load_bias: 0x1000,
        event_formats: Vec::new(),
    };
    writer.add(&module).unwrap();
    for (id, name) in [(0, "main"), (1, "leaf")] {
        let function = Function {
            id: FunctionId(id),
            module: ModuleId(0),
            xray_id: id + 1,
            address: FileAddr(0x200 + u64::from(id) * 0x40),
            symbol: (id == 0).then(|| name.into()),
            name: name.into(),
            source: (id == 0).then(|| SourceLine {
                file: "a.c".into(),
                line: 9,
            }),
            sleds: 2,
        };
        writer.add(&function).unwrap();
    }
    let thread = Thread {
        id: ThreadId(0),
        process: ProcessId(0),
        tid: 4243,
        name: "io".into(),
    };
    writer.add(&thread).unwrap();
    writer.add(&anchor(1000, 500)).unwrap();
    for block in blocks(0, &events(), 6) {
        writer.block(&block).unwrap();
    }
    writer.lost(ThreadId(0), 2).unwrap();
    let mut open = OpenCallsEncoder::new(ThreadId(0), 1);
    open.block([].into_iter(), 12);
    open.block(open_calls().into_iter(), 12);
    for section in open.finish() {
        writer.open_calls(&section).unwrap();
    }
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    writer.into_inner()
}

/// The bytes of the documented dump. Its lines have an offset, bytes in hexadecimal, and words
/// after two spaces.
fn documented() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/trace-format.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, dump) = text.split_once("```hexdump\n").unwrap();
    let (dump, _) = dump.split_once("```").unwrap();
    let mut bytes = Vec::new();
    for line in dump.lines() {
        let (offset, rest) = line.split_once("  ").unwrap();
        assert_eq!(usize::from_str_radix(offset, 16), Ok(bytes.len()), "{line}");
        let hex = rest.split_once("  ").map_or(rest, |(hex, _)| hex);
        bytes.extend(
            hex.split(' ')
                .map(|byte| u8::from_str_radix(byte, 16).unwrap()),
        );
    }
    bytes
}

#[test]
fn the_documented_dump_is_what_is_written_and_read() {
    let bytes = documented();
    assert_eq!(bytes, example());
    let trace = Trace::read(bytes.as_slice()).unwrap();
    assert_eq!(trace.coverage().completeness, Completeness::Complete);
    let events_read = trace.blocks().iter().flat_map(|block| block.events());
    assert_eq!(
        events_read.map(Result::unwrap).collect::<Vec<_>>(),
        events()
    );
    let index = Survey::new(&trace, 1).index;
    assert_eq!(index.len(), 1);
    assert_eq!(index[0].before(1), Some((1, open_calls().to_vec())));
    assert_eq!(trace.write(Vec::new(), &index).unwrap(), bytes);
}
