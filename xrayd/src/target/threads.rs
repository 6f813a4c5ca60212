//! The threads of a process.

use std::fs;

use crate::pid::{Pid, Tid};

/// What the kernel says a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// Sleeping interruptibly.
    Sleeping,
    /// Running or stopped: it can be stopped.
    Stoppable,
    /// Sleeping uninterruptibly.
    Uninterruptible,
    /// Ended.
    Dead,
}

/// The threads of a process at one moment.
#[derive(Debug)]
pub(crate) struct Threads;

// === impl Threads ===

impl Threads {
    /// Ids of all threads, the leader first; empty if the process is gone.
    pub(crate) fn of(pid: Pid) -> Vec<Tid> {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter_map(|tid| Tid::try_from(tid).ok())
            .collect()
    }

    /// A thread that has not ended: the leader unless it has exited before the others (P3).
    pub(crate) fn live(pid: Pid) -> Option<Tid> {
        Self::of(pid)
            .into_iter()
            .find(|&tid| Self::state(pid, tid) != ThreadState::Dead)
    }

    /// Where `/proc` shows the memory and the files of the process: in its own directory, and in another thread's when
    /// the leader has ended before the others (P3).
    pub(crate) fn proc_dir(pid: Pid) -> String {
        let leader = pid.leader();
        match Self::state(pid, leader) {
            ThreadState::Dead => format!("/proc/{}", Self::live(pid).unwrap_or(leader)),
            ThreadState::Sleeping | ThreadState::Stoppable | ThreadState::Uninterruptible => {
                format!("/proc/{pid}")
            }
        }
    }

    /// What a thread is doing; `Dead` if it is not there.
    pub(crate) fn state(pid: Pid, tid: Tid) -> ThreadState {
        let Ok(stat) = fs::read(format!("/proc/{pid}/task/{tid}/stat")) else {
            return ThreadState::Dead;
        };
        // The name in parentheses may hold anything; the state follows the last closing one.
        let state = stat
            .iter()
            .rposition(|&byte| byte == b')')
            .and_then(|end| stat.get(end + 2).copied());
        match state {
            None | Some(b'Z' | b'X' | b'x') => ThreadState::Dead,
            Some(b'D') => ThreadState::Uninterruptible,
            Some(b'S') => ThreadState::Sleeping,
            Some(_) => ThreadState::Stoppable,
        }
    }

    /// Its name, with what is not UTF-8 replaced; empty if it is gone.
    pub(crate) fn name(pid: Pid, tid: Tid) -> String {
        fs::read(format!("/proc/{pid}/task/{tid}/comm"))
            .map(|name| String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
            .unwrap_or_default()
    }

    /// Its id in the innermost pid namespace: what its own C library knows it by.
    pub(crate) fn inner_id(pid: Pid, tid: Tid) -> Option<u32> {
        let status = fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        status
            .split(|&byte| byte == b'\n')
            .find_map(|line| line.strip_prefix(b"NSpid:"))
            .and_then(|ids| {
                std::str::from_utf8(ids)
                    .ok()?
                    .split_ascii_whitespace()
                    .last()?
                    .parse()
                    .ok()
            })
    }
}
