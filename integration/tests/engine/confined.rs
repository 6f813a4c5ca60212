//! Targets and tracers in sandboxes: seccomp filters, namespaces, other roots, other users.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use integration::{
    DEADLINE, Fixture, GroundTruth, ProcessState, Target, build, copy_into, is_root_for,
    wait_until, xrayctl,
};
use procfs::process::{Process, all_processes};
use xrayd::{
    Reason,
    process::{AttachOptions, Attached, Registry},
    types::Switch,
};

use crate::{
    support::{
        assert_exact, attach, detach, pid, registry, retained, seen, switch, tally,
        text_is_as_compiled,
    },
    tracer::Tracer,
};

const NOBODY: u32 = 65_534;
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The program's answer to "go", traced or not.
fn right_answer() -> String {
    let inner = |value: u64| value * 3 + 1;
    let sum: u64 = (0..100).map(|value| inner(value) ^ inner(value + 1)).sum();
    format!("done {sum}")
}

/// An independent check of whether the kernel lets this process suspend filters.
fn may_suspend_filters() -> Result<bool> {
    let status = Process::myself()?.status()?;
    let initial = fs::read_link("/proc/self/ns/user")?.as_os_str() == "user:[4026531837]";
    Ok(initial && status.capeff & CAP_SYS_ADMIN != 0 && status.seccomp == Some(0))
}

fn maps(target: &Target) -> Result<String> {
    Ok(fs::read_to_string(format!("/proc/{}/maps", target.pid()))?)
}

/// P46: a filter that would fail the system calls of an attach, or kill for them, sees none of
/// them.
#[test]
fn a_program_is_traced_whatever_its_filter_forbids_or_left_alone() -> Result<()> {
    for filter in ["none", "allow", "errno", "kill"] {
        let mut target = Target::spawn(Fixture::Confined, ["--filter", filter])?;
        let program = target.program().to_owned();
        let before = (ProcessState::of(target.pid())?, maps(&target)?);
        let registry = registry();
        let checks = registry.preflight(pid(target.pid())?)?;
        let foretold = checks
            .iter()
            .find(|check| check.outcome == xrayd::target::Outcome::Failed)
            .map(|check| check.reason);
        match registry.attach(pid(target.pid())?, AttachOptions::default()) {
            Ok(Attached { session, .. }) => {
                ensure!(foretold.is_none(), "{filter}: attached after all");
                ensure!(filter == "none" || may_suspend_filters()?, "{filter}");
                switch(&session, Switch::On)?;
                ensure!(target.ask("go", "done")? == right_answer(), "{filter}");
                ensure!(ProcessState::of(target.pid())? == before.0, "{filter}");
                let trace = retained(&session)?;
                let counts = tally(&trace)?;
                ensure!(counts["outer"] == [100, 100, 0], "{filter}: {counts:?}");
                ensure!(counts["inner"] == [200, 200, 0], "{filter}: {counts:?}");
                detach(&registry, &target)?;
                text_is_as_compiled(&target, &program, &program)?;
            }
            Err(refusal) => {
                ensure!(!may_suspend_filters()?, "{filter}: {refusal}");
                ensure!(
                    refusal.reason == Reason::SeccompFilter,
                    "{filter}: {refusal}"
                );
                ensure!(foretold == Some(refusal.reason), "{filter}: {foretold:?}");
                ensure!((ProcessState::of(target.pid())?, maps(&target)?) == before);
            }
        }
        ensure!(target.ask("go", "done")? == right_answer(), "{filter}");
        target.still_running()?;
    }
    Ok(())
}

/// A tracer that is under a filter itself can suspend no filter and read none, so it does not try a
/// filtered thread.
#[test]
fn a_confined_tracer_borrows_only_a_thread_without_a_filter() -> Result<()> {
    let mut under = Command::new(build(Fixture::Confined)?);
    under.args(["--filter", "allow", "--exec"]);
    let mut tracer = Tracer::spawn_under(under)?;

    for filter in ["errno", "kill"] {
        let mut target = Target::spawn(Fixture::Confined, ["--filter", filter])?;
        let before = (ProcessState::of(target.pid())?, maps(&target)?);
        let refused = tracer.refused(&format!("attach {}", target.pid()))?;
        ensure!(refused == "seccomp-filter", "{filter}: {refused}");
        ensure!((ProcessState::of(target.pid())?, maps(&target)?) == before);
        ensure!(target.ask("go", "done")? == right_answer(), "{filter}");

        // The leader is filtered and has the lowest id, so it comes first. One of the other threads
        // is taken.
        let arguments = ["--filter", filter, "--free", "2"];
        let mut target = Target::spawn(Fixture::Confined, arguments)?;
        tracer.ask(&format!("attach {}", target.pid()))?;
        tracer.ask("on")?;
        ensure!(target.ask("go", "done")? == right_answer(), "{filter}");
        ensure!(tally(&tracer.trace()?)?["outer"][0] == 100, "{filter}");
        tracer.ask("detach")?;
        target.still_running()?;
    }
    Ok(())
}

/// As in a container: the filter that all processes share does not prevent one of them from tracing
/// another. A program that is started there is traced as well.
#[test]
fn under_one_filter_together_one_process_traces_another() -> Result<()> {
    if !is_root_for("under_one_filter_together_one_process_traces_another")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let confined = build(Fixture::Confined)?;
    let counted = build(Fixture::Counted)?;
    let script = format!(
        "set -e\n\
         mkfifo in; {counted} --threads 2 --calls 0 <in >out & target=$!; exec 3>in\n\
         until grep -q ready out; do sleep 0.1; done\n\
         {xrayctl} record --all -o attached.xtrace $target 2>/dev/null & recorder=$!\n\
         echo go >&3\n\
         until [ $(stat -c %s attached.xtrace 2>/dev/null || echo 0) -gt 100000 ]; do sleep 0.1; done\n\
         echo stop >&3\n\
         kill -INT $recorder; wait $recorder\n\
         until grep -q result out; do sleep 0.1; done\n\
         echo quit >&3\n\
         touch again; {{ echo go; until grep -q result again; do sleep 0.1; done; echo quit; }} | \
         {xrayctl} record --all -o launched.xtrace -- {counted} --threads 2 --calls 1000 >again\n",
        counted = counted.display(),
        xrayctl = xrayctl()?.display(),
    );
    let output = Command::new("timeout")
        .args(["--signal=KILL", "60", "unshare"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(&confined)
        .args(["--filter", "allow", "--exec", "sh", "-c", &script])
        .current_dir(dir.path())
        .output()?;
    let answer = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{answer}");
    for file in ["attached.xtrace", "launched.xtrace"] {
        let trace = xray_trace::model::Trace::read(fs::File::open(dir.path().join(file))?)?;
        ensure!(trace.totals().calls > 0, "{file} is empty: {answer}");
    }
    Ok(())
}

/// The only child of a process.
pub(crate) fn child_of(parent: i32) -> Result<i32> {
    wait_until(DEADLINE, "it has a child", || {
        let children = all_processes()?.filter_map(|process| {
            let stat = process.ok()?.stat().ok()?;
            (stat.ppid == parent).then_some(stat.pid)
        });
        Ok(children.last())
    })
}

/// Starts `program` by `unshare` with these options, which forks. Returns the process's id in this
/// namespace.
pub(crate) fn spawn_unshared(
    options: &[&str],
    program: &Path,
    arguments: &[&str],
) -> Result<(Target, i32)> {
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child"])
        .args(options)
        .arg(program)
        .args(arguments);
    let target = Target::spawn_command(command)?;
    let inside = child_of(target.pid())?;
    Ok((target, inside))
}

/// Checks the events of a program thread by thread, without regard to the ids of the threads.
fn is_exact(session: &xrayd::process::Session, truth: &GroundTruth) -> Result<()> {
    let mut reported: Vec<_> = seen(&retained(session)?, truth)?
        .into_values()
        .map(|seen| (seen.events, seen.hash.value(), seen.lost))
        .collect();
    let mut done: Vec<_> = truth
        .threads
        .iter()
        .map(|thread| (thread.events, thread.hash, 0))
        .collect();
    reported.sort_unstable();
    done.sort_unstable();
    ensure!(reported == done, "{reported:?} instead of {done:?}");
    Ok(())
}

/// Attaches, lets the program work, and detaches, twice. The second attach finds the memory of the
/// first.
fn traced_twice(
    target: &mut Target,
    inside: i32,
    round: impl Fn(&Registry, &mut Target) -> Result<()>,
) -> Result<()> {
    let registry = registry();
    let before = ProcessState::of(inside)?;
    for _ in 0..2 {
        let attached = registry.attach(pid(inside)?, AttachOptions::default())?;
        switch(&attached.session, Switch::On)?;
        round(&registry, target)?;
        let report = registry.detach(pid(inside)?)?;
        ensure!(
            report.sleds_on == 0 && report.text_bytes_different == 0,
            "{report:?}"
        );
        ensure!(report.text_bytes_compared > 0, "{report:?}");
        ensure!(ProcessState::of(inside)? == before);
    }
    Ok(())
}

/// Thread ids differ inside the namespace. The trace has the ids of this namespace.
#[test]
fn a_program_in_another_pid_namespace() -> Result<()> {
    if !is_root_for("a_program_in_another_pid_namespace")? {
        return Ok(());
    }
    let program = build(Fixture::Counted)?;
    let arguments = ["--threads", "8", "--calls", "0"];
    let (mut target, inside) = spawn_unshared(&["--mount-proc"], &program, &arguments)?;
    let registry = registry();
    let attached = registry.attach(pid(inside)?, AttachOptions::default())?;
    let session = attached.session;
    switch(&session, Switch::On)?;
    target.send("go")?;
    wait_until(DEADLINE, "all threads have rings", || {
        Ok((session.status().threads == 8).then_some(()))
    })?;
    let mut outer = BTreeSet::new();
    for task in Process::new(inside)?.tasks()? {
        outer.insert(u32::try_from(task?.tid)?);
    }
    target.ask("stop", "result ")?;
    for thread in retained(&session)?.threads() {
        ensure!(outer.contains(&thread.tid), "{thread:?} of {outer:?}");
        ensure!(thread.name == "counted", "{thread:?}");
    }
    let report = registry.detach(pid(inside)?)?;
    ensure!(
        report.sleds_on == 0 && report.text_bytes_different == 0,
        "{report:?}"
    );
    target.send("quit")
}

/// The first process of the namespace has one thread with id 1. Many other words of its control
/// block are 1, too.
#[test]
fn the_first_process_of_a_pid_namespace() -> Result<()> {
    if !is_root_for("the_first_process_of_a_pid_namespace")? {
        return Ok(());
    }
    for fixture in [
        Fixture::KindFixed,
        Fixture::KindMusl,
        Fixture::KindMuslStatic,
    ] {
        let (mut target, inside) = spawn_unshared(&["--mount-proc"], &build(fixture)?, &[])?;
        let registry = registry();
        let attached = registry.attach(pid(inside)?, AttachOptions::default())?;
        switch(&attached.session, Switch::On)?;
        ensure!(target.ask("go", "done")? == "done 4004000");
        let counts = tally(&retained(&attached.session)?)?;
        ensure!(
            counts["outer"] == [4000, 4000, 0],
            "{fixture:?}: {counts:?}"
        );
        registry.detach(pid(inside)?)?;
        target.send("quit")?;
    }
    Ok(())
}

/// Threads that come and go inside the namespace are told apart, and none of their events is lost.
#[test]
fn threads_that_come_and_go_in_another_pid_namespace() -> Result<()> {
    if !is_root_for("threads_that_come_and_go_in_another_pid_namespace")? {
        return Ok(());
    }
    let program = build(Fixture::Counted)?;
    let arguments = ["--threads", "8", "--calls", "100", "--churn", "20"];
    let (mut target, inside) = spawn_unshared(&[], &program, &arguments)?;
    let registry = registry();
    let attached = registry.attach(pid(inside)?, AttachOptions::default())?;
    switch(&attached.session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    is_exact(&attached.session, &truth)?;
    registry.detach(pid(inside)?)?;
    target.send("quit")
}

/// The paths of its files lead elsewhere in this namespace.
#[test]
fn a_program_with_another_root_in_namespaces_of_its_own() -> Result<()> {
    if !is_root_for("a_program_with_another_root_in_namespaces_of_its_own")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    copy_into(Fixture::Static, dir.path())?;
    let root = format!("--root={}", dir.path().display());
    let program = Path::new("/").join(Fixture::Static.name());
    for options in [
        vec!["--mount", &root],
        vec![
            "--mount",
            "--user",
            "--map-root-user",
            "--ipc",
            "--net",
            &root,
        ],
    ] {
        let (mut target, inside) = spawn_unshared(&options, &program, &["--calls", "50"])?;
        traced_twice(&mut target, inside, |registry, target| {
            target.ask("go", "done")?;
            let session = registry.get(pid(inside)?).context("a session")?;
            let counts = tally(&retained(&session)?)?;
            // The odd calls, and the call by the tail call.
            ensure!(counts["logged"][0] == 50 + 5 + 1, "{options:?}: {counts:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_program_in_a_user_namespace_that_another_user_made() -> Result<()> {
    if !is_root_for("a_program_in_a_user_namespace_that_another_user_made")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::Counted, dir.path())?;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(&program);
    command.args(["--threads", "2", "--calls", "500"]);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut target = Target::spawn_command(command)?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    ensure!(session.uid() == NOBODY, "{}", session.uid());
    switch(&session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    assert_exact(&retained(&session)?, &truth)?;
    detach(&registry, &target)?;
    text_is_as_compiled(&target, &program, &program)
}

#[test]
fn a_program_of_another_user() -> Result<()> {
    if !is_root_for("a_program_of_another_user")? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let program = copy_into(Fixture::Counted, dir.path())?;
    // The program's own user may not read it, so the kernel gives its memory to root.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o711))?;
    let mut command = Command::new(&program);
    command.args(["--threads", "2", "--calls", "500"]);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut target = Target::spawn_command(command)?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    switch(&session, Switch::On)?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    assert_exact(&retained(&session)?, &truth)?;
    detach(&registry, &target)?;
    text_is_as_compiled(&target, &program, &program)
}
