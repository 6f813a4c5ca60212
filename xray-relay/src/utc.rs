//! Times in UTC, as names of folders and files have them.

use std::time::{Duration, SystemTime};

/// The time since the Unix epoch. Zero if the clock is before it.
pub(crate) fn now() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
}

/// The date, as `2026-11-30`.
pub(crate) fn date(time: Duration) -> String {
    let (year, month, day) = civil(time.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The time of the day, as `142530.123`.
pub(crate) fn time_of_day(time: Duration) -> String {
    let second = time.as_secs() % 86_400;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (second, milli) = (second % 60, time.subsec_millis());
    format!("{hour:02}{minute:02}{second:02}.{milli:03}")
}

/// Year, month and day of a day since the epoch, by the algorithm `civil_from_days` of Howard
/// Hinnant's "chrono-Compatible Low-Level Date Algorithms".
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 000000.000"),
            (951_782_399, "2000-02-28 235959.000"),
            (951_782_400, "2000-02-29 000000.000"),
            (1_796_048_730, "2026-11-30 142530.000"),
            (4_107_542_400, "2100-03-01 000000.000"),
        ] {
            let time = Duration::from_secs(seconds);
            assert_eq!(format!("{} {}", date(time), time_of_day(time)), expected);
        }
    }
}
