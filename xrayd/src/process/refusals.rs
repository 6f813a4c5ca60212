//! Refusals that several files of this folder give.

use crate::{
    pid::Pid,
    refusal::{Reason, Refusal},
};

/// The refusal when a session's thread ended without an answer.
pub(super) fn lost_thread(pid: Pid) -> Refusal {
    Refusal::new(
        Reason::Io,
        format!("process {pid}: the thread that attaches ended unexpectedly; see the log"),
    )
}

/// The refusal while another attach or detach is under way.
pub(super) fn busy(pid: Pid) -> Refusal {
    Refusal::new(
        Reason::Busy,
        format!("another attach or detach of process {pid} is under way"),
    )
}

/// The refusal for a detach that takes too long.
pub(super) fn still_detaching(pid: Pid) -> Refusal {
    let message = format!(
        "process {pid}: the detach has not ended yet; a file system that the process uses may not \
         answer"
    );
    Refusal::new(Reason::Busy, message)
}

/// The refusal for a followed process whose group was removed when the pid of its first process
/// became another process's.
pub(super) fn orphan(pid: Pid) -> Refusal {
    let message = format!(
        "xrayd followed process {pid} from a process that has ended; detach from it, then attach \
         again"
    );
    Refusal::new(Reason::Followed, message)
}

/// The refusal for a process of which only retained events are left.
pub(super) fn has_ended(pid: Pid) -> Refusal {
    let message = format!("process {pid} has ended, and none of its events is retained");
    Refusal::new(Reason::TargetExited, message)
}

/// The refusal of an attach when the daemon has few descriptors left.
pub(super) fn no_descriptors(most: u64, spare: u64) -> Refusal {
    let message = format!(
        "xrayd may open {most} files, and keeps {spare} of them for clients and detaches: detach \
         from a process first, or raise the limit (`LimitNOFILE=` of the unit, or `ulimit -Hn`)"
    );
    Refusal::new(Reason::Limit, message)
}

/// The refusal for a process without a session.
pub(super) fn not_attached(pid: Pid) -> Refusal {
    Refusal::new(
        Reason::NotAttached,
        format!("process {pid} is not attached"),
    )
}
