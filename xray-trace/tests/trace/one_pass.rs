//! A report in one pass has the same parts as the analyses one by one: the table, the tree, and the
//! tree of each slow call.

use std::collections::BTreeSet;

use xray_trace::analysis::{
    AccountOptions, Call, Filter, LeastTimes, OnePass, OnePassOptions, Open, Order, Shown,
    SlowCallLines, SlowestOptions, TableOption, Tree, TreeLine, account,
};
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{CallKind, DataKind, FunctionId, ThreadId, Ticks, Trace};

/// Few lines, and many.
const LINES: [SlowCallLines; 2] = [
    SlowCallLines {
        levels: 3,
        parts: 20,
        user_events: 4,
    },
    SlowCallLines {
        levels: 8,
        parts: 1000,
        user_events: 20,
    },
];

/// Numbers in no apparent order, the same ones in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.0 >> 33) % end
    }
}

/// A trace of some threads. One event in `user_events` is a user event; 0 for none.
fn trace(seed: u64, threads: u32, user_events: u64) -> Trace {
    let mut numbers = Numbers(seed);
    let mut writer = Writer::new(Vec::new()).unwrap();
    for thread in 0..threads {
        let mut encoder = BlockEncoder::new(ThreadId(thread));
        let mut open = Vec::new();
        let mut at = 1000 + numbers.below(50);
        for _ in 0..numbers.below(3000) {
            // Few calls are long.
            let power = numbers.below(14);
            at += 1 + numbers.below(1 << power);
            if user_events > 0 && numbers.below(user_events) == 0 {
                encoder.push_data(Ticks(at), DataKind::Custom, &at.to_le_bytes());
            } else if open.len() < 12 && numbers.below(11) > open.len() as u64 {
                let function = FunctionId(u32::try_from(numbers.below(5)).unwrap());
                open.push(function);
                encoder.push_call(Ticks(at), function, CallKind::Enter, None);
            } else if let Some(function) = open.pop() {
                // Some calls have no exit of their own.
                if numbers.below(40) > 0 {
                    encoder.push_call(Ticks(at), function, CallKind::Exit, None);
                }
            }
            if numbers.below(1500) == 0 {
                encoder.push_lost(Ticks(at), 3);
                open.clear();
            }
            if numbers.below(200) == 0
                && let Some(block) = encoder.finish()
            {
                writer.block(&block).unwrap();
            }
        }
        if let Some(block) = encoder.finish() {
            writer.block(&block).unwrap();
        }
    }
    Trace::read(writer.get_ref().as_slice()).unwrap()
}

/// The lines of a call and its calls without a line, read from the tree of its part of the trace.
fn subtree(trace: &Trace, call: &Call, min_ns: u64, wanted: SlowCallLines) -> (Vec<TreeLine>, u64) {
    let part = Filter {
        threads: Some(BTreeSet::from([call.open.thread])),
        since: Some(call.open.start),
        until: Some(Ticks(call.end.0 + 1)),
        ..Filter::default()
    };
    let shown = Shown {
        least: LeastTimes::of_duration(min_ns.max(call.duration_ns() / wanted.parts)),
        levels: Some(call.open.depth + wanted.levels),
    };
    let is_root = |open: &Open| (open.start, open.depth) == (call.open.start, call.open.depth);
    let mut tree = Tree::new(trace, &part, shown, Order::ByThread);
    let mut lines = Vec::new();
    for line in tree.by_ref() {
        let (begins, ends) = match &line {
            TreeLine::Leaf(call) => (is_root(&call.open), is_root(&call.open)),
            TreeLine::Begin(open) => (is_root(open), false),
            TreeLine::End(call) => (false, is_root(&call.open)),
            TreeLine::Data { .. } | TreeLine::Lost { .. } => (false, false),
        };
        if begins || !lines.is_empty() {
            lines.push(line);
        }
        if ends {
            break;
        }
    }
    (lines, tree.hidden())
}

fn filters(trace: &Trace) -> [Filter; 4] {
    let times = trace.blocks().iter();
    let (first, last) = times.fold((u64::MAX, 0), |(first, last), block| {
        (first.min(block.first.0), last.max(block.last.0))
    });
    let at = |part: u64| Some(Ticks(first + last.saturating_sub(first) / 10 * part));
    [
        Filter::default(),
        Filter {
            functions: Some(BTreeSet::from([FunctionId(1), FunctionId(3)])),
            ..Filter::default()
        },
        Filter {
            since: at(3),
            until: at(7),
            ..Filter::default()
        },
        Filter {
            threads: Some(BTreeSet::from([ThreadId(1)])),
            since: at(5),
            ..Filter::default()
        },
    ]
}

#[test]
fn one_pass_finds_what_the_analyses_find_one_by_one() {
    let mut slow_calls = 0;
    for (seed, wanted) in (0..20).zip(LINES.into_iter().cycle()) {
        let trace = trace(seed, 4, 0);
        for filter in filters(&trace) {
            for (most, min_ns, order, read) in [
                (5, 0, Order::ByThread, 0),
                (1000, 300, Order::ByThread, 700),
                (20, 0, Order::ByTime, 100),
                (1, 0, Order::ByTime, usize::MAX),
            ] {
                let shown = Shown {
                    least: LeastTimes::of_duration(min_ns),
                    levels: None,
                };
                let options = OnePassOptions {
                    table: TableOption::Rows,
                    slowest: Some(SlowestOptions {
                        most,
                        least: LeastTimes::of_duration(min_ns),
                        lines: wanted,
                    }),
                    shown,
                    order,
                };
                let mut pass = OnePass::new(&trace, &filter, options);
                let lines: Vec<_> = pass.lines().take(read).collect();
                let tree = Tree::new(&trace, &filter, shown, order).take(read);
                assert_eq!(lines, tree.collect::<Vec<_>>());
                let result = pass.finish();
                let expected = account(&trace, &filter, AccountOptions::default());
                assert_eq!(result.account, expected);
                for slow in &result.slowest {
                    let (lines, hidden) = subtree(&trace, &slow.call, min_ns, wanted);
                    assert_eq!(slow.lines, lines, "{seed} {:?}", slow.call);
                    assert_eq!(slow.hidden_calls, hidden);
                    assert_eq!(slow.hidden_user_events, 0);
                }
                slow_calls += result.slowest.len();
            }
        }
    }
    assert!(slow_calls > 5_000, "{slow_calls}");
}

/// Lines up to the last user event that has one.
fn up_to_the_last(lines: &[TreeLine], user_events: usize) -> &[TreeLine] {
    let is_user_event = |line: &TreeLine| matches!(line, TreeLine::Data { .. });
    let mut places = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| is_user_event(line));
    match places.nth(user_events - 1) {
        Some((last, _)) => &lines[..=last],
        None => lines,
    }
}

#[test]
fn a_slow_call_has_its_first_user_events_and_the_number_of_the_others() {
    let mut hidden = 0;
    for (seed, wanted) in (0..100).zip(LINES.into_iter().cycle()) {
        let trace = trace(seed, 2, 20);
        let options = OnePassOptions {
            table: TableOption::NotesOnly,
            slowest: Some(SlowestOptions {
                most: 40,
                least: LeastTimes::default(),
                lines: wanted,
            }),
            shown: Shown::default(),
            order: Order::ByThread,
        };
        let filter = Filter::default();
        let result = OnePass::new(&trace, &filter, options).finish();
        assert!(result.account.rows.is_empty());
        for slow in &result.slowest {
            let (lines, _) = subtree(&trace, &slow.call, 0, wanted);
            let most = usize::try_from(wanted.user_events).unwrap();
            let expected = up_to_the_last(&lines, most);
            assert_eq!(up_to_the_last(&slow.lines, most), expected, "{seed}");
            let user_events = |lines: &[TreeLine]| {
                let lines = lines.iter();
                let data = lines.filter(|line| matches!(line, TreeLine::Data { .. }));
                data.count() as u64
            };
            assert_eq!(
                user_events(&slow.lines) + slow.hidden_user_events,
                user_events(&lines)
            );
            hidden += slow.hidden_user_events;
        }
    }
    assert!(hidden > 500, "{hidden}");
}

/// With a coarse clock, calls take no time. There is no bound on the number of those that a call
/// can contain, so they have no line if they are too many.
#[test]
fn calls_that_take_no_time_are_left_out_if_they_are_many() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut encoder = BlockEncoder::new(ThreadId(0));
    encoder.push_call(Ticks(1), FunctionId(0), CallKind::Enter, None);
    for _ in 0..50_000 {
        encoder.push_call(Ticks(1), FunctionId(1), CallKind::Enter, None);
        encoder.push_call(Ticks(1), FunctionId(1), CallKind::Exit, None);
    }
    encoder.push_call(Ticks(9), FunctionId(0), CallKind::Exit, None);
    writer.block(&encoder.finish().unwrap()).unwrap();
    let trace = Trace::read(writer.get_ref().as_slice()).unwrap();
    let options = OnePassOptions {
        table: TableOption::NotesOnly,
        slowest: Some(SlowestOptions {
            most: 1,
            least: LeastTimes::default(),
            lines: LINES[0],
        }),
        shown: Shown::default(),
        order: Order::ByThread,
    };
    let filter = Filter::default();
    let result = OnePass::new(&trace, &filter, options).finish();
    let slow = &result.slowest[0];
    assert_eq!((slow.lines.len(), slow.shortest_ns), (1, 1));
    assert_eq!(slow.hidden_calls, 50_000);
}
