//! Points in time in UTC, for users and for file names.

/// `2026-11-23 14:03:22.123`.
pub(crate) fn shown(wall_ns: u64) -> String {
    let (year, month, day) = date(wall_ns / NS_OF_DAY);
    let (hour, minute, second, millisecond) = time_of_day(wall_ns);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03}")
}

/// `20261123T140322.123Z`: sorts by time, and fits any file system.
pub(crate) fn in_file_name(wall_ns: u64) -> String {
    let (year, month, day) = date(wall_ns / NS_OF_DAY);
    let (hour, minute, second, millisecond) = time_of_day(wall_ns);
    format!("{year}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{millisecond:03}Z")
}

const NS_OF_DAY: u64 = 86_400_000_000_000;

fn time_of_day(wall_ns: u64) -> (u64, u64, u64, u64) {
    let ms = wall_ns % NS_OF_DAY / 1_000_000;
    let seconds = ms / 1000;
    (seconds / 3600, seconds / 60 % 60, seconds % 60, ms % 1000)
}

/// Year, month and day of a day after 1970-01-01. Years begin in March here, so that a leap day is
/// the last of its year. They are counted in eras of 400 years, which have 146,097 days.
fn date(day: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month < 10 {
        true => (era * 400 + year, month + 3),
        false => (era * 400 + year + 1, month - 9),
    };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_399, "2000-02-28 23:59:59.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (1_709_164_800, "2024-02-29 00:00:00.000"),
            (1_735_689_599, "2024-12-31 23:59:59.000"),
            (1_795_403_655, "2026-11-23 03:14:15.000"),
            (4_107_542_400, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(shown(seconds * 1_000_000_000), expected);
        }
        let moment = 1_795_403_655_123_999_999;
        assert_eq!(in_file_name(moment), "20261123T031415.123Z");
        assert_eq!(shown(moment), "2026-11-23 03:14:15.123");
        shown(u64::MAX);
    }
}
