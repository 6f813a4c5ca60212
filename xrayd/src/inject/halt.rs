//! Stops a whole process for a moment.
//!
//! Between a look at the maps and a write, a library can be unloaded and something else be mapped
//! in its place. While every thread stands still, nothing is unloaded: look and write are one step.
//!
//! No call that a thread sleeps in fails because of the stop, also if another thread does not stop:
//! the tokens of `sys/ptrace` see to that.
//!
//! If a thread does not stop, the others have stood still for nothing. So the next halt is refused
//! at once, for as long as that thread has not run.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::borrow::trace_refusal;
use crate::{
    pid::Tid,
    refusal::{Reason, Refusal, Result},
    sys::{
        PriorityBoost,
        ptrace::{Halting, Seized, Stopped, TraceError},
    },
    target::{Target, Threads, tracer_of},
};

/// Longest time for all threads to stop. A thread that sleeps uninterruptibly (the parent of a
/// vforked child, a broken network disk) does not stop.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most listings until one shows no new thread: a thread that still runs may start others.
const LISTINGS: usize = 100;

/// Runs `work` while every thread of the process stands still. Also returns how long the first
/// thread stood still.
///
/// # Errors
/// A thread does not stop in time or has another tracer: then `work` did not run. Or `work` failed.
pub(super) fn while_halted<T: Send>(
    target: &Target,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<(T, Duration)> {
    let pid = target.pid();
    if let Some(tid) = target.stuck_thread() {
        let message = format!(
            "process {pid}: thread {tid} still sleeps uninterruptibly, as it did when xrayd tried to \
             stop the process: xrayd tries again once that thread has run"
        );
        return Err(Refusal::new(Reason::StopTimeout, message));
    }
    // On an OS thread of its own: when it ends, the kernel releases every thread that it may still
    // trace.
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(format!("halt-{pid}"));
        let thread = thread.spawn_scoped(scope, || {
            // The process stands still whenever this thread waits.
            let _urgent = PriorityBoost::begin();
            halt(target, work)
        });
        let thread = thread.map_err(|error| Refusal::from_io(pid, "start a thread", &error))?;
        Ok(thread.join())
    })?;
    done.unwrap_or_else(|_| {
        let message = format!(
            "process {}: a bug in xrayd while the process was stopped",
            target.pid()
        );
        Err(Refusal::new(Reason::Io, message))
    })
}

fn halt<T>(target: &Target, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let since = Instant::now();
    let mut held = Vec::new();
    let mut known = BTreeSet::new();
    for _ in 0..LISTINGS {
        let threads = Threads::of(target.pid());
        let new: Vec<Tid> = threads
            .into_iter()
            .filter(|tid| known.insert(*tid))
            .collect();
        if new.is_empty() {
            target.check_owner()?;
            let done = work();
            release(held);
            return Ok((done?, since.elapsed()));
        }
        stop(target, new, since, &mut held)?;
    }
    let message = format!(
        "process {}: it starts threads faster than xrayd can stop them",
        target.pid()
    );
    Err(Refusal::new(Reason::StopTimeout, message))
}

/// Stops these threads. All are asked before the first one is waited for.
fn stop(target: &Target, threads: Vec<Tid>, since: Instant, held: &mut Vec<Stopped>) -> Result<()> {
    let mut halting: Vec<Halting> = Vec::new();
    for tid in threads {
        match Seized::seize(tid).and_then(Seized::ask_to_stop) {
            Ok(thread) => halting.push(thread),
            // The kernel returns EPERM for a thread that is just ending.
            Err(_) if Threads::is_ending(target.pid(), tid) => {}
            Err(TraceError::Gone(_)) => {}
            Err(error) => return Err(not_seized(target, &error)),
        }
    }
    for thread in halting {
        let tid = thread.tid();
        match thread.wait(PATIENCE.saturating_sub(since.elapsed())) {
            Ok(thread) => held.push(thread),
            Err(TraceError::Gone(_)) => {}
            Err(_) if Threads::is_ending(target.pid(), tid) => {}
            Err(error) => {
                target.note_stuck(tid);
                return Err(trace_refusal(target, &error));
            }
        }
    }
    Ok(())
}

fn release(held: Vec<Stopped>) {
    for thread in held {
        let tid = thread.tid();
        match thread.release() {
            Ok(_) | Err(TraceError::Gone(_)) => {}
            Err(error) => {
                tracing::error!(tid = tid.as_raw(), %error, "cannot release a stopped thread");
            }
        }
    }
}

fn not_seized(target: &Target, error: &TraceError) -> Refusal {
    let tracer = target
        .live_thread()
        .ok()
        .and_then(|tid| tracer_of(target.pid(), tid));
    match tracer {
        Some(tracer) => {
            let message = format!(
                "process {} is traced by process {tracer}, so xrayd cannot stop it, as this change \
                 needs: detach that tracer, and try again",
                target.pid()
            );
            Refusal::new(Reason::ForeignTracer, message)
        }
        None => trace_refusal(target, error),
    }
}
