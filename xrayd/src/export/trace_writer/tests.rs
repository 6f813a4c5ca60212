//! Tests of the trace writer: what it writes is read back as a trace.

use std::sync::Arc;

use xray_trace::{
    FileAddr,
    analysis::Survey,
    container::{BegunCalls, BlockEncoder, Completeness, Item, OpenCall, Reader, StackChange},
    model::{
        Birth, CallKind, ClockFaultKind, DataKind, DutyWindow, Event, EventBody, FilterNote,
        Function, Gap, GapCause, Module, ModuleId, ProcessId, Suppression, Trace, Values,
    },
};

use super::*;
use crate::store::NumberedModule;

const FIRST: Source = Source(0);

fn process(pid: u32) -> Process {
    Process {
        id: ProcessId(0),
        pid,
        start_time_ticks: 1,
        command: "demo".to_owned(),
        executable: "/usr/bin/demo".to_owned(),
        host: None,
    }
}

/// Modules of a hundred functions each, by the files that are loaded.
struct Loaded(Vec<(&'static str, Arc<u8>)>);

impl Loaded {
    fn demo() -> Self {
        Self(vec![("/usr/bin/demo", Arc::new(0))])
    }
}

impl Tables for Loaded {
    fn function(&self, id: FunctionId) -> Option<Function> {
        let (path, _) = self.0.get((id.0 / 100) as usize)?;
        Some(Function {
            id,
            module: ModuleId(id.0 / 100),
            xray_id: id.0 % 100 + 1,
            address: FileAddr(0x1000),
            symbol: None,
            name: format!("{path} f{}", id.0 % 100),
            source: None,
            sleds: 2,
        })
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        let modules = (0..).map(ModuleId).take(self.0.len());
        let gone = modules.map(|module| Lifetime {
            module,
            loaded: None,
            unloaded: Some(Ticks(9)),
        });
        gone.collect()
    }

    fn suppressions(&self) -> Vec<Suppression> {
        Vec::new()
    }

    fn duty(&self) -> Vec<DutyWindow> {
        Vec::new()
    }

    fn filters(&self) -> Vec<FilterNote> {
        Vec::new()
    }

    fn gaps(&self) -> Vec<Gap> {
        Vec::new()
    }

    fn modules(&self) -> Vec<NumberedModule> {
        let modules = (0..).zip(&self.0);
        let numbered = modules.map(|(index, (path, file))| NumberedModule {
            module: Module {
                id: ModuleId(index),
                process: ProcessId(0),
                path: (*path).to_owned(),
                build_id: None,
                load_bias: u64::from(index),
                event_formats: Vec::new(),
            },
            first: FunctionId(index * 100),
            functions: 100,
            file: Arc::clone(file) as _,
        });
        numbered.collect()
    }
}

/// Modules, with suppressions, windows and filters.
struct Restrained(Loaded);

impl Tables for Restrained {
    fn function(&self, id: FunctionId) -> Option<Function> {
        self.0.function(id)
    }

    fn modules(&self) -> Vec<NumberedModule> {
        self.0.modules()
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        self.0.lifetimes()
    }

    fn suppressions(&self) -> Vec<Suppression> {
        let rest = |function, from, until| Suppression {
            function: FunctionId(function),
            process: ProcessId(0),
            from: Ticks(from),
            until,
            recorded: 1,
            calls: 1000,
        };
        vec![
            rest(7, 1, Some(Ticks(8))),
            rest(8, 4, Some(Ticks(12))),
            rest(9, 11, None),
        ]
    }

    fn duty(&self) -> Vec<DutyWindow> {
        let window = |from| DutyWindow {
            process: ProcessId(0),
            from: Ticks(from),
            until: Ticks(from + 2),
            stands_for: 10,
        };
        [0, 10, 20].map(window).to_vec()
    }

    fn gaps(&self) -> Vec<Gap> {
        let gap = |from, until| Gap {
            process: ProcessId(0),
            from,
            until: Ticks(until),
            cause: GapCause::NoDaemon,
        };
        vec![gap(None, 2), gap(None, 12), gap(Some(Ticks(14)), 15)]
    }

    fn filters(&self) -> Vec<FilterNote> {
        let note = |since, filter: &str| FilterNote {
            process: ProcessId(0),
            since,
            filter: filter.to_owned(),
        };
        vec![
            note(None, "--module a.so"),
            note(Some(Ticks(5)), "--min-duration 10us"),
            note(Some(Ticks(15)), ""),
        ]
    }
}

fn block(thread: u32, calls: &[(u64, u32)]) -> Block {
    let mut encoder = BlockEncoder::new(ThreadId(thread));
    for (ticks, id) in calls {
        encoder.push_call(Ticks(*ticks), FunctionId(*id), CallKind::Enter, None);
    }
    encoder.finish().unwrap()
}

fn writer(tables: &Loaded) -> TraceWriter<Vec<u8>> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    writer.process(FIRST, &process(7), tables).unwrap();
    writer
}

fn taken(writer: &mut TraceWriter<Vec<u8>>) -> Trace {
    Trace::read(writer.get_mut().as_slice()).unwrap()
}

fn function_of(event: &Event) -> Option<FunctionId> {
    match event.body {
        EventBody::Call { function, .. } => Some(function),
        EventBody::Data { data, .. } => data.function(),
        _ => None,
    }
}

fn names(trace: &Trace, thread: u32) -> Vec<String> {
    let threads = trace.blocks_by_thread();
    let blocks = threads[&ThreadId(thread)].iter();
    let events = blocks.flat_map(|block| block.events().map(Result::unwrap));
    let named = events.filter_map(|event| function_of(&event));
    named
        .map(|id| trace.function_name(id).into_owned())
        .collect()
}

#[test]
fn functions_are_described_once_and_only_when_they_are_called() {
    let demo = Loaded::demo();
    let mut writer = writer(&demo);
    for calls in [
        &[(1, 5), (2, 9), (3, 5)][..],
        &[(4, 9), (5, 2), (6, 1_000_000), (7, u32::MAX)],
    ] {
        writer.block(FIRST, &block(3, calls), &demo).unwrap();
    }
    writer.reader_lost(11).unwrap();
    writer.end().unwrap();
    let trace = taken(&mut writer);
    assert_eq!(trace.coverage().completeness, Completeness::Complete);
    let ids: Vec<_> = trace.functions().iter().map(|f| f.id.0).collect();
    assert_eq!(ids, [2, 5, 9]);
    assert_eq!(
        trace.coverage().losses,
        [(TraceWriter::<Vec<u8>>::READER, 11)]
    );
    assert_eq!(writer.totals().events, 7);
    assert_eq!(writer.totals().reader_lost, 11);
}

/// Libraries that are loaded while the stream runs.
#[test]
fn modules_that_come_later_are_described_before_their_functions() {
    let mut loaded = Loaded::demo();
    let mut writer = writer(&loaded);
    writer.block(FIRST, &block(3, &[(1, 0)]), &loaded).unwrap();
    loaded.0.push(("/lib/a.so", Arc::new(1)));
    loaded.0.push(("/lib/b.so", Arc::new(2)));
    writer
        .block(FIRST, &block(3, &[(2, 250), (3, 150)]), &loaded)
        .unwrap();
    let trace = taken(&mut writer);
    let described: Vec<_> = loaded.modules().into_iter().map(|m| m.module).collect();
    assert_eq!(trace.modules(), described);
    assert_eq!(
        names(&trace, 3),
        ["/usr/bin/demo f0", "/lib/b.so f50", "/lib/a.so f50"]
    );
}

#[test]
fn a_stream_that_breaks_off_leaves_a_valid_file() {
    let anchor = ClockAnchor {
        ticks: Ticks(1),
        monotonic_ns: 2,
        wall_ns: 3,
    };
    let demo = Loaded::demo();
    let mut writer = writer(&demo);
    writer.anchor(FIRST, &anchor).unwrap();
    writer.block(FIRST, &block(0, &[(1, 1)]), &demo).unwrap();
    let trace = taken(&mut writer);
    assert!(matches!(
        trace.coverage().completeness,
        Completeness::Unfinished { .. }
    ));
    assert_eq!(trace.totals().calls, 1);
    assert_eq!(trace.clock().anchors(), [anchor]);
}

/// A process; its fork, which has loaded a library of the first one at another place; and a program
/// that has the library alone.
#[test]
fn processes_share_the_functions_of_a_file_and_nothing_else() {
    let (demo, library, another) = (Arc::new(0), Arc::new(1), Arc::new(2));
    let mut first = Loaded(vec![("/usr/bin/demo", Arc::clone(&demo))]);
    let mut writer = writer(&first);
    let second = Loaded(vec![
        ("/usr/bin/demo", demo),
        ("/lib/a.so", Arc::clone(&library)),
    ]);
    // The same path, but another file by now.
    let third = Loaded(vec![
        ("/lib/a.so", Arc::clone(&another)),
        ("/lib/a.so", Arc::clone(&library)),
        // The same file at another place.
        ("/lib/a.so", library),
    ]);
    let (forked, other) = (Source(4), Source(9));
    writer.process(forked, &process(8), &second).unwrap();
    writer.process(other, &process(9), &third).unwrap();
    first.0.push(("/lib/b.so", Arc::new(3)));
    for (source, tables, calls) in [
        (FIRST, &first, &[(1, 1), (2, 102)][..]),
        (forked, &second, &[(1, 1), (3, 103)]),
        (other, &third, &[(1, 1), (4, 103), (5, 600), (5, 203)]),
    ] {
        let thread = Thread {
            id: ThreadId(0),
            process: ProcessId(0),
            tid: 70 + source.0,
            name: String::new(),
        };
        writer.thread(source, &thread).unwrap();
        writer.block(source, &block(0, calls), tables).unwrap();
    }
    let third_block = {
        let mut encoder = BlockEncoder::new(ThreadId(0));
        encoder.push_user_event(
            Ticks(6),
            DataKind::Typed(3),
            Some(FunctionId(104)),
            9,
            b"said",
        );
        encoder.push_lost(Ticks(7), 5);
        encoder.push_call(Ticks(8), FunctionId(104), CallKind::TailExit, Some(77));
        encoder.finish().unwrap()
    };
    writer.block(other, &third_block, &third).unwrap();
    writer.lost(other, ThreadId(0), 2).unwrap();
    let origin = Origin {
        parent: 7,
        by: Birth::Exec,
        unrecorded_ns: 4_000_000,
    };
    writer.origin(other, origin).unwrap();
    writer.ended(other, &third).unwrap();
    writer.end().unwrap();

    let trace = taken(&mut writer);
    let lifetimes = trace.coverage().lifetimes.iter();
    assert!(lifetimes.map(|lifetime| lifetime.module.0).eq([3, 4, 5]));
    let pids: Vec<_> = trace
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect();
    assert_eq!(pids, [7, 8, 9]);
    let origins: Vec<_> = (0..3).map(|id| trace.origin(ProcessId(id))).collect();
    assert_eq!(origins, [None, None, Some(&origin)]);
    // A rewritten trace has them, too.
    let again = Trace::read(trace.write(Vec::new(), &[]).unwrap().as_slice()).unwrap();
    assert_eq!(again.origin(ProcessId(2)), Some(&origin));
    let of: Vec<_> = trace
        .modules()
        .iter()
        .map(|m| (m.process.0, m.path.as_str()))
        .collect();
    let expected = [
        (0, "/usr/bin/demo"),
        (1, "/usr/bin/demo"),
        (1, "/lib/a.so"),
        (2, "/lib/a.so"),
        (2, "/lib/a.so"),
        (2, "/lib/a.so"),
        (0, "/lib/b.so"),
    ];
    assert_eq!(of, expected);
    assert_eq!(names(&trace, 0), ["/usr/bin/demo f1", "/lib/b.so f2"]);
    assert_eq!(names(&trace, 64), ["/usr/bin/demo f1", "/lib/a.so f3"]);
    let names = names(&trace, 128);
    assert_eq!(names[..2], ["/lib/a.so f1", "/lib/a.so f3"]);
    assert_eq!(names[2], format!("#{}", u32::MAX));
    assert_eq!(names[3..], ["/lib/a.so f3", "/lib/a.so f4", "/lib/a.so f4"]);
    // The second and the third process share the library as one function. Its second load in the
    // third process is separate.
    assert_eq!(trace.functions().len(), 6);
    let threads: Vec<_> = trace
        .threads()
        .iter()
        .map(|t| (t.process.0, t.tid))
        .collect();
    assert_eq!(threads, [(0, 70), (1, 74), (2, 79)]);
    let anew = trace.blocks().last().unwrap();
    let mut events = anew.events();
    let Some(Ok(Event {
        body: EventBody::Data { kind, data },
        ..
    })) = events.next()
    else {
        panic!("what was said is gone");
    };
    assert_eq!(
        (kind, data.size(), events.data(data)),
        (DataKind::Typed(3), 9, &b"said"[..])
    );
    let rest: Vec<_> = events.map(|event| event.unwrap().body).collect();
    assert!(matches!(
        rest[..],
        [
            EventBody::Lost { events: 5 },
            EventBody::Call {
                kind: CallKind::TailExit,
                values,
                ..
            }
        ] if values.first() == Some(77)
    ));
    assert_eq!(trace.coverage().losses, [(ThreadId(128), 2)]);
}

/// The block with number `at` of a thread, in which a call begins that stays open.
fn deeper(thread: u32, at: u64) -> ClosedBlock {
    let mut encoder = BlockEncoder::new(ThreadId(thread));
    let outer = FunctionId(50 + u32::try_from(at % 7).unwrap());
    let start = Ticks(at * 10_000);
    encoder.push_call(start, outer, CallKind::Enter, None);
    for call in 0..100 {
        let ticks = Ticks(start.0 + 10 + call * 20);
        encoder.push_call(ticks, FunctionId(2), CallKind::Enter, None);
        encoder.push_call(ticks, FunctionId(2), CallKind::Exit, None);
    }
    let begun = BegunCalls::new([OpenCall {
        function: outer,
        start,
        args: Values::NONE,
    }]);
    let stack = Some(StackChange {
        before: at,
        kept: at,
        begun,
        nests: true,
        continues: at > 0,
    });
    ClosedBlock {
        stack,
        ..encoder.close().unwrap()
    }
}

/// Also of a process whose functions have other numbers in the trace, and of one that ends earlier.
#[test]
fn a_stream_has_the_index_that_a_reader_of_the_whole_trace_makes() {
    let [first, second] = [0, 1].map(|file| Loaded(vec![("/usr/bin/demo", Arc::new(file))]));
    let other = Source(1);
    for missing in [None, Some(5)] {
        let mut writer = writer(&first);
        writer.process(other, &process(8), &second).unwrap();
        for at in 0..40 {
            for (source, tables, thread) in [(FIRST, &first, 0), (other, &second, 70)] {
                if at >= 20 && source == FIRST {
                    continue;
                }
                match missing == Some(at) {
                    true => writer.reader_lost(201).unwrap(),
                    false => writer
                        .closed_block(source, &deeper(thread, at), tables)
                        .unwrap(),
                }
            }
            if at == 20 {
                writer.ended(FIRST, &first).unwrap();
            }
        }
        writer.end().unwrap();
        assert_eq!(writer.totals().indexed, missing.is_none());
        let trace = taken(&mut writer);
        let survey = Survey::new(&trace, SPACING);
        assert_eq!(writer.totals().entries, survey.calls);
        let whole = trace.write(Vec::new(), &survey.index).unwrap();
        let mut indexes = [writer.get_mut().as_slice(), whole.as_slice()].map(|bytes| {
            let mut reader = Reader::new(bytes).unwrap();
            let mut sections = Vec::new();
            while let Some(item) = reader.next_item().unwrap() {
                if let Item::OpenCalls(section) = item {
                    sections.push(section);
                }
            }
            sections
        });
        if missing.is_none() {
            indexes[0].sort_by_key(|section| (section.thread, section.first_block));
            assert_eq!(indexes[0].len(), 2);
            assert_eq!(indexes[0], indexes[1]);
        }
    }
}

/// Suppressions, windows and filters are written only from the first block of their process on,
/// with the trace's numbers.
#[test]
fn unrecorded_times_are_written_for_each_process() {
    let [first, second] = [0, 1].map(|file| {
        let loaded = Loaded(vec![("/usr/bin/demo", Arc::new(file))]);
        Restrained(loaded)
    });
    let mut writer = writer(&first.0);
    let other = Source(3);
    writer.process(other, &process(8), &second).unwrap();
    for (source, tables, at) in [(FIRST, &first, 3), (other, &second, 11)] {
        // A later block of another thread, and the first one.
        for (thread, at) in [(1, at + 1), (0, at)] {
            let block = block(thread, &[(at, 1)]);
            writer.block(source, &block, tables).unwrap();
            // Repetitions count once.
            writer.so_far(source, tables).unwrap();
        }
        writer.ended(source, tables).unwrap();
    }
    writer.end().unwrap();
    let trace = taken(&mut writer);
    let suppressions = trace.coverage().suppressions.iter();
    let suppressions: Vec<_> = suppressions
        .map(|rest| (rest.function.0, rest.process.0))
        .collect();
    assert_eq!(suppressions, [(7, 0), (8, 0), (9, 0), (108, 1), (109, 1)]);
    assert_eq!(trace.function_name(FunctionId(108)), "/usr/bin/demo f8");
    let duty = trace.coverage().duty.iter();
    let duty: Vec<_> = duty
        .map(|window| (window.process.0, window.from.0))
        .collect();
    assert_eq!(duty, [(0, 10), (0, 20), (1, 10), (1, 20)]);
    let filters = trace.coverage().filters.iter();
    let filters: Vec<_> = filters
        .map(|note| (note.process.0, note.since.map(|since| since.0)))
        .collect();
    let expected = [
        (0, None),
        (0, Some(5)),
        (0, Some(15)),
        (1, Some(5)),
        (1, Some(15)),
    ];
    assert_eq!(filters, expected);
}

#[test]
fn one_clock_is_reported_once() {
    let anchor = |monotonic_ns| ClockAnchor {
        ticks: Ticks(monotonic_ns),
        monotonic_ns,
        wall_ns: 0,
    };
    let mut writer = writer(&Loaded::demo());
    for (source, at) in [
        (0, 0),
        (1, 1),
        (0, 2),
        (1, ANCHORS_APART + 2),
        (0, ANCHORS_APART + 3),
    ] {
        writer.anchor(Source(source), &anchor(at)).unwrap();
    }
    let trace = taken(&mut writer);
    let times: Vec<_> = trace
        .clock()
        .anchors()
        .iter()
        .map(|a| a.monotonic_ns)
        .collect();
    assert_eq!(times, [0, 2, ANCHORS_APART + 2]);
}

/// All anchors are in the file, so it shows what the counter did, also after the trace is
/// rewritten.
#[test]
fn a_counter_that_went_backwards_is_reported_by_the_trace() {
    const SECOND: u64 = 1_000_000_000;
    let mut writer = writer(&Loaded::demo());
    for (second, ticks) in [(1, 3000), (2, 6000), (3, 100), (4, 3100)] {
        let anchor = ClockAnchor {
            ticks: Ticks(ticks),
            monotonic_ns: second * SECOND,
            wall_ns: 0,
        };
        writer.anchor(FIRST, &anchor).unwrap();
    }
    let trace = taken(&mut writer);
    let again = trace.write(Vec::new(), &[]).unwrap();
    let again = Trace::read(again.as_slice()).unwrap();
    for trace in [&trace, &again] {
        let [fault] = trace.clock().faults() else {
            panic!("{:?}", trace.clock());
        };
        assert_eq!(fault.kind, ClockFaultKind::Backwards);
        assert_eq!((fault.from_ns, fault.to_ns), (2 * SECOND, 3 * SECOND));
    }
}
