//! Each signal reaches the target once, in order and in its own way. The target's handlers and
//! masks stay the same.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, build, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid as NixPid;
use xrayd::{process::AttachOptions, types::Switch};

use crate::support::{all_stopped, attach, attach_with, detach, registry, soak, switch, tid};

const SIGALRM: u32 = 14;
const SIGTERM: u32 = 15;
const SIGTRAP: u32 = 5;
const SIGCHLD: u32 = 17;
/// The C library's own signal. Programs cannot block it. The C library blocks it for a moment when
/// it forks.
const SIGCANCEL: u32 = 32;
/// SIGRTMIN+3 by the C library's count: the first of the signals that `signals` waits for, each in
/// its own way.
const QUEUED: u32 = 37;
const WAYS: u32 = 7;
/// The signal of the signalfd, which is blocked for good.
const SIGNALFD: u32 = QUEUED + 3;

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// The signals that exactly one thread does not block while the program is idle. That thread waits
/// for the signal.
fn awaited() -> impl Iterator<Item = u32> {
    (QUEUED..QUEUED + WAYS)
        .filter(|&signal| signal != SIGNALFD)
        .chain([SIGALRM, SIGTERM])
}

fn thread_for(state: &ProcessState, signal: u32) -> Option<i32> {
    let mut found = state
        .threads
        .iter()
        .filter(|(_, thread)| thread.blocked & bit(signal) == 0);
    let (&tid, _) = found.next()?;
    found.next().is_none().then_some(tid)
}

/// The state of the process at a moment in which none of its threads is in a handler or in a fork.
fn idle(target: &Target, trap: &str) -> Result<ProcessState> {
    let threads = if trap == "handle" { 11 } else { 10 };
    wait_until(DEADLINE, "no thread is in a handler", || {
        let state = ProcessState::of(target.pid())?;
        let held = |signal| {
            let all = state.threads.values();
            all.filter(|thread| thread.blocked & bit(signal) != 0)
                .count()
        };
        let idle = state.threads.len() == threads
            && held(SIGCANCEL) == 0
            && awaited().all(|signal| thread_for(&state, signal).is_some())
            && [SIGNALFD, SIGCHLD]
                .iter()
                .all(|&signal| held(signal) == threads)
            && held(SIGTRAP) == if trap == "block" { threads } else { 0 };
        Ok(idle.then_some(state))
    })
}

/// The counts of the program.
#[derive(Debug)]
struct Counts {
    wrong: u64,
    queued: Vec<u64>,
    children: u64,
    timers: u64,
    raised: u64,
    traps: u64,
    terms: u64,
    sums: u64,
    cut: u64,
}

fn counts(target: &mut Target) -> Result<Counts> {
    let line = target.ask("check", "wrong ")?;
    let words: Vec<&str> = line.split(' ').collect();
    let after = |name: &str, index: usize| -> Result<u64> {
        let at = words.iter().position(|word| *word == name);
        let word = at.and_then(|at| words.get(at + 1 + index));
        Ok(word
            .with_context(|| format!("no {name}: {line}"))?
            .parse()?)
    };
    Ok(Counts {
        wrong: after("wrong", 0)?,
        queued: (0..WAYS as usize)
            .map(|way| after("got", way))
            .collect::<Result<_>>()?,
        children: after("children", 0)?,
        timers: after("timers", 0)?,
        raised: after("raised", 0)?,
        traps: after("traps", 0)?,
        terms: after("terms", 0)?,
        sums: after("sums", 0)?,
        cut: after("cut", 0)?,
    })
}

/// A SIGSTOP with its SIGCONT ends sigwaitinfo and epoll_pwait once, see signal(7), in three
/// threads at most. Nothing ends another call.
const CUT_BY_A_STOP: u64 = 3;

/// Checks that everything that depends on signals still goes on, and that nothing was wrong.
fn goes_on(target: &mut Target, trap: &str, cut: u64) -> Result<()> {
    let before = counts(target)?;
    let after = wait_until(DEADLINE, "children, timers, sums and traps go on", || {
        let now = counts(target)?;
        let on = now.children > before.children + 1
            && now.timers > before.timers
            && now.sums > before.sums
            && (now.traps > before.traps || trap != "handle");
        Ok((on || now.wrong > 0).then_some(now))
    })?;
    ensure!(after.wrong == 0 && after.cut <= cut, "{after:?}");
    // One signal may have been raised and not yet handled.
    ensure!(
        after.traps == after.raised || after.traps + 1 == after.raised,
        "{after:?}"
    );
    Ok(())
}

/// Checks that no SIGTRAP is pending for the process or one of its threads.
fn no_trap_pends(pid: i32) -> Result<()> {
    for task in procfs::process::Process::new(pid)?.tasks()? {
        let status = task?.status()?;
        ensure!(
            (status.sigpnd | status.shdpnd) & bit(SIGTRAP) == 0,
            "a SIGTRAP pends in thread {}",
            status.pid
        );
    }
    Ok(())
}

fn whole_session(target: &Target, options: AttachOptions) -> Result<()> {
    let registry = registry();
    let attached = attach_with(&registry, target, options.clone())?;
    if let (Some(wanted), Some((borrowed, _))) = (options.thread, attached.report.stopped) {
        ensure!(wanted == borrowed, "{borrowed} instead of {wanted}");
    }
    switch(&attached.session, Switch::On)?;
    switch(&attached.session, Switch::Off)?;
    switch(&attached.session, Switch::On)?;
    detach(&registry, target)?;
    Ok(())
}

/// Borrows the thread that takes this signal.
fn borrowing(state: &ProcessState, signal: u32) -> Result<AttachOptions> {
    let thread = thread_for(state, signal).context("no such thread")?;
    Ok(AttachOptions {
        thread: Some(tid(thread)?),
        ..AttachOptions::default()
    })
}

/// A program that handles, ignores or blocks SIGTRAP, or would end by it (P14).
fn check_trap(trap: &str) -> Result<()> {
    for signal in awaited() {
        let mut target = Target::spawn(Fixture::Signals, ["--trap", trap])?;
        let before = idle(&target, trap)?;
        whole_session(&target, borrowing(&before, signal)?)?;
        for _ in 0..soak(2, 200) {
            whole_session(&target, AttachOptions::default())?;
        }
        if trap != "handle" {
            no_trap_pends(target.pid())?;
        }
        goes_on(&mut target, trap, 0)?;
        let after = idle(&target, trap)?;
        ensure!(after == before, "{signal}: {after:#?} {before:#?}");
        target.send("quit")?;
        ensure!(target.wait(DEADLINE)?.success());
    }
    Ok(())
}

#[test]
fn a_handler_of_traps_gets_its_own_and_no_other() -> Result<()> {
    check_trap("handle")
}

#[test]
fn ignored_traps_stay_ignored() -> Result<()> {
    check_trap("ignore")
}

#[test]
fn traps_that_are_held_back_stay_so() -> Result<()> {
    check_trap("block")
}

#[test]
fn no_trap_ends_a_program_that_expects_none() -> Result<()> {
    check_trap("default")
}

/// Another process queues signals all the time. Each arrives once, in order, with its number. So do
/// SIGTERM, SIGALRM and SIGCHLD. Every thread is the borrowed one once (P7, P14).
#[test]
fn queued_signals_arrive_once_and_in_order() -> Result<()> {
    for signal in awaited() {
        let mut target = Target::spawn(Fixture::Signals, ["--trap", "handle"])?;
        let before = idle(&target, "handle")?;
        let options = borrowing(&before, signal)?;
        let mut command = Command::new(build(Fixture::Signals)?);
        command.args(["--send", &target.pid().to_string()]);
        let mut sender = Target::spawn_command(command)?;
        let some_more = |target: &mut Target| -> Result<()> {
            let before = counts(target)?;
            wait_until(DEADLINE, "signals of every kind", || {
                let now = counts(target)?;
                let mut pairs = now.queued.iter().zip(&before.queued);
                Ok(pairs.all(|(now, before)| now > before).then_some(()))
            })
        };
        some_more(&mut target)?;
        let rounds = soak(2, 100);
        for round in 0..rounds {
            kill(NixPid::from_raw(target.pid()), Signal::SIGTERM)?;
            if round == 0 {
                whole_session(&target, options.clone())?;
            } else {
                whole_session(&target, AttachOptions::default())?;
            }
            wait_until(DEADLINE, "SIGTERM has arrived", || {
                Ok((counts(&mut target)?.terms > round).then_some(()))
            })?;
            some_more(&mut target)?;
        }
        let sent: u64 = sender
            .ask("stop", "sent ")?
            .trim_start_matches("sent ")
            .parse()?;
        let last = wait_until(DEADLINE, "the last signals", || {
            let now = counts(&mut target)?;
            Ok((now.wrong > 0 || now.queued.iter().all(|&got| got >= sent)).then_some(now))
        })?;
        ensure!(
            last.wrong == 0 && last.terms == rounds && last.queued.iter().all(|&got| got == sent),
            "{sent} sent: {last:?}"
        );
        goes_on(&mut target, "handle", 0)?;
        let after = idle(&target, "handle")?;
        ensure!(after == before, "{signal}: {after:#?} {before:#?}");
    }
    Ok(())
}

/// Signals arrive while the process stands still for a moment, again and again, because functions
/// of a library that can be unloaded are switched. Each signal is received in its own way, and ends
/// its call once, with EINTR if the call has that (P8).
#[test]
fn signals_end_their_calls_once_while_the_process_stands_still() -> Result<()> {
    let plugin = build(Fixture::Plugins)?.with_file_name("plugin_a.so");
    let mut command = Command::new(build(Fixture::Signals)?);
    command.args(["--trap", "ignore"]).env("LD_PRELOAD", plugin);
    let mut target = Target::spawn_command(command)?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let mut command = Command::new(build(Fixture::Signals)?);
    command.args(["--send", &target.pid().to_string()]);
    let mut sender = Target::spawn_command(command)?;
    for _ in 0..soak(100, 5000) {
        for to in [Switch::On, Switch::Off] {
            let report = switch(&session, to)?;
            ensure!(!report.stopped.is_zero(), "{report:?}");
        }
    }
    let sent: u64 = sender
        .ask("stop", "sent ")?
        .trim_start_matches("sent ")
        .parse()?;
    let last = wait_until(DEADLINE, "the last signals", || {
        let now = counts(&mut target)?;
        Ok((now.wrong > 0 || now.queued.iter().all(|&got| got >= sent)).then_some(now))
    })?;
    ensure!(
        last.wrong == 0 && last.cut == 0 && last.queued.iter().all(|&got| got == sent),
        "{sent} sent: {last:?}"
    );
    detach(&registry, &target)?;
    goes_on(&mut target, "ignore", 0)
}

fn traced_by_nobody(pid: i32) -> Result<()> {
    let state = ProcessState::of(pid)?;
    ensure!(
        state.threads.values().all(|thread| thread.tracer == 0),
        "{state:#?}"
    );
    Ok(())
}

/// Waits a little longer in each round, so that a signal arrives at every moment of an attach.
fn after(round: u32, rounds: u32) -> Duration {
    Duration::from_millis(6) * round / rounds
}

/// The next state change that the parent gets.
fn next_change(target: &Target) -> Result<WaitStatus> {
    wait_until(DEADLINE, "its parent is told", || {
        let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
        let status = waitpid(NixPid::from_raw(target.pid()), Some(flags))?;
        Ok((status != WaitStatus::StillAlive).then_some(status))
    })
}

/// SIGSTOP arrives during an attach. The program stops then, and goes on at SIGCONT and not before
/// (P5).
#[test]
fn a_stop_while_attaching_is_a_stop() -> Result<()> {
    let rounds = soak(24, 1000);
    for round in 0..rounds {
        let mut target = Target::spawn(Fixture::Signals, ["--trap", "handle"])?;
        let before = idle(&target, "handle")?;
        let process = NixPid::from_raw(target.pid());
        let registry = registry();
        let session = std::thread::scope(|scope| {
            let stopper = scope.spawn(|| {
                std::thread::sleep(after(round, rounds));
                kill(process, Signal::SIGSTOP)
            });
            let attached = attach(&registry, &target);
            stopper.join().ok().context("panicked")??;
            anyhow::Ok(attached?.session)
        })?;
        wait_until(DEADLINE, "all threads stopped", || {
            Ok(all_stopped(target.pid())?.then_some(()))
        })?;
        let received = next_change(&target)?;
        ensure!(
            received == WaitStatus::Stopped(process, Signal::SIGSTOP),
            "{received:?}"
        );
        traced_by_nobody(target.pid())?;
        switch(&session, Switch::On)?;
        detach(&registry, &target)?;
        ensure!(all_stopped(target.pid())?);
        kill(process, Signal::SIGCONT)?;
        let received = next_change(&target)?;
        ensure!(received == WaitStatus::Continued(process), "{received:?}");
        goes_on(&mut target, "handle", CUT_BY_A_STOP)?;
        let after = idle(&target, "handle")?;
        ensure!(after == before, "{after:#?} {before:#?}");
    }
    Ok(())
}

/// SIGCONT arrives while a stopped program is being attached. The program goes on then.
#[test]
fn going_on_while_attaching_is_going_on() -> Result<()> {
    let rounds = soak(24, 1000);
    for round in 0..rounds {
        let mut target = Target::spawn(Fixture::Signals, ["--trap", "ignore"])?;
        let before = idle(&target, "ignore")?;
        let process = NixPid::from_raw(target.pid());
        kill(process, Signal::SIGSTOP)?;
        wait_until(DEADLINE, "all threads stopped", || {
            Ok(all_stopped(target.pid())?.then_some(()))
        })?;
        let registry = registry();
        let session = std::thread::scope(|scope| {
            let starter = scope.spawn(|| {
                std::thread::sleep(after(round, rounds));
                kill(process, Signal::SIGCONT)
            });
            let attached = attach(&registry, &target);
            starter.join().ok().context("panicked")??;
            anyhow::Ok(attached?.session)
        })?;
        traced_by_nobody(target.pid())?;
        goes_on(&mut target, "ignore", CUT_BY_A_STOP)?;
        switch(&session, Switch::On)?;
        detach(&registry, &target)?;
        goes_on(&mut target, "ignore", CUT_BY_A_STOP)?;
        let after = idle(&target, "ignore")?;
        ensure!(after == before, "{after:#?} {before:#?}");
    }
    Ok(())
}
