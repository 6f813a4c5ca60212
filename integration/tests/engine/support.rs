//! Shared by the tests: attaching, switching, reading a trace, and comparing it with a program's
//! own counts.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use integration::{
    CallEvent, EventKind, GroundTruth, SequenceHash, Target, sleds_of, text_differences,
};
use xray_trace::analysis::{Notes, Steps};
use xray_trace::container::Redaction;
use xray_trace::instr_map::{Rule, Selection};
use xray_trace::model::{CallKind, EventBody, FunctionId, Profile, Trace};
use xrayd::{
    Pid, Tid,
    export::PendingSnapshot,
    process::{AttachOptions, Attached, Registry, RegistryConfig, Session, write_profile},
    store::ProfileSums,
    types::{DetachReport, Reach, Run, Switch, ToggleReport},
};

pub(crate) use integration::soak;

pub(crate) fn registry() -> Registry {
    Registry::new(RegistryConfig::default())
}

pub(crate) fn pid_of(target: &Target) -> Result<Pid> {
    pid(target.pid())
}

pub(crate) fn pid(raw: i32) -> Result<Pid> {
    Ok(Pid::try_from(u32::try_from(raw)?)?)
}

pub(crate) fn tid(raw: i32) -> Result<Tid> {
    Ok(Tid::try_from(u32::try_from(raw)?)?)
}

pub(crate) fn everything() -> Selection {
    Selection {
        include: vec![Rule::All],
        exclude: Vec::new(),
    }
}

/// True if a signal has stopped every thread of the process.
pub(crate) fn all_stopped(pid: i32) -> Result<bool> {
    for task in procfs::process::Process::new(pid)?.tasks()? {
        if task?.stat()?.state != 'T' {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn attach(registry: &Registry, target: &Target) -> Result<Attached> {
    attach_with(registry, target, AttachOptions::default())
}

pub(crate) fn attach_with(
    registry: &Registry,
    target: &Target,
    options: AttachOptions,
) -> Result<Attached> {
    let pid = pid_of(target)?;
    registry
        .attach(pid, options)
        .with_context(|| format!("cannot attach to {}", target.program().display()))
}

/// Switches all functions. No sled may be left out.
pub(crate) fn switch(session: &Session, to: Switch) -> Result<ToggleReport> {
    let report = session
        .toggle(&everything(), to, Run::Real)
        .with_context(|| format!("cannot switch {to:?}"))?;
    ensure!(report.foreign == 0, "sleds left alone: {report:?}");
    Ok(report)
}

/// Detaches, and accepts the report only if it has a proof.
pub(crate) fn detach(registry: &Registry, target: &Target) -> Result<DetachReport> {
    let report = registry.detach(pid_of(target)?).context("cannot detach")?;
    ensure!(
        !report.exited
            && report.sleds_on == 0
            && report.sleds_off > 0
            && report.text_bytes_compared > 0
            && report.text_bytes_different == 0,
        "a bad end: {report:?}"
    );
    Ok(report)
}

/// Writes the events that the rings hold or that are retained, as a trace.
pub(crate) fn write_snapshot(session: &Session, out: &mut dyn io::Write) -> io::Result<()> {
    PendingSnapshot::take(vec![session], Reach::All).write(out, |_| Redaction::NONE)
}

pub(crate) fn retained(session: &Session) -> Result<Trace> {
    let mut bytes = Vec::new();
    write_snapshot(session, &mut bytes).context("cannot write the trace")?;
    Trace::read(bytes.as_slice()).context("cannot read the trace")
}

/// The target's memory.
pub(crate) fn memory(target: &Target) -> Result<File> {
    let path = format!("/proc/{}/mem", target.pid());
    Ok(OpenOptions::new().read(true).write(true).open(path)?)
}

/// Checks that every byte of `file` that a thread of the target can execute is as in the file.
/// Differences lie only in sleds, behind the instruction that leaves or skips them.
pub(crate) fn text_is_as_compiled(target: &Target, mapped_as: &Path, file: &Path) -> Result<()> {
    let sleds = sleds_of(file)?;
    for difference in text_differences(target.pid(), mapped_as, file)? {
        for (at, _) in (difference.file_address..).zip(&difference.found) {
            let dead = sleds.iter().any(|sled| {
                let dead = sled.kind.dead();
                at.checked_sub(sled.address)
                    .is_some_and(|at| dead.contains(&at))
            });
            ensure!(dead, "byte {at:#x} was changed: {difference:x?}");
        }
    }
    Ok(())
}

/// The numbers of entries, exits and tail exits of each function, by its name without parameters.
pub(crate) fn tally(trace: &Trace) -> Result<BTreeMap<String, [u64; 3]>> {
    let mut counts = BTreeMap::<String, [u64; 3]>::new();
    for block in trace.blocks() {
        for event in block.events() {
            if let EventBody::Call { function, kind, .. } = event?.body {
                let name = trace.function_name(function);
                let bare = name.split('(').next().unwrap_or(&name).to_owned();
                counts.entry(bare).or_default()[match kind {
                    CallKind::Enter => 0,
                    CallKind::Exit => 1,
                    CallKind::TailExit => 2,
                }] += 1;
            }
        }
    }
    Ok(counts)
}

/// The events of one thread id in a trace.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) calls: Vec<u64>,
    pub(crate) events: u64,
    pub(crate) hash: SequenceHash,
    pub(crate) all: Vec<CallEvent>,
    pub(crate) lost: u64,
    /// The calls that were open when the thread ended.
    pub(crate) left: u64,
}

/// All events of the trace, by thread id, with the function indexes of the program `counted`.
pub(crate) fn seen(trace: &Trace, truth: &GroundTruth) -> Result<BTreeMap<i32, Seen>> {
    let mut indexes = BTreeMap::<FunctionId, usize>::new();
    for function in trace.functions() {
        let index = truth
            .function(&function.name)
            .with_context(|| format!("{} is not counted", function.name))?;
        indexes.insert(function.id, index);
    }
    let mut threads = BTreeMap::<i32, Seen>::new();
    for (id, blocks) in trace.blocks_by_thread() {
        let thread = trace.thread(id).context("a thread without a row")?;
        let seen = threads.entry(i32::try_from(thread.tid)?).or_default();
        seen.calls.resize(truth.functions.len(), 0);
        for block in blocks {
            for event in block.events() {
                ensure!(seen.left == 0, "an event after the thread's end");
                match event?.body {
                    EventBody::Call { function, kind, .. } => {
                        let function = *indexes.get(&function).context("no such function")?;
                        let kind = match kind {
                            CallKind::Enter => EventKind::Entry,
                            CallKind::Exit => EventKind::Exit,
                            CallKind::TailExit => EventKind::TailExit,
                        };
                        if kind == EventKind::Entry {
                            seen.calls[function] += 1;
                        }
                        let event = CallEvent { kind, function };
                        seen.events += 1;
                        seen.hash.push(event);
                        seen.all.push(event);
                    }
                    EventBody::Lost { events } => seen.lost += events,
                    // The end of a snapshot, or of a thread, with open calls.
                    EventBody::Unwound { calls } => seen.left = calls,
                    other @ (EventBody::Data { .. }
                    | EventBody::Cpu { .. }
                    | EventBody::UnmatchedExit) => {
                        anyhow::bail!("the engine recorded {other:?}")
                    }
                }
            }
        }
    }
    Ok(threads)
}

/// Checks that the trace has exactly the calls that the program counted: every call of every
/// thread, in order, properly nested.
pub(crate) fn assert_exact(trace: &Trace, truth: &GroundTruth) -> Result<()> {
    let seen = seen(trace, truth)?;
    ensure!(
        trace.totals().lost == 0,
        "lost {} of {} events",
        trace.totals().lost,
        truth.events()
    );
    ensure!(
        trace.totals().calls == truth.events(),
        "{} events in the trace, {} in the program",
        trace.totals().calls,
        truth.events()
    );
    ensure!(
        seen.values().all(|thread| thread.left == 0),
        "threads have ended within calls"
    );
    for thread in &truth.threads {
        let twins = truth.threads.iter().filter(|other| other.tid == thread.tid);
        if twins.count() > 1 || thread.events == 0 {
            // The kernel reused the id. The sum above is right.
            continue;
        }
        let seen = seen
            .get(&thread.tid)
            .with_context(|| format!("thread {} is not in the trace", thread.tid))?;
        let first = seen.all.iter().take(thread.first.len());
        ensure!(
            first.eq(&thread.first),
            "thread {} began differently: {:?}",
            thread.tid,
            seen.all.first()
        );
        ensure!(
            seen.calls == thread.calls && seen.events == thread.events,
            "thread {}: {:?} instead of {:?}",
            thread.tid,
            seen.calls,
            thread.calls
        );
        ensure!(
            seen.hash.value() == thread.hash,
            "thread {}: the order is wrong",
            thread.tid
        );
    }
    let notes = notes(trace);
    ensure!(notes == Notes::default(), "not properly nested: {notes:?}");
    Ok(())
}

/// Counts of the calls that do not nest.
pub(crate) fn notes(trace: &Trace) -> Notes {
    let mut notes = Notes::default();
    for mut steps in Steps::of_threads(trace) {
        steps.by_ref().for_each(drop);
        notes.add(steps.notes());
    }
    notes
}

/// The profile after a round trip through a file.
pub(crate) fn read_profile(session: &Arc<Session>, sums: ProfileSums) -> Result<Profile> {
    let mut file = Vec::new();
    write_profile(&[(Arc::clone(session), sums)], &mut file)?;
    let trace = Trace::read(&*file)?;
    ensure!(trace.totals().calls == 0);
    Profile::of_trace(trace)?.context("no profile is in the trace")
}
