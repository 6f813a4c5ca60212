//! Stack, table and tree of traces that are small enough for known answers.

use std::collections::BTreeSet;

use crate::common::{Enter, Exit, TailExit, call, call_with, lost, trace};
use proptest::prelude::*;
use xray_trace::analysis::{
    Account, AccountRow, Direction, Distribution, Ending, Filter, LeastTimes, Notes, Order, Shown,
    SortBy, Step, Steps, Subject, Tree, TreeLine,
};
use xray_trace::model::{Event, FunctionId, ThreadId, Ticks, Trace};

const NAMES: [&str; 4] = ["main", "ns::work(int)", "leaf", "tail"];

fn account(trace: &Trace, filter: &Filter) -> Account {
    xray_trace::analysis::account(trace, filter, Default::default())
}

fn row(trace: &Trace, function: u32) -> AccountRow {
    let account = account(trace, &Filter::default());
    *account
        .rows
        .iter()
        .find(|row| row.subject == Subject::Function(FunctionId(function)))
        .unwrap()
}

fn function(row: &AccountRow) -> u32 {
    row.subject.function().unwrap().0
}

fn notes(trace: &Trace) -> Notes {
    account(trace, &Filter::default()).notes
}

/// Every call as (function, depth, start, end, self time, how), in order of their ends.
fn calls(events: &[Event]) -> Vec<(u32, usize, u64, u64, u64, Ending)> {
    let trace = trace(&NAMES, &[events]);
    let steps = Steps::of_threads(&trace)
        .flatten()
        .filter_map(|step| match step {
            Step::Leave(call) => Some(call),
            Step::Enter(_) | Step::Data(_) | Step::Lost { .. } => None,
        });
    let calls = steps.map(|call| {
        let open = call.open;
        (
            open.function.0,
            open.depth,
            open.start_ns,
            call.end_ns,
            call.self_ns,
            call.how,
        )
    });
    calls.collect()
}

#[test]
fn nested_calls_have_total_and_self_time() {
    let events = [
        call(100, 0, Enter),
        call(110, 1, Enter),
        call(120, 2, Enter),
        call(150, 2, Exit),
        call(160, 2, Enter),
        call(200, 2, Exit),
        call(210, 1, Exit),
        call(300, 0, Exit),
    ];
    let trace = trace(&NAMES, &[&events]);
    let single = |ns| Distribution {
        min_ns: ns,
        mean_ns: ns,
        median_ns: ns,
        p90_ns: ns,
        p99_ns: ns,
        p999_ns: ns,
        max_ns: ns,
    };
    let expected = AccountRow {
        subject: Subject::Function(FunctionId(0)),
        calls: 1,
        unfinished: 0,
        total_ns: 200,
        self_ns: 100,
        sum_ns: 200,
        durations: Some(single(200)),
        on_cpu: None,
    };
    assert_eq!(row(&trace, 0), expected);
    assert_eq!((row(&trace, 1).total_ns, row(&trace, 1).self_ns), (100, 30));
    let leaf = row(&trace, 2);
    assert_eq!((leaf.calls, leaf.total_ns, leaf.self_ns), (2, 70, 70));
    let durations = Distribution {
        min_ns: 30,
        mean_ns: 35,
        median_ns: 40,
        p90_ns: 40,
        p99_ns: 40,
        p999_ns: 40,
        max_ns: 40,
    };
    assert_eq!(leaf.durations, Some(durations));
    assert_eq!(notes(&trace), Notes::default());
}

#[test]
fn recursion_is_counted_once_in_the_total() {
    let events = [
        call(0, 1, Enter),
        call(10, 1, Enter),
        call(20, 1, Enter),
        call(30, 1, Exit),
        call(50, 1, Exit),
        call(100, 1, Exit),
    ];
    let row = row(&trace(&NAMES, &[&events]), 1);
    assert_eq!((row.calls, row.total_ns, row.self_ns), (3, 100, 100));
    assert_eq!(row.durations.map(|durations| durations.min_ns), Some(10));
}

/// A closed call has no time, but finished calls within it have.
#[test]
fn calls_within_an_unfinished_call_of_the_same_function_are_in_the_total() {
    let events = [
        call(0, 1, Enter),
        call(10, 1, Enter),
        call(20, 1, Enter),
        call(30, 1, Exit),
        call(50, 1, Exit),
        call(60, 1, Enter),
        call(65, 1, Exit),
        lost(70, 3),
        call(80, 1, Enter),
        call(87, 1, Exit),
    ];
    let trace = trace(&NAMES, &[&events]);
    let row = row(&trace, 1);
    assert_eq!((row.calls, row.unfinished), (5, 1));
    assert_eq!((row.total_ns, row.self_ns), (52, 52));
    // A window that begins after the begin of the outermost call leaves that call out.
    let filter = Filter {
        since: Some(Ticks(15)),
        ..Filter::default()
    };
    let rows = account(&trace, &filter).rows;
    assert_eq!((rows[0].total_ns, rows[0].self_ns), (22, 22));
}

#[test]
fn a_tail_exit_ends_a_call_and_the_next_stands_in_its_place() {
    let events = [
        call(0, 0, Enter),
        call(10, 1, Enter),
        call(20, 1, TailExit),
        call(21, 3, Enter),
        call(30, 3, Exit),
        call(40, 0, Exit),
    ];
    let expected = [
        (1, 1, 10, 20, 10, Ending::TailExit),
        (3, 1, 21, 30, 9, Ending::Normal),
        (0, 0, 0, 40, 21, Ending::Normal),
    ];
    assert_eq!(calls(&events), expected);
}

#[test]
fn calls_left_by_an_exception_get_no_time_of_their_catcher() {
    let events = [
        call(0, 0, Enter),
        call(10, 1, Enter),
        call(20, 2, Enter),
        call(1000, 0, Exit),
    ];
    let expected = [
        (2, 2, 20, 20, 0, Ending::Closed),
        (1, 1, 10, 20, 10, Ending::Closed),
        (0, 0, 0, 1000, 990, Ending::Normal),
    ];
    assert_eq!(calls(&events), expected);
    let trace = trace(&NAMES, &[&events]);
    assert_eq!(
        notes(&trace),
        Notes {
            closed_by_outer_exit: 2,
            ..Notes::default()
        }
    );
    let thrower = row(&trace, 2);
    assert_eq!(
        (thrower.calls, thrower.unfinished, thrower.durations),
        (1, 1, None)
    );
}

#[test]
fn an_exit_without_entry_changes_nothing() {
    let events = [
        call(0, 2, Exit),
        call(10, 0, Enter),
        call(15, 1, Exit),
        call(20, 0, Exit),
    ];
    assert_eq!(calls(&events), [(0, 0, 10, 20, 10, Ending::Normal)]);
    let trace = trace(&NAMES, &[&events]);
    assert_eq!(
        notes(&trace),
        Notes {
            exits_without_entry: 2,
            ..Notes::default()
        }
    );
}

#[test]
fn a_loss_closes_everything_and_exits_after_it_belong_to_nobody() {
    let events = [
        call(0, 0, Enter),
        call(10, 1, Enter),
        lost(500, 7),
        call(510, 1, Exit),
        call(520, 2, Enter),
        call(525, 2, Exit),
        call(530, 0, Exit),
    ];
    let expected = [
        (1, 1, 10, 10, 0, Ending::Closed),
        (0, 0, 0, 10, 10, Ending::Closed),
        (2, 0, 520, 525, 5, Ending::Normal),
    ];
    assert_eq!(calls(&events), expected);
    let expected = Notes {
        closed_by_loss: 2,
        exits_without_entry: 2,
        lost: 7,
        ..Notes::default()
    };
    assert_eq!(notes(&trace(&NAMES, &[&events])), expected);
}

#[test]
fn calls_open_at_the_end_are_closed_at_the_last_event() {
    let events = [call(0, 0, Enter), call(10, 1, Enter), call(60, 1, Exit)];
    let expected = [
        (1, 1, 10, 60, 50, Ending::Normal),
        (0, 0, 0, 60, 10, Ending::Closed),
    ];
    assert_eq!(calls(&events), expected);
    let trace = trace(&NAMES, &[&events]);
    assert_eq!(
        notes(&trace),
        Notes {
            closed_at_end: 1,
            ..Notes::default()
        }
    );
}

#[test]
fn stacks_of_a_million_calls_are_no_problem() {
    let deep = 300_000;
    let enters = (0..deep).map(|at| call(at, 1, Enter));
    let exits = (0..deep).map(|at| call(deep + at, 1, Exit));
    let events = enters.chain(exits).collect::<Vec<_>>();
    let row = row(&trace(&NAMES, &[&events]), 1);
    assert_eq!(
        (row.calls, row.total_ns, row.self_ns),
        (deep, 2 * deep - 1, 2 * deep - 1)
    );
}

#[test]
fn many_exits_without_entry_do_not_search_a_deep_stack() {
    let enters = (0..200_000).map(|at| call(at, 1, Enter));
    let events = enters.chain((0..200_000).map(|at| call(300_000 + at, 2, Exit)));
    let events = events.collect::<Vec<_>>();
    assert_eq!(
        notes(&trace(&NAMES, &[&events])).exits_without_entry,
        200_000
    );
}

#[test]
fn a_damaged_block_counts_as_a_loss() {
    use xray_trace::container::Writer;
    let mut blocks = crate::common::blocks(0, &[call(0, 0, Enter), call(5, 1, Enter)], 2);
    blocks[0].payload = [&blocks[0].payload.load().unwrap()[..], &[0xff; 3]]
        .concat()
        .into();
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.block(&blocks[0]).unwrap();
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    let expected = Notes {
        closed_by_loss: 2,
        damaged_blocks: 1,
        ..Notes::default()
    };
    assert_eq!(notes(&trace), expected);
}

#[test]
fn filters_choose_threads_functions_and_times() {
    let first = [
        call(0, 0, Enter),
        call(10, 1, Enter),
        call(20, 1, Exit),
        call(100, 0, Exit),
    ];
    let second = [call(50, 1, Enter), call(80, 1, Exit)];
    let trace = trace(&NAMES, &[&first, &second]);
    let check = |filter: Filter, expected: &[(u32, u64, u64)]| {
        let rows = account(&trace, &filter).rows;
        let rows = rows
            .iter()
            .map(|row| (function(row), row.calls, row.total_ns));
        assert_eq!(rows.collect::<Vec<_>>(), expected, "{filter:?}");
    };
    let all = Filter::default();
    check(all.clone(), &[(0, 1, 100), (1, 2, 40)]);
    check(
        Filter {
            threads: Some([ThreadId(1)].into()),
            ..all.clone()
        },
        &[(1, 1, 30)],
    );
    check(
        Filter {
            functions: Some([FunctionId(1)].into()),
            ..all.clone()
        },
        &[(1, 2, 40)],
    );
    check(
        Filter {
            since: Some(Ticks(10)),
            ..all.clone()
        },
        &[(1, 2, 40)],
    );
    check(
        Filter {
            until: Some(Ticks(50)),
            ..all
        },
        &[(0, 1, 100), (1, 1, 10)],
    );
}

#[test]
fn patterns_name_functions_and_threads() {
    let names = [
        "main",
        "ns::work(int)",
        "a[2]{x}",
        "(anonymous namespace)::f(int)",
        "less::operator()(int, int) const",
        "ns::send(int) (.llvm.77)",
        "ns::send(int) (.llvm.78)",
        "receive.llvm.77",
    ];
    let trace = trace(&names, &[&[call(0, 0, Enter)]]);
    let check = |pattern: &str, expected: &[u32]| {
        let expected = expected
            .iter()
            .copied()
            .map(FunctionId)
            .collect::<BTreeSet<_>>();
        assert_eq!(
            Filter::matching_functions(&trace, pattern).unwrap(),
            expected,
            "{pattern}"
        );
    };
    check("main", &[0]);
    check("ns::work", &[1]);
    check("ns::work(int)", &[1]);
    check("ns::send", &[5, 6]);
    check("ns::send(int)", &[5, 6]);
    check("ns::send(int) (.llvm.78)", &[6]);
    check("receive", &[7]);
    check("receive.llvm.77", &[7]);
    check("_Zmainv", &[0]);
    check("ns::*", &[1, 5, 6]);
    check("*", &[0, 1, 2, 3, 4, 5, 6, 7]);
    check("(anonymous namespace)::f", &[3]);
    check("less::operator()", &[4]);
    check("a[2]{?}", &[2]);
    check("nothing", &[]);
    let threads = |pattern| Filter::matching_threads(&trace, pattern).unwrap().len();
    assert_eq!(
        [threads("5000"), threads("worker-*"), threads("500")],
        [1, 1, 0]
    );
}

#[test]
fn the_table_sorts_by_every_column() {
    let events = [
        call(0, 0, Enter),
        call(1, 1, Enter),
        call(31, 1, Exit),
        call(32, 2, Enter),
        call(34, 2, Exit),
        call(35, 2, Enter),
        call(45, 2, Exit),
        call(46, 2, Enter),
        call(49, 2, Exit),
        call(49, 1, Enter),
        call(79, 1, Exit),
        call(80, 0, Exit),
    ];
    let trace = trace(&NAMES, &[&events]);
    let check = |by, expected: [u32; 3]| {
        for (direction, expected) in [
            (Direction::Ascending, expected),
            (
                Direction::Descending,
                [expected[2], expected[1], expected[0]],
            ),
        ] {
            let mut account = account(&trace, &Filter::default());
            account.sort(&trace, by, direction);
            let order = account.rows.iter().map(function).collect::<Vec<_>>();
            assert_eq!(order, expected, "{by:?} {direction:?}");
        }
    };
    check(SortBy::Id, [0, 1, 2]);
    check(SortBy::Name, [2, 0, 1]);
    check(SortBy::Calls, [0, 1, 2]);
    check(SortBy::Total, [2, 1, 0]);
    check(SortBy::SelfTime, [0, 2, 1]);
    check(SortBy::Sum, [2, 1, 0]);
    check(SortBy::Min, [2, 1, 0]);
    check(SortBy::Mean, [2, 1, 0]);
    check(SortBy::Median, [2, 1, 0]);
    check(SortBy::P90, [2, 1, 0]);
    check(SortBy::P99, [2, 1, 0]);
    check(SortBy::P999, [2, 1, 0]);
    check(SortBy::Max, [2, 1, 0]);
}

/// A tree as text: `+` for a begin, `-` for an end, `!` for a leaf, `?` for a loss; thread,
/// function, depth, time.
fn lines(trace: &Trace, filter: &Filter, order: Order) -> Vec<String> {
    let lines = Tree::new(trace, filter, Shown::default(), order).map(|line| {
        let thread = line.thread().0;
        let at = line.ticks().0;
        match line {
            TreeLine::Leaf(call) => format!("{thread} {at} !{}", call.open.function.0),
            TreeLine::Begin(open) => format!("{thread} {at} +{}", open.function.0),
            TreeLine::End(call) => format!("{thread} {at} -{}", call.open.function.0),
            TreeLine::Data { data, .. } => format!("{thread} {at} {data:?}"),
            TreeLine::Lost { events, .. } => format!("{thread} {at} ?{events}"),
        }
    });
    lines.collect()
}

#[test]
fn the_tree_has_a_line_for_each_begin_end_and_leaf() {
    let first = [
        call(0, 0, Enter),
        call_with(10, 1, 5),
        call(15, 2, Enter),
        call(16, 2, Exit),
        call(20, 1, Exit),
        lost(30, 4),
        call(40, 3, Enter),
    ];
    let second = [call(12, 0, Enter), call(35, 0, Exit)];
    let trace = trace(&NAMES, &[&first, &second]);
    let all = Filter::default();
    assert_eq!(
        lines(&trace, &all, Order::ByThread),
        [
            "0 0 +0", "0 10 +1", "0 15 !2", "0 20 -1", "0 20 -0", "0 30 ?4", "0 40 !3", "1 12 !0"
        ]
    );
    assert_eq!(
        lines(&trace, &all, Order::ByTime),
        [
            "0 0 +0", "0 10 +1", "1 12 !0", "0 15 !2", "0 20 -1", "0 20 -0", "0 30 ?4", "0 40 !3"
        ]
    );
    let only = Filter {
        functions: Some([FunctionId(1)].into()),
        until: Some(Ticks(30)),
        ..all
    };
    assert_eq!(
        lines(&trace, &only, Order::ByTime),
        ["0 10 +1", "0 15 !2", "0 20 -1"]
    );
}

#[test]
fn the_tree_leaves_out_what_is_short_or_deep() {
    let events = [
        call(0, 0, Enter),
        call(10, 1, Enter),
        call(12, 2, Enter),
        call(13, 2, Exit),
        call(60, 1, Exit),
        call(70, 2, Enter),
        call(75, 2, Exit),
        call(100, 0, Exit),
    ];
    let trace = trace(&NAMES, &[&events]);
    let check = |shown, expected: &[(u32, bool)]| {
        let all = Filter::default();
        let lines = Tree::new(&trace, &all, shown, Order::ByTime).map(|line| match line {
            TreeLine::Leaf(call) => (call.open.function.0, true),
            TreeLine::Begin(open) => (open.function.0, false),
            TreeLine::End(call) => (call.open.function.0, false),
            other => panic!("{other:?}"),
        });
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{shown:?}");
    };
    let shown = |min_ns, levels| Shown {
        least: LeastTimes::of_duration(min_ns),
        levels,
    };
    check(
        shown(5, None),
        &[(0, false), (1, true), (2, true), (0, false)],
    );
    check(shown(6, None), &[(0, false), (1, true), (0, false)]);
    check(shown(51, None), &[(0, true)]);
    check(shown(101, None), &[]);
    check(shown(0, Some(1)), &[(0, true)]);
    check(
        shown(0, Some(2)),
        &[(0, false), (1, true), (2, true), (0, false)],
    );
}

proptest! {
    #[test]
    fn steps_always_nest(events in crate::common::any_events(0..300)) {
        let trace = trace(&NAMES, &[&events]);
        let mut open = Vec::new();
        let mut now = 0;
        let mut entered = 0_u64;
        for step in Steps::of_threads(&trace).flatten() {
            match step {
                Step::Enter(call) => {
                    prop_assert_eq!(call.depth, open.len());
                    prop_assert!(call.start_ns >= now);
                    now = call.start_ns;
                    open.push((call, 0));
                    entered += 1;
                }
                Step::Leave(call) => {
                    let (opened, callees) = open.pop().unwrap();
                    prop_assert_eq!(call.open, opened);
                    prop_assert!(call.end_ns >= now);
                    now = call.end_ns;
                    prop_assert_eq!(call.self_ns + callees, call.duration_ns());
                    if let Some((_, callees)) = open.last_mut() {
                        *callees += call.duration_ns();
                    }
                }
                Step::Lost { .. } => prop_assert!(open.is_empty()),
                Step::Data(user_event) => prop_assert_eq!(user_event.depth, open.len()),
            }
        }
        prop_assert!(open.is_empty());
        let all = Filter::default();
        let account = account(&trace, &all);
        prop_assert_eq!(account.rows.iter().map(|row| row.calls).sum::<u64>(), entered);
        for row in &account.rows {
            prop_assert!(row.self_ns <= row.total_ns, "{:?}", row);
        }
        let half = Filter { since: Some(Ticks(now / 2)), ..Filter::default() };
        for row in &self::account(&trace, &half).rows {
            prop_assert!(row.self_ns <= row.total_ns, "{:?}", row);
        }
        let tree = Tree::new(&trace, &all, Shown::default(), Order::ByTime);
        let begun = tree.filter(|line| matches!(line, TreeLine::Leaf(_) | TreeLine::Begin(_)));
        prop_assert_eq!(begun.count() as u64, entered);
    }
}
