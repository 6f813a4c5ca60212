//! Estimates of the missing calls in traces with suppressed functions, duty cycles or filters.

use proptest::prelude::*;
use xray_trace::analysis::{Budget, DutyCycle, Filter, FilterSpan, Suppressed};
use xray_trace::container::Writer;
use xray_trace::model::{
    DutyWindow, FilterNote, FunctionId, Gap, GapCause, ProcessId, Suppression, Ticks, Trace,
};

use crate::common::{Enter, Exit, anchor, blocks, call, function, process};

/// A trace of 1000 ns from tick 1000 on, with two ticks per nanosecond. The last anchor is at its
/// end.
fn restrained(suppressions: &[Suppression], duty: &[DutyWindow], filters: &[FilterNote]) -> Trace {
    let mut writer = begun();
    suppressions
        .iter()
        .for_each(|rest| writer.add(rest).unwrap());
    duty.iter().for_each(|window| writer.add(window).unwrap());
    filters.iter().for_each(|note| writer.add(note).unwrap());
    Trace::read(writer.into_inner().as_slice()).unwrap()
}

/// The same trace without its tables.
fn begun() -> Writer<Vec<u8>> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&function(0, 0, "main")).unwrap();
    writer.add(&anchor(0, 10_000)).unwrap();
    for block in blocks(0, &[call(1000, 0, Enter), call(1200, 0, Exit)], 2) {
        writer.block(&block).unwrap();
    }
    writer.add(&anchor(3000, 11_500)).unwrap();
    writer
}

fn rest(function: u32, process: u32, times: (u64, Option<u64>), calls: u64) -> Suppression {
    Suppression {
        function: FunctionId(function),
        process: ProcessId(process),
        from: Ticks(times.0),
        until: times.1.map(Ticks),
        recorded: 0,
        calls,
    }
}

fn window(since: Option<u64>, until: Option<u64>) -> Filter {
    Filter {
        since: since.map(Ticks),
        until: until.map(Ticks),
        ..Filter::default()
    }
}

#[test]
fn a_suppression_counts_by_its_share_of_the_window() {
    let check = |rest: Suppression, filter: Filter, expected: Option<(u64, u64)>| {
        let budget = Budget::new(&restrained(&[rest], &[], &[]), &filter);
        let found = budget.suppressed.first();
        let found = found.map(|suppressed| (suppressed.off_ns, suppressed.calls));
        assert_eq!(found, expected, "{rest:?} {filter:?}");
    };
    let all = Filter::default;
    for (times, expected) in [
        ((1000, None), Some((1000, 80))),
        // Off since its last call.
        ((2000, None), Some((500, 80))),
        ((1500, Some(1700)), Some((100, 80))),
        ((600, Some(1400)), Some((200, 40))),
        ((2900, Some(3300)), Some((50, 20))),
        ((100, Some(900)), None),
        ((3001, None), None),
        ((1500, Some(1500)), Some((0, 80))),
        // Backwards in time.
        ((1500, Some(3)), Some((0, 80))),
    ] {
        check(rest(0, 0, times, 80), all(), expected);
    }
    let whole = rest(0, 0, (1000, Some(3000)), 80);
    check(whole, window(Some(1500), None), Some((750, 60)));
    check(whole, window(None, Some(1500)), Some((250, 20)));
    check(whole, window(Some(5000), None), None);
    let tried = Suppression {
        recorded: 200,
        ..whole
    };
    check(tried, all(), Some((900, 80)));
    check(tried, window(Some(2000), None), Some((450, 40)));
    let absurd = Suppression {
        recorded: u64::MAX,
        ..rest(0, 0, (0, Some(u64::MAX)), u64::MAX)
    };
    check(absurd, all(), Some((0, 2000)));
}

#[test]
fn the_function_with_the_most_missing_calls_comes_first() {
    let suppressions = [
        rest(0, 0, (1000, Some(2000)), 10),
        rest(0, 1, (1000, Some(1200)), 5),
        rest(0, 0, (2500, None), 10),
        rest(7, 0, (1000, None), 1 << 40),
    ];
    let trace = restrained(&suppressions, &[], &[]);
    let budget = Budget::new(&trace, &Filter::default());
    let expected = [
        Suppressed {
            function: FunctionId(7),
            off_ns: 1000,
            of_ns: 1000,
            calls: 1 << 40,
        },
        Suppressed {
            function: FunctionId(0),
            off_ns: 850,
            of_ns: 2000,
            calls: 25,
        },
    ];
    assert_eq!(budget.suppressed, expected);
    assert_eq!(budget.calls(), (1 << 40) + 25);
    assert_eq!(budget.suppressed[1].off_thousandths(), Some(425));
    let hardly = Suppressed {
        off_ns: 1,
        of_ns: u64::MAX,
        ..expected[0]
    };
    assert_eq!(hardly.off_thousandths(), Some(1));
    let one = Filter {
        functions: Some([FunctionId(0)].into()),
        ..Filter::default()
    };
    assert_eq!(Budget::new(&trace, &one).suppressed, expected[1..]);
}

#[test]
fn windows_of_a_duty_cycle_have_a_mean_weight() {
    let window_of = |from, length, stands_for| DutyWindow {
        process: ProcessId(0),
        from: Ticks(from),
        until: Ticks(from + length),
        stands_for,
    };
    let duty = [
        window_of(500, 10, 500),
        window_of(1000, 10, 1000),
        window_of(2000, 10, 1000),
        window_of(9000, 10, 1000),
    ];
    let budget = Budget::new(&restrained(&[], &duty, &[]), &Filter::default());
    let cycle = DutyCycle {
        windows: 2,
        recorded_ns: 10,
        stands_for_ns: 1000,
    };
    assert_eq!(budget.duty, Some(cycle));
    assert_eq!(cycle.weight_tenths(), Some(1000));
    // A window represents at least its own length.
    let budget = Budget::new(
        &restrained(&[], &[window_of(1000, 10, 0)], &[]),
        &Filter::default(),
    );
    assert_eq!(budget.duty.unwrap().weight_tenths(), Some(10));
    let budget = Budget::new(
        &restrained(&[], &[window_of(1000, 0, 0)], &[]),
        &Filter::default(),
    );
    assert_eq!(budget.duty.unwrap().weight_tenths(), None);
}

#[test]
fn a_filter_is_in_force_until_the_next_one() {
    let note = |process, since: Option<u64>, filter: &str| FilterNote {
        process: ProcessId(process),
        since: since.map(Ticks),
        filter: filter.to_owned(),
    };
    let span = |process, filter: &str, since_ns, until_ns| FilterSpan {
        process: ProcessId(process),
        filter: filter.to_owned(),
        since_ns,
        until_ns,
    };
    let notes = [
        note(0, None, "a"),
        note(0, Some(400), "b"),
        note(0, Some(1500), ""),
        note(0, Some(2000), "c"),
        note(0, Some(8000), "d"),
        note(1, None, "e"),
    ];
    let trace = restrained(&[], &[], &notes);
    let found = Budget::new(&trace, &Filter::default()).filters;
    let expected = [
        span(0, "b", None, Some(10_750)),
        span(0, "c", Some(11_000), None),
        span(1, "e", None, None),
    ];
    assert_eq!(found, expected);
    let found = Budget::new(&trace, &window(Some(1600), Some(1800))).filters;
    assert_eq!(found, [span(1, "e", None, None)]);
}

#[test]
fn gaps_are_reported_where_they_reach_into_the_time() {
    let gap = |process, from: Option<u64>, until| Gap {
        process: ProcessId(process),
        from: from.map(Ticks),
        until: Ticks(until),
        cause: GapCause::NoDaemon,
    };
    let gaps = [
        gap(0, None, 900),
        gap(0, Some(800), 1400),
        gap(0, Some(2500), 9000),
        gap(1, None, 1000),
        gap(1, Some(3100), 4000),
    ];
    let mut writer = begun();
    for gap in gaps.iter().rev() {
        writer.add(gap).unwrap();
    }
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    let found = |filter: &Filter| {
        let gaps = Budget::new(&trace, filter).gaps.into_iter();
        gaps.map(|gap| (gap.process.0, gap.since_ns, gap.until_ns))
            .collect::<Vec<_>>()
    };
    let expected = [
        (0, None, 10_450),
        (0, Some(10_400), 10_700),
        (0, Some(11_250), 14_500),
        (1, None, 10_500),
    ];
    assert_eq!(found(&Filter::default()), expected);
    assert_eq!(found(&window(Some(1600), Some(1800))), []);
}

#[test]
fn a_trace_of_everything_lacks_nothing() {
    let budget = Budget::new(&restrained(&[], &[], &[]), &Filter::default());
    assert!(budget.is_empty());
    assert_eq!(budget.calls(), 0);
}

proptest! {
    #[test]
    fn no_times_are_too_odd(
        suppressions in proptest::collection::vec((0..3_u32, any::<u64>(), any::<Option<u64>>(), any::<u64>(), any::<u64>()), 0..6),
        duty in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..4),
        since in any::<Option<u64>>(),
        until in any::<Option<u64>>(),
    ) {
        let suppressions = suppressions.into_iter().map(|(function, from, until, recorded, calls)| Suppression {
            recorded,
            ..rest(function, 0, (from, until), calls)
        });
        let duty = duty.into_iter().map(|(from, until, stands_for)| DutyWindow {
            process: ProcessId(0),
            from: Ticks(from),
            until: Ticks(until),
            stands_for,
        });
        let (suppressions, duty): (Vec<_>, Vec<_>) = (suppressions.collect(), duty.collect());
        let budget = Budget::new(&restrained(&suppressions, &duty, &[]), &window(since, until));
        for suppressed in &budget.suppressed {
            prop_assert!(suppressed.off_ns <= suppressed.of_ns);
        }
        if let Some(cycle) = budget.duty {
            prop_assert!(cycle.recorded_ns <= cycle.stands_for_ns);
        }
    }
}
