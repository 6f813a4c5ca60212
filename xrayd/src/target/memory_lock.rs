//! Locked memory of a process, which the kernel does not swap out, and the limit on it.

use std::fs;

use crate::pid::{Pid, Tid};

/// True if the process of this thread has locked any memory.
pub(crate) fn has_locked_memory(pid: Pid, tid: Tid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
    status.is_ok_and(|status| is_any_locked(&status))
}

fn is_any_locked(status: &str) -> bool {
    let mut lines = status.lines();
    let locked = lines.find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|kib| kib.trim() != "0 kB")
}

/// The limit on memory that a process may lock, in words.
pub(crate) fn memory_lock_limit(pid: Pid) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let limit = limit_of(&limits).unwrap_or("unknown");
    format!("RLIMIT_MEMLOCK is {limit}")
}

/// The soft limit from `/proc/<pid>/limits`, in bytes or `unlimited`.
fn limit_of(limits: &str) -> Option<&str> {
    let mut lines = limits.lines();
    let limits = lines.find_map(|line| line.strip_prefix("Max locked memory"))?;
    limits.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_shows_is_understood() {
        assert!(is_any_locked("VmSize:\t  9 kB\nVmLck:\t       4 kB\n"));
        assert!(!is_any_locked("VmLck:\t       0 kB\n"));
        assert!(!is_any_locked("Name:\tx\n"));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         8388608              unlimited            bytes\n";
        assert_eq!(limit_of(limits), Some("8388608"));
        assert_eq!(limit_of(""), None);
    }
}
