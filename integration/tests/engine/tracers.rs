//! Two tracers of one process that do not share a mount of procfs, like a daemon on the host and a
//! recorder in a container.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, build, is_root_for, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xrayd::{
    Reason, Refusal,
    process::{AttachOptions, Attached, Registry},
    types::Switch,
};

use crate::{
    confined::{child_of, spawn_unshared},
    support::{pid, registry, switch},
    tracer::Tracer,
};

/// A program in namespaces of its own, a tracer inside them, and a tracer outside.
struct Scene {
    /// The first field, so that it ends first.
    inner: Tracer,
    /// The tracer's process. `inner` has the pid of the program that started it.
    inner_process: Pid,
    outer: Registry,
    /// The program's id in this namespace. Its id is 1 inside.
    inside: i32,
    target: Target,
}

// === impl Scene ===

impl Scene {
    fn new() -> Result<Scene> {
        let program: PathBuf = build(Fixture::Leaf)?;
        let options = ["--mount", "--mount-proc"];
        let (target, inside) = spawn_unshared(&options, &program, &[])?;
        let mut enter = Command::new("nsenter");
        enter.args([
            "--target",
            &inside.to_string(),
            "--pid",
            "--mount",
            "--wd=/",
        ]);
        let inner = Tracer::spawn_under(enter)?;
        let inner_process = Pid::from_raw(child_of(inner.pid())?);
        Ok(Scene {
            inner,
            inner_process,
            outer: registry(),
            inside,
            target,
        })
    }

    fn attach_from_outside(&self) -> Result<std::result::Result<Attached, Refusal>> {
        Ok(self
            .outer
            .attach(pid(self.inside)?, AttachOptions::default()))
    }
}

/// The second tracer is refused because of the first, and gets the process when the first is dead.
#[test]
fn a_tracer_in_another_namespace_is_left_its_process_until_it_is_dead() -> Result<()> {
    if !is_root_for("a_tracer_in_another_namespace_is_left_its_process_until_it_is_dead")? {
        return Ok(());
    }
    let mut scene = Scene::new()?;
    scene.inner.ask("attach 1")?;
    scene.inner.ask("on")?;
    let refusal = scene.attach_from_outside()?.err().context("attached")?;
    ensure!(refusal.reason == Reason::Busy, "{refusal}");
    ensure!(
        refusal.to_string().contains(" of pid namespace "),
        "{refusal}"
    );
    let state = scene.inner.ask("state")?;
    ensure!(state.ends_with(" None"), "{state}");
    ensure!(!scene.inner.ask("on")?.is_empty());

    kill(scene.inner_process, Signal::SIGKILL)?;
    let attached = scene.attach_from_outside()?.context("not taken over")?;
    let notes = attached.report.notes.join("; ");
    ensure!(notes.contains("left on by an earlier daemon"), "{notes}");
    switch(&attached.session, Switch::On)?;
    let report = scene.outer.detach(pid(scene.inside)?)?;
    ensure!(report.sleds_on == 0 && report.text_bytes_different == 0);
    scene.target.still_running()
}

/// A tracer that goes on and finds its process taken over reports that, and leaves the process
/// alone.
#[test]
fn a_tracer_that_was_taken_over_says_so_and_switches_nothing() -> Result<()> {
    if !is_root_for("a_tracer_that_was_taken_over_says_so_and_switches_nothing")? {
        return Ok(());
    }
    let mut scene = Scene::new()?;
    scene.inner.ask("attach 1")?;
    scene.inner.ask("on")?;
    kill(scene.inner_process, Signal::SIGSTOP)?;
    let attached = scene.attach_from_outside()?.context("not taken over")?;
    let on = switch(&attached.session, Switch::On)?;
    kill(scene.inner_process, Signal::SIGCONT)?;
    let state = wait_until(DEADLINE, "the first one notices", || {
        let state = scene.inner.ask("state")?;
        Ok(state.starts_with("Failed").then_some(state))
    })?;
    ensure!(state.contains("another xrayd, process "), "{state}");
    ensure!(scene.inner.refused("detach")? == "session-failed");
    let report = scene.outer.detach(pid(scene.inside)?)?;
    ensure!(report.sleds_off > 0 && report.sleds_on == 0, "{report:?}");
    ensure!(on.foreign == 0, "{on:?}");
    scene.target.still_running()
}
