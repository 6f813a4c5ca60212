//! Sleds of one module cannot be written. Another tracer holds the target's thread, and sleds of a
//! library that can be unloaded are written while the process stands still, which that tracer
//! prevents.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use integration::scene::sleds_on;
use integration::{DEADLINE, Fixture, ProcessState, Target, Tool, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xrayd::{
    Reason,
    process::{Registry, Session},
    types::{
        Budget, CallFilter, Duty, Filter, FunctionRow, Mode, Phase, Run, SettingsUpdate, Switch,
    },
};

use crate::support::{
    attach, detach, everything, registry, retained, switch, tally, text_is_as_compiled,
};

/// An strace that is attached to every thread of a target.
struct OtherTracer(Child);

// === impl OtherTracer ===

impl OtherTracer {
    fn attach(target: &Target) -> Result<Self> {
        let leader = target.pid();
        let strace = Tool::Strace
            .command()?
            .args(["-qq", "-f", "-e", "trace=none", "-o", "/dev/null", "-p"])
            .arg(leader.to_string())
            .stderr(Stdio::null())
            .spawn()?;
        let its_pid = i32::try_from(strace.id())?;
        let strace = Self(strace);
        wait_until(DEADLINE, "the other tracer is attached", || {
            // Our own stops are visible as well.
            let state = ProcessState::of(leader)?;
            Ok((state.threads[&leader].tracer == its_pid).then_some(()))
        })?;
        Ok(strace)
    }

    fn detach(mut self, target: &Target) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.0.id())?), Signal::SIGINT)?;
        self.0.wait()?;
        let leader = target.pid();
        wait_until(DEADLINE, "the other tracer is gone", || {
            let state = ProcessState::of(leader)?;
            Ok((state.threads[&leader].tracer == 0).then_some(()))
        })
    }
}

impl Drop for OtherTracer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn plugin(session: &Session) -> Result<Vec<FunctionRow>> {
    let mut rows = session.functions(None)?;
    rows.retain(|row| row.name.starts_with("plugin_a"));
    ensure!(rows.len() == 3, "{rows:?}");
    Ok(rows)
}

fn enabled(session: &Session) -> Result<usize> {
    Ok(plugin(session)?.iter().filter(|row| row.enabled).count())
}

/// Loads a plugin and waits until its three functions are on.
fn loaded(session: &Session, target: &mut Target) -> Result<()> {
    switch(session, Switch::On)?;
    target.ask("load 0 plugin_a.so", "loaded")?;
    wait_until(DEADLINE, "the library is switched on", || {
        let modules = session.status().modules;
        let mut modules = modules.iter();
        Ok(modules
            .any(|module| module.path.ends_with("plugin_a.so") && module.armed.is_some())
            .then_some(()))
    })
}

/// Detaches. Each function of the plugin has recorded this many calls, and nothing was lost.
fn ends_with(
    registry: &Registry,
    session: &Session,
    target: &mut Target,
    calls: u64,
) -> Result<()> {
    let report = detach(registry, target)?;
    ensure!(report.sleds_on == 0 && report.lost == 0, "{report:?}");
    let counts = tally(&retained(session)?)?;
    for name in ["plugin_a_call", "plugin_a_inner", "plugin_a_noise"] {
        ensure!(counts.get(name) == Some(&[calls, calls, 0]), "{counts:?}");
    }
    target.still_running()
}

/// A filter that leaves out all but the outermost calls.
fn outermost() -> Filter {
    Filter {
        calls: CallFilter {
            max_depth: 1,
            ..CallFilter::default()
        },
        ..Filter::default()
    }
}

/// Functions that cannot be switched off count as on, record on, and are switched off once that is
/// possible.
#[test]
fn functions_that_cannot_be_switched_stay_what_they_are() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    loaded(&session, &mut target)?;
    let on = session.status().functions_on;

    let other = OtherTracer::attach(&target)?;
    let refused = session.toggle(&everything(), Switch::Off, Run::Real);
    let reason = refused.err().map(|refusal| refusal.reason);
    ensure!(reason == Some(Reason::ForeignTracer), "{reason:?}");
    // The main program is never unloaded, so its sleds are off. Functions that may be on count as
    // on, for the whole request.
    ensure!(sleds_on(&target)? == 0);
    ensure!(on > 3 && session.status().functions_on == on);
    ensure!(enabled(&session)? == 3);
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    // The program's own code leaves out calls, which needs no write of sleds.
    let shortest = Filter {
        calls: CallFilter {
            shortest: Duration::from_secs(10),
            ..CallFilter::default()
        },
        ..Filter::default()
    };
    session.update(shortest.clone())?;
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    session.update(Filter::default())?;
    other.detach(&target)?;

    switch(&session, Switch::Off)?;
    ensure!(session.status().functions_on == 0);
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    ends_with(&registry, &session, &mut target, 50)
}

/// A refused duty cycle leaves nothing off.
#[test]
fn nothing_changes_if_the_budget_cannot_be_written() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    loaded(&session, &mut target)?;
    let before = session.settings();

    let other = OtherTracer::attach(&target)?;
    let refused = session.update(SettingsUpdate {
        mode: Some(Mode::Flight),
        filter: Some(outermost()),
        // Its sleds cannot be switched off.
        budget: Some(Budget::Duty(Duty {
            on: Duration::from_millis(5),
            every: Duration::from_secs(3600),
        })),
    });
    let reason = refused.map_err(|refusal| refusal.reason);
    ensure!(reason == Err(Reason::ForeignTracer), "{reason:?}");
    ensure!(session.settings() == before, "{:?}", session.settings());
    // The library's sleds are on, and record at once.
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    other.detach(&target)?;
    ensure!(session.settings() == before);

    // All calls are recorded, and those at depth 2, too.
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    switch(&session, Switch::Off)?;
    ends_with(&registry, &session, &mut target, 100)
}

/// While calls are counted, exit sleds are off. If they cannot be switched off, calls are recorded
/// as before.
#[test]
fn calls_are_recorded_on_if_they_cannot_be_counted() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    loaded(&session, &mut target)?;
    // It suppresses nothing.
    session.update(Budget::overhead(1_000_000))?;
    let (before, on) = (session.settings(), sleds_on(&target)?);

    let other = OtherTracer::attach(&target)?;
    let reason = session
        .update(SettingsUpdate {
            mode: Some(Mode::Count),
            filter: None,
            budget: Some(Budget::None),
        })
        .map_err(|refusal| refusal.reason);
    ensure!(reason == Err(Reason::ForeignTracer), "{reason:?}");
    ensure!(session.settings() == before && sleds_on(&target)? == on);
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    other.detach(&target)?;
    ensure!(target.ask("call 0 50", "done")? == "done 50");

    switch(&session, Switch::Off)?;
    ends_with(&registry, &session, &mut target, 100)
}

/// The filter of the refused change is not in force either.
#[test]
fn calls_are_counted_on_if_they_cannot_be_recorded() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    loaded(&session, &mut target)?;
    session.update(Mode::Count)?;
    let before = session.settings();
    let on = sleds_on(&target)?;

    let other = OtherTracer::attach(&target)?;
    let refused = session.update(SettingsUpdate {
        mode: Some(Mode::Stream),
        filter: Some(outermost()),
        budget: None,
    });
    let reason = refused.map_err(|refusal| refusal.reason);
    ensure!(reason == Err(Reason::ForeignTracer), "{reason:?}");
    ensure!(session.settings() == before && sleds_on(&target)? == on);
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    other.detach(&target)?;
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    wait_until(DEADLINE, "all calls are counted", || {
        let rows = plugin(&session)?;
        Ok(rows.iter().all(|row| row.calls == 100).then_some(()))
    })?;

    // The mode can be changed later.
    session.update(Mode::Stream)?;
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    switch(&session, Switch::Off)?;
    ends_with(&registry, &session, &mut target, 50)
}

/// A budget that cannot suppress or resume functions retries, and leaves nothing off in the end.
#[test]
fn a_budget_whose_writes_fail_leaves_nothing_off() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    loaded(&session, &mut target)?;
    let suppressed = |session: &Session| {
        let top = session.status().budget.top;
        top.iter()
            .any(|row| row.name.starts_with("plugin_a") && row.suppressed)
    };

    let other = OtherTracer::attach(&target)?;
    session.update(Budget::overhead(20_000))?;
    // At least two windows of the budget. The functions cost more than it allows, and cannot be
    // switched off.
    for _ in 0..4 {
        ensure!(target.ask("call 0 3000000", "done")? == "done 3000000");
    }
    ensure!(session.status().phase == Phase::Tracing);
    other.detach(&target)?;
    wait_until(DEADLINE, "functions are suppressed", || {
        ensure!(target.ask("call 0 3000000", "done")? == "done 3000000");
        Ok(suppressed(&session).then_some(()))
    })?;

    // The functions cannot be resumed either. The request fails, or is fulfilled later.
    let other = OtherTracer::attach(&target)?;
    let ended = session.update(Budget::None);
    let reason = ended.err().map(|refusal| refusal.reason);
    ensure!(
        reason.is_none_or(|reason| reason == Reason::ForeignTracer),
        "{reason:?}"
    );
    other.detach(&target)?;
    session.update(Budget::None)?;
    switch(&session, Switch::On)?;
    ensure!(enabled(&session)? == 3);
    // The plugin's calls, once all recorded events are read.
    let settled = || {
        let mut before = 0;
        wait_until(DEADLINE, "everything is read", || {
            std::thread::sleep(Duration::from_millis(100));
            let now: u64 = plugin(&session)?.iter().map(|row| row.calls).sum();
            let is_settled = now == before;
            before = now;
            Ok(is_settled.then_some(now))
        })
    };
    let before = settled()?;
    ensure!(target.ask("call 0 50", "done")? == "done 50");
    wait_until(DEADLINE, "all calls are recorded", || {
        Ok((settled()? == before + 150).then_some(()))
    })?;
    let report = detach(&registry, &target)?;
    ensure!(report.sleds_on == 0, "{report:?}");
    text_is_as_compiled(&target, target.program(), target.program())?;
    target.still_running()
}
