//! Failures that have an exit code of their own.
//!
//! They travel inside `anyhow::Error` like any other error, and [`exit_code`] finds them in the
//! chain. An error without a [`Failure`] ends with [`OTHER`].

use std::error::Error as _;
use std::io;

use xrayd::{Reason, Refusal};
use xrayd_proto::REASON_KEY;

/// The exit code of a failure without a code of its own: a file that cannot be read, a disk that is
/// full.
const OTHER: u8 = 1;

/// Failures that scripts can tell apart by the exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line asks for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The selection matched nothing.
    #[error("nothing matched: {0}")]
    NothingMatched(String),
    /// The engine declined, and changed nothing.
    #[error("{message} [{reason}]; `xrayctl explain {reason}` explains it")]
    Refused {
        /// The id for `xrayctl explain`.
        reason: String,
        /// One line with the particulars.
        message: String,
    },
    /// No daemon answers at the socket, or the daemon has gone away.
    #[error("{0}")]
    Unreachable(String),
    /// `--strict` was given and the recording has holes.
    #[error("{events} events were lost, and --strict was given")]
    Lost {
        /// The number of lost events.
        events: u64,
    },
    /// A check found problems, which were printed before.
    #[error("{0} found")]
    Problems(String),
    /// A signal interrupted the command.
    #[error("interrupted{0}")]
    Interrupted(String),
    /// A command failed with some of several processes. The failures were printed before.
    #[error("{failed} of {of} processes failed")]
    Several {
        /// The number of failures.
        failed: usize,
        /// The number of processes.
        of: usize,
        /// The exit code of the first failure.
        code: u8,
    },
}

/// The reader of standard output has gone away. `xrayctl … | head` ends that way. It is no failure.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
pub(crate) struct OutputClosed;

/// The exit code for an error; `None` if the error is no failure.
pub(crate) fn exit_code(error: &anyhow::Error) -> Option<u8> {
    let closed = error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .is_some_and(|inner| inner.is::<OutputClosed>())
    });
    if closed {
        return None;
    }
    let failure = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>());
    Some(failure.map_or(OTHER, Failure::exit_code))
}

/// The reason of a refusal.
pub(crate) fn reason_in(error: &anyhow::Error) -> Option<Reason> {
    let mut chain = error.chain();
    chain.find_map(|cause| match cause.downcast_ref() {
        Some(Failure::Refused { reason, .. }) => Reason::from_id(reason),
        _ => None,
    })
}

/// True if a signal interrupted the command.
pub(crate) fn is_interrupted(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let failure = cause.downcast_ref::<Failure>();
        matches!(failure, Some(Failure::Interrupted(_)))
    })
}

// === impl Failure ===

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted(_) => OTHER,
            Self::Usage(_) => 2,
            Self::NothingMatched(_) => 3,
            Self::Refused { .. } => 4,
            Self::Unreachable(_) => 5,
            Self::Lost { .. } => 6,
            Self::Problems(_) => 7,
            Self::Several { code, .. } => *code,
        }
    }
}

/// Converts a failed call. The error has only the engine's message, because the other parts of a
/// [`tonic::Status`] help no user at a terminal.
pub(crate) fn from_status(status: &tonic::Status) -> anyhow::Error {
    let reason = status
        .metadata()
        .get(REASON_KEY)
        .and_then(|id| id.to_str().ok());
    let message = crate::output::text::printable(status.message());
    match (reason, status.code()) {
        (Some(reason), _) => {
            let reason = crate::output::text::printable(reason);
            Failure::Refused { reason, message }.into()
        }
        // A status with a source was made on this side, because the connection broke.
        (None, code) if code == tonic::Code::Unavailable || status.source().is_some() => {
            Failure::Unreachable(format!("the daemon went away: {message}")).into()
        }
        (None, tonic::Code::InvalidArgument) => Failure::Usage(message).into(),
        (None, code) => anyhow::anyhow!("{message} ({code})"),
    }
}

/// Converts a refusal of the engine in this process. A daemon's refusal gives the same error.
pub(crate) fn from_refusal(refusal: Refusal) -> anyhow::Error {
    let Refusal { reason, message } = refusal;
    Failure::Refused {
        reason: reason.id().to_owned(),
        message,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn check(error: anyhow::Error, expected: Option<u8>) {
        assert_eq!(exit_code(&error), expected, "{error:#}");
        assert_eq!(exit_code(&error.context("while doing something")), expected);
    }

    #[test]
    fn each_failure_has_its_documented_code_however_deep_it_lies() {
        check(anyhow::anyhow!("disk full"), Some(1));
        check(Failure::Usage(String::new()).into(), Some(2));
        check(Failure::NothingMatched(String::new()).into(), Some(3));
        let refused = Failure::Refused {
            reason: "busy".into(),
            message: String::new(),
        };
        check(refused.into(), Some(4));
        check(Failure::Unreachable(String::new()).into(), Some(5));
        check(Failure::Lost { events: 1 }.into(), Some(6));
        let several = Failure::Several {
            failed: 1,
            of: 2,
            code: 4,
        };
        check(several.into(), Some(4));
    }

    #[test]
    fn only_a_closed_standard_output_is_success() {
        let closed = io::Error::new(io::ErrorKind::BrokenPipe, OutputClosed);
        check(closed.into(), None);
        check(io::Error::from(io::ErrorKind::BrokenPipe).into(), Some(1));
    }

    #[test]
    fn a_refusal_keeps_its_reason_and_its_words() {
        let mut status = tonic::Status::failed_precondition("traced by gdb (77)");
        status
            .metadata_mut()
            .insert(REASON_KEY, "foreign-tracer".parse().unwrap());
        let error = Err::<(), _>(from_status(&status))
            .context("cannot attach to 5")
            .unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "cannot attach to 5: traced by gdb (77) [foreign-tracer]; `xrayctl explain foreign-tracer` explains it"
        );
        check(error, Some(4));
    }

    #[test]
    fn the_codes_without_a_reason_are_distinguished() {
        check(
            from_status(&tonic::Status::unavailable("connection reset")),
            Some(5),
        );
        check(
            from_status(&tonic::Status::invalid_argument("bad")),
            Some(2),
        );
        check(from_status(&tonic::Status::internal("bad")), Some(1));
        let broken = tonic::Status::from_error(io::Error::other("connection reset").into());
        check(from_status(&broken), Some(5));
    }
}
