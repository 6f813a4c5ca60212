//! Locked memory of a process, which the kernel does not swap out, and limits on memory.

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

/// True if the address space of a process is limited, or its limits cannot be read.
pub(crate) fn has_limited_address_space(pid: Pid) -> bool {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    limit_of(&limits, "Max address space") != Some("unlimited")
}

/// The limit on memory that a process may lock, in words.
pub(crate) fn memory_lock_limit(pid: Pid) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let limit = limit_of(&limits, "Max locked memory").unwrap_or("unknown");
    format!("RLIMIT_MEMLOCK is {limit}")
}

/// The soft limit with this name from `/proc/<pid>/limits`, in bytes or `unlimited`.
fn limit_of<'a>(limits: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = limits.lines();
    let limits = lines.find_map(|line| line.strip_prefix(name))?;
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
        assert_eq!(limit_of(limits, "Max locked memory"), Some("8388608"));
        assert_eq!(limit_of("", "Max locked memory"), None);
    }
}
