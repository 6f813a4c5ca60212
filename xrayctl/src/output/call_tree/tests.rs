//! Tests of `call_tree`.

use xray_trace::FileAddr;
use xray_trace::analysis::Order;
use xray_trace::container::Writer;
use xray_trace::model::{
    Function, FunctionId, Module, ModuleId, Process, ProcessId, Thread, ThreadId,
};

use super::super::folded_lines::Folding;
use super::super::folded_lines::tests::call;
use super::super::golden;
use super::*;

fn row(kind: Kind, depth: usize, function: &str) -> TreeRow {
    TreeRow {
        start_ns: Some(0),
        duration_ns: (kind == Kind::Leaf).then_some(1_234_567),
        function: Some(function.into()),
        ..TreeRow::bare(kind, 4711, depth)
    }
}

#[test]
fn deep_calls_with_long_names_stay_within_the_terminal() {
    let names = "ns::a_function_with_quite_a_name(int)";
    let rows = [0, 1, 5, 15, 1000].map(|depth| row(Kind::Begin, depth, names));
    golden::check_narrow("tree-narrow.txt", |out, look| {
        rows.iter().try_for_each(|row| row.render(out, look))?;
        row(Kind::Leaf, 2, "f").render(out, look)
    });
}

/// A trace of that many processes with a thread each, and of two functions.
fn trace(processes: u32) -> Trace {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for (id, executable) in (0..processes).zip(["/usr/bin/server", ""]) {
        let process = Process {
            id: ProcessId(id),
            pid: 71 + id,
            start_time_ticks: 0,
            command: String::new(),
            executable: executable.to_owned(),
            host: None,
        };
        writer.add(&process).unwrap();
    }
    for (id, name) in [(0, "main\u{1b}"), (1, "")] {
        let thread = Thread {
            id: ThreadId(id),
            process: ProcessId(id.min(processes - 1)),
            tid: 71 + id,
            name: name.to_owned(),
        };
        writer.add(&thread).unwrap();
    }
    let module = Module {
        id: ModuleId(0),
        process: ProcessId(0),
        path: "/usr/bin/server".to_owned(),
        build_id: None,
        load_bias: 0,
        event_formats: Vec::new(),
    };
    writer.add(&module).unwrap();
    for (id, name) in [(0, "run"), (1, "next (.llvm.77)")] {
        let function = Function {
            id: FunctionId(id),
            module: ModuleId(0),
            xray_id: id + 1,
            address: FileAddr(0x1000),
            symbol: None,
            name: name.to_owned(),
            source: None,
            sleds: 2,
        };
        writer.add(&function).unwrap();
    }
    Trace::read(writer.get_ref().as_slice()).unwrap()
}

/// A call of `run` in each of two threads, with three calls of `next` in it.
fn lines() -> Vec<TreeLine> {
    let on = |thread, depth, mut call: Call| {
        call.open.thread = ThreadId(thread);
        call.open.depth = depth;
        call
    };
    let thread = |thread| {
        let run = on(thread, 0, call(0, 0, 5_000));
        let next = |start, ns| TreeLine::Leaf(on(thread, 1, call(1, start, ns)));
        [
            TreeLine::Begin(run.open),
            next(10, 100),
            next(200, 471),
            next(1000, 29),
            TreeLine::End(run),
        ]
    };
    [thread(0), thread(1)].concat()
}

#[track_caller]
fn check(trace: &Trace, layout: Layout, look: Look, (skipped, expected): (usize, &[&str])) {
    let mut out = Vec::new();
    let first = FirstLines::read(lines().into_iter(), 2, layout);
    first
        .render(without_formats(trace), &mut out, look)
        .unwrap();
    let out = String::from_utf8(out).unwrap();
    let shown: Vec<_> = out.lines().skip(skipped).take(expected.len()).collect();
    assert_eq!(shown, expected, "{out}");
}

const FOLDED: Layout = Layout {
    order: Order::ByThread,
    folding: Folding::EqualCalls,
    limit: usize::MAX,
};

const MIXED: Layout = Layout {
    order: Order::ByTime,
    ..FOLDED
};

#[test]
fn threads_have_headers_and_equal_calls_are_one_line() {
    let first = [
        "  DURATION      TID  FUNCTION",
        "main\\u{1b} (71)",
        "                 71  run() {",
        "    600 ns       71    next();  × 3, max 471 ns",
        "  5.000 µs       71  } run",
        "",
        "thread (72)",
        "                 72  run() {",
    ];
    check(&trace(1), FOLDED, Look::PLAIN, (0, &first));
    let two = [
        "main\\u{1b} (71) of server (71)",
        "                 71  run() {",
    ];
    check(&trace(2), FOLDED, Look::PLAIN, (1, &two));
    let last = ["thread (72) of process 72", "                 72  run() {"];
    check(&trace(2), FOLDED, Look::PLAIN, (6, &last));
    let mixed = [
        "                 71  run() {",
        "    600 ns       71    next();  × 3, max 471 ns",
        "  5.000 µs       71  } run",
        "                 72  run() {",
    ];
    check(&trace(1), MIXED, Look::PLAIN, (1, &mixed));
}

#[test]
fn a_limit_counts_folded_lines() {
    let layout = Layout { limit: 2, ..MIXED };
    let two = [
        "                 71  run() {",
        "    600 ns       71    next();  × 3, max 471 ns",
        "… more lines; --limit 0 shows everything",
    ];
    check(&trace(1), layout, Look::PLAIN, (1, &two));
    let layout = Layout { limit: 6, ..MIXED };
    let all = ["  5.000 µs       72  } run"];
    check(&trace(1), layout, Look::PLAIN, (6, &all));
}

#[test]
fn every_call_and_its_whole_name_are_shown_on_request() {
    let layout = Layout {
        folding: Folding::None,
        ..MIXED
    };
    let look = Look {
        names: Names::Full,
        ..Look::PLAIN
    };
    let calls = [
        "    100 ns       71    next (.llvm.77);",
        "    471 ns       71    next (.llvm.77);",
        "     29 ns       71    next (.llvm.77);",
    ];
    check(&trace(1), layout, look, (2, &calls));
}

#[test]
fn a_narrow_terminal_cuts_the_name_and_not_the_number_of_calls() {
    let row = |width| {
        let row = row(Kind::Leaf, 1, "ns::a_function_with_quite_a_name(int)");
        let look = Look {
            width: Some(width),
            ..Look::PLAIN
        };
        let all = EqualCalls {
            calls: 12_345,
            total_ns: 1_000,
            longest_ns: 471,
            off_cpu: KnownTime::default(),
        };
        let mut out = Vec::new();
        row.standing_for(Some(all)).render(&mut out, look).unwrap();
        String::from_utf8(out).unwrap()
    };
    let expected = "  1.000 µs     4711    ns::a_function_…  × 12,345, max 471 ns\n";
    assert_eq!(row(61), expected);
    assert_eq!(row(40), "  1.000 µs     4711    ns::a_function_w…\n");
}

#[test]
fn a_time_without_a_processor_stands_behind_the_name_where_it_has_room() {
    let line = |calls: Option<u64>, ns, is_whole, width| {
        let off_cpu = KnownTime { ns, is_whole };
        let row = TreeRow {
            duration_ns: Some(1_000_000),
            off_cpu,
            ..row(Kind::Leaf, 1, "ns::f(int)")
        };
        let equal = calls.map(|calls| EqualCalls {
            calls,
            total_ns: 1_000_000,
            longest_ns: 471,
            off_cpu,
        });
        let look = Look {
            width,
            ..Look::PLAIN
        };
        let mut out = Vec::new();
        row.standing_for(equal).render(&mut out, look).unwrap();
        String::from_utf8(out).unwrap()
    };
    let begin = "  1.000 ms     4711    ns::f(int);";
    for (calls, ns, is_whole, width, behind) in [
        (None, 0, true, None, ""),
        (None, 0, false, None, ""),
        (None, 900_000, true, None, "  900.0 µs off-CPU"),
        (
            Some(3),
            900_000,
            true,
            None,
            "  × 3, max 471 ns  900.0 µs off-CPU",
        ),
        (
            Some(3),
            900_000,
            false,
            None,
            "  × 3, max 471 ns  ≥900.0 µs off-CPU",
        ),
        // The time gives way, the number of calls does not.
        (Some(3), 900_000, true, Some(60), "  × 3, max 471 ns"),
        (None, 900_000, true, Some(45), ""),
    ] {
        let expected = format!("{begin}{behind}\n");
        assert_eq!(line(calls, ns, is_whole, width), expected);
    }
}

#[test]
fn names_are_called_with_one_pair_of_brackets() {
    for (name, arguments, expected) in [
        ("main", &[][..], "main()"),
        ("ns::f(int)", &[], "ns::f(int)"),
        ("ns::f(int) const", &[], "ns::f(int) const"),
        (
            "alloc::vec::Vec<T>::push",
            &[],
            "alloc::vec::Vec<T>::push()",
        ),
        ("ns::f(int)", &[255, 0], "ns::f(0xff, 0x0)"),
        ("main", &[1], "main(0x1)"),
    ] {
        assert_eq!(called(name, arguments), expected);
    }
}
