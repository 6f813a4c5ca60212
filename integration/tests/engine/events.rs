//! Custom and typed events: user events of every size, from every place, with interruptions of
//! every kind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, Target, wait_until};
use xray_trace::model::{CallKind, DataKind, EventBody, Trace};
use xrayd::types::Switch;

use crate::support::{
    attach, detach, notes, registry, retained, soak, switch, text_is_as_compiled,
};

/// The sizes of a round's events, in bytes; see `fixtures/events/main.c`.
const SIZES: [u64; 12] = [0, 1, 6, 7, 8, 9, 255, 2048, 4095, 4096, 4097, 9744];
/// The bytes of an event that a ring of the default size takes.
const LIMIT: u64 = 4096;
/// The five leaf functions with sleds of every version. They have no other sleds.
const LEAVES: u64 = 5;

/// One event of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UserEvent {
    function: String,
    kind: DataKind,
    /// The size in bytes that the program gave.
    size: u64,
    bytes: Vec<u8>,
    /// The innermost call that was open at the event.
    caller: Option<String>,
}

/// Events by thread, and the number of calls beside them.
#[derive(Debug, Default)]
struct Spoken {
    threads: BTreeMap<u32, Vec<UserEvent>>,
    calls: u64,
    lost: u64,
    /// Events that newer ones have overwritten in the retained trace.
    overwritten: u64,
}

// === impl Spoken ===

impl Spoken {
    fn read(trace: &Trace) -> Result<Self> {
        let mut spoken = Self::default();
        for (id, blocks) in trace.blocks_by_thread() {
            let tid = trace.thread(id).context("a thread without a row")?.tid;
            let answer = spoken.threads.entry(tid).or_default();
            let mut open = Vec::new();
            let mut unmatched_exit = false;
            for block in blocks {
                let mut events = block.events();
                while let Some(event) = events.next() {
                    match event?.body {
                        EventBody::Call { function, kind, .. } => {
                            spoken.calls += 1;
                            match kind {
                                CallKind::Enter => open.push(function),
                                CallKind::Exit | CallKind::TailExit => {
                                    if !std::mem::take(&mut unmatched_exit) {
                                        open.pop();
                                    }
                                }
                            }
                        }
                        EventBody::Data { kind, data } => answer.push(UserEvent {
                            function: trace
                                .function_name(data.function().context("where was that?")?)
                                .into_owned(),
                            kind,
                            size: data.size(),
                            bytes: events.data(data).to_vec(),
                            caller: open.last().map(|id| trace.function_name(*id).into_owned()),
                        }),
                        EventBody::Lost { events } => spoken.lost += events,
                        // A call whose exit was missed because its function was switched off, or an
                        // entry that was missed.
                        EventBody::Unwound { calls } => {
                            open.truncate(open.len().saturating_sub(usize::try_from(calls)?));
                        }
                        EventBody::UnmatchedExit => unmatched_exit = true,
                        EventBody::Cpu { .. } => anyhow::bail!("the engine knows no processors"),
                    }
                }
            }
        }
        spoken.lost += trace.totals().lost.saturating_sub(spoken.lost);
        for overwritten in &trace.coverage().overwritten {
            spoken.overwritten += overwritten.events.context("how many are overwritten?")?;
        }
        Ok(spoken)
    }

    fn events(&self) -> u64 {
        self.threads
            .values()
            .map(|answer| answer.len() as u64)
            .sum()
    }

    /// Checks that each payload is complete, has a size that the program uses, and is in the
    /// function for its kind.
    fn check(&self) -> Result<()> {
        for answer in self.threads.values().flatten() {
            let whole = answer.bytes.len() as u64 == answer.size.min(LIMIT);
            let steady = answer
                .bytes
                .windows(2)
                .all(|pair| pair[1] == pair[0].wrapping_add(13));
            let known = match (&*answer.function, answer.kind) {
                ("say" | "say_swapped", DataKind::Custom)
                | ("say_rotated", DataKind::Typed(65524..=65535)) => SIZES.contains(&answer.size),
                // A handler's event has five bytes.
                ("say_typed", DataKind::Typed(1000..=1011)) => SIZES.contains(&answer.size),
                ("say_typed", DataKind::Typed(3)) => answer.bytes == [1, 14, 27, 40, 53],
                ("leaf_v0", DataKind::Custom) => (answer.size, answer.bytes[0]) == (20, 77),
                ("leaf_v1", DataKind::Custom) => (answer.size, answer.bytes[0]) == (21, 77),
                ("leaf_v2", DataKind::Custom) => (answer.size, answer.bytes[0]) == (22, 77),
                ("leaf_typed", DataKind::Typed(7)) => (answer.size, answer.bytes[0]) == (23, 77),
                ("leaf_on_stack", DataKind::Custom) => (answer.size, answer.bytes[0]) == (8, 1),
                _ => false,
            };
            ensure!(whole && steady && known, "{answer:?}");
        }
        Ok(())
    }
}

/// The events of one round: function, kind, size, first byte.
fn round() -> impl Iterator<Item = (&'static str, DataKind, u64, u8)> + Clone {
    (0u8..).zip(SIZES).flat_map(|(i, size)| {
        let typed = DataKind::Typed(1000 + u16::from(i));
        let rotated = DataKind::Typed(65535 - u16::from(i));
        [
            ("say", DataKind::Custom, size, i),
            ("say_swapped", DataKind::Custom, size, i + 1),
            ("say_typed", typed, size, i + 2),
            ("say_rotated", rotated, size, i + 3),
        ]
    })
}

/// Every size, with 0 and with more than a ring takes; arguments that clang's moves garble; sleds
/// of LLVM 5 to 19; leaf functions with a live red zone (P33), live flags, and the stack pointer as
/// an argument.
#[test]
fn user_events_equal_the_programs_data() -> Result<()> {
    let mut target = Target::spawn(Fixture::Events, ["--threads", "4", "--rounds", "3"])?;
    let registry = registry();
    let attached = attach(&registry, &target)?;
    ensure!(attached.report.skipped.is_empty(), "{:?}", attached.report);
    let session = attached.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    let mut tids = Vec::new();
    for _ in 0..4 {
        let line = target.line_with("thread ", Duration::from_secs(60))?;
        tids.push(line.trim_start_matches("thread ").parse::<u32>()?);
    }
    ensure!(
        target.line(Duration::from_secs(60))? == "done 0",
        "it saw a change"
    );
    let program = target.program().to_path_buf();
    let status = session.status();
    detach(&registry, &target)?;
    text_is_as_compiled(&target, &program, &program)?;
    let trace = retained(&session)?;
    let spoken = Spoken::read(&trace)?;
    spoken.check()?;
    ensure!(spoken.lost == 0, "{} lost", spoken.lost);
    for tid in tids {
        let answer = spoken.threads.get(&tid).context("a thread is missing")?;
        let expected: Vec<_> = round().cycle().take(3 * 4 * SIZES.len()).collect();
        ensure!(answer.len() == expected.len(), "{} events", answer.len());
        for (answer, (function, kind, size, first)) in answer.iter().zip(expected) {
            ensure!(
                (&*answer.function, answer.kind, answer.size) == (function, kind, size),
                "{answer:?} instead of {function} {kind:?} {size}"
            );
            ensure!(
                answer.bytes.first().is_none_or(|byte| *byte == first),
                "{answer:?}"
            );
            ensure!(answer.caller.as_deref() == Some(function), "{answer:?}");
        }
    }
    let main = u32::try_from(target.pid())?;
    let leaves: Vec<&str> = spoken.threads[&main]
        .iter()
        .map(|answer| answer.function.as_str())
        .collect();
    ensure!(
        leaves
            == [
                "leaf_v0",
                "leaf_v1",
                "leaf_v2",
                "leaf_typed",
                "leaf_on_stack"
            ],
        "{leaves:?}"
    );
    let rounds = 4 * 3 * 4 * SIZES.len() as u64;
    ensure!(spoken.calls == 2 * rounds && trace.totals().calls == spoken.calls);
    ensure!(spoken.events() == rounds + LEAVES);
    ensure!(
        status.events <= spoken.calls + spoken.events(),
        "{status:?}"
    );
    ensure!(session.status().events == spoken.calls + spoken.events());
    ensure!(notes(&trace) == Default::default());
    Ok(())
}

/// P38: handlers emit events themselves, at any instruction of another event. Events without room
/// in a ring are counted.
#[test]
fn every_event_is_recorded_or_counted_under_signals() -> Result<()> {
    let mut target = Target::spawn(Fixture::Events, ["--threads", "3", "--hz", "5000"])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    target.send("storm")?;
    let enough = soak(1_000_000, 50_000_000);
    wait_until(Duration::from_secs(120), "enough events", || {
        let status = session.status();
        Ok((status.events + status.lost > enough).then_some(()))
    })?;
    let line = target.ask("stop", "stopped ")?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [rounds, signals, bad] = numbers[..] else {
        anyhow::bail!("{line}")
    };
    ensure!(bad == 0 && rounds > 0 && signals > 0, "{line}");
    detach(&registry, &target)?;
    let spoken = Spoken::read(&retained(&session)?)?;
    spoken.check()?;
    let tried = rounds * (3 * 4 * SIZES.len() as u64 + LEAVES) + 3 * signals;
    let recorded = spoken.calls + spoken.events();
    ensure!(spoken.events() > 100, "{} events", spoken.events());
    let (overwritten, lost) = (spoken.overwritten, spoken.lost);
    ensure!(
        recorded + overwritten + lost == tried,
        "{recorded} recorded, {overwritten} overwritten, {lost} lost, {tried} tried"
    );
    Ok(())
}

/// P22, P33: functions are switched on and off while threads stand anywhere in the sleds, their
/// stubs and the trampolines.
#[test]
fn switching_never_garbles_an_event() -> Result<()> {
    let mut target = Target::spawn(Fixture::Events, ["--threads", "3", "--hz", "1000"])?;
    let registry = registry();
    target.send("storm")?;
    let (mut toggles, mut events) = (0, 0);
    let end = Instant::now() + soak(Duration::from_secs(1), Duration::from_secs(60));
    while Instant::now() < end {
        // The stubs of the attach before are reused.
        let session = attach(&registry, &target)?.session;
        for _ in 0..50 {
            switch(&session, Switch::On)?;
            switch(&session, Switch::Off)?;
            toggles += 2;
        }
        switch(&session, Switch::On)?;
        detach(&registry, &target)?;
        let spoken = Spoken::read(&retained(&session)?)?;
        spoken.check()?;
        // On a busy machine, a round may end before any thread records an event.
        events += spoken.events();
    }
    ensure!(events > 0, "nothing was said");
    let line = target.ask("stop", "stopped ")?;
    ensure!(line.ends_with(" 0"), "after {toggles} toggles: {line}");
    Ok(())
}

/// P58: a forked child writes no event into its parent's rings.
#[test]
fn a_forked_child_is_not_recorded() -> Result<()> {
    let mut target = Target::spawn(Fixture::Events, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    target.ask("fork", "forked")?;
    detach(&registry, &target)?;
    let spoken = Spoken::read(&retained(&session)?)?;
    ensure!(
        spoken.events() == 0 && spoken.calls == 0 && spoken.lost == 0,
        "{spoken:?}"
    );
    Ok(())
}
