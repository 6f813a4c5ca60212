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
    /// Names with more bytes than [`crate::container::MAX_TEXT_LEN`].
    pub(super) cut_names: u64,
    /// Types of typed events with another number than in the file.
    pub(super) renumbered_types: u64,
    /// Typed events with the type of another one, because no number was free.
    pub(super) mistyped: u64,
}

// === impl Notes ===

impl Notes {
    /// Adds the counts of another part of the log.
    pub(super) fn add(&mut self, other: Self) {
        let Self {
            backwards,
            more_arguments,
            cut_bytes,
            cut_names,
            renumbered_types,
            mistyped,
        } = other;
        self.backwards += backwards;
        self.more_arguments += more_arguments;
        self.cut_bytes += cut_bytes;
        self.cut_names += cut_names;
        self.renumbered_types += renumbered_types;
        self.mistyped += mistyped;
    }

    /// The counts with their descriptions. A count may be 0.
    pub(super) fn into_list(self) -> [(String, u64); 6] {
        let Self {
            backwards,
            more_arguments,
            cut_bytes,
            cut_names,
            renumbered_types,
            mistyped,
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
            (
                "names of processes, threads, modules, functions and event types beyond 64 KiB, \
                 cut there"
                    .to_owned(),
                cut_names,
            ),
            (
                "types of typed events that got a free number, because another type has theirs"
                    .to_owned(),
                renumbered_types,
            ),
            (
                "typed events that got the type of others, because their process has more than \
                 65536 types"
                    .to_owned(),
                mistyped,
            ),
        ]
    }
}
