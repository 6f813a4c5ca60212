//! What a tracer must not leave behind in a process: descriptors, threads, signal masks and handlers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use procfs::process::{FDTarget, Process};

/// A picture of a process; two of them are compared with `==`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessState {
    /// Each descriptor's number and what it leads to.
    pub descriptors: BTreeMap<i32, String>,
    /// Each thread by its id.
    pub threads: BTreeMap<i32, ThreadState>,
    /// The working directory.
    pub directory: PathBuf,
    /// Which mappings go into a core file.
    pub core_filter: Option<u32>,
}

/// What a tracer could change of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// As the thread calls itself.
    pub name: String,
    /// Who traces it; 0 for nobody.
    pub tracer: i32,
    /// The signals it blocks.
    pub blocked: u64,
    /// The signals it ignores.
    pub ignored: u64,
    /// The signals it has handlers for.
    pub caught: u64,
    /// Its seccomp mode.
    pub seccomp: Option<u32>,
    /// The processors it may run on.
    pub processors: Option<String>,
}

// === impl ProcessState ===

impl ProcessState {
    /// Takes the picture.
    ///
    /// # Errors
    /// When the process is gone or may not be looked at.
    pub fn of(pid: i32) -> Result<ProcessState> {
        let process = Process::new(pid).with_context(|| format!("no process {pid}"))?;
        let mut descriptors = BTreeMap::new();
        for descriptor in process
            .fd()
            .with_context(|| format!("descriptors of {pid}"))?
        {
            let descriptor = descriptor.with_context(|| format!("a descriptor of {pid}"))?;
            descriptors.insert(descriptor.fd, describe(&descriptor.target));
        }
        let mut threads = BTreeMap::new();
        for task in process
            .tasks()
            .with_context(|| format!("threads of {pid}"))?
        {
            let task = task.with_context(|| format!("a thread of {pid}"))?;
            let status = task
                .status()
                .with_context(|| format!("thread {} of {pid}", task.tid))?;
            threads.insert(
                task.tid,
                ThreadState {
                    name: status.name,
                    tracer: status.tracerpid,
                    blocked: status.sigblk,
                    ignored: status.sigign,
                    caught: status.sigcgt,
                    seccomp: status.seccomp,
                    processors: status.cpus_allowed_list.map(|list| format!("{list:?}")),
                },
            );
        }
        let directory = process
            .cwd()
            .with_context(|| format!("working directory of {pid}"))?;
        let core_filter = process
            .coredump_filter()
            .ok()
            .flatten()
            .map(|filter| filter.bits());
        Ok(ProcessState {
            descriptors,
            threads,
            directory,
            core_filter,
        })
    }
}

fn describe(target: &FDTarget) -> String {
    match target {
        FDTarget::Path(path) => path.display().to_string(),
        FDTarget::Socket(inode) => format!("socket:[{inode}]"),
        FDTarget::Net(inode) => format!("net:[{inode}]"),
        FDTarget::Pipe(inode) => format!("pipe:[{inode}]"),
        FDTarget::AnonInode(kind) => format!("anon_inode:{kind}"),
        FDTarget::MemFD(name) => format!("memfd:{name}"),
        FDTarget::Other(kind, inode) => format!("{kind}:[{inode}]"),
        FDTarget::Unknown(kind, rest) => format!("{kind}:{rest}"),
    }
}
