//! The name of a segment.

use std::{fmt, str::FromStr};

use crate::pid::Pid;

/// The begin of the names of segments.
const PREFIX: &str = "events.";

/// The name of a segment. The names of one process are in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentName {
    /// The process whose events it has.
    pub(crate) pid: Pid,
    /// Field 22 of `/proc/<pid>/stat`. Pid and start time together name one process of this boot.
    pub(crate) start_time: u64,
    /// The number of the segment among those of the process, from 0.
    pub(crate) number: u32,
}

/// A text that names no segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSegment;

/// With hexadecimal numbers: `events.1f4-2d3a91-0`.
impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pid,
            start_time,
            number,
        } = self;
        write!(f, "{PREFIX}{:x}-{start_time:x}-{number:x}", pid.as_u32())
    }
}

impl FromStr for SegmentName {
    type Err = NoSegment;

    fn from_str(text: &str) -> Result<Self, NoSegment> {
        let mut parts = text.strip_prefix(PREFIX).ok_or(NoSegment)?.split('-');
        let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
        let (pid, start_time, number) = (next(), next(), next());
        let name = pid
            .and_then(|pid| Pid::try_from(u32::try_from(pid).ok()?).ok())
            .zip(start_time)
            .zip(number.and_then(|number| u32::try_from(number).ok()))
            .map(|((pid, start_time), number)| Self {
                pid,
                start_time,
                number,
            });
        // Each segment has one name: no zeros in front, no signs, nothing after it.
        name.filter(|name| name.to_string() == text)
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
            number: 10,
        };
        assert_eq!(name.to_string(), "events.1f4-2d3a91-a");
        assert_eq!("events.1f4-2d3a91-a".parse(), Ok(name));
        for other in [
            "",
            "events.",
            "events.1f4-2d3a91",
            "events.1f4-2d3a91-a-1",
            "events.01f4-2d3a91-a",
            "events.+1f4-2d3a91-a",
            "events.1F4-2d3a91-a",
            "events.0-1-0",
            "events.1-1-100000000",
            "xrayd.socket",
        ] {
            assert_eq!(other.parse::<SegmentName>(), Err(NoSegment), "{other}");
        }
    }
}
