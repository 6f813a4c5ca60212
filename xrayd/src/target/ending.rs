//! The end of a process that is no child of the daemon: by a signal, or with a code.
//!
//! | state of the process | source |
//! |---|---|
//! | zombie | `/proc/<pid>/stat`, field 52, if we may trace it |
//! | collected by its parent | its pidfd, from Linux 6.15 on (`PIDFD_INFO_EXIT`) |
//!
//! Before 6.15 there is no source for a process whose parent collects it at once. The process
//! connector (netlink) would be one. But it needs CAP_NET_ADMIN and the initial network namespace,
//! and it wakes the daemon for every process of the machine.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use procfs::process::Process;

use super::Target;

/// Number of looks, and the pause between them. A process that is neither a zombie nor collected is
/// about to become a zombie.
const LOOKS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(1);

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By this signal.
    Signal(i32),
    /// By itself, with this code.
    Code(i32),
    /// The end is not known.
    Unknown,
}

// === impl Ending ===

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            (Some(signal), _) => Self::Signal(signal),
            (None, Some(code)) => Self::Code(code),
            (None, None) => Self::Unknown,
        }
    }
}

// === impl Target ===

impl Target {
    /// The end of the process, after it has ended.
    pub(crate) fn ending(&self) -> Ending {
        for _ in 0..LOOKS {
            if let Some(status) = self.zombie_status() {
                return status.into();
            }
            match self.pidfd().exit_status() {
                Ok(Some(status)) => return status.into(),
                Ok(None) => std::thread::sleep(BETWEEN),
                // This kernel does not report it.
                Err(_) => return self.zombie_status().map_or(Ending::Unknown, Ending::from),
            }
        }
        Ending::Unknown
    }

    /// The status that its parent will get.
    fn zombie_status(&self) -> Option<ExitStatus> {
        let stat = Process::new(self.pid().as_raw()).ok()?.stat().ok()?;
        let is_it = stat.starttime == self.start_time() && matches!(stat.state, 'Z' | 'X');
        let status = stat.exit_code.filter(|_| is_it)?;
        Some(ExitStatus::from_raw(status))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::utsname::uname;

    use super::*;
    use crate::pid::Pid;

    /// True if this kernel's pidfds report it (Linux 6.15).
    fn is_reported_of_the_collected() -> bool {
        let release = uname().unwrap().release().to_string_lossy().into_owned();
        let mut numbers = release
            .split(['.', '-'])
            .map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        version >= (6, 15)
    }

    #[test]
    fn how_a_process_has_ended_is_known_before_and_after_it_was_collected() {
        for (script, expected) in [
            ("read x; kill -9 $$", Ending::Signal(9)),
            ("read x; kill -11 $$", Ending::Signal(11)),
            ("read x; exit 3", Ending::Code(3)),
            ("read x; exit 139", Ending::Code(139)),
        ] {
            let mut child = Command::new("sh")
                .args(["-c", script])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let target = Target::open(Pid::try_from(child.id()).unwrap()).unwrap();
            drop(child.stdin.take());
            while !target.has_exited() {
                std::thread::yield_now();
            }
            assert_eq!(target.ending(), expected, "{script}, of a zombie");
            child.wait().unwrap();
            let after = match is_reported_of_the_collected() {
                true => expected,
                false => Ending::Unknown,
            };
            assert_eq!(target.ending(), after, "{script}, once collected");
        }
    }
}
