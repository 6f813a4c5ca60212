//! No system call of the target returns early because of us.

use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, build, wait_until};
use procfs::process::Process;
use xrayd::{
    Reason,
    process::AttachOptions,
    types::{Run, Switch},
};

use crate::support::{attach, attach_with, detach, everything, registry, switch, tid};

/// The calls by name, and the thread in each.
fn calls(target: &mut Target) -> Result<Vec<(String, i32)>> {
    let mut calls = Vec::new();
    loop {
        let line = target.line(DEADLINE)?;
        if line.starts_with("ready") {
            return Ok(calls);
        }
        let mut words = line.split(' ').skip(1);
        let thread = words.next().context("no thread")?.parse()?;
        calls.push((words.next().context("no name")?.to_owned(), thread));
    }
}

fn spawn(arguments: &[&str]) -> Result<Target> {
    let mut command = std::process::Command::new(build(Fixture::Blocking)?);
    command.args(arguments);
    Target::spawn_unready(command)
}

fn whole_round(target: &mut Target, options: AttachOptions) -> Result<()> {
    let registry = registry();
    let attached = attach_with(&registry, target, options.clone())?;
    if let Some(thread) = options.thread {
        let stopped = attached.report.stopped.context("nobody was stopped")?;
        ensure!(stopped.0 == thread, "{stopped:?} instead of {thread}");
    }
    switch(&attached.session, Switch::On)?;
    switch(&attached.session, Switch::Off)?;
    detach(&registry, target)?;
    all_sleep(target)
}

fn all_sleep(target: &mut Target) -> Result<()> {
    let mut early = Vec::new();
    target.send("check")?;
    loop {
        let line = target.line(DEADLINE)?;
        if line.starts_with("checked") {
            ensure!(line == "checked 39 0", "{early:?} {line}");
            return Ok(());
        }
        early.push(line);
    }
}

/// Ends the program in an orderly way. Its System V queue and semaphores would outlive a kill.
fn quit(mut target: Target) -> Result<()> {
    target.send("quit")?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

/// The borrowed thread is the main thread of its process. It is in each of the calls in turn (P8,
/// P9, P10).
#[test]
fn the_borrowed_thread_stays_in_its_call() -> Result<()> {
    let mut first = spawn(&[])?;
    let names: Vec<String> = calls(&mut first)?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    quit(first)?;
    ensure!(names.len() == 39);
    let left = Mutex::new(names);
    let one_after_the_other = || -> Result<()> {
        loop {
            let next = left
                .lock()
                .map_err(|error| anyhow::anyhow!("{error}"))?
                .pop();
            let Some(name) = next else { return Ok(()) };
            let mut target = spawn(&["--main", &name])?;
            let inside = calls(&mut target)?;
            ensure!(inside.contains(&(name.clone(), target.pid())), "{inside:?}");
            let options = AttachOptions {
                thread: Some(tid(target.pid())?),
                ..AttachOptions::default()
            };
            let done = whole_round(&mut target, options).with_context(|| name.clone());
            quit(target)?;
            done?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(one_after_the_other)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("panicked"))?)
    })
}

/// Starts the program with a library that can be unloaded: its sleds are written while every thread
/// stands still.
fn spawn_with_plugin() -> Result<Target> {
    let plugin = build(Fixture::Plugins)?.with_file_name("plugin_a.so");
    let mut command = std::process::Command::new(build(Fixture::Blocking)?);
    command.env("LD_PRELOAD", plugin);
    let mut target = Target::spawn_unready(command)?;
    calls(&mut target)?;
    Ok(target)
}

/// One thread does not stop. The others have stopped before that, and go on in their calls (P8).
#[test]
fn every_thread_stays_in_its_call_when_one_does_not_stop() -> Result<()> {
    let mut target = spawn_with_plugin()?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    target.send("vfork 4000")?;
    let process = Process::new(target.pid())?;
    wait_until(DEADLINE, "a thread waits for its child", || {
        for task in process.tasks()? {
            if task?.stat()?.state == 'D' {
                return Ok(Some(()));
            }
        }
        Ok(None)
    })?;
    // How many times each thread has slept anew, once all sleep.
    let sleeps = || {
        wait_until(DEADLINE, "all threads sleep", || {
            let mut slept = Vec::new();
            for task in process.tasks()? {
                let status = task?.status()?;
                if !status.state.starts_with(['S', 'D']) {
                    return Ok(None);
                }
                slept.push((status.pid, status.voluntary_ctxt_switches));
            }
            Ok(Some(slept))
        })
    };
    let mut before = sleeps()?;
    for trial in 0..3 {
        let refused = session
            .toggle(&everything(), Switch::On, Run::Real)
            .err()
            .context("the process stood still")?;
        ensure!(refused.reason == Reason::StopTimeout, "{refused}");
        let now = sleeps()?;
        match trial {
            0 => ensure!(now != before, "no thread was stopped: {refused}"),
            // No thread is stopped for nothing again.
            _ => ensure!(now == before, "{before:?} then {now:?}: {refused}"),
        }
        before = now;
    }
    target.line_with("vforked", DEADLINE)?;
    all_sleep(&mut target)?;
    switch(&session, Switch::On)?;
    detach(&registry, &target)?;
    all_sleep(&mut target)?;
    quit(target)
}

/// Every thread stays in its call (P8, P9, P10).
#[test]
fn every_thread_stays_in_its_call_while_the_process_stands_still() -> Result<()> {
    let mut target = spawn_with_plugin()?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    for _ in 0..20 {
        for to in [Switch::On, Switch::Off] {
            let report = switch(&session, to)?;
            ensure!(!report.stopped.is_zero(), "{report:?}");
        }
    }
    detach(&registry, &target)?;
    whole_round(&mut target, AttachOptions::default())?;
    quit(target)
}

#[test]
fn no_thread_is_disturbed_by_whole_sessions() -> Result<()> {
    let mut target = spawn(&[])?;
    calls(&mut target)?;
    for _ in 0..3 {
        whole_round(&mut target, AttachOptions::default())?;
    }
    // The ordinary ends of the calls still work.
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    ensure!(target.ask("release", "done")? == "done 32 7");
    detach(&registry, &target)?;
    quit(target)
}
