//! What tracing costs a process in memory, and processes that have none to spare.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, not_run, wait_until};
use xrayd::session::{Run, Switch};
use xrayd::{Reason, Refusal};

use crate::support::{attach, detach, everything, registry, switch};

/// A control group with a limit on memory; removed in the end.
struct Group {
    path: PathBuf,
    limit: &'static str,
}

// === impl Group ===

impl Group {
    /// `None` if none can be made here, which is told.
    fn new(name: &str) -> Result<Option<Group>> {
        let name = format!("xrayd-test-{name}-{}", std::process::id());
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let own = |wanted: &dyn Fn(&str) -> bool| {
            let line = groups.lines().find(|line| wanted(line))?;
            Some(
                line.splitn(3, ':')
                    .nth(2)?
                    .trim_start_matches('/')
                    .to_owned(),
            )
        };
        let first = own(&|line| line.split(':').nth(1) == Some("memory"));
        let second = own(&|line| line.starts_with("0::"));
        let first = first.map(|own| ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes"));
        let second = second.map(|own| ("/sys/fs/cgroup", own, "memory.max"));
        for (root, own, limit) in [first, second].into_iter().flatten() {
            // Of the second version, only groups without processes have groups with limits.
            for parent in [Path::new(root).join(&own), PathBuf::from(root)] {
                let path = parent.join(&name);
                if fs::create_dir(&path).is_err() {
                    continue;
                }
                if path.join(limit).exists() {
                    return Ok(Some(Group { path, limit }));
                }
                fs::remove_dir(&path)?;
            }
        }
        not_run(
            "a control group with a limit",
            "none with a limit on memory can be made",
        )?;
        Ok(None)
    }

    fn limit(&self, bytes: &str) -> Result<()> {
        let file = self.path.join(self.limit);
        fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))
    }

    fn take(&self, target: &Target) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), target.pid().to_string())?;
        Ok(())
    }
}

impl Drop for Group {
    #[expect(clippy::print_stderr, reason = "nobody else can be told")]
    fn drop(&mut self) {
        let emptied = wait_until(DEADLINE, "the group is empty", || {
            Ok(fs::remove_dir(&self.path).is_ok().then_some(()))
        });
        if let Err(error) = emptied {
            eprintln!("{} stays: {error:#}", self.path.display());
        }
    }
}

/// Pages that are written are charged to the process: where there is no room for them, nothing is switched (P36).
#[test]
fn a_process_at_its_limit_is_not_given_to_the_oom_killer() -> Result<()> {
    let Some(group) = Group::new("limit")? else {
        return Ok(());
    };
    let mut target = Target::spawn(Fixture::Many20k, [""; 0])?;
    group.take(&target)?;
    let registry = registry();
    let session = attach(&registry, &target)?.session;
    let planned = session.toggle(&everything(), Switch::On, Run::Dry)?;
    ensure!(planned.copied_bytes > 512 << 10, "{planned:?}");
    group.limit("524288")?;
    let error = session.toggle(&everything(), Switch::On, Run::Real);
    let error = error.err().context("it was switched on")?;
    let refusal: &Refusal = &error;
    ensure!(refusal.reason == Reason::NoMemory, "{refusal}");
    ensure!(session.status().copied_bytes == 0, "{:?}", session.status());
    target.ask("go", "done")?;
    group.limit("1073741824")?;
    let report = switch(&session, Switch::On)?;
    ensure!(report.copied_bytes == planned.copied_bytes, "{report:?}");
    target.ask("go", "done")?;
    detach(&registry, &target)?;
    drop(target);
    Ok(())
}
