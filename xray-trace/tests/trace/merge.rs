//! Several traces as one: the events of each of them are in the merged one, at their times.

use xray_trace::analysis::{Filter, SPACING, Survey, Waits, account, open_calls};
use xray_trace::container::{Block, OpenCall, OpenCallsEncoder, Payload, Writer};
use xray_trace::model::{
    Calibration, ClockAnchor, Event, EventBody, FunctionId, Process, Thread, ThreadId, ThreadWait,
    Ticks, Trace, Values,
};
use xray_trace::source::{OpenError, merge};

use crate::common::{
    Enter, Exit, blocks, call, file_in_blocks, function, lost, module, process, thread,
};

/// One clock of a machine: ticks a nanosecond, and the clocks at tick 0.
#[derive(Clone, Copy)]
struct Machine {
    host: &'static str,
    ticks_a_ns: u64,
    monotonic_ns: u64,
    wall_ns: u64,
}

const WALL: u64 = 1_700_000_000_000_000_000;

impl Machine {
    fn anchor(self, ns: u64) -> ClockAnchor {
        ClockAnchor {
            ticks: Ticks(ns * self.ticks_a_ns),
            monotonic_ns: self.monotonic_ns + ns,
            wall_ns: self.wall_ns + ns,
        }
    }

    /// A trace of two threads. The first one has these events, whose times are in nanoseconds since
    /// tick 0.
    fn trace(self, names: &[&str], events: &[Event]) -> Trace {
        self.trace_with(names, events, &[self.anchor(0), self.anchor(1_000_000)])
    }

    /// The same, with this clock.
    fn trace_with(self, names: &[&str], events: &[Event], anchors: &[ClockAnchor]) -> Trace {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let host = Some(self.host.to_owned());
        writer.add(&Process { host, ..process(0) }).unwrap();
        writer.add(&module(0, 0)).unwrap();
        for (id, name) in (0..).zip(names) {
            let mut function = function(id, 0, name);
            // The name gives both. The id does not matter.
            function.address.0 = name.bytes().map(u64::from).sum();
            function.xray_id = u32::from(name.as_bytes()[0]);
            writer.add(&function).unwrap();
        }
        writer.add(&thread(0, 0)).unwrap();
        writer.add(&thread(1, 0)).unwrap();
        writer.add_all(anchors).unwrap();
        let timed = events.iter().map(|event| Event {
            ticks: Ticks(event.ticks.0 * self.ticks_a_ns),
            ..*event
        });
        let timed: Vec<_> = timed.collect();
        for block in blocks(0, &timed, 1000) {
            writer.block(&block).unwrap();
        }
        writer
            .add(&ThreadWait {
                thread: ThreadId(1),
                from: Ticks(0),
                until: Ticks(1000 * self.ticks_a_ns),
                waited: 500 * self.ticks_a_ns,
            })
            .unwrap();
        Trace::read(writer.finish(&[]).unwrap().as_slice()).unwrap()
    }
}

const FIRST: Machine = Machine {
    host: "one",
    ticks_a_ns: 3,
    monotonic_ns: 5_000_000,
    wall_ns: WALL,
};

fn calls(trace: &Trace) -> Vec<(String, u64, u64)> {
    let account = account(trace, &Filter::default(), Default::default());
    let rows = account.rows.iter().map(|row| {
        let name = row.subject.name(trace).into_owned();
        (name, row.calls, row.total_ns)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

/// All events with their function's name, wall time and thread.
fn events(trace: &Trace) -> Vec<(u64, u32, String)> {
    let mut all = Vec::new();
    for block in trace.blocks() {
        for event in block.events() {
            let event = event.unwrap();
            let what = match event.body {
                EventBody::Call { function, kind, .. } => {
                    format!("{kind:?} {}", trace.function_name(function))
                }
                other => format!("{other:?}"),
            };
            all.push((trace.clock().wall_ns(event.ticks), block.thread.0, what));
        }
    }
    all
}

/// Two runs on one machine. The ids differ, and the second begins before the first.
#[test]
fn traces_of_one_boot_share_functions_and_time() {
    let one = FIRST.trace(
        &["a", "b"],
        &[
            call(200, 0, Enter),
            call(210, 1, Enter),
            call(240, 1, Exit),
            lost(245, 7),
            call(300, 0, Exit),
        ],
    );
    let other = FIRST.trace(
        &["c", "b"],
        &[call(100, 1, Enter), call(105, 0, Enter), call(170, 1, Exit)],
    );
    let merged = merge(&[one, other]).unwrap();
    assert_eq!(merged.notes, []);
    let trace = merged.trace;
    assert_eq!(trace.functions().len(), 3, "b is one function");
    assert_eq!((trace.processes().len(), trace.threads().len()), (2, 4));
    let expected = [
        (100, 2, "Enter b"),
        (105, 2, "Enter c"),
        (170, 2, "Exit b"),
        (200, 0, "Enter a"),
        (210, 0, "Enter b"),
        (240, 0, "Exit b"),
        (245, 0, "Lost { events: 7 }"),
        (300, 0, "Exit a"),
    ];
    let expected = expected.map(|(ns, thread, what)| (WALL + ns, thread, what.to_owned()));
    assert_eq!(events(&trace), expected);
    let b = calls(&trace).into_iter().find(|row| row.0 == "b").unwrap();
    assert_eq!((b.1, b.2), (2, 100));
    assert_eq!(trace.totals().lost, 7);
    let waits = Waits::new(&trace, &Filter::default()).unwrap();
    assert_eq!((waits.threads, waits.waited_ns), (2, 1000));
    assert_eq!(trace.clock().monotonic_ns(Ticks(5_000_100)), 5_000_100);
}

/// Another machine has another monotonic clock, another rate, and one wall clock with the first.
#[test]
fn traces_of_two_machines_are_placed_by_the_wall_clock() {
    let events_of_one = [call(200, 0, Enter), call(300, 0, Exit)];
    let one = FIRST.trace(&["a"], &events_of_one);
    let other = Machine {
        host: "two",
        ticks_a_ns: 1,
        monotonic_ns: 900_000_000_000,
        wall_ns: WALL + 250,
    };
    let other = other.trace(&["a"], &[call(0, 0, Enter), call(20, 0, Exit)]);
    let trace = merge(&[one, other]).unwrap().trace;
    let times: Vec<_> = events(&trace).iter().map(|event| event.0 - WALL).collect();
    assert_eq!(
        times,
        [200, 300, 250, 270],
        "blocks are in order of their begins"
    );
    assert_eq!(calls(&trace), [("a".to_owned(), 2, 120)]);
    assert_eq!(trace.functions().len(), 1);
}

/// A merged trace can be written, read and merged again. A trace merged with nothing is the same.
#[test]
fn a_merged_trace_is_a_trace() {
    let events_of_one = [call(200, 0, Enter), call(300, 0, Exit)];
    let one = FIRST.trace(&["a"], &events_of_one);
    let other = FIRST.trace(&["b"], &events_of_one);
    let alone = merge(std::slice::from_ref(&one)).unwrap().trace;
    assert_eq!(events(&alone), events(&one));
    assert_eq!(calls(&alone), calls(&one));
    let both = merge(&[one, other]).unwrap().trace;
    let again = merge(std::slice::from_ref(&both)).unwrap().trace;
    assert_eq!(events(&again), events(&both));
    let bytes = both.write(Vec::new(), &[]).unwrap();
    let read = Trace::read(bytes.as_slice()).unwrap();
    assert_eq!(events(&read), events(&both));
    let nothing = merge(&[]).unwrap().trace;
    assert!(nothing.blocks().is_empty() && nothing.functions().is_empty());
}

/// A cut trace, and events of a function that the table lacks.
#[test]
fn what_is_missing_is_noted_and_harms_nothing() {
    let one = FIRST.trace(&["a"], &[call(200, 9, Enter), call(300, 9, Exit)]);
    let bytes = FIRST
        .trace(&["b"], &[call(100, 0, Enter)])
        .write(Vec::new(), &[])
        .unwrap();
    let cut = Trace::read(&bytes[..bytes.len() - 3]).unwrap();
    let merged = merge(&[one, cut]).unwrap();
    assert_eq!(merged.notes.len(), 1, "{:?}", merged.notes);
    assert!(merged.notes[0].0.contains("without an end mark"));
    let trace = merged.trace;
    let unknown: Vec<_> = events(&trace).into_iter().map(|event| event.2).collect();
    assert_eq!(unknown.len(), 3, "{unknown:?}");
    assert!(trace.function(FunctionId(1)).is_none());
}

#[test]
fn times_of_other_units_are_not_merged() {
    let events_of_one = [call(200, 0, Enter), call(300, 0, Exit)];
    let with = |anchors: &[ClockAnchor]| FIRST.trace_with(&["a"], &events_of_one, anchors);
    let nanoseconds = || FIRST.trace(&["a"], &events_of_one);
    let single = [FIRST.anchor(7)];
    for anchors in [&single[..0], &single] {
        for traces in [
            [nanoseconds(), with(anchors)],
            [with(anchors), nanoseconds()],
        ] {
            let error = merge(&traces).unwrap_err();
            assert!(matches!(error, OpenError::OtherUnit { .. }), "{error}");
        }
        // A trace without events has no times.
        let empty = FIRST.trace_with(&["a"], &[], anchors);
        let merged = merge(&[empty, nanoseconds()]).unwrap().trace;
        assert_eq!(calls(&merged), [("a".to_owned(), 1, 100)]);
        assert_eq!(merged.clock().calibration(), Calibration::Measured);
    }
    // Ticks are ticks, and the clock shows this.
    let merged = merge(&[with(&single), with(&[FIRST.anchor(8)])]);
    let trace = merged.unwrap().trace;
    assert_eq!(trace.clock().calibration(), Calibration::SingleAnchor);
    assert_eq!(calls(&trace), [("a".to_owned(), 2, 600)]);
    let trace = merge(&[with(&[]), with(&[])]).unwrap().trace;
    assert_eq!(trace.clock().calibration(), Calibration::None);
    assert_eq!(calls(&trace), [("a".to_owned(), 2, 600)]);
}

#[test]
fn a_counter_that_did_not_keep_time_is_noted() {
    let set_back = ClockAnchor {
        ticks: Ticks(100),
        ..FIRST.anchor(2_000_000_000)
    };
    let anchors = [FIRST.anchor(0), FIRST.anchor(1_000_000_000), set_back];
    let events = [call(200, 0, Enter), call(300, 0, Exit)];
    let faulty = FIRST.trace_with(&["a"], &events, &anchors);
    assert_eq!(faulty.clock().faults().len(), 1);
    let merged = merge(&[FIRST.trace(&["a"], &events), faulty]).unwrap();
    let [(what, count)] = &merged.notes[..] else {
        panic!("{:?}", merged.notes);
    };
    assert!(what.contains("did not keep time"), "{what}");
    assert_eq!(*count, 1);
}

/// A trace of two blocks whose index has an open call that its events do not have: `b`, from 150
/// on, at the begin of the second block. `damaged` blocks cannot be unpacked.
fn indexed(damaged: &[usize]) -> Trace {
    indexed_of(0, |blocks| {
        for at in damaged {
            blocks[*at].payload = Payload::from([0xff; 9]);
        }
    })
}

/// The same of a thread with this id, after a change of its blocks.
fn indexed_of(id: u32, change: impl FnOnce(&mut Vec<Block>)) -> Trace {
    let events = [
        call(100, 0, Enter),
        call(110, 0, Exit),
        call(200, 0, Enter),
        call(210, 0, Exit),
    ];
    let mut blocks = blocks(id, &events, 2);
    change(&mut blocks);
    let mut writer = Writer::new(Vec::new()).unwrap();
    let host = Some(FIRST.host.to_owned());
    writer.add(&Process { host, ..process(0) }).unwrap();
    writer.add(&module(0, 0)).unwrap();
    writer.add(&function(0, 0, "a")).unwrap();
    writer.add(&function(1, 0, "b")).unwrap();
    writer
        .add(&Thread {
            id: ThreadId(id),
            ..thread(0, 0)
        })
        .unwrap();
    for ns in [0, 1_000_000] {
        writer.add(&FIRST.anchor(ns)).unwrap();
    }
    for block in &blocks {
        writer.block(block).unwrap();
    }
    let mut index = OpenCallsEncoder::new(ThreadId(id), 0);
    let open = OpenCall {
        function: FunctionId(1),
        start: Ticks(150),
        args: Values::new([7]),
    };
    index.block([].into_iter(), 10);
    index.block([open].into_iter(), 10);
    Trace::read(writer.finish(&index.finish()).unwrap().as_slice()).unwrap()
}

#[test]
fn the_index_is_in_the_merged_trace() {
    let other = FIRST.trace(&["c"], &[call(10, 0, Enter), call(20, 0, Exit)]);
    let trace = merge(&[other, indexed(&[])]).unwrap().trace;
    let open = open_calls(&trace, &Filter::default());
    let [thread] = &open[..] else {
        panic!("{open:?}");
    };
    let [call] = &thread.calls[..] else {
        panic!("{open:?}");
    };
    assert_eq!((thread.thread, call.args), (ThreadId(2), Values::new([7])));
    assert_eq!(&*trace.function_name(call.function), "b");
    // Three ticks are a nanosecond.
    assert_eq!(call.start_ns, FIRST.monotonic_ns + 50);
    assert_eq!(call.start, Ticks(call.start_ns));
}

/// The index counts blocks and follows their events.
#[test]
fn a_thread_with_a_damaged_block_has_no_index() {
    for damaged in [&[0][..], &[1], &[0, 1]] {
        let merged = merge(&[indexed(damaged)]).unwrap();
        assert_eq!(merged.notes[0].1, damaged.len() as u64);
        assert_eq!(open_calls(&merged.trace, &Filter::default()), []);
    }
}

/// Blocks are sorted by their begins, and the traces share the thread with the greatest id.
#[test]
fn an_index_of_other_blocks_is_left_out() {
    let swapped = indexed_of(0, |blocks| blocks.swap(0, 1));
    let shared = indexed_of(u32::MAX, |_| {});
    for trace in [swapped, shared] {
        let merged = merge(&[trace]).unwrap().trace;
        assert_eq!(open_calls(&merged, &Filter::default()), []);
    }
}

#[test]
fn windows_of_a_merged_trace_are_the_same_without_its_index() {
    let mut events = vec![call(0, 0, Enter)];
    for at in 0..300 {
        events.push(call(at * 50, 1, Enter));
        events.push(call(at * 50 + 20, 2, Enter));
        events.push(call(at * 50 + 30, 2, Exit));
        events.push(call(at * 50 + 40, 1, Exit));
    }
    let file = file_in_blocks(&["a", "b", "c"], &[&events, &events], 40);
    let trace = Trace::read(file.as_slice()).unwrap();
    let index = Survey::new(&trace, SPACING).index;
    assert!(!index.is_empty());
    let one = Trace::read(trace.write(Vec::new(), &index).unwrap().as_slice()).unwrap();
    let merged = merge(&[one, trace]).unwrap().trace;
    let without = merged.write(Vec::new(), &[]).unwrap();
    let without = Trace::read(without.as_slice()).unwrap();
    for since in [0, 1, 5_025, 14_000, 14_999, 20_000] {
        let window = Filter {
            since: Some(Ticks(since)),
            until: Some(Ticks(since + 500)),
            ..Filter::default()
        };
        let rows = |trace| account(trace, &window, Default::default()).rows;
        assert_eq!(rows(&merged), rows(&without), "{since}");
        assert_eq!(open_calls(&merged, &window), open_calls(&without, &window));
    }
}
