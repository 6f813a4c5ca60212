//! Disturbances of sleeping threads: a stop wakes a thread, and the kernel counts that. A stop of a
//! running thread leaves no such trace.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use procfs::process::Process;

/// The number of switches to each thread of a process, by its id.
#[derive(Clone, Debug)]
pub(crate) struct Switches {
    pid: i32,
    counts: BTreeMap<i32, u64>,
}

// === impl Switches ===

impl Switches {
    /// The numbers now.
    pub(crate) fn of(pid: i32) -> Result<Self> {
        let mut counts = BTreeMap::new();
        let process = Process::new(pid).with_context(|| format!("no process {pid}"))?;
        for task in process.tasks()? {
            let task = task?;
            let status = task.status()?;
            let voluntary = status.voluntary_ctxt_switches.unwrap_or(0);
            let other = status.nonvoluntary_ctxt_switches.unwrap_or(0);
            counts.insert(task.tid, voluntary + other);
        }
        Ok(Self { pid, counts })
    }

    /// Threads that have not slept through since.
    pub(crate) fn disturbed_threads(&self) -> Result<Vec<i32>> {
        let now = Self::of(self.pid)?;
        let disturbed = self
            .counts
            .iter()
            .filter(|(tid, count)| now.counts.get(tid) != Some(count));
        Ok(disturbed.map(|(&tid, _)| tid).collect())
    }

    /// The number of those threads.
    pub(crate) fn disturbed(&self) -> Result<usize> {
        Ok(self.disturbed_threads()?.len())
    }
}
