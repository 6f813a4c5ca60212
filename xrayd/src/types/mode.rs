//! The mode of a session.

use std::fmt;

/// What a session does with events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each ring keeps the newest events of its thread. They are read for a snapshot. While a
    /// client reads a live stream, rings are read as in [`Mode::Stream`].
    Flight,
    /// All events are read and retained, and the oldest are dropped for room. An event that finds
    /// its ring full is lost, and counted.
    #[default]
    Stream,
    /// The program adds calls up by call stack. If something else than sums is wanted, events are
    /// read, added up and not retained. A live stream has them all.
    Profile,
    /// Calls are counted by function and thread. No event is recorded.
    Count,
}

// === impl Mode ===

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Flight, Self::Stream, Self::Profile, Self::Count];

    /// Its index in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flight => "flight",
            Self::Stream => "stream",
            Self::Profile => "profile",
            Self::Count => "count",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
