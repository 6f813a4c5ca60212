//! What is in no file, and why: a line of JSON for each, in a file of the policy.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

/// The file of a policy.
pub(crate) const NAME: &str = "losses.jsonl";
/// The size at which the file makes room. One earlier file is kept.
const LONGEST: u64 = 1 << 20;

/// A time in which a process was not recorded, or events that are missing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Loss {
    pub(crate) pid: u32,
    /// In milliseconds since the Unix epoch.
    pub(crate) since_ms: u64,
    pub(crate) until_ms: u64,
    /// Events that the daemon dropped, because the relay was too slow. 0: not known, or none.
    pub(crate) events: u64,
    pub(crate) why: String,
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
        }
    }

    /// Appends it to the file in the folder of a policy.
    pub(crate) fn append(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(NAME);
        if fs::metadata(&path).is_ok_and(|found| found.len() >= LONGEST) {
            fs::rename(&path, folder.join("losses.1.jsonl"))?;
        }
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .open(path)?;
        file.write_all(line.as_bytes())
    }
}
