//! Random traces: several programs with several threads, with all kinds of events, and with names
//! of all kinds.

use proptest::collection::vec;
use proptest::prelude::*;
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{
    Birth, DataKind, DutyWindow, Event, EventBody, EventType, FilterNote, Function, FunctionId,
    Gap, GapCause, Origin, Process, ProcessId, Suppression, Thread, ThreadId, Ticks, Trace,
};

use crate::common::{anchor, any_body, any_delta, function, module, process, push, thread};

/// Functions of each program.
pub(crate) const FUNCTIONS: [&str; 8] = [
    "main",
    "é",
    "日本::語",
    "a b",
    "operator\"\"",
    "<T as U>::f",
    "f(int, char*)\\",
    "main",
];
const COMMANDS: [&str; 3] = ["demo", "büro", "a b"];
const THREADS: [&str; 4] = ["main", "wörker", "日本", "a b"];

/// Names of types of typed events.
const TYPES: [&str; 3] = ["request", "é \"x\"", "a, b\\"];

/// A step of a thread.
#[derive(Debug, Clone)]
enum Doing {
    Happens(EventBody),
    Says(DataKind, Vec<u8>),
}

/// Steps, each with the time since the previous one.
type Life = Vec<(u64, Doing)>;

fn any_doing() -> impl Strategy<Value = Doing> {
    let kind = prop_oneof![
        Just(DataKind::Custom),
        any::<u16>().prop_map(DataKind::Typed),
        (0..21_u16).prop_map(DataKind::Typed)
    ];
    // No comma: `llvm-xray` prints texts with a comma in a form that no reader accepts, itself
    // included.
    let text = "[ -+\\--~é日\n]{0,12}".prop_map(String::into_bytes);
    let byte = prop_oneof![0..0x20_u8, 0x7f..=0xff_u8];
    let data = prop_oneof![4 => text, 1 => vec(byte, 0..12)];
    prop_oneof![
        20 => any_body().prop_map(Doing::Happens),
        2 => (kind, data).prop_map(|(kind, data)| Doing::Says(kind, data)),
    ]
}

/// A trace of up to two programs of up to three threads each.
pub(crate) fn any_trace() -> impl Strategy<Value = Trace> {
    let life = vec((any_delta(), any_doing()), 1..40);
    let programs = vec(vec((any::<u32>(), life), 1..4), 1..3);
    programs.prop_map(|programs| {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.add(&anchor(0, 0)).unwrap();
        let mut number = 0;
        for (program, threads) in (0..).zip(&programs) {
            let command = COMMANDS[program as usize % COMMANDS.len()].to_owned();
            let described = Process {
                command,
                ..process(program)
            };
            writer.add(&described).unwrap();
            if program > 0 {
                let origin = Origin {
                    parent: 1,
                    by: Birth::Exec,
                    unrecorded_ns: u64::MAX,
                };
                writer.origin(described.id, origin).unwrap();
            }
            writer.add(&module(program, program)).unwrap();
            let first = program * FUNCTIONS.len() as u32;
            // Each program has functions of its own, and numbers them from 1.
            let names = FUNCTIONS.iter().cycle().skip(program as usize);
            for (number, name) in (0..).zip(names.take(FUNCTIONS.len())) {
                let described = Function {
                    xray_id: number + 1,
                    ..function(first + number, program, name)
                };
                writer.add(&described).unwrap();
            }
            restrain(&mut writer, described.id, FunctionId(first));
            // Each program has other names for the same numbers. Most numbers have none, and one
            // name is the same in all programs.
            let types = TYPES.iter().cycle().skip(program as usize % 2);
            let types = (0..).step_by(3).zip(types.take(TYPES.len()));
            for (number, name) in types.chain([(20, &TYPES[0])]) {
                let described = EventType {
                    process: ProcessId(program),
                    number,
                    name: (*name).to_owned(),
                };
                writer.add(&described).unwrap();
            }
            for (start, life) in threads {
                let name = THREADS[number as usize % THREADS.len()].to_owned();
                let described = Thread {
                    name,
                    ..thread(number, program)
                };
                writer.add(&described).unwrap();
                live(&mut writer, number, first, u64::from(*start), life);
                number += 1;
            }
        }
        writer.lost(ThreadId(0), 7).unwrap();
        writer.add(&anchor(1_000_000_000, 1_000_000_000)).unwrap();
        Trace::read(writer.into_inner().as_slice()).unwrap()
    })
}

/// Adds facts about events of a program that were not recorded on purpose.
fn restrain(writer: &mut Writer<Vec<u8>>, process: ProcessId, function: FunctionId) {
    let rest = Suppression {
        function,
        process,
        from: Ticks(5),
        until: None,
        recorded: 7,
        calls: 1 << 40,
    };
    writer.add(&rest).unwrap();
    let window = DutyWindow {
        process,
        from: Ticks(0),
        until: Ticks(50),
        stands_for: 1000,
    };
    writer.add(&window).unwrap();
    let note = FilterNote {
        process,
        since: Some(Ticks(1)),
        filter: "--module 'é b.so'".to_owned(),
    };
    writer.add(&note).unwrap();
    let gap = Gap {
        process,
        from: None,
        until: Ticks(3),
        cause: GapCause::DamagedEvents,
    };
    writer.add(&gap).unwrap();
}

/// Writes the steps of a thread, in blocks of 10 steps.
fn live(writer: &mut Writer<Vec<u8>>, number: u32, first: u32, start: u64, life: &Life) {
    let mut encoder = BlockEncoder::new(ThreadId(number));
    let mut now = start;
    for chunk in life.chunks(10) {
        for (delta, doing) in chunk {
            now += delta;
            match doing {
                Doing::Happens(body) => push(&mut encoder, of_program(*body, first, Ticks(now))),
                Doing::Says(kind, data) => {
                    // As in a foreign log, or as from a live target.
                    match data.len() % 2 {
                        0 => encoder.push_data(Ticks(now), *kind, data),
                        _ => encoder.push_user_event(
                            Ticks(now),
                            *kind,
                            Some(FunctionId(first)),
                            u32::try_from(data.len() as u64 + now % 3).unwrap(),
                            data,
                        ),
                    };
                }
            }
        }
        writer.block(&encoder.finish().unwrap()).unwrap();
    }
}

/// The event with another function, if its function is one of the first program's: the
/// corresponding one of the program whose functions begin with `first`.
fn of_program(mut body: EventBody, first: u32, ticks: Ticks) -> Event {
    if let EventBody::Call { function, .. } = &mut body
        && (function.0 as usize) < FUNCTIONS.len()
    {
        *function = FunctionId(function.0 + first);
    }
    Event { ticks, body }
}
