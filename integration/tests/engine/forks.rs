//! A process and its descendants, each traced by itself: the trace of one has no calls of another.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, opens_map_files, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xray_trace::model::Trace;
use xrayd::{
    Reason,
    process::{AttachOptions, Registry, Session},
    types::Switch,
};

use crate::{
    adoption::wait_for_events,
    support::{attach, attach_with, detach, pid, pid_of, registry, retained, switch, tally, tid},
};

/// A descendant that stays alive. Only the first process is a child of the test.
#[derive(Debug, Clone, Copy)]
struct Descendant(i32);

// === impl Descendant ===

impl Descendant {
    fn of(target: &mut Target) -> Result<Descendant> {
        let line = target.ask("child", "child ")?;
        Ok(Descendant(line.trim_start_matches("child ").parse()?))
    }

    fn child(self, target: &mut Target) -> Result<Descendant> {
        kill(NixPid::from_raw(self.0), Signal::SIGUSR2)?;
        let line = target.line_with("child ", DEADLINE)?;
        Ok(Descendant(line.trim_start_matches("child ").parse()?))
    }

    /// Makes a thousand calls more. Returns the number of all its calls.
    fn work(self, target: &mut Target) -> Result<u64> {
        kill(NixPid::from_raw(self.0), Signal::SIGUSR1)?;
        let line = target.line_with(&format!("tally {} ", self.0), DEADLINE)?;
        Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
    }

    fn attach(self, registry: &Registry, options: AttachOptions) -> Result<Arc<Session>> {
        let attached = registry
            .attach(pid(self.0)?, options)
            .with_context(|| format!("cannot attach to {}", self.0))?;
        ensure!(!attached.report.adopted, "it took its parent's rings over");
        switch(&attached.session, Switch::On)?;
        Ok(attached.session)
    }

    /// Detaches. The trace has exactly this many calls, all of them by this process.
    fn finish(self, registry: &Registry, session: &Session, calls: u64) -> Result<()> {
        let report = registry.detach(pid(self.0)?)?;
        ensure!(
            report.lost == 0 && report.text_bytes_different == 0 && !report.exited,
            "{report:?}"
        );
        holds_exactly(&retained(session)?, calls, &[self.0])
    }
}

fn calls_of(answer: &str) -> Result<u64> {
    let number = answer.strip_prefix("done ").context("a bad end")?;
    Ok(number.parse()?)
}

fn ask(target: &mut Target, line: &str) -> Result<u64> {
    calls_of(&target.ask(line, "")?)
}

/// Checks for this many calls of `work`, each with one of `inner`, by these threads and no others.
fn holds_exactly(trace: &Trace, calls: u64, threads: &[i32]) -> Result<()> {
    ensure!(trace.totals().lost == 0, "{:?}", trace.totals());
    let counts = tally(trace)?;
    for name in ["work", "inner"] {
        let found = counts.get(name).copied().unwrap_or_default();
        ensure!(found == [calls, calls, 0], "{calls} calls: {counts:?}");
    }
    only_by(trace, threads)
}

fn only_by(trace: &Trace, threads: &[i32]) -> Result<()> {
    for (id, _) in trace.blocks_by_thread() {
        let thread = trace.thread(id).context("a thread without a row")?;
        let known = threads.contains(&i32::try_from(thread.tid)?);
        ensure!(known, "calls of thread {} are in it", thread.tid);
    }
    Ok(())
}

fn roomy() -> AttachOptions {
    AttachOptions {
        ring_bytes: 4 << 20,
        ..AttachOptions::default()
    }
}

/// Parent, child and grandchild at the same time. The parent's sleds are on while it forks (P58).
#[test]
fn three_generations_are_recorded_each_by_itself() -> Result<()> {
    let other = AttachOptions {
        ring_bytes: 64 << 10,
        max_threads: 3,
        ..AttachOptions::default()
    };
    let larger = AttachOptions {
        ring_bytes: 16 << 20,
        max_threads: 5000,
        ..AttachOptions::default()
    };
    for options in [roomy(), other, larger] {
        let mut target = Target::spawn(Fixture::Group, [""; 0])?;
        let registry = registry();
        let first = attach_with(&registry, &target, roomy())?.session;
        switch(&first, Switch::On)?;
        let mut own = ask(&mut target, "calls 500")?;

        let child = Descendant::of(&mut target)?;
        // The child runs on with the parent's sleds on.
        let untraced = child.work(&mut target)?;
        ensure!(untraced == 1000);
        let second = child.attach(&registry, options.clone())?;
        ensure!(child.work(&mut target)? == 2000);
        own += 300;
        ensure!(ask(&mut target, "calls 300")? == own);

        let grandchild = child.child(&mut target)?;
        ensure!(grandchild.work(&mut target)? == 1000);
        ensure!(child.work(&mut target)? == 3000);
        let third = grandchild.attach(&registry, options.clone())?;
        ensure!(grandchild.work(&mut target)? == 2000);
        ensure!(child.work(&mut target)? == 4000);
        own += 200;
        ensure!(ask(&mut target, "calls 200")? == own);

        grandchild.finish(&registry, &third, 1000)?;
        ensure!(grandchild.work(&mut target)? == 3000);
        child.finish(&registry, &second, 3000)?;
        ensure!(child.work(&mut target)? == 5000);
        ensure!(ask(&mut target, "brief 3")? == own);
        detach(&registry, &target)?;
        holds_exactly(&retained(&first)?, own, &[target.pid()])?;

        // Each can be attached once more, and keeps its own memory.
        for descendant in [child, grandchild] {
            let attached = registry.attach(pid(descendant.0)?, options.clone())?;
            ensure!(
                attached.report.adopted == opens_map_files()?,
                "{:?}",
                attached.report
            );
            switch(&attached.session, Switch::On)?;
            descendant.work(&mut target)?;
            descendant.finish(&registry, &attached.session, 1000)?;
        }
    }
    Ok(())
}

/// The parent's threads work without a pause while one of them forks, and while its child is
/// attached (P58).
#[test]
fn forks_under_full_load_leave_the_counts_right() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, ["--threads", "3"])?;
    let threads: Vec<i32> = ProcessState::of(target.pid())?
        .threads
        .into_keys()
        .collect();
    ensure!(threads.len() == 4, "{threads:?}");
    let registry = registry();
    // The calls so far are not in the trace.
    let session = attach_with(&registry, &target, roomy())?.session;
    switch(&session, Switch::On)?;
    wait_for_events(&session, 10_000)?;
    let mut children = Vec::new();
    for _ in 0..4 {
        ask(&mut target, "brief 5")?;
        let child = Descendant::of(&mut target)?;
        ensure!(child.work(&mut target)? == 1000);
        let its = child.attach(&registry, AttachOptions::default())?;
        ensure!(child.work(&mut target)? == 2000);
        children.push((child, its));
    }
    for (child, its) in children {
        child.finish(&registry, &its, 1000)?;
    }
    ask(&mut target, "stop")?;
    detach(&registry, &target)?;
    let trace = retained(&session)?;
    only_by(&trace, &threads)
}

/// The same with all of the parent's calls in the trace. Only calls that are counted as lost are
/// missing.
#[test]
fn calls_of_a_forking_process_are_recorded_or_counted_as_lost() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    let mut own = 0;
    for _ in 0..5 {
        own += 40_000;
        ensure!(ask(&mut target, "calls 40000")? == own);
        ensure!(ask(&mut target, "brief 4")? == own);
        ensure!(ask(&mut target, "vexec 2")? == own);
        ensure!(ask(&mut target, "spawn 2")? == own);
    }
    let report = detach(&registry, &target)?;
    ensure!(
        report.events + report.lost == 4 * own,
        "{own} calls: {report:?}"
    );
    only_by(&retained(&session)?, &[target.pid()])
}

/// `vfork` and `posix_spawn` start other programs. Nothing of them is in the trace (P59, P60).
/// Children with short lives end in each step of being switched off.
#[test]
fn a_child_that_ends_while_it_is_switched_off_is_no_failure() -> Result<()> {
    // Numbers of children, and the longest life among them in microseconds. On a busy machine, all
    // children of a round may end before they are switched off. Those of the next round live
    // longer.
    const ROUNDS: [(u32, u32); 4] = [(400, 20_000), (100, 80_000), (25, 320_000), (8, 5_000_000)];
    let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    let parent = target.pid();
    let children_of_parent = format!("/proc/{parent}/task/{parent}/children");
    let (mut refused, mut switched) = (0, 0);
    for (round, (children, micros)) in ROUNDS.into_iter().enumerate() {
        target.send(&format!("fork {children} {micros}"))?;
        let answer = loop {
            for child in std::fs::read_to_string(&children_of_parent)?.split_ascii_whitespace() {
                match registry.switch_off(pid(child.parse()?)?, AttachOptions::default()) {
                    Ok(_) => switched += 1,
                    Err(refusal) => {
                        ensure!(
                            !matches!(refusal.reason, Reason::Io | Reason::NoSleds),
                            "{refusal}"
                        );
                        refused += 1;
                    }
                }
            }
            if let Ok(answer) = target.line(Duration::ZERO) {
                break answer;
            }
            target.still_running()?;
        };
        ensure!(calls_of(&answer)? == 100 * (round as u64 + 1));
        if refused > 0 && switched > 0 {
            break;
        }
    }
    ensure!(
        refused > 0 && switched > 0,
        "{refused} were refused, {switched} switched off"
    );
    detach(&registry, &target)?;
    target.still_running()
}

#[test]
fn starting_other_programs_leaves_the_session_as_it_is() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, roomy())?.session;
    switch(&session, Switch::On)?;
    let mut own = 0;
    for line in ["vexec 10", "spawn 10", "brief 10"] {
        ensure!(ask(&mut target, line)? == own);
        own += 700;
        ensure!(ask(&mut target, "calls 700")? == own);
    }
    detach(&registry, &target)?;
    holds_exactly(&retained(&session)?, own, &[target.pid()])
}

/// A thread that waits for its vforked child does not stop. It is neither traced nor stopped
/// afterwards, and goes on when the child has ended (P6).
#[test]
fn a_thread_that_cannot_be_stopped_goes_on_afterwards() -> Result<()> {
    for workers in ["0", "2"] {
        let mut target = Target::spawn(Fixture::Group, ["--threads", workers])?;
        target.send("hold")?;
        let held = target.line_with("held ", DEADLINE)?;
        let held: i32 = held.trim_start_matches("held ").parse()?;
        let leader = target.pid();
        let state_of =
            move || -> Result<char> { Ok(procfs::process::Process::new(leader)?.stat()?.state) };
        wait_until(DEADLINE, "it waits for its child", || {
            Ok((state_of()? == 'D').then_some(()))
        })?;

        let registry = registry();
        let this_one = AttachOptions {
            thread: Some(tid(leader)?),
            ..AttachOptions::default()
        };
        let untouched = || -> Result<()> {
            let state = ProcessState::of(leader)?;
            ensure!(
                state.threads.values().all(|thread| thread.tracer == 0),
                "{state:#?}"
            );
            ensure!(state_of()? == 'D');
            Ok(())
        };
        for _ in 0..2 {
            let refused = registry.attach(pid_of(&target)?, this_one.clone()).err();
            let refusal = refused.context("a thread that does not stop was borrowed")?;
            ensure!(refusal.reason == Reason::StopTimeout, "{refusal}");
            untouched()?;
        }
        // Another thread stops, if there is one.
        match registry.attach(pid_of(&target)?, AttachOptions::default()) {
            Ok(attached) => {
                ensure!(workers == "2");
                switch(&attached.session, Switch::On)?;
                wait_for_events(&attached.session, 1000)?;
                detach(&registry, &target)?;
            }
            Err(refusal) => {
                ensure!(
                    workers == "0" && refusal.reason == Reason::StopTimeout,
                    "{refusal}"
                );
            }
        }
        untouched()?;
        kill(NixPid::from_raw(held), Signal::SIGUSR1)?;
        calls_of(&target.line_with("done ", DEADLINE)?)?;
        // The process can be attached from now on.
        let session = attach(&registry, &target)?.session;
        switch(&session, Switch::On)?;
        ask(&mut target, "calls 10")?;
        wait_for_events(&session, 0)?;
        detach(&registry, &target)?;
        ensure!(tally(&retained(&session)?)?["work"][0] >= 10);
    }
    Ok(())
}

/// A vforked child runs in its parent's memory. It must not be traced beside its parent, because
/// that would empty the parent's rings.
#[test]
fn a_vforked_child_is_not_traced_beside_its_parent() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, roomy())?.session;
    switch(&session, Switch::On)?;
    ask(&mut target, "calls 100")?;
    target.send("hold")?;
    let held = target.line_with("held ", DEADLINE)?;
    let held: i32 = held.trim_start_matches("held ").parse()?;
    let refused = registry.attach(pid(held)?, AttachOptions::default()).err();
    let reason = refused.context("two sessions on one memory")?.reason;
    ensure!(reason == Reason::Busy, "{reason:?}");
    kill(NixPid::from_raw(held), Signal::SIGUSR1)?;
    calls_of(&target.line_with("done ", DEADLINE)?)?;
    ask(&mut target, "calls 100")?;
    detach(&registry, &target)?;
    holds_exactly(&retained(&session)?, 200, &[target.pid()])
}
