//! The events that stay in a log equal the events that reading it from front to back gives, for any
//! content.

use std::io::{Seek as _, Write as _};

use proptest::prelude::*;
use proptest::sample::Index;
use xray_trace::llvm::fdr::{Body, Events, FunctionKind, Record};
use xray_trace::llvm::{ByteOrder, Mode};
use xray_trace::model::{CallKind, DataKind, EventBody, Trace};
use xray_trace::source::{Options, open};

use crate::round_trips::{any_event, written};

/// Thread and process, time, processor, and the event.
type Happening = ((i32, i32), u64, u16, String);

fn what(kind: CallKind, function: u32, arg: Option<u64>) -> String {
    format!("{kind:?} {function} {arg:?}")
}

fn user_event(kind: DataKind, data: &[u8]) -> String {
    format!("{kind:?} {}", data.escape_ascii())
}

/// The events of a log, by the reader that goes through it event by event.
fn one_by_one(bytes: &[u8]) -> Vec<Happening> {
    let mut events = Events::new(bytes, Mode::Salvage).unwrap();
    let mut all: Vec<Happening> = Vec::new();
    let (mut place, mut now, mut entered) = (None, 0, None);
    while let Some(event) = events.next().unwrap() {
        let event = event.map(<[u8]>::to_vec);
        let who = (event.tid, event.pid.unwrap_or(0));
        let what = match event.body {
            Body::Argument(value) => {
                if let Some(function) = entered.take() {
                    all.last_mut().unwrap().3 = what(CallKind::Enter, function, Some(value));
                }
                continue;
            }
            Body::Call { kind, function } => {
                let kind = match kind {
                    FunctionKind::Enter | FunctionKind::EnterArg => CallKind::Enter,
                    FunctionKind::Exit => CallKind::Exit,
                    FunctionKind::TailExit => CallKind::TailExit,
                };
                entered = (kind == CallKind::Enter).then_some(function);
                what(kind, function, None)
            }
            Body::Custom(data) => {
                entered = None;
                user_event(DataKind::Custom, &data)
            }
            Body::Typed { event_type, data } => {
                entered = None;
                user_event(DataKind::Typed(event_type), &data)
            }
        };
        if place.replace((events.buffer().offset, who)) != Some((events.buffer().offset, who)) {
            now = 0;
        }
        now = now.max(event.tsc);
        all.push((who, now, event.cpu, what));
    }
    all
}

/// The events of a trace, each of whose blocks must be in order.
fn of_trace(trace: &Trace) -> Vec<Happening> {
    let mut all = Vec::new();
    for block in trace.blocks() {
        let thread = trace.thread(block.thread).unwrap();
        let process = trace.process(thread.process).unwrap();
        let who = (thread.tid.cast_signed(), process.pid.cast_signed());
        let (mut cpu, mut calls, mut last) = (None, 0, None);
        let mut events = block.events();
        while let Some(event) = events.next() {
            let event = event.unwrap();
            assert!(event.ticks >= last.unwrap_or(block.first));
            assert!(last.is_some() || event.ticks == block.first);
            last = Some(event.ticks);
            let what = match event.body {
                EventBody::Call {
                    function,
                    kind,
                    values,
                } => {
                    calls += 1;
                    let function = trace.function(function).unwrap();
                    what(
                        kind,
                        function.module.0 << 24 | function.xray_id,
                        values.first(),
                    )
                }
                EventBody::Data { kind, data } => user_event(kind, events.data(data)),
                EventBody::Cpu { cpu: now } => {
                    cpu = Some(now);
                    continue;
                }
                other @ (EventBody::Lost { .. }
                | EventBody::Unwound { .. }
                | EventBody::UnmatchedExit) => {
                    panic!("no log says so: {other:?}")
                }
            };
            all.push((who, event.ticks.0, cpu.unwrap(), what));
        }
        assert_eq!(block.calls, calls);
        assert_eq!(Some(block.last), last);
    }
    all
}

fn events_of_a_buffer() -> impl Strategy<Value = Vec<Record<Vec<u8>>>> {
    let call = |kinds: &'static [FunctionKind]| {
        (proptest::sample::select(kinds), 0..2000_u32, 0..5000_u32).prop_map(
            |(kind, function, delta)| Record::Function {
                kind,
                function,
                delta,
            },
        )
    };
    let argument = any::<u64>().prop_map(|value| Record::CallArgument { value });
    let piece = prop_oneof![
        8 => proptest::collection::vec(
            call(&[FunctionKind::Enter, FunctionKind::Exit, FunctionKind::TailExit]), 1..20),
        2 => (call(&[FunctionKind::Enter, FunctionKind::EnterArg]), argument)
            .prop_map(|(call, argument)| vec![call, argument]),
        2 => any_event().prop_map(|event| vec![event]),
        1 => (any::<u16>(), 0..100_000_u64).prop_map(|(cpu, tsc)| vec![Record::NewCpu { cpu, tsc }]),
    ];
    // Few threads, so that some of them have several buffers in a row.
    (
        0..3_i32,
        0..2_i32,
        any::<u16>(),
        0..1_000_000_u64,
        proptest::collection::vec(piece, 0..8),
    )
        .prop_map(|(tid, pid, cpu, tsc, pieces)| {
            let mut records = vec![
                Record::NewBuffer { tid },
                Record::WallTime {
                    seconds: 5,
                    micros: 7,
                },
                Record::Pid { pid },
                Record::NewCpu { cpu, tsc },
            ];
            records.extend(pieces.into_iter().flatten());
            records
        })
}

proptest! {
    #[test]
    fn events_in_place_are_those_that_are_read_one_by_one(
        version in 2_u8..=5,
        buffers in proptest::collection::vec(events_of_a_buffer(), 0..5),
        layout in 0..3,
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..3),
        cut in proptest::option::of(any::<Index>()),
    ) {
        let order = if layout == 0 { ByteOrder::Little } else { ByteOrder::Big };
        let mut bytes = written(order, layout == 2, &buffers);
        bytes[if layout == 0 { 0 } else { 1 }] = version;
        let len = bytes.len() - 32;
        if len > 0 {
            for (at, byte) in changes {
                bytes[32 + at.index(len)] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(32 + cut.index(len));
            }
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        let options = Options { mode: Mode::Salvage, ..Options::default() };
        let trace = open(file, &options).unwrap().trace;
        let sorted = |mut all: Vec<Happening>| { all.sort(); all };
        let expected = sorted(one_by_one(&bytes));
        prop_assert_eq!(&sorted(of_trace(&trace)), &expected);
        // The same after rewriting it with packed events.
        let packed = trace.write(Vec::new(), &[]).unwrap();
        let packed = Trace::read(&packed[..]).unwrap();
        prop_assert_eq!(&sorted(of_trace(&packed)), &expected);
    }
}
