//! The limit on the firings of a trigger: `3`, or `3/1h`.

use std::time::Duration;

use crate::{parse, triggers::MOST_FIRINGS};

/// The most firings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiringLimit {
    /// Their number.
    pub times: u32,
    /// The time in which these are the most; `None` for the whole run.
    pub period: Option<Duration>,
}

/// Parses a limit.
///
/// # Errors
/// The text is no limit, or its number is out of range.
pub fn parse_limit(text: &str) -> Result<FiringLimit, String> {
    let (times, period) = match text.split_once('/') {
        Some((times, period)) => (times, Some(parse::positive_duration(period)?)),
        None => (text, None),
    };
    let times = times.trim().parse().ok();
    let times = times.filter(|times| (1..=MOST_FIRINGS).contains(times));
    let wrong = || format!("expected N or N/TIME, like 3/1h, with N from 1 to {MOST_FIRINGS}");
    Ok(FiringLimit {
        times: times.ok_or_else(wrong)?,
        period,
    })
}

// === impl FiringLimit ===

impl FiringLimit {
    /// True if the trigger fires once and never again.
    #[must_use]
    pub fn is_once(self) -> bool {
        self.times == 1 && self.period.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_one_for_a_time() {
        let hour = Some(Duration::from_secs(3600));
        for (text, expected) in [
            ("1", Some((1, None))),
            ("1000", Some((1000, None))),
            ("3/1h", Some((3, hour))),
            ("3 / 60m", Some((3, hour))),
            ("0", None),
            ("1001", None),
            ("-1", None),
            ("3/", None),
            ("3/0s", None),
            ("/1h", None),
            ("often", None),
        ] {
            let limit = parse_limit(text).ok();
            let found = limit.map(|limit| (limit.times, limit.period));
            assert_eq!(found, expected, "{text}");
        }
        assert!(parse_limit("1").unwrap().is_once() && !parse_limit("1/1h").unwrap().is_once());
    }
}
