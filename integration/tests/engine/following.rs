//! Followed processes: a group is one trace, which has all events of each process since it was
//! found.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, ProcessState, Target, is_root_for, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use xray_trace::container::Redaction;
use xray_trace::instr_map::{Rule, Selection};
use xray_trace::model::{Birth, CallKind, EventBody, Trace};
use xrayd::{
    export::PendingSnapshot,
    process::{AttachOptions, Follow, Group, Registry, Session},
    types::{Phase, Reach, Run, Switch},
};

use crate::support::{everything, pid, pid_of, registry, write_snapshot};

const WORKERS: usize = 32;

fn follow(registry: &Registry, target: &Target, follow: Follow) -> Result<Arc<Group>> {
    let options = AttachOptions {
        follow,
        ..AttachOptions::default()
    };
    registry.attach(pid_of(target)?, options)?;
    registry.group(pid_of(target)?).context("no group")
}

fn toggle(group: &Group, selection: &Selection, to: Switch) -> Result<()> {
    for (pid, report) in group.toggle(selection, to, Run::Real) {
        let report = report.with_context(|| format!("cannot switch {to:?} in {pid}"))?;
        ensure!(report.foreign == 0, "{report:?}");
    }
    Ok(())
}

/// Waits until this many processes are traced at the same time.
fn wait_for(group: &Group, traced: usize) -> Result<()> {
    wait_until(DEADLINE, "they are followed", || {
        let status = group.status();
        let all = usize::try_from(status.traced)? == traced
            && group
                .sessions()
                .iter()
                .skip(1)
                .all(|session| session.kinship().is_some());
        Ok(all.then_some(()))
    })
    .with_context(|| format!("{:?}", group.status()))
}

fn child_of(target: &mut Target) -> Result<i32> {
    let line = target.ask("child", "child ")?;
    Ok(line.trim_start_matches("child ").parse()?)
}

/// Lets a descendant make a thousand calls more.
fn work(target: &mut Target, descendant: i32) -> Result<()> {
    kill(NixPid::from_raw(descendant), Signal::SIGUSR1)?;
    target.line_with(&format!("tally {descendant} "), DEADLINE)?;
    Ok(())
}

fn retained(group: &Group) -> Result<Trace> {
    let mut bytes = Vec::new();
    PendingSnapshot::take(group.sessions(), Reach::All).write(&mut bytes, |_| Redaction::NONE)?;
    Trace::read(bytes.as_slice()).context("cannot read the trace")
}

/// Entries of `work` by process. Checks that the trace has no other flaw.
fn works(trace: &Trace) -> Result<BTreeMap<u32, u64>> {
    ensure!(trace.totals().lost == 0, "{:?}", trace.totals());
    let mut works = BTreeMap::new();
    for (id, blocks) in trace.blocks_by_thread() {
        let thread = trace.thread(id).context("a thread without a row")?;
        let process = trace.process(thread.process).context("no such process")?;
        for block in blocks {
            for event in block.events() {
                if let EventBody::Call { function, kind, .. } = event?.body
                    && kind == CallKind::Enter
                    && trace.function_name(function).starts_with("work")
                {
                    *works.entry(process.pid).or_default() += 1;
                }
            }
        }
    }
    Ok(works)
}

fn is_exactly(trace: &Trace, expected: &[(i32, u64)]) -> Result<()> {
    let found = works(trace)?;
    let expected: Result<BTreeMap<u32, u64>> = expected
        .iter()
        .map(|&(pid, calls)| Ok((u32::try_from(pid)?, calls)))
        .collect();
    ensure!(found == expected?, "{found:?}");
    Ok(())
}

/// Ends the group. Each of its processes is as it was.
fn end(registry: &Registry, group: &Arc<Group>, processes: usize) -> Result<()> {
    let reports = registry.end_group(group);
    ensure!(reports.len() == processes, "{reports:?}");
    for (pid, report) in reports {
        let report = report.with_context(|| format!("cannot detach from {pid}"))?;
        ensure!(
            !report.exited
                && report.sleds_off > 0
                && report.sleds_on == 0
                && report.text_bytes_different == 0,
            "{pid}: {report:?}"
        );
    }
    ensure!(registry.sessions().is_empty() && registry.groups().is_empty());
    Ok(())
}

/// A prefork server. Each process records its own calls, and all of them are one trace (P58).
#[test]
fn a_parent_and_its_workers_are_one_trace() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let mut expected = Vec::new();
    // Some workers exist before the attach.
    let mut workers = vec![child_of(&mut target)?, child_of(&mut target)?];
    let group = follow(&registry, &target, Follow::Fork)?;
    toggle(&group, &everything(), Switch::On)?;
    while workers.len() < WORKERS {
        workers.push(child_of(&mut target)?);
    }
    wait_for(&group, WORKERS + 1)?;
    for worker in &workers {
        work(&mut target, *worker)?;
        expected.push((*worker, 1000));
    }
    ensure!(target.ask("calls 700", "done ")? == "done 700");
    expected.push((target.pid(), 700));

    let status = group.status();
    ensure!(
        (status.followed, status.missed, status.untraced) == (WORKERS as u64, 0, 0),
        "{status:?}"
    );
    let sessions = group.sessions();
    for session in &sessions[1..] {
        let kinship = session.kinship().context("nobody's child")?;
        ensure!(
            kinship.root == group.root()
                && kinship.parent == group.root()
                && kinship.by == Birth::Fork
                && !kinship.within.is_zero(),
            "{kinship:?}"
        );
    }
    end(&registry, &group, WORKERS + 1)?;
    // The processes run on, and nothing of that is recorded.
    work(&mut target, workers[0])?;
    let mut bytes = Vec::new();
    let mut all = Vec::new();
    for session in &sessions {
        bytes.clear();
        write_snapshot(session, &mut bytes)?;
        all.extend(works(&Trace::read(bytes.as_slice())?)?);
    }
    all.sort_unstable();
    let mut expected: Vec<(u32, u64)> = expected
        .into_iter()
        .map(|(pid, calls)| Ok((u32::try_from(pid)?, calls)))
        .collect::<Result<_>>()?;
    expected.sort_unstable();
    ensure!(all == expected, "{all:?}");
    Ok(())
}

#[test]
fn retained_events_of_a_group_are_one_trace_with_one_set_of_functions() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let group = follow(&registry, &target, Follow::All)?;
    toggle(&group, &everything(), Switch::On)?;
    let child = child_of(&mut target)?;
    wait_for(&group, 2)?;
    // The child's own child, which no other process has.
    kill(NixPid::from_raw(child), Signal::SIGUSR2)?;
    let line = target.line_with("child ", DEADLINE)?;
    let grandchild: i32 = line.trim_start_matches("child ").parse()?;
    wait_for(&group, 3)?;
    work(&mut target, child)?;
    work(&mut target, grandchild)?;
    work(&mut target, grandchild)?;
    target.ask("calls 300", "done ")?;
    let trace = retained(&group)?;
    is_exactly(
        &trace,
        &[(target.pid(), 300), (child, 1000), (grandchild, 2000)],
    )?;
    ensure!(trace.processes().len() == 3);
    let origins = trace
        .processes()
        .iter()
        .map(|process| trace.origin(process.id));
    let parents: Vec<_> = origins
        .map(|origin| origin.map(|origin| origin.parent))
        .collect();
    let expected = [
        None,
        Some(u32::try_from(target.pid())?),
        Some(u32::try_from(child)?),
    ];
    ensure!(parents == expected, "{parents:?}");
    let names: Vec<_> = trace.functions().iter().map(|f| f.name.as_str()).collect();
    ensure!(names.len() == 2, "{names:?}");
    let of_grandchild = registry.get(pid(grandchild)?).context("not attached")?;
    ensure!(of_grandchild.kinship().context("no kin")?.parent == pid(child)?);
    end(&registry, &group, 3)
}

/// A switch in the first process switches in all processes, by ids too. A process that was detached
/// alone stays detached.
#[test]
fn switching_the_first_process_switches_all() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let group = follow(&registry, &target, Follow::Fork)?;
    let child = child_of(&mut target)?;
    wait_for(&group, 2)?;
    work(&mut target, child)?;
    let first = group.root_session().context("no session")?;
    let rows = first.functions(None)?;
    let inner = rows.iter().find(|row| row.name.starts_with("inner"));
    let inner = inner.context("no such function")?.id;
    let by_id = Selection {
        include: vec![Rule::All],
        exclude: vec![Rule::Id(inner.0)],
    };
    toggle(&group, &by_id, Switch::On)?;
    let later = child_of(&mut target)?;
    wait_for(&group, 3)?;
    for who in [child, later] {
        let session = registry.get(pid(who)?).context("not attached")?;
        let on = session
            .functions(None)?
            .into_iter()
            .filter(|row| row.enabled);
        let on: Vec<_> = on.map(|row| row.name).collect();
        ensure!(on.len() == 1 && on[0].starts_with("work"), "{who}: {on:?}");
        work(&mut target, who)?;
    }
    toggle(&group, &everything(), Switch::Off)?;
    work(&mut target, later)?;
    is_exactly(&retained(&group)?, &[(child, 1000), (later, 1000)])?;

    let alone = registry.get(pid(later)?).context("not attached")?;
    registry.end(&alone)?;
    toggle(&group, &everything(), Switch::On)?;
    // A further child shows that the processes were looked at since.
    child_of(&mut target)?;
    wait_for(&group, 3)?;
    ensure!(registry.get(pid(later)?).is_none(), "it was followed again");
    end(&registry, &group, 3)
}

/// Children that end at once, and children that become programs without sleds, change nothing for
/// other processes.
#[test]
fn short_lives_and_other_programs_do_no_harm() -> Result<()> {
    for what in [Follow::Fork, Follow::All] {
        let mut target = Target::spawn(Fixture::Group, [""; 0])?;
        let registry = registry();
        let group = follow(&registry, &target, what)?;
        toggle(&group, &everything(), Switch::On)?;
        let mut own = 0;
        for _ in 0..5 {
            for line in ["brief 20", "vexec 20", "spawn 20"] {
                ensure!(target.ask(line, "done ")? == format!("done {own}"));
                own += 500;
                ensure!(target.ask("calls 500", "done ")? == format!("done {own}"));
            }
        }
        let root = u32::try_from(target.pid())?;
        let found = works(&retained(&group)?)?;
        ensure!(found.get(&root) == Some(&own), "{found:?}");
        // A child makes ten calls. Some of them may have been recorded.
        ensure!(
            found
                .iter()
                .all(|(pid, calls)| *pid == root || *calls <= 10)
        );
        let state = ProcessState::of(target.pid())?;
        ensure!(state.threads.values().all(|thread| thread.tracer == 0));
        registry.end_group(&group);
        ensure!(target.ask("calls 1", "done ")? == format!("done {}", own + 1));
    }
    Ok(())
}

/// The old program's data is kept. The new program is traced if that was asked for (P60).
#[test]
fn a_program_that_becomes_another_is_followed_if_that_is_meant() -> Result<()> {
    for (what, followed) in [
        (Follow::None, false),
        (Follow::Fork, false),
        (Follow::Exec, true),
        (Follow::All, true),
    ] {
        let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
        let registry = registry();
        let group = follow(&registry, &target, what)?;
        toggle(&group, &everything(), Switch::On)?;
        let mut expected = 0;
        for turn in 1..=3_usize {
            ensure!(target.ask("fork 0", "done ")? == "done 100");
            let is_traced = followed || turn == 1;
            expected += if is_traced { 100 } else { 0 };
            let before: Vec<Arc<Session>> = group.sessions();
            let last = before.last().context("no session")?;
            target.ask("exec", "ready")?;
            wait_until(DEADLINE, "the session noticed", || {
                Ok((last.status().phase == Phase::Exited).then_some(()))
            })?;
            ensure!(last.status().executed || turn > 1);
            if followed {
                wait_until(DEADLINE, "the new program is traced", || {
                    let sessions = group.sessions();
                    let new = sessions.iter().find_map(|session| session.kinship());
                    let status = group.status();
                    Ok((sessions.len() == turn + 1
                        && new.is_some_and(|kinship| kinship.by == Birth::Exec)
                        && usize::try_from(status.followed)? == turn)
                        .then_some(()))
                })?;
            }
        }
        ensure!(target.ask("fork 0", "done ")? == "done 100");
        expected += if followed { 100 } else { 0 };
        is_exactly(&retained(&group)?, &[(target.pid(), expected)])?;
        registry.detach(pid_of(&target)?)?;
        ensure!(registry.sessions().is_empty() && registry.groups().is_empty());
        ensure!(target.ask("fork 0", "done ")? == "done 200");
    }
    Ok(())
}

/// Without address space randomisation, everything that `/proc` shows of the new program is the
/// same as of the old one.
#[test]
fn a_program_that_becomes_itself_at_the_same_addresses_is_followed() -> Result<()> {
    let mut target = Target::spawn(Fixture::Forks, [""; 0])?;
    let registry = registry();
    let group = follow(&registry, &target, Follow::Exec)?;
    toggle(&group, &everything(), Switch::On)?;
    ensure!(
        target.ask("fixed", "")? == "done 100",
        "the kernel refuses personality(2)"
    );
    for turn in 1..=3_usize {
        target.ask("exec", "ready")?;
        let ready = Instant::now();
        let mut untraced = Duration::ZERO;
        wait_until(DEADLINE, "the new program is traced", || {
            let asked = ready.elapsed();
            if group.sessions().len() == turn {
                untraced = asked;
            }
            Ok((usize::try_from(group.status().followed)? == turn).then_some(()))
        })
        .with_context(|| format!("turn {turn}: {:?}", group.status()))?;
        ensure!(target.ask("fork 0", "done ")? == "done 100");
        let kinship = group.sessions().last().and_then(|it| it.kinship());
        let kinship = kinship.context("nobody's")?;
        // The program's calls in that time are in no trace, so the time is reported.
        ensure!(
            kinship.by == Birth::Exec && kinship.within >= untraced,
            "{kinship:?} {untraced:?}"
        );
    }
    is_exactly(&retained(&group)?, &[(target.pid(), 400)])?;
    registry.detach(pid_of(&target)?)?;
    Ok(())
}

/// The pid of a group's first process, reused for a process of another group, means the other
/// process (P18).
#[test]
fn a_number_that_is_given_out_anew_means_who_has_it_now() -> Result<()> {
    if !is_root_for("a_number_that_is_given_out_anew_means_who_has_it_now")? {
        return Ok(());
    }
    let registry = registry();
    let mut first = Target::spawn(Fixture::Group, [""; 0])?;
    let number = first.pid();
    let old = follow(&registry, &first, Follow::Fork)?;
    first.send("quit")?;
    first.wait(DEADLINE)?;
    wait_until(DEADLINE, "the first group is over", || {
        Ok((old.status().over && old.status().traced == 0).then_some(()))
    })?;
    ensure!(registry.group(pid(number)?).is_some());

    let mut second = Target::spawn(Fixture::Group, [""; 0])?;
    let found = wait_until(DEADLINE, "the number is given out anew", || {
        fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string())?;
        let child = child_of(&mut second)?;
        Ok((child == number).then_some(child))
    })?;
    let group = follow(&registry, &second, Follow::Fork)?;
    wait_until(DEADLINE, "it is followed", || {
        let sessions = group.sessions();
        let its = |session: &Arc<Session>| Some(session.pid()) == pid(found).ok();
        Ok(sessions.iter().any(its).then_some(()))
    })?;
    ensure!(registry.group(pid(number)?).is_none());
    let report = registry.detach(pid(number)?)?;
    ensure!(!report.exited && report.sleds_off > 0, "{report:?}");
    registry.end_group(&group);
    Ok(())
}

/// A group goes on without its first process, and ends with its last.
#[test]
fn a_group_is_over_when_all_have_ended() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let group = follow(&registry, &target, Follow::Fork)?;
    toggle(&group, &everything(), Switch::On)?;
    let child = child_of(&mut target)?;
    wait_for(&group, 2)?;
    work(&mut target, child)?;
    ensure!(!group.status().over);
    // Its children end with it.
    target.send("quit")?;
    target.wait(DEADLINE)?;
    wait_until(DEADLINE, "nobody is left", || {
        let status = group.status();
        Ok((status.over && status.traced == 0).then_some(()))
    })?;
    is_exactly(&retained(&group)?, &[(child, 1000)])?;
    let report = registry.detach(pid_of(&target)?)?;
    ensure!(report.exited);
    ensure!(registry.groups().is_empty() && registry.sessions().is_empty());
    Ok(())
}
