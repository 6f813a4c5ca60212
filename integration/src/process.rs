//! The state of a process that a tracer must leave alone: descriptors, threads, signal masks and
//! handlers. Its code is compared in `text.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use procfs::process::{FDTarget, Process};

/// The state of a process at one moment. Two of them are compared with `==`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessState {
    /// Each descriptor by its number, with its target.
    pub descriptors: BTreeMap<i32, String>,
    /// Each thread by its id.
    pub threads: BTreeMap<i32, ThreadState>,
    /// The working directory.
    pub directory: PathBuf,
    /// The mappings that go into a core file.
    pub core_filter: Option<u32>,
}

/// The state of one thread that a tracer could change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// The name that the thread has given itself.
    pub name: String,
    /// The process that traces it; 0 for none.
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
    /// Reads the state.
    ///
    /// # Errors
    /// The process is gone or may not be read.
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
