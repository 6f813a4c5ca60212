//! The name of a segment.

use std::{fmt, str::FromStr};

use crate::pid::Pid;

/// The begin of the names of segments.
const PREFIX: &str = "events.";

/// The name of a segment. The names of one session are in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentName {
    /// The process whose events it has.
    pub(crate) pid: Pid,
    /// Field 22 of `/proc/<pid>/stat`. Pid and start time together name one process of this boot.
    pub(crate) start_time: u64,
    /// The session: the counter at its attach. A session that the next daemon goes on with keeps
    /// this number.
    pub(crate) session: u64,
    /// The number of the segment among those of the session, from 0.
    pub(crate) number: u32,
}

/// A text that names no segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSegment;

/// With hexadecimal numbers: `events.1f4-2d3a91-1c7d5e0b2-0`.
impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pid,
            start_time,
            session,
            number,
        } = self;
        let pid = pid.as_u32();
        write!(f, "{PREFIX}{pid:x}-{start_time:x}-{session:x}-{number:x}")
    }
}

impl FromStr for SegmentName {
    type Err = NoSegment;

    fn from_str(text: &str) -> Result<Self, NoSegment> {
        let mut parts = text.strip_prefix(PREFIX).ok_or(NoSegment)?.split('-');
        let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
        let mut read = || {
            Some(Self {
                pid: Pid::try_from(u32::try_from(next()?).ok()?).ok()?,
                start_time: next()?,
                session: next()?,
                number: u32::try_from(next()?).ok()?,
            })
        };
        // Each segment has one name: no zeros in front, no signs, nothing after it.
        read()
            .filter(|name| name.to_string() == text)
            .ok_or(NoSegment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let name = SegmentName {
            pid: Pid::try_from(0x1f4_u32).unwrap(),
            start_time: 0x2d_3a91,
            session: 0x1c7,
            number: 10,
        };
        assert_eq!(name.to_string(), "events.1f4-2d3a91-1c7-a");
        assert_eq!("events.1f4-2d3a91-1c7-a".parse(), Ok(name));
        for other in [
            "",
            "events.",
            "events.1f4-2d3a91-1c7",
            "events.1f4-2d3a91-1c7-a-1",
            "events.01f4-2d3a91-1c7-a",
            "events.+1f4-2d3a91-1c7-a",
            "events.1F4-2d3a91-1c7-a",
            "events.0-1-1-0",
            "events.1-1-1-100000000",
            "xrayd.socket",
        ] {
            assert_eq!(other.parse::<SegmentName>(), Err(NoSegment), "{other}");
        }
    }
}
