//! Filters on the events that are read: modules, and windows of time.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Fixture, GroundTruth, Target, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xray_trace::analysis::{Ending, Step, Steps};
use xray_trace::model::{Profile, Trace};
use xrayd::{
    process::{AttachOptions, Follow, Session, write_profile},
    types::{Filter, Mode, Run, Switch, Window},
};

use crate::support::{attach_with, detach, everything, pid, pid_of, registry, retained, switch};

fn options(mode: Mode) -> AttachOptions {
    AttachOptions {
        ring_bytes: 16 << 20,
        mode,
        ..AttachOptions::default()
    }
}

fn of_modules(modules: &[&str]) -> Filter {
    Filter {
        modules: modules.iter().map(|module| (*module).to_owned()).collect(),
        ..Filter::default()
    }
}

fn now() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_nanos())?)
}

/// Calls with an exit, by function.
fn calls(trace: &Trace) -> Result<BTreeMap<String, u64>> {
    let mut calls = BTreeMap::new();
    for mut steps in Steps::of_threads(trace) {
        for step in &mut steps {
            if let Step::Leave(call) = step {
                ensure!(call.how == Ending::Normal, "{call:?}");
                let name = trace.function_name(call.open.function);
                *calls.entry(name.to_string()).or_default() += 1;
            }
        }
        let notes = steps.notes();
        ensure!(notes.exits_without_entry == 0, "{notes:?}");
    }
    Ok(calls)
}

fn go(target: &mut Target, times: usize) -> Result<()> {
    for _ in 0..times {
        target.ask("go", "done")?;
    }
    Ok(())
}

/// Waits until all recorded events are counted.
fn until_events(session: &Session, events: u64) -> Result<()> {
    wait_until(DEADLINE, "all events are read", || {
        Ok((session.status().events == events).then_some(()))
    })
}

/// The caller's module is left out and the callee's is kept, and the other way round, in each mode
/// and while the program runs.
#[test]
fn events_of_some_modules_are_kept() -> Result<()> {
    for mode in [Mode::Stream, Mode::Flight] {
        let mut target = Target::spawn(Fixture::Dso, [""; 0])?;
        let registry = registry();
        let session = attach_with(&registry, &target, options(mode))?.session;
        switch(&session, Switch::On)?;
        if mode == Mode::Flight {
            // In flight mode, a snapshot filters all events in the rings.
            session.update(of_modules(&["libtraced"]))?;
            go(&mut target, 3)?;
            let kept = calls(&retained(&session)?)?;
            let program = kept.keys().any(|name| name == "program_call");
            ensure!(!program && kept["library_call"] == 3, "{kept:?}");
            session.update(Filter::default())?;
            let all = calls(&retained(&session)?)?;
            ensure!(
                all["library_call"] == 3 && all["program_call"] == 3,
                "{all:?}"
            );
            detach(&registry, &target)?;
            continue;
        }
        go(&mut target, 3)?;
        let before = session.update(of_modules(&["lib*"]))?;
        ensure!(before.filter == Filter::default());
        go(&mut target, 5)?;
        let before = session.update(of_modules(&["dso"]))?;
        ensure!(before.filter == of_modules(&["lib*"]) && session.settings() != before);
        go(&mut target, 7)?;
        session.update(Filter::default())?;
        go(&mut target, 11)?;
        let kept = calls(&retained(&session)?)?;
        let (program, library) = (kept["program_call"], kept["library_call"]);
        ensure!(library == 3 + 5 + 11, "{kept:?}");
        ensure!(program == 3 + 7 + 11, "{kept:?}");
        let status = session.status();
        // Each round has the program's call, the library's, and perhaps an inner one.
        let within = kept.get("library_inner").copied().unwrap_or(0);
        let each = 1 + within / library;
        ensure!(status.filtered == 2 * (5 + 7 * each), "{status:?}");
        ensure!(status.lost == 0 && status.events == status.retained_events + status.filtered);
        detach(&registry, &target)?;
    }
    Ok(())
}

/// A filter for a module that the program does not have keeps no event, so the sums are empty.
#[test]
fn sums_are_of_what_is_kept() -> Result<()> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "500"])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Profile))?.session;
    session.update(of_modules(&["nothing-of-that-name"]))?;
    switch(&session, Switch::On)?;
    target.send("go")?;
    let truth = GroundTruth::parse(&target.line_with("result ", DEADLINE)?)?;
    until_events(&session, truth.events())?;
    let sums = session.kept_profile()?.context("no sums")?;
    let mut file = Vec::new();
    write_profile(&[(std::sync::Arc::clone(&session), sums)], &mut file)?;
    let profile = Profile::of_trace(Trace::read(&*file)?)?;
    let stacks = profile.map_or(0, |profile| profile.stacks().len());
    ensure!(stacks == 0, "{stacks} stacks");
    let status = session.status();
    ensure!(
        status.filtered == truth.events() && status.lost == 0,
        "{status:?}"
    );
    ensure!(status.retained_events == 0, "{status:?}");
    detach(&registry, &target)?;
    Ok(())
}

/// All events in the window are kept, and no other ones.
#[test]
fn events_of_a_window_are_kept() -> Result<()> {
    let mut target = Target::spawn(Fixture::Dso, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream))?.session;
    switch(&session, Switch::On)?;
    let far = Duration::from_secs(3600);
    let far = u64::try_from(far.as_nanos())?;
    for (window, rounds, kept) in [
        // A window that began long ago and has ended.
        ((now()? - far, now()? - 1), 2, false),
        // A window in the future.
        ((now()? + far, now()? + 2 * far), 3, false),
        // A window around now.
        ((now()? - far, now()? + far), 5, true),
        ((0, now()? + far), 7, true),
        ((now()? - far, u64::MAX), 11, true),
    ] {
        let (from_wall_ns, until_wall_ns) = window;
        let before = session.status();
        session.update(Filter {
            window: Window {
                from_wall_ns,
                until_wall_ns,
            },
            ..Filter::default()
        })?;
        go(&mut target, rounds)?;
        retained(&session)?;
        let after = session.status();
        let events = after.events - before.events;
        let filtered = after.filtered - before.filtered;
        ensure!(
            events > 0 && filtered == if kept { 0 } else { events },
            "{window:?}: {after:?}"
        );
    }
    let kept = calls(&retained(&session)?)?;
    ensure!(kept["program_call"] == 5 + 7 + 11, "{kept:?}");
    ensure!(kept["library_call"] == 5 + 7 + 11, "{kept:?}");
    detach(&registry, &target)?;
    Ok(())
}

/// A window that begins while the program works. A part of its calls is kept, all of them whole,
/// and none from before the window.
#[test]
fn a_window_begins_and_ends_by_itself() -> Result<()> {
    // On a busy machine, the program may begin later than the window. Then the test tries a later
    // and longer window.
    for lead in [200, 1_000, 5_000].map(Duration::from_millis) {
        if is_a_window_kept(lead)? {
            return Ok(());
        }
    }
    bail!("the program did not run before the window and in it")
}

/// Checks a window that begins after this time and is half as long. Returns false if the program
/// was too late for it.
fn is_a_window_kept(lead: Duration) -> Result<bool> {
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "0"])?;
    let registry = registry();
    let options = AttachOptions {
        ring_bytes: 64 << 20,
        ..AttachOptions::default()
    };
    let session = attach_with(&registry, &target, options)?.session;
    let lead = u64::try_from(lead.as_nanos())?;
    let from_wall_ns = now()? + lead;
    let until_wall_ns = from_wall_ns + lead / 2;
    session.update(Filter {
        window: Window {
            from_wall_ns,
            until_wall_ns,
        },
        ..Filter::default()
    })?;
    switch(&session, Switch::On)?;
    target.send("go")?;
    wait_until(DEADLINE, "the window is over", || {
        Ok((now()? > until_wall_ns + 200_000_000).then_some(()))
    })?;
    target.send("stop")?;
    target.line_with("result ", DEADLINE)?;
    let trace = retained(&session)?;
    let status = session.status();
    ensure!(status.events >= status.filtered, "{status:?}");
    let clock = trace.clock();
    // The clocks were read when the window was set.
    let slack = 5_000_000;
    let mut begun = 0;
    for mut steps in Steps::of_threads(&trace) {
        for step in &mut steps {
            if let Step::Enter(open) = step {
                let at = clock.wall_ns(open.start);
                ensure!(
                    at + slack >= from_wall_ns && at <= until_wall_ns + slack,
                    "{at}"
                );
                begun += 1;
            }
        }
    }
    detach(&registry, &target)?;
    Ok(begun > 0 && status.filtered > 0)
}

#[test]
fn a_filter_that_means_nothing_changes_nothing() -> Result<()> {
    let target = Target::spawn(Fixture::Dso, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream))?.session;
    let good = of_modules(&["lib*"]);
    session.update(good.clone())?;
    let backwards = Filter {
        window: Window {
            from_wall_ns: 2,
            until_wall_ns: 1,
        },
        ..Filter::default()
    };
    for bad in [of_modules(&["a["]), backwards] {
        let refusal = session.update(bad.clone()).err().context("it was taken")?;
        ensure!(refusal.reason == xrayd::Reason::Selection, "{refusal}");
    }
    ensure!(session.settings().filter == good);
    detach(&registry, &target)?;
    Ok(())
}

/// A library that the filter names and one that it does not name are loaded later.
#[test]
fn a_filter_holds_for_a_library_that_is_loaded_later() -> Result<()> {
    let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
    let registry = registry();
    let session = attach_with(&registry, &target, options(Mode::Stream))?.session;
    session.update(of_modules(&["plugin_b"]))?;
    switch(&session, Switch::On)?;
    for (slot, file) in ["plugin_a.so", "plugin_b.so"].into_iter().enumerate() {
        target.ask(&format!("load {slot} {file}"), "loaded")?;
        wait_until(DEADLINE, "the library is armed", || {
            let modules = session.status().modules;
            let on = modules
                .iter()
                .find(|module| module.path.ends_with(file) && module.armed.is_some());
            Ok(on.map(drop))
        })?;
        ensure!(target.ask(&format!("call {slot} 50"), "done")? == "done 50");
    }
    let kept = calls(&retained(&session)?)?;
    ensure!(kept["plugin_b_call"] == 50, "{kept:?}");
    ensure!(
        kept.keys().all(|name| name.starts_with("plugin_b")),
        "{kept:?}"
    );
    let status = session.status();
    ensure!(
        status.filtered >= 2 * kept.values().sum::<u64>(),
        "{status:?}"
    );
    ensure!(
        status.events == status.retained_events + status.filtered,
        "{status:?}"
    );
    detach(&registry, &target)?;
    Ok(())
}

/// The filter of a process also holds for the processes that are followed from it, before and after
/// the filter was set.
#[test]
fn a_filter_holds_for_who_is_followed() -> Result<()> {
    /// The entries and exits of a thousand calls of two functions.
    const EVENTS: u64 = 4000;
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let options = AttachOptions {
        follow: Follow::Fork,
        ..options(Mode::Stream)
    };
    attach_with(&registry, &target, options)?;
    let group = registry.group(pid_of(&target)?).context("no group")?;
    for report in group.toggle(&everything(), Switch::On, Run::Real) {
        report.1?;
    }
    let mut children = Vec::new();
    for filtered in [false, true] {
        if filtered {
            for (_, before) in group.update(of_modules(&["a["])) {
                let reason = before.err().map(|refusal| refusal.reason);
                ensure!(reason == Some(xrayd::Reason::Selection), "{reason:?}");
            }
            for (_, before) in group.update(of_modules(&["nothing-of-that-name"])) {
                ensure!(before?.filter == Filter::default());
            }
        }
        let line = target.ask("child", "child ")?;
        children.push(line.trim_start_matches("child ").parse::<i32>()?);
        wait_until(DEADLINE, "the child is followed", || {
            let sessions = group.sessions();
            let all = sessions
                .iter()
                .skip(1)
                .all(|session| session.kinship().is_some());
            Ok((all && sessions.len() == children.len() + 1).then_some(()))
        })?;
    }
    for child in children {
        let its = pid(child)?;
        let session = registry.get(its).context("not traced")?;
        kill(NixPid::from_raw(child), Signal::SIGUSR1)?;
        target.line_with(&format!("tally {child} "), DEADLINE)?;
        // Until then, the number of its events is an estimate.
        let status = wait_until(DEADLINE, "its calls are read", || {
            let status = session.status();
            Ok((status.filtered >= EVENTS).then_some(status))
        })?;
        ensure!(
            (status.events, status.filtered) == (EVENTS, EVENTS),
            "{status:?}"
        );
    }
    for (_, report) in registry.end_group(&group) {
        report?;
    }
    Ok(())
}
