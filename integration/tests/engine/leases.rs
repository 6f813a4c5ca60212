//! Functions that are on for the time of a lease. Afterwards everything is as other clients have
//! set it, even in libraries and processes that came meanwhile.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, wait_until};
use xray_trace::instr_map::{Rule, Selection};
use xrayd::{
    process::{AttachOptions, Follow, Session},
    types::{Capture, LeaseId, Run, Switch, ToggleTo, Wanted},
};

use crate::support::{attach, everything, pid_of, registry};

fn glob(pattern: &str) -> Selection {
    Selection {
        include: vec![Rule::Glob(pattern.to_owned())],
        exclude: Vec::new(),
    }
}

fn lease(number: u64) -> Result<LeaseId> {
    Ok(LeaseId::Client(number.try_into()?))
}

fn to_lease(number: u64) -> Result<ToggleTo> {
    Ok(ToggleTo::leased(lease(number)?, Capture::NONE))
}

/// The functions that are on, and the number of their recorded arguments.
fn on(session: &Session) -> Result<BTreeMap<String, u8>> {
    let rows = session.functions(None)?.into_iter();
    let on = rows.filter(|row| row.enabled);
    Ok(on.map(|row| (row.name, row.capture.arguments())).collect())
}

#[test]
fn a_lease_leaves_functions_values_and_rules_of_others() -> Result<()> {
    for leased in [everything(), glob("plugin_*")] {
        let mut target = Target::spawn(Fixture::Plugins, [""; 0])?;
        let registry = registry();
        let session = attach(&registry, &target)?.session;
        let two = Capture::NONE.with_arguments(2).context("two")?;
        session.toggle(&glob("plugin_*_call"), Wanted::On(two), Run::Real)?;
        session.toggle(&glob("plugin_*_noise"), Switch::Off, Run::Real)?;
        target.ask("load 0 plugin_a.so", "loaded")?;
        let before = on(&session)?;
        ensure!(before == BTreeMap::from([("plugin_a_call".to_owned(), 2)]));
        for number in [1, 2] {
            session.toggle(&leased, to_lease(number)?, Run::Real)?;
        }
        target.ask("load 1 plugin_b.so", "loaded")?;
        let leased_now = on(&session)?;
        for name in [
            "a_call", "a_inner", "a_noise", "b_call", "b_inner", "b_noise",
        ] {
            let arguments = leased_now.get(&format!("plugin_{name}"));
            let expected = if name.ends_with("call") { 2 } else { 0 };
            ensure!(arguments == Some(&expected), "{name}: {leased_now:?}");
        }
        // Another client enables a function of the lease.
        session.toggle(&glob("plugin_a_inner"), Switch::On, Run::Real)?;
        session.release(lease(1)?)?;
        ensure!(on(&session)? == leased_now);
        let report = session.release(lease(2)?)?;
        ensure!(report.foreign == 0 && report.changed >= 3, "{report:?}");
        let mut expected = before;
        expected.insert("plugin_b_call".to_owned(), 2);
        expected.insert("plugin_a_inner".to_owned(), 0);
        ensure!(on(&session)? == expected, "{:?}", on(&session)?);
        // The rules are the same as before.
        target.ask("unload 1", "unloaded")?;
        target.ask("load 1 plugin_b.so", "loaded")?;
        ensure!(on(&session)? == expected, "{:?}", on(&session)?);
        let report = session.release(lease(2)?)?;
        ensure!((report.matched, report.changed) == (0, 0), "{report:?}");
    }
    Ok(())
}

/// A child of a process with a lease of its own has the lease as well, until the lease ends.
#[test]
fn a_lease_of_one_process_is_over_in_those_that_came_from_it() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let options = AttachOptions {
        follow: Follow::Fork,
        ..AttachOptions::default()
    };
    let parent = registry.attach(pid_of(&target)?, options)?.session;
    let group = registry.group_of(&parent).context("no group")?;
    parent.toggle(&everything(), to_lease(7)?, Run::Real)?;
    target.ask("child", "child ")?;
    let child = wait_until(DEADLINE, "it is followed", || {
        let child = group.sessions().into_iter().nth(1);
        Ok(child.filter(|child| child.kinship().is_some()))
    })?;
    ensure!(!on(&child)?.is_empty());
    let reports = group.release_of(&parent, lease(7)?, |_| false);
    ensure!(reports.len() == 1 && on(&parent)?.is_empty() && !on(&child)?.is_empty());
    let reports = group.release_of(&parent, lease(7)?, |_| true);
    for (pid, report) in reports {
        report.with_context(|| format!("process {pid}"))?;
    }
    ensure!(on(&child)?.is_empty(), "{:?}", on(&child)?);
    Ok(())
}

/// Each process returns to its own state, and a child to its parent's.
#[test]
fn a_lease_leaves_every_process_of_a_group_as_it_was() -> Result<()> {
    let mut target = Target::spawn(Fixture::Group, [""; 0])?;
    let registry = registry();
    let options = AttachOptions {
        follow: Follow::Fork,
        ..AttachOptions::default()
    };
    registry.attach(pid_of(&target)?, options)?;
    let group = registry.group(pid_of(&target)?).context("no group")?;
    let mut sessions = |processes: usize| {
        if group.sessions().len() < processes {
            target.ask("child", "child ")?;
        }
        wait_until(DEADLINE, "they are followed", || {
            let sessions = group.sessions();
            let whole = sessions
                .iter()
                .skip(1)
                .all(|session| session.kinship().is_some());
            Ok((whole && sessions.len() == processes).then_some(sessions))
        })
    };
    let two = sessions(2)?;
    two[1].toggle(&glob("work*"), Switch::On, Run::Real)?;
    let before = on(&two[1])?;
    ensure!(on(&two[0])?.is_empty() && before.len() == 1, "{before:?}");
    for (pid, report) in group.toggle(&everything(), to_lease(7)?, Run::Real) {
        let report = report.with_context(|| format!("process {pid}"))?;
        ensure!(report.matched > 1, "{report:?}");
    }
    let three = sessions(3)?;
    for session in &three {
        ensure!(on(session)?.len() > 1, "{:?}", on(session)?);
    }
    for (pid, report) in group.release(lease(7)?) {
        report.with_context(|| format!("process {pid}"))?;
    }
    let after = three.iter().map(|session| on(session));
    let after = after.collect::<Result<Vec<_>>>()?;
    ensure!(
        after[0].is_empty() && after[1] == before && after[2].is_empty(),
        "{after:?}"
    );
    let four = sessions(4)?;
    ensure!(on(&four[3])?.is_empty(), "{:?}", on(&four[3])?);
    Ok(())
}
