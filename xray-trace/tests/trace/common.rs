//! Handmade traces, and random ones.

use proptest::prelude::*;
use xray_trace::FileAddr;
use xray_trace::container::{Block, BlockEncoder, Writer};
use xray_trace::model::{
    BuildId, CallKind, ClockAnchor, Event, EventBody, Function, FunctionId, Module, ModuleId,
    Process, ProcessId, SourceLine, Thread, ThreadId, Ticks, Trace, Values,
};

pub(crate) use CallKind::{Enter, Exit, TailExit};

pub(crate) fn process(id: u32) -> Process {
    Process {
        id: ProcessId(id),
        pid: 4000 + id,
        start_time_ticks: 123_456,
        command: "demo".into(),
        executable: "/usr/bin/demo".into(),
        host: Some("büro".into()),
    }
}

/// Module 0 is the program of [`process`].
pub(crate) fn module(id: u32, process: u32) -> Module {
    Module {
        id: ModuleId(id),
        process: ProcessId(process),
        path: match id {
            0 => "/usr/bin/demo".to_owned(),
            id => format!("/usr/lib/module-{id}.so"),
        },
        build_id: (id == 0).then(|| BuildId(vec![0xab, 0xcd, 0x01])),
        load_bias: 0x5555_5555_4000,
        event_formats: Vec::new(),
    }
}

pub(crate) fn function(id: u32, module: u32, name: &str) -> Function {
    Function {
        id: FunctionId(id),
        module: ModuleId(module),
        xray_id: id + 1,
        address: FileAddr(0x1000 + u64::from(id) * 64),
        symbol: Some(format!("_Z{name}v")),
        name: name.into(),
        source: id.is_multiple_of(2).then(|| SourceLine {
            file: "src/demo.cc".into(),
            line: 10 + id,
        }),
        sleds: 2,
    }
}

pub(crate) fn thread(id: u32, process: u32) -> Thread {
    Thread {
        id: ThreadId(id),
        process: ProcessId(process),
        tid: 5000 + id,
        name: format!("worker-{id}"),
    }
}

pub(crate) fn anchor(ticks: u64, monotonic_ns: u64) -> ClockAnchor {
    let wall_ns = 1_700_000_000_000_000_000 + monotonic_ns;
    ClockAnchor {
        ticks: Ticks(ticks),
        monotonic_ns,
        wall_ns,
    }
}

pub(crate) fn call(ticks: u64, function: u32, kind: CallKind) -> Event {
    let body = EventBody::Call {
        function: FunctionId(function),
        kind,
        values: Values::NONE,
    };
    Event {
        ticks: Ticks(ticks),
        body,
    }
}

pub(crate) fn call_with(ticks: u64, function: u32, arg: u64) -> Event {
    call_of(ticks, function, Enter, &[arg])
}

/// An entry with arguments, or an exit with a result.
pub(crate) fn call_of(ticks: u64, function: u32, kind: CallKind, values: &[u64]) -> Event {
    let body = EventBody::Call {
        function: FunctionId(function),
        kind,
        values: Values::new(values.iter().copied()),
    };
    Event {
        ticks: Ticks(ticks),
        body,
    }
}

pub(crate) fn lost(ticks: u64, events: u64) -> Event {
    Event {
        ticks: Ticks(ticks),
        body: EventBody::Lost { events },
    }
}

pub(crate) fn push(encoder: &mut BlockEncoder, event: Event) {
    match event.body {
        EventBody::Call {
            function,
            kind,
            values,
        } => {
            encoder.push_call(event.ticks, function, kind, values);
        }
        EventBody::Lost { events } => encoder.push_lost(event.ticks, events),
        EventBody::Cpu { cpu } => encoder.push_cpu(event.ticks, cpu),
        EventBody::Unwound { calls } => encoder.push_unwound(event.ticks, calls),
        EventBody::UnmatchedExit => encoder.push_unmatched_exit(event.ticks),
        // The reference belongs to a block that is not finished, so the data is made up in the same
        // length.
        EventBody::Data { kind, data } => {
            encoder.push_data(event.ticks, kind, &vec![b'x'; data.len()]);
        }
    }
}

pub(crate) fn blocks(thread: u32, events: &[Event], per_block: usize) -> Vec<Block> {
    let mut encoder = BlockEncoder::new(ThreadId(thread));
    let mut blocks = Vec::new();
    for chunk in events.chunks(per_block) {
        chunk.iter().for_each(|event| push(&mut encoder, *event));
        blocks.extend(encoder.finish());
    }
    blocks
}

/// The bytes of a whole trace of one process with one module. A tick is a nanosecond, `names` are
/// its functions, and `threads` are the events of its threads.
pub(crate) fn file(names: &[&str], threads: &[&[Event]]) -> Vec<u8> {
    file_in_blocks(names, threads, 1000)
}

/// The same, in blocks of this number of events.
pub(crate) fn file_in_blocks(names: &[&str], threads: &[&[Event]], per_block: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    for (id, name) in (0..).zip(names) {
        writer.add(&function(id, 0, name)).unwrap();
    }
    writer.add(&anchor(0, 0)).unwrap();
    for (id, events) in (0..).zip(threads) {
        writer.add(&thread(id, 0)).unwrap();
        for block in blocks(id, events, per_block) {
            writer.block(&block).unwrap();
        }
    }
    writer.add(&anchor(1_000_000_000, 1_000_000_000)).unwrap();
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    writer.into_inner()
}

pub(crate) fn trace(names: &[&str], threads: &[&[Event]]) -> Trace {
    Trace::read(file(names, threads).as_slice()).unwrap()
}

/// Calls, some with values, losses and processors; ids of functions are mostly below 8.
pub(crate) fn any_body() -> impl Strategy<Value = EventBody> {
    let function = prop_oneof![8 => 0..8_u32, 1 => any::<u32>()];
    let kind = prop_oneof![4 => Just(Enter), 4 => Just(Exit), 1 => Just(TailExit)];
    let values = proptest::collection::vec(any::<u64>(), 1..=Values::MOST);
    let values = prop_oneof![8 => Just(Vec::new()), 2 => values];
    prop_oneof![
        20 => (function, kind, values).prop_map(|(function, kind, values)| EventBody::Call {
            function: FunctionId(function),
            kind,
            values: Values::new(values.into_iter().take(match kind {
                Enter => Values::MOST,
                Exit => 1,
                TailExit => 0,
            })),
        }),
        1 => any::<u64>().prop_map(|events| EventBody::Lost { events }),
        1 => any::<u16>().prop_map(|cpu| EventBody::Cpu { cpu }),
        1 => prop_oneof![0..5u64, any::<u64>()].prop_map(|calls| EventBody::Unwound { calls }),
        1 => Just(EventBody::UnmatchedExit),
    ]
}

/// Ticks from one event to the next, of every size.
pub(crate) fn any_delta() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..40_u64,
        8 => 0..10_000_u64,
        2 => 0..4_000_000_u64,
        1 => 0..1_u64 << 38,
        1 => Just(1_u64 << 40),
    ]
}

/// Events of one thread in order of time.
pub(crate) fn any_events(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Event>> {
    (
        any::<u32>(),
        proptest::collection::vec((any_delta(), any_body()), count),
    )
        .prop_map(|(start, steps)| {
            let mut ticks = u64::from(start);
            let step = |(delta, body)| {
                ticks += delta;
                Event {
                    ticks: Ticks(ticks),
                    body,
                }
            };
            steps.into_iter().map(step).collect()
        })
}
