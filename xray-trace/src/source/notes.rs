//! Counts of data that an importer could not keep exactly.

/// Counts of data that could not be kept exactly.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Times before the time of the previous event.
    pub(super) backwards: u64,
    /// Arguments after the first one of a call, in formats with one argument.
    pub(super) more_arguments: u64,
    /// Bytes of user events beyond [`crate::container::MAX_DATA_LEN`] for each.
    pub(super) cut_bytes: u64,
}

// === impl Notes ===

impl Notes {
    /// Adds the counts of another part of the log.
    pub(super) fn add(&mut self, other: Self) {
        let Self {
            backwards,
            more_arguments,
            cut_bytes,
        } = other;
        self.backwards += backwards;
        self.more_arguments += more_arguments;
        self.cut_bytes += cut_bytes;
    }

    /// The counts with their descriptions. A count may be 0.
    pub(super) fn into_list(self) -> [(String, u64); 3] {
        let Self {
            backwards,
            more_arguments,
            cut_bytes,
        } = self;
        [
            (
                "times that went backwards within a thread, replaced by the time before".to_owned(),
                backwards,
            ),
            (
                "arguments beyond the first of a call".to_owned(),
                more_arguments,
            ),
            (
                "bytes of custom and typed events beyond 1 MiB each".to_owned(),
                cut_bytes,
            ),
        ]
    }
}
