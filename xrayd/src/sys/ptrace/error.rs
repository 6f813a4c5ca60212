//! Failures of ptrace operations.

use std::{io, time::Duration};

use crate::pid::Tid;

/// The failure of a ptrace operation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// The thread has ended.
    #[error("thread {0} has ended")]
    Gone(Tid),
    /// The thread did not stop in time.
    #[error("thread {0} did not stop within {1:?}")]
    Timeout(Tid, Duration),
    /// The thread did not stop again, and is released as it is.
    #[error("thread {0} does not stop again: it is frozen, or does not return from the kernel")]
    Lost(Tid),
    /// An operation failed.
    #[error("{what} failed on thread {tid}")]
    Failed {
        /// The operation.
        what: &'static str,
        /// The thread.
        tid: Tid,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

pub(super) type Result<T> = std::result::Result<T, TraceError>;
