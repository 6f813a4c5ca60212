//! Arguments and results: first arguments from sleds that are made for them, and values of any
//! function on request.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::instr_map::{Rule, Selection};
use xray_trace::model::{CallKind, EventBody, FunctionId, Trace, Values};
use xrayd::{
    process::Session,
    types::Capture,
    types::{Run, Switch, ToggleReport, Wanted},
};

use crate::{
    adoption::wait_for_events,
    support::{
        attach, detach, everything, notes, registry, retained, soak, switch, tally,
        text_is_as_compiled,
    },
};

/// The functions of the program `values`, and the number of their arguments in registers that
/// follow from each other.
const FUNCTIONS: [(&str, usize); 12] = [
    ("none", 0),
    ("one", 1),
    ("two", 2),
    ("three", 3),
    ("four", 4),
    ("five", 5),
    ("six", 6),
    ("seven", 6),
    ("mixed", 3),
    ("real", 1),
    ("recursive", 2),
    ("tail", 1),
];

/// The numbers of calls of each function, by their recorded arguments and whether the result was
/// recorded.
type Recorded = BTreeMap<&'static str, BTreeMap<(usize, bool), u64>>;

/// The argument behind an argument of this value.
fn after(value: u64) -> u64 {
    value
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// The result of a call with this first argument.
fn result(value: u64) -> u64 {
    value ^ 0x8000_0000_dead_beef
}

fn capture(arguments: u32) -> Result<Capture> {
    Capture::NONE
        .with_arguments(arguments)
        .context("so many registers")
}

fn functions() -> Selection {
    Selection {
        include: FUNCTIONS
            .iter()
            .map(|(name, _)| Rule::Function((*name).to_owned()))
            .collect(),
        exclude: Vec::new(),
    }
}

fn record(session: &Session, capture: Capture) -> Result<ToggleReport> {
    let report = session.toggle(&functions(), Wanted::On(capture), Run::Real)?;
    ensure!(
        report.foreign == 0 && usize::try_from(report.matched)? == FUNCTIONS.len(),
        "{report:?}"
    );
    Ok(report)
}

/// Checks that every recorded argument follows from the one before it, and every result from the
/// first argument.
fn check(trace: &Trace) -> Result<Recorded> {
    let known: BTreeMap<FunctionId, (&str, usize)> = trace
        .functions()
        .iter()
        .filter_map(|function| {
            let known = FUNCTIONS.iter().find(|(name, _)| *name == function.name)?;
            Some((function.id, *known))
        })
        .collect();
    let mut counts = BTreeMap::<_, BTreeMap<_, _>>::new();
    for steps in Steps::of_threads(trace) {
        for step in steps {
            let Step::Leave(call) = step else { continue };
            let (name, registers) = known[&call.open.function];
            let args = call.open.args.as_slice();
            let follow = args
                .iter()
                .zip(args.iter().skip(1))
                .take(registers.max(1) - 1);
            for (one, next) in follow {
                ensure!(*next == after(*one), "{name}: {args:x?}");
            }
            if let Some(found) = call.result {
                ensure!(call.how == Ending::Normal, "{name} ended otherwise");
                let expected = match (name, args) {
                    ("none", _) => Some(result(0)),
                    ("real", _) | (_, []) => None,
                    (_, [first, ..]) => Some(result(*first)),
                };
                ensure!(
                    expected.is_none_or(|expected| expected == found),
                    "{name}({args:x?}) = {found:x}"
                );
            }
            let recorded = (args.len(), call.result.is_some());
            *counts.entry(name).or_default().entry(recorded).or_default() += 1;
        }
    }
    Ok(counts)
}

/// The first arguments of a function's calls, in order.
pub(crate) fn firsts(trace: &Trace, name: &str) -> Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for block in trace.blocks() {
        for event in block.events() {
            if let EventBody::Call {
                function,
                kind: CallKind::Enter,
                values,
            } = event?.body
                && trace.function_name(function) == name
            {
                firsts.extend(values.first());
            }
        }
    }
    Ok(firsts)
}

#[test]
fn arguments_are_those_that_were_passed() -> Result<()> {
    for fixture in [Fixture::Arg1, Fixture::Static] {
        let mut target = Target::spawn(fixture, ["--calls", "1000"])?;
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        target.ask("go", "done ")?;
        detach(&registry, &target)?;
        let trace = retained(&session)?;
        let (mut logged, mut tail) = (Vec::new(), Vec::new());
        for block in trace.blocks() {
            for event in block.events() {
                let EventBody::Call {
                    function,
                    kind: CallKind::Enter,
                    values,
                } = event?.body
                else {
                    continue;
                };
                match (&*trace.function_name(function), values.as_slice()) {
                    ("logged", [value]) => logged.push(*value),
                    ("logged_tail", [value]) => tail.push(*value),
                    ("plain", []) => {}
                    other => bail!("{other:?}"),
                }
            }
        }
        let mut passed: Vec<u64> = (0..1000).collect();
        passed.extend([u64::MAX, 1 << 63, u64::from(u32::MAX), 1 << 32, 0, 42]);
        ensure!(logged == passed, "{fixture:?}: {logged:x?}");
        ensure!(tail == [41], "{tail:?}");
        let counts = tally(&trace)?;
        ensure!(counts["logged"] == [1006, 1006, 0], "{counts:?}");
        ensure!(counts["logged_tail"] == [1, 0, 1] && counts["plain"] == [1, 1, 0]);
    }
    Ok(())
}

/// A sled that is made for the first argument can record more, and the result. A tail exit has no
/// result.
#[test]
fn sleds_with_an_argument_record_more_when_asked() -> Result<()> {
    let mut target = Target::spawn(Fixture::Arg1, ["--calls", "100"])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let wanted = Wanted::On(capture(2)?.with_result());
    let report = session.toggle(&everything(), wanted, Run::Real)?;
    ensure!(report.restaged == 0 && report.stopped == Duration::ZERO);
    target.ask("go", "done ")?;
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    for steps in Steps::of_threads(&trace) {
        for step in steps {
            let Step::Leave(call) = step else { continue };
            let args = call.open.args.as_slice();
            let [first, _] = args else { bail!("{args:?}") };
            let expected = match &*trace.function_name(call.open.function) {
                "logged" => Some(first ^ 1),
                "plain" => Some(first + 2),
                _ => None,
            };
            ensure!(call.result == expected, "{call:x?}");
        }
    }
    Ok(())
}

#[test]
fn as_many_arguments_as_were_asked_for_are_those_that_were_passed() -> Result<()> {
    const CALLS: u64 = 50;
    for count in 0..=6 {
        for with_result in [false, true] {
            let mut wanted = capture(count)?;
            if with_result {
                wanted = wanted.with_result();
            }
            let mut target = Target::spawn(Fixture::Values, [""; 0])?;
            let registry = registry();
            let session = attach(&registry, &target)?.session;
            let report = record(&session, wanted)?;
            ensure!(
                report.restaged == 0 && report.stopped == Duration::ZERO,
                "nobody has to stand still for what was never staged: {report:?}"
            );
            ensure!(target.ask(&format!("go {CALLS}"), "done ")? == format!("done {CALLS}"));
            let status = session.status();
            let with_values = if wanted.is_none() { 0 } else { 12 };
            ensure!(status.functions_with_values == with_values, "{status:?}");
            let listed = session.functions(Some(&functions()))?;
            ensure!(
                listed
                    .iter()
                    .all(|row| row.enabled && row.capture == wanted)
            );
            detach(&registry, &target)?;
            text_is_as_compiled(&target, target.program(), target.program())?;
            let trace = retained(&session)?;
            ensure!(trace.totals().lost == 0 && notes(&trace) == Default::default());
            let counts = check(&trace)?;
            let count = usize::try_from(count)?;
            for (name, _) in FUNCTIONS {
                let recorded: Vec<_> = counts[name].keys().copied().collect();
                let result = with_result && name != "tail";
                ensure!(recorded == [(count, result)], "{name}: {counts:?}");
            }
            if count > 0 {
                let each: Vec<u64> = (0..CALLS).collect();
                for name in ["tail", "seven"] {
                    ensure!(firsts(&trace, name)? == each, "{name}");
                }
            }
        }
    }
    Ok(())
}

/// The recorded values change while four threads run through the functions. The process stands
/// still for that, and each value is right.
#[test]
fn recorded_values_can_be_changed_under_load() -> Result<()> {
    let mut target = Target::spawn(Fixture::Values, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    target.ask("storm 4", "storming")?;
    let mut restaged = 0;
    for round in 0..soak(60, 5000) {
        let mut wanted = capture(round % 7)?;
        if round % 3 == 0 {
            wanted = wanted.with_result();
        }
        let planned = session.toggle(&functions(), Wanted::On(wanted), Run::Dry)?;
        let report = record(&session, wanted)?;
        ensure!(
            report.restaged == planned.restaged,
            "{planned:?}, then {report:?}"
        );
        ensure!((report.restaged > 0) == (report.stopped > Duration::ZERO));
        ensure!((report.restaged > 0) == (round > 0), "{report:?}");
        restaged += report.restaged;
        // The request is fulfilled already, so nothing changes.
        let again = record(&session, wanted)?;
        ensure!((again.changed, again.restaged) == (0, 0), "{again:?}");
        if round % 5 == 0 {
            session.toggle(&functions(), Switch::Off, Run::Real)?;
        }
    }
    ensure!(restaged > 500, "{restaged}");
    wait_for_events(&session, 1000)?;
    let answer = target.ask("stop", "")?;
    ensure!(answer.starts_with("ok "), "{answer}");
    detach(&registry, &target)?;
    text_is_as_compiled(&target, target.program(), target.program())?;
    let counts = check(&retained(&session)?)?;
    let kinds: usize = counts.values().map(BTreeMap::len).sum();
    ensure!(kinds > FUNCTIONS.len(), "only {counts:?}");
    Ok(())
}

/// The next attach finds sleds that record values, and changes these values.
#[test]
fn recorded_values_of_an_earlier_attach_reach_the_next() -> Result<()> {
    let mut target = Target::spawn(Fixture::Values, [""; 0])?;
    let registry = registry();
    for (round, count) in [3, 0, 6].into_iter().enumerate() {
        let attached = attach(&registry, &target)?;
        ensure!(attached.report.adopted == (round > 0));
        let session = attached.session;
        let report = record(&session, capture(count)?)?;
        // Only entries are staged anew.
        let expected = if round > 0 { FUNCTIONS.len() as u64 } else { 0 };
        ensure!(report.restaged == expected, "{report:?}");
        ensure!(target.ask("go 10", "done ")? == "done 10");
        detach(&registry, &target)?;
        let counts = check(&retained(&session)?)?;
        let recorded = counts.values().flat_map(BTreeMap::keys);
        ensure!(
            recorded
                .into_iter()
                .all(|(args, _)| *args == count as usize),
            "{counts:?}"
        );
    }
    Ok(())
}

/// The rule of a library that is loaded later also sets the recorded values.
#[test]
fn a_rule_also_says_what_is_recorded_in_a_library_that_is_loaded_later() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let glob = |pattern: &str| Selection {
        include: vec![Rule::Glob(pattern.to_owned())],
        exclude: Vec::new(),
    };
    let with_both = Wanted::On(capture(1)?.with_result());
    session.toggle(&glob("plugin_*"), with_both, Run::Real)?;
    session.toggle(&glob("plugin_*_noise"), Switch::On, Run::Real)?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "the library is armed", || {
        let listed = session.functions(Some(&glob("plugin_*")))?;
        let armed = listed.len() == 3 && listed.iter().all(|row| row.enabled);
        Ok(armed.then_some(()))
    })?;
    ensure!(session.status().functions_with_values == 2);
    ensure!(target.ask("call 0 20", "done")? == "done 20");
    // A library can be unloaded, so its sleds are written while the process stands still anyway.
    let report = session.toggle(&glob("plugin_*_call"), Switch::On, Run::Real)?;
    ensure!(
        report.restaged > 0 && report.stopped > Duration::ZERO,
        "{report:?}"
    );
    ensure!(target.ask("call 0 5", "done")? == "done 5");
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    let (mut calls, mut plain) = (Vec::new(), 0);
    for steps in Steps::of_threads(&trace) {
        for step in steps {
            let Step::Leave(call) = step else { continue };
            let name = trace.function_name(call.open.function);
            #[expect(clippy::cast_possible_truncation, reason = "they are ints")]
            let values = (
                call.open.args.first().map(|value| value as u32),
                call.result.map(|value| value as u32),
            );
            match (&*name, values) {
                ("plugin_a_call", (Some(value), Some(result))) => {
                    ensure!(result == value.wrapping_mul(4).wrapping_sub(1));
                    calls.push(value);
                }
                ("plugin_a_inner", (Some(value), Some(result))) => ensure!(result == value * 3),
                ("plugin_a_call", (None, None)) => plain += 1,
                ("plugin_a_noise", (None, None)) => {}
                other => bail!("{other:?}"),
            }
        }
    }
    let each: Vec<u32> = (0..20).collect();
    ensure!(calls == each && plain == 5, "{calls:?}, then {plain}");
    Ok(())
}

#[test]
fn a_call_has_no_more_values_than_registers() {
    assert!(Capture::NONE.with_arguments(7).is_none());
    assert_eq!(usize::from(Capture::MOST_ARGUMENTS), Values::MOST);
}
