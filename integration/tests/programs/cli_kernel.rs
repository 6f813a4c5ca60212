//! Events of kernel tracepoints in the calls of a recorded process.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, copy_into, is_root_for, not_run};
use nix::sys::signal::Signal;
use xray_trace::analysis::{Step, Steps};
use xray_trace::event_format::{FieldValue, TypeOfEvent};
use xray_trace::model::Trace;

use crate::scene::{Cli, NOBODY, Scene, all_on};
use crate::trace::read;

const ROUNDS: u64 = 60;
const NANOSLEEP: &str = "syscalls:sys_enter_clock_nanosleep";

/// Whether this machine shows its tracepoints to root.
fn can_run(test: &str) -> Result<bool> {
    if !is_root_for(test)? {
        return Ok(false);
    }
    match Path::new("/sys/kernel/tracing/events/sched").exists() {
        true => Ok(true),
        false => {
            not_run(test, "tracefs is not mounted at /sys/kernel/tracing")?;
            Ok(false)
        }
    }
}

/// Records a run of `scheduled` with these tracepoints.
fn recorded(scene: &Scene, cli: &Cli, target: &mut Target, kernel: &str) -> Result<Trace> {
    let pid = target.pid().to_string();
    let arguments = [
        "record", &pid, "--force", "-o", "f.xtrace", "--kernel", kernel,
    ];
    let mut running = cli.start(arguments)?;
    running.until("everything is on", || all_on(target))?;
    target.send(&format!("go {ROUNDS}"))?;
    target.line_with("done", DEADLINE)?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    ensure!(ran.out.contains("kernel event"), "{ran:?}");
    read(&scene.path("f.xtrace"))
}

/// Each call of `doze` sleeps once, and no other function sleeps by itself. Calls that begin before
/// the first kernel event of their thread are not considered: the threads are new, and are met
/// some milliseconds after their first call.
fn ensure_each_doze_sleeps_once(trace: &Trace) -> Result<()> {
    let mut dozes = 0;
    for thread in trace.threads() {
        let steps = Steps::of_threads(trace).find(|steps| steps.thread() == thread.id);
        let steps = steps.context("a thread without events")?;
        let mut steps = steps.with_kernel_events(trace);
        let mut is_recorded = false;
        // The open calls, each with the number of sleeps in it.
        let mut open: Vec<(bool, String, u64)> = Vec::new();
        while let Some(step) = steps.next() {
            match step {
                Step::Enter(call) => {
                    let name = trace.function_name(call.function).into_owned();
                    open.push((is_recorded, name, 0));
                }
                Step::Leave(_) => {
                    let (is_known, name, sleeps) = open.pop().context("no open call")?;
                    let expected = u64::from(name == "doze");
                    ensure!(!is_known || sleeps == expected, "{name}: {sleeps} sleeps");
                    dozes += u64::from(is_known) * expected;
                }
                Step::Data(event) => {
                    let TypeOfEvent::Kernel(tracepoint) = trace.type_of(thread.id, event.kind)
                    else {
                        bail!("{event:?}");
                    };
                    is_recorded = true;
                    let format = tracepoint.format().context("no fields")?;
                    let decoded = format.decode(steps.data(&event));
                    ensure!(!decoded.is_cut && decoded.rest.is_empty(), "{decoded:?}");
                    let fields: BTreeMap<_, _> = decoded.fields.into_iter().collect();
                    if tracepoint.name != NANOSLEEP {
                        continue;
                    }
                    let tid = i64::from(thread.tid);
                    // CLOCK_MONOTONIC
                    ensure!(
                        fields.get("which_clock") == Some(&FieldValue::Unsigned(1))
                            || fields.get("which_clock") == Some(&FieldValue::Signed(1)),
                        "{fields:?}"
                    );
                    ensure!(
                        fields.get("common_pid") == Some(&FieldValue::Signed(tid)),
                        "{fields:?}"
                    );
                    let (_, _, sleeps) = open.last_mut().context("a sleep outside of a call")?;
                    *sleeps += 1;
                }
                Step::Lost { .. } => bail!("events are lost"),
            }
        }
    }
    ensure!(trace.lost_kernel_events() == 0, "kernel events are lost");
    ensure!(dozes >= 2 * ROUNDS, "{dozes} calls were considered");
    Ok(())
}

#[test]
fn system_calls_are_in_the_calls_that_make_them() -> Result<()> {
    if !can_run("system_calls_are_in_the_calls_that_make_them")? {
        return Ok(());
    }
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let mut target = Target::spawn(Fixture::Scheduled, [""; 0])?;
        let kernel = format!("{NANOSLEEP},sched:sched_switch");
        let trace = recorded(&scene, &cli, &mut target, &kernel)?;
        ensure_each_doze_sleeps_once(&trace)?;
        ensure_shown(&cli)?;
        target.still_running()?;
    }
    Ok(())
}

/// The commands show and select the events.
fn ensure_shown(cli: &Cli) -> Result<()> {
    let is = format!("event({NANOSLEEP}).which_clock == 1");
    let tree = cli.ok(["tree", "f.xtrace", "--where", &is])?;
    ensure!(
        tree.contains(&format!("// kernel {NANOSLEEP}: common_pid=")),
        "{tree}"
    );
    ensure!(!tree.contains("sched:sched_switch"), "{tree}");
    let none = format!("event({NANOSLEEP}).which_clock == 7");
    let tree = cli.ok(["tree", "f.xtrace", "--where", &none])?;
    ensure!(!tree.contains("// kernel"), "{tree}");
    let refused = cli.run(["tree", "f.xtrace", "--where", "event(sched:sched_swich)"])?;
    ensure!(
        refused.err.contains("did you mean sched:sched_switch?"),
        "{refused:?}"
    );
    let info = cli.json(["info", "f.xtrace"])?;
    let tracepoints = info["tracepoints"].as_array().context("no tracepoints")?;
    ensure!(
        tracepoints.len() == 2 && tracepoints[0]["name"] == NANOSLEEP,
        "{info}"
    );
    ensure!(
        tracepoints[0]["events"].as_u64() >= Some(2 * ROUNDS),
        "{info}"
    );
    Ok(())
}

/// More events than the kernel's buffers hold: the trace has their number, and all calls.
#[test]
fn missing_kernel_events_are_counted_and_no_call_is() -> Result<()> {
    if !can_run("missing_kernel_events_are_counted_and_no_call_is")? {
        return Ok(());
    }
    let scene = Scene::new()?;
    let mut target = Target::spawn(Fixture::Scheduled, [""; 0])?;
    // A call of `work` reads its processor time a thousand times.
    let kernel = "syscalls:sys_enter_clock_gettime,raw_syscalls:sys_enter,raw_syscalls:sys_exit";
    let trace = recorded(&scene, &scene.alone()?, &mut target, kernel)?;
    let events: u64 = trace.kernel_event_counts().values().sum();
    ensure!(events > 1000, "{events}");
    let totals = trace.totals();
    ensure!(
        (totals.calls, totals.lost) == (2 * 10 * ROUNDS, 0),
        "{totals:?}"
    );
    let info = scene.alone()?.json(["info", "f.xtrace"])?;
    ensure!(
        info["lost_kernel_events"].as_u64() == Some(trace.lost_kernel_events()),
        "{info}"
    );
    target.still_running()
}

#[test]
fn tracepoints_that_cannot_be_recorded_are_refused() -> Result<()> {
    if !can_run("tracepoints_that_cannot_be_recorded_are_refused")? {
        return Ok(());
    }
    let scene = Scene::public()?;
    let daemon = scene.daemon()?;
    let root = scene.with(&daemon)?;
    fs::set_permissions(scene.path("."), Permissions::from_mode(0o777))?;
    let dir = scene.path("programs");
    fs::create_dir(&dir)?;
    let mut command = Command::new(copy_into(Fixture::Scheduled, &dir)?);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut target = Target::spawn_command(command)?;
    let before = ProcessState::of(target.pid())?;
    let pid = target.pid().to_string();
    let many = vec!["sched:sched_switch"; 17].join(",");
    let nobody = root.as_user(NOBODY);
    for (cli, kernel, reason, text) in [
        (
            &root,
            "sched:sched_swich",
            "selection",
            "the kernel has no tracepoint sched:sched_swich",
        ),
        (
            &root,
            "sched",
            "selection",
            "'sched' is not the name of a tracepoint",
        ),
        (
            &root,
            "../events/sched:x",
            "selection",
            "is not the name of a tracepoint",
        ),
        (
            &root,
            &many,
            "limit",
            "17 kernel tracepoints are more than the 16",
        ),
        (
            &nobody,
            "sched:sched_switch",
            "permission",
            "may record sched:sched_switch",
        ),
        // Whether there is such a tracepoint is not reported to a user who may not have it.
        (
            &nobody,
            "sched:sched_swich",
            "permission",
            "may record sched:sched_swich",
        ),
    ] {
        let ran = cli.run([
            "record",
            &pid,
            "--force",
            "-o",
            "refused.xtrace",
            "--kernel",
            kernel,
        ])?;
        ran.refused(reason)
            .with_context(|| format!("{kernel}: {ran:?}"))?;
        ensure!(ran.err.contains(text), "{ran:?}");
    }
    ensure!(
        ProcessState::of(target.pid())? == before,
        "the process has changed"
    );
    // The own system calls of a user's process are no secret.
    let trace = recorded(&scene, &nobody, &mut target, NANOSLEEP)?;
    ensure_each_doze_sleeps_once(&trace)?;
    target.still_running()
}
