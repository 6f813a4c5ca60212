//! How the events of a session are kept.

use std::fmt;

/// What becomes of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Rings hold the newest events of their threads, and nobody reads them until somebody wants to know. While a feed is read, it is as
    /// [`Mode::Stream`].
    Flight,
    /// All events are read and retained, the oldest go first; what finds a full ring is lost, and counted.
    #[default]
    Stream,
    /// Events are read and added up, by stack of calls, and none is kept. While a feed is read, it has them all.
    Profile,
    /// Calls are counted, by function and thread, and nothing is recorded of them.
    Count,
}

// === impl Mode ===

impl Mode {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Flight, Self::Stream, Self::Profile, Self::Count];

    /// Where it stands there.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Its name, as people write it.
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
