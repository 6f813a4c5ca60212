//! What conditions on processes look at.

use std::fs;

use super::{build_id_of, cgroup_of, command_of, effective_user, unit_in};
use crate::pid::Pid;

/// What a condition looks at, as far as it can be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The systemd unit or the container; empty where there is none.
    pub unit: String,
    /// The path of the control group.
    pub cgroup: String,
    /// The path of the program.
    pub exe: String,
    /// The command line.
    pub command: String,
    /// The effective user.
    pub user: u32,
    /// The build id of the program, in hexadecimal digits. `None` where there is none, and where it
    /// was not read.
    pub build_id: Option<String>,
}

// === impl ProcessFacts ===

impl ProcessFacts {
    /// True if the unit is one that a user's own service manager has made, under any name.
    pub(crate) fn is_in_unit_of_user(&self) -> bool {
        let mut parts = self.cgroup.split('/');
        parts.any(|part| part == "user.slice" || part.starts_with("user@"))
    }

    /// The facts of a process as it is now. `None` if it has ended, or is not to be seen. The build
    /// id is read from the program's file, which may not answer.
    pub fn of(pid: Pid, with_build_id: bool) -> Option<Self> {
        let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let exe = exe.to_string_lossy();
        let cgroup = cgroup_of(pid).unwrap_or_default();
        Some(Self {
            unit: unit_in(&cgroup).unwrap_or_default().to_owned(),
            exe: exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned(),
            command: command_of(pid),
            user: effective_user(pid),
            build_id: with_build_id.then(|| build_id_of(pid)).flatten(),
            cgroup,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_this_process_are_found() {
        let facts = ProcessFacts::of(Pid::this(), true).unwrap();
        assert!(
            facts.exe.starts_with('/') && !facts.command.is_empty(),
            "{facts:?}"
        );
        assert_eq!(facts.user, nix::unistd::geteuid().as_raw());
    }
}
