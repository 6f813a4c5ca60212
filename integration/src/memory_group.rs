//! Control groups with a limit on memory.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{DEADLINE, not_run, wait_until};

/// A control group with a limit on memory. It is removed in the end.
#[derive(Debug)]
pub struct MemoryGroup {
    path: PathBuf,
    limit: &'static str,
}

// === impl MemoryGroup ===

impl MemoryGroup {
    /// `None` if no group can be made here, which is reported.
    pub fn new(name: &str) -> Result<Option<MemoryGroup>> {
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
            // In the second version, only groups without processes have groups with limits.
            for parent in [Path::new(root).join(&own), PathBuf::from(root)] {
                let path = parent.join(&name);
                if fs::create_dir(&path).is_err() {
                    continue;
                }
                if path.join(limit).exists() {
                    return Ok(Some(MemoryGroup { path, limit }));
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

    /// Sets the limit, in bytes.
    pub fn limit(&self, bytes: &str) -> Result<()> {
        let file = self.path.join(self.limit);
        fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))
    }

    /// The bytes that its processes take.
    pub fn usage(&self) -> Result<u64> {
        let name = match self.limit {
            "memory.max" => "memory.current",
            _ => "memory.usage_in_bytes",
        };
        Ok(fs::read_to_string(self.path.join(name))?.trim().parse()?)
    }

    /// The file that takes the id of a process which is to be in the group.
    #[must_use]
    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The bytes of files in memory that its processes have made.
    pub fn shared_memory(&self) -> Result<u64> {
        let stat = fs::read_to_string(self.path.join("memory.stat"))?;
        let of = |line: &str| line.strip_prefix("shmem ")?.parse().ok();
        stat.lines().find_map(of).context("no shmem")
    }

    /// Adds a process.
    pub fn take(&self, pid: impl Display) -> Result<()> {
        fs::write(self.processes(), pid.to_string())?;
        Ok(())
    }
}

impl Drop for MemoryGroup {
    #[expect(
        clippy::print_stderr,
        reason = "a test that ends has no other place for it"
    )]
    fn drop(&mut self) {
        let emptied = wait_until(DEADLINE, "the group is empty", || {
            Ok(fs::remove_dir(&self.path).is_ok().then_some(()))
        });
        if let Err(error) = emptied {
            eprintln!("{} stays: {error:#}", self.path.display());
        }
    }
}
