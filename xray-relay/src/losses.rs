//! What is in no file, and why.

use std::time::Duration;

use serde::Serialize;

/// The file of a policy, without the end of its name.
pub(crate) const NAME: &str = "losses";

/// The file with the time before each process was recorded for the first time.
pub(crate) const BEGINS: &str = "begins";

/// A time in which a process was not recorded, or events that are missing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Loss {
    /// 0: all processes of the policy, for a trigger.
    pub(crate) pid: u32,
    /// In milliseconds since the Unix epoch.
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    /// Events that the daemon dropped, because the relay was too slow. 0: not known, or none.
    pub(crate) events: u64,
    pub(crate) why: String,
    /// True for the time before a process was recorded for the first time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_begin: bool,
}

// === impl Loss ===

impl Loss {
    /// A loss of a process in this time.
    pub(crate) fn new(
        pid: u32,
        (since, until): (Duration, Duration),
        events: u64,
        why: impl Into<String>,
    ) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            pid,
            since_ms: ms(since),
            until_ms: ms(until),
            events,
            why: why.into(),
            is_begin: false,
        }
    }
}
