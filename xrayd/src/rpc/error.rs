//! Refusals as gRPC statuses: a code for programs, a line for people, and the id of the reason.

use std::time::Duration;

use tonic::{Code, Status, metadata::MetadataValue};
use xrayd_proto::REASON_KEY;

use crate::{
    refusal::{Reason, Refusal},
    text::is_hazard,
};

/// The most bytes of a message. A message may repeat a text of the request, and gRPC sends it in a
/// header, where a byte may take three. Clients accept headers of 8 KiB at least.
const MOST_BYTES: usize = 2048;
const CUT: char = '…';

/// The reason in a failed call's status. `None` for failures of the transport or of another server.
#[must_use]
pub fn reason_of(status: &Status) -> Option<Reason> {
    Reason::from_id(status.metadata().get(REASON_KEY)?.to_str().ok()?)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        with_reason(code(refusal.reason), refusal)
    }
}

/// The refusal of a caller that has reached a limit.
pub(super) fn too_many(what: &str, uid: u32) -> Refusal {
    let message = format!("user {uid} has too many {what} under way; wait for one to end");
    Refusal::new(Reason::TooMany, message)
}

/// The status for a reader of a bounded stream that took no message for too long.
pub(super) fn reader_too_slow(patience: Duration) -> Status {
    Status::new(
        Code::DeadlineExceeded,
        format!("the client read nothing for {patience:?}"),
    )
}

/// The status for a panic in one call. The panic hook has logged it, and other calls go on.
pub(super) fn bug() -> Status {
    Status::new(Code::Internal, "a bug in xrayd: see the daemon's log")
}

fn with_reason(code: Code, refusal: Refusal) -> Status {
    let Refusal { reason, message } = refusal;
    // The message is one line. Parts of it may come from strings of a process.
    let mut line = String::new();
    for letter in message.chars() {
        if line.len() >= MOST_BYTES {
            line.push(CUT);
            break;
        }
        line.push(if is_hazard(letter) {
            '\u{fffd}'
        } else {
            letter
        });
    }
    let message = line;
    let mut status = Status::new(code, message);
    status
        .metadata_mut()
        .insert(REASON_KEY, MetadataValue::from_static(reason.id()));
    status
}

fn code(reason: Reason) -> Code {
    match reason {
        Reason::NoSuchProcess | Reason::NotAttached => Code::NotFound,
        Reason::Permission => Code::PermissionDenied,
        Reason::Selection | Reason::Limit => Code::InvalidArgument,
        Reason::Busy | Reason::PidReused | Reason::TargetExited => Code::Aborted,
        Reason::NoMemory | Reason::TooMany | Reason::Quota => Code::ResourceExhausted,
        Reason::StopTimeout => Code::DeadlineExceeded,
        Reason::NoSleds
        | Reason::Not64Bit
        | Reason::Tsc
        | Reason::SeccompStrict
        | Reason::SeccompFilter
        | Reason::ForeignTracer
        | Reason::AlreadyPatched
        | Reason::KernelThread
        | Reason::Zombie
        | Reason::Followed
        | Reason::Mode
        | Reason::NoState
        | Reason::Policy
        | Reason::OtherVersion
        | Reason::ThreadId
        | Reason::MemoryWrite
        | Reason::Launch => Code::FailedPrecondition,
        Reason::Io | Reason::SessionFailed => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_wire() {
        for reason in Reason::ALL {
            let status = Status::from(Refusal::new(reason, "because"));
            assert_ne!(status.code(), Code::Ok);
            assert_eq!(reason_of(&status), Some(reason));
            assert_eq!(status.message(), "because");
        }
    }

    #[test]
    fn a_status_of_somebody_else_has_no_reason() {
        assert_eq!(reason_of(&Status::unavailable("gone")), None);
    }

    #[test]
    fn a_message_is_one_line() {
        let status = Status::from(Refusal::new(Reason::Io, "a\nb\u{1b}[31m"));
        assert_eq!(status.message(), "a\u{fffd}b\u{fffd}[31m");
    }

    #[test]
    fn a_long_message_is_cut() {
        for text in ["a", "é", "\n"] {
            let status = Status::from(Refusal::new(Reason::Selection, text.repeat(1 << 14)));
            let message = status.message();
            assert!(
                message.len() < MOST_BYTES + 8 && message.ends_with(CUT),
                "{text:?}"
            );
        }
        let whole = "a".repeat(MOST_BYTES);
        let status = Status::from(Refusal::new(Reason::Selection, whole.clone()));
        assert_eq!(status.message(), whole);
    }
}
