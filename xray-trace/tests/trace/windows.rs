//! Windows of time: the results do not depend on the place where reading begins, and no more is
//! read than needed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek as _, Write as _};

use proptest::prelude::*;
use xray_trace::analysis::{
    AccountOptions, Call, Counted, Filter, Graph, GroupBy, Notes, Open, Order, SPACING, Shown,
    Siblings, Side, StackRoots, StackTrie, Step, Steps, Survey, Tree, Visitor, account,
    unmatched_exits,
};
use xray_trace::container::{OpenCalls, Payload};
use xray_trace::model::{Event, EventBody, ThreadId, Ticks, Trace};

use crate::any_trace::any_trace;
use crate::common::{Enter, Exit, any_events, call, call_with, file_in_blocks, lost};

/// The results of all analyses of a trace, in a window.
#[derive(Debug, PartialEq)]
struct Answers {
    accounts: Vec<xray_trace::analysis::Account>,
    graphs: Vec<Graph>,
    stacks: Vec<(Notes, Vec<xray_trace::analysis::StackNode>, Vec<String>)>,
    trees: Vec<Vec<xray_trace::analysis::TreeLine>>,
    unmatched: Vec<xray_trace::analysis::UnmatchedExit>,
}

fn answers(trace: &Trace, filter: &Filter) -> Answers {
    let every = [Siblings::Closed, Siblings::Deduced];
    let groups = [
        GroupBy::Function,
        GroupBy::Thread,
        GroupBy::Process,
        GroupBy::Module,
    ];
    let mut accounts = Vec::new();
    for siblings in every {
        for by in groups {
            for counted in [Counted::All, Counted::Recursive] {
                let options = AccountOptions {
                    by,
                    counted,
                    siblings,
                };
                accounts.push(account(trace, filter, options));
            }
        }
    }
    let stacks = |roots| {
        let mut stacks = StackTrie::default();
        let notes = stacks.add(trace, filter, Siblings::Closed, roots, Side::Before);
        let names = stacks
            .nodes()
            .iter()
            .map(|node| stacks.name(node).to_owned());
        (notes, stacks.nodes().to_vec(), names.collect())
    };
    let tree = |order| Tree::new(trace, filter, Shown::default(), order).collect();
    Answers {
        accounts,
        graphs: every
            .map(|siblings| Graph::new(trace, filter, siblings))
            .into(),
        stacks: [StackRoots::Together, StackRoots::PerThread]
            .map(stacks)
            .into(),
        trees: [Order::ByThread, Order::ByTime].map(tree).into(),
        unmatched: unmatched_exits(trace, filter, 5),
    }
}

/// Collects the calls that a window selects, in order of their ends, and counts all calls that are
/// visited.
struct Wanted<'a>(&'a Filter, Vec<Call>, u64);

impl Visitor for Wanted<'_> {
    fn enter(&mut self, _: &Open) {}

    fn leave(&mut self, call: &Call) {
        self.2 += 1;
        if self.0.wants_call(&call.open) {
            self.1.push(*call);
        }
    }
}

/// Checks that a window has the same calls as the whole trace in that time, both step by step and
/// by a visitor.
fn check_calls(trace: &Trace, filter: &Filter) {
    let visited = |mut steps: Steps<'_>| {
        let mut wanted = Wanted(filter, Vec::new(), 0);
        steps.visit(&mut wanted);
        (steps.thread(), (wanted.1, wanted.2))
    };
    let stepped = |mut steps: Steps<'_>| {
        let mut wanted = Wanted(filter, Vec::new(), 0);
        for step in steps.by_ref() {
            if let Step::Leave(call) = step {
                wanted.leave(&call);
            }
        }
        (steps.thread(), (wanted.1, wanted.2))
    };
    let whole = Steps::of_threads(trace).map(stepped);
    let whole = whole.filter(|(_, (calls, _))| !calls.is_empty());
    let whole: BTreeMap<_, _> = whole.map(|(thread, (calls, _))| (thread, calls)).collect();
    let window = || Steps::of_wanted(trace, filter);
    let stepped: Vec<_> = window().map(stepped).collect();
    // Both also stop at the same call.
    assert_eq!(window().map(visited).collect::<Vec<_>>(), stepped);
    let stepped = stepped.into_iter();
    let stepped = stepped.filter(|(_, (calls, _))| !calls.is_empty());
    let stepped: BTreeMap<_, _> = stepped
        .map(|(thread, (calls, _))| (thread, calls))
        .collect();
    assert_eq!(stepped, whole);
}

/// The same trace in memory without an index, with an index, and in a file.
fn forms(trace: &Trace, spacing: u64) -> [Trace; 3] {
    let index = Survey::new(trace, spacing).index;
    let bytes = trace.write(Vec::new(), &index).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    file.rewind().unwrap();
    [
        Trace::read(trace.write(Vec::new(), &[]).unwrap().as_slice()).unwrap(),
        Trace::read(bytes.as_slice()).unwrap(),
        Trace::open(file).unwrap(),
    ]
}

/// The times of the events of a trace, and times before and after them.
fn moments(trace: &Trace) -> Vec<u64> {
    let events = trace.blocks().iter().flat_map(|block| block.events());
    let mut moments: Vec<_> = events.map(|event| event.unwrap().ticks.0).collect();
    moments.extend([0, u64::MAX]);
    moments.sort_unstable();
    moments
}

fn check(trace: &Trace, spacing: u64, windows: &[(prop::sample::Index, prop::sample::Index)]) {
    let forms = forms(trace, spacing);
    let moments = moments(trace);
    for (one, other) in windows {
        let (one, other) = (*one.get(&moments), *other.get(&moments));
        for (since, until) in [
            (Some(one), None),
            (None, Some(one)),
            (Some(one.min(other)), Some(one.max(other))),
            (Some(one), Some(one.saturating_add(1))),
        ] {
            let filter = Filter {
                since: since.map(Ticks),
                until: until.map(Ticks),
                ..Filter::default()
            };
            let [without, ..] = forms.each_ref().map(|form| answers(form, &filter));
            for form in &forms {
                assert_eq!(answers(form, &filter), without, "{filter:?}");
                check_calls(form, &filter);
            }
        }
    }
}

#[test]
fn data_of_the_next_event_is_not_of_the_next_block() {
    let unmatched_exit = Event {
        ticks: Ticks(120),
        body: EventBody::UnmatchedExit,
    };
    let events = [
        call(100, 0, Enter),
        call(110, 1, Enter),
        unmatched_exit,
        call(130, 1, Exit),
        call(140, 0, Exit),
    ];
    let filter = Filter {
        since: Some(Ticks(125)),
        ..Filter::default()
    };
    for form in forms(&of_blocks(&events, 3), 0) {
        let notes = account(&form, &filter, Default::default()).notes;
        assert_eq!(notes.exits_without_entry, 0);
    }
}

/// Calls into the depth and back, of a thread with up to 4 functions.
fn any_dive() -> impl Strategy<Value = Vec<Event>> {
    let dive = (1..1600_usize, 0..1600_usize, 0..4_u32, 1..20_u64);
    prop::collection::vec(dive, 1..5).prop_map(|dives| {
        let (mut now, mut open, mut events) = (100, Vec::new(), Vec::new());
        for (down, up, function, delta) in dives {
            for depth in 0..down {
                now += delta;
                let function = function + u32::from(depth % 5 == 0);
                open.push(function);
                events.push(match depth % 7 {
                    0 => call_with(now, function, now * 3),
                    _ => call(now, function, Enter),
                });
            }
            for _ in 0..up {
                now += delta;
                if let Some(function) = open.pop() {
                    events.push(call(now, function, Exit));
                }
            }
        }
        events
    })
}

fn any_windows() -> impl Strategy<Value = Vec<(prop::sample::Index, prop::sample::Index)>> {
    prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 2)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_window_gives_the_same_answers_with_an_index_and_without(
        trace in any_trace(),
        spacing in prop_oneof![Just(0_u64), 1..8_u64],
        windows in any_windows(),
    ) {
        check(&trace, spacing, &windows);
    }

    #[test]
    fn also_of_one_long_thread(
        events in any_events(100..600),
        spacing in prop_oneof![Just(0_u64), 1..8_u64],
        windows in any_windows(),
    ) {
        check(&of_blocks(&events, 7), spacing, &windows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn also_where_stacks_are_deep(
        events in any_dive(),
        spacing in prop_oneof![Just(0_u64), 1..8_u64],
        windows in any_windows(),
    ) {
        check(&of_blocks(&events, 90), spacing, &windows);
    }
}

/// A trace of one thread, in blocks of this number of events.
fn of_blocks(events: &[Event], per_block: usize) -> Trace {
    let bytes = file_in_blocks(&["a", "b", "c", "d"], &[events], per_block);
    Trace::read(bytes.as_slice()).unwrap()
}

fn between(since: u64, until: u64) -> Filter {
    Filter {
        since: Some(Ticks(since)),
        until: Some(Ticks(until)),
        ..Filter::default()
    }
}

/// The steps of a trace's only thread, with one word for each, and the notes.
fn reported(trace: &Trace, filter: &Filter) -> (Vec<String>, Notes) {
    let mut steps = Steps::of_wanted(trace, filter).next().unwrap();
    let word = |step| match step {
        Step::Enter(Open {
            function, start, ..
        }) => format!("+{} {}", function.0, start.0),
        Step::Leave(Call { open, end, how, .. }) => {
            format!("-{} {} {how:?}", open.function.0, end.0)
        }
        Step::Data(user_event) => format!("said {}", user_event.ticks.0),
        Step::Lost { ticks, events } => format!("lost {events} {}", ticks.0),
    };
    (steps.by_ref().map(word).collect(), steps.notes())
}

#[test]
fn steps_are_those_of_the_window_and_of_the_calls_that_begin_in_it() {
    let events = [
        call(10, 0, Enter),
        call(11, 3, Exit),
        call(20, 1, Enter),
        call(21, 2, Enter),
        // The window.
        call(30, 2, Exit),
        call(31, 3, Exit),
        call(32, 3, Enter),
        call(33, 2, Enter),
        // After it.
        call(40, 2, Exit),
        call(41, 2, Enter),
        call(42, 1, Exit),
        // Later events are not read.
        call(43, 3, Exit),
        call(44, 0, Exit),
    ];
    let trace = of_blocks(&events, 3);
    let (steps, notes) = reported(&trace, &between(30, 40));
    let expected = [
        "+0 10",
        "+1 20",
        "+2 21",
        "-2 30 Normal",
        "+3 32",
        "+2 33",
        "-2 40 Normal",
        "+2 41",
        "-2 41 Closed",
        "-3 41 Closed",
        "-1 42 Normal",
        "-0 42 Closed",
    ];
    assert_eq!(steps, expected);
    let expected = Notes {
        exits_without_entry: 1,
        closed_by_outer_exit: 1,
        ..Notes::default()
    };
    assert_eq!(notes, expected);
}

/// Losses before and after the window do not count in it; calls of the window that a loss ends do.
#[test]
fn notes_are_of_the_window() {
    let events = [
        lost(5, 1),
        call(10, 0, Enter),
        call(20, 1, Enter),
        lost(25, 2),
        call(30, 2, Enter),
        call(31, 1, Enter),
        lost(45, 4),
        call(50, 1, Exit),
    ];
    let trace = of_blocks(&events, 2);
    let notes = |since, until| reported(&trace, &between(since, until)).1;
    let (mut first, mut second) = (Notes::default(), Notes::default());
    (first.lost, first.closed_by_loss) = (2, 1);
    assert_eq!(notes(15, 28), first);
    second.closed_by_loss = 2;
    assert_eq!(notes(28, 40), second);
}

#[test]
fn a_thread_without_events_in_the_window_is_not_read() {
    let events = [call(10, 0, Enter), call(20, 0, Exit)];
    let trace = of_blocks(&events, 1);
    let threads = |since, until| Steps::of_wanted(&trace, &between(since, until)).count();
    assert_eq!(
        [
            threads(0, 10),
            threads(0, 11),
            threads(20, 30),
            threads(21, 30)
        ],
        [0, 1, 1, 0]
    );
}

proptest! {
    /// An index with any content causes at most wrong results.
    #[test]
    fn an_index_may_lie(
        events in any_events(50..100),
        sections in prop::collection::vec((0..2_u32, prop::collection::vec(0..20_u8, 0..200)), 1..5),
        at in any::<prop::sample::Index>(),
    ) {
        let trace = of_blocks(&events, 5);
        let lies = sections.into_iter().map(|(thread, bytes)| OpenCalls {
            thread: ThreadId(thread),
            first_block: 0,
            entries: Payload::from(bytes),
        });
        let bytes = trace.write(Vec::new(), &lies.collect::<Vec<_>>()).unwrap();
        let Ok(trace) = Trace::read(bytes.as_slice()) else {
            return Ok(());
        };
        let moments = moments(&trace);
        let filter = Filter { since: Some(Ticks(*at.get(&moments))), ..Filter::default() };
        let mut open = 0_u64;
        for step in Steps::of_wanted(&trace, &filter).flatten() {
            match step {
                Step::Enter(_) => open += 1,
                Step::Leave(_) => open = open.checked_sub(1).unwrap(),
                Step::Data(_) | Step::Lost { .. } => {}
            }
        }
        prop_assert_eq!(open, 0);
        answers(&trace, &filter);
    }
}

/// The number of bytes that this thread has read so far.
fn read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.unwrap().parse().unwrap()
}

/// With one thread, the calling thread does the analysis.
#[test]
fn a_short_window_of_a_long_trace_takes_little_reading() {
    let mut events = vec![call(0, 0, Enter)];
    for at in 0..600_000 {
        events.push(call(at * 50, 1, Enter));
        events.push(call(at * 50 + 20, 2, Enter));
        events.push(call(at * 50 + 30, 2, Exit));
        events.push(call(at * 50 + 40, 1, Exit));
    }
    let trace =
        Trace::read(file_in_blocks(&["a", "b", "c"], &[&events], 20_000).as_slice()).unwrap();
    let [_, _, indexed] = forms(&trace, SPACING);
    let len = trace.totals().encoded_len;
    let percent = |work: &dyn Fn()| {
        let before = read();
        work();
        100.0 * (read() - before) as f64 / len as f64
    };
    let window = between(15_000_000, 15_300_000);
    let look = |trace: &Trace| {
        let rows = account(trace, &window, AccountOptions::default()).rows;
        let calls: Vec<_> = rows.iter().map(|row| row.calls).collect();
        assert_eq!(calls, [6000, 6000]);
    };
    let part = percent(&|| look(&indexed));
    assert!((1.0..4.0).contains(&part), "{part} % read");
    let tree = percent(&|| {
        let lines = Tree::new(&indexed, &window, Shown::default(), Order::ByTime);
        assert_eq!(lines.count(), 18_000);
    });
    assert!((1.0..4.0).contains(&tree), "{tree} % read");

    let mut file = tempfile::tempfile().unwrap();
    trace.write(&mut file, &[]).unwrap();
    let open = || {
        (&file).rewind().unwrap();
        Trace::open(file.try_clone().unwrap()).unwrap()
    };
    let opening = percent(&|| drop(open()));
    assert!(opening < 1.0, "{opening} % read");
    let without = open();
    let half = percent(&|| look(&without));
    assert!((45.0..60.0).contains(&half), "{half} % read");
}
