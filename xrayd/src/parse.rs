//! Numbers with units, as they are written on the command line and in files.

use std::time::Duration;

use crate::{process::Follow, size::ByteSize, types::Mode};

const RING_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// A name or a pattern. An empty one is refused, because it comes from an unset variable of a
/// script. It would match nothing, or, as a regular expression, everything.
///
/// # Errors
/// An empty text.
pub fn pattern(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("expected a name or a pattern, not an empty text".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// The size of a thread's ring.
///
/// # Errors
/// Another number, or no size.
pub fn ring_size(text: &str) -> Result<u64, String> {
    let size = text
        .parse::<ByteSize>()
        .map_err(|error| error.to_string())?
        .bytes();
    if size.is_power_of_two() && RING_BYTES.contains(&size) {
        Ok(size)
    } else {
        Err("expected a power of two from 64KiB to 1GiB".to_owned())
    }
}

/// The processes that are traced besides the attached one.
///
/// # Errors
/// Another word.
pub fn follow(text: &str) -> Result<Follow, String> {
    match text {
        "none" => Ok(Follow::None),
        "fork" => Ok(Follow::Fork),
        "exec" => Ok(Follow::Exec),
        "all" | "fork,exec" | "exec,fork" => Ok(Follow::All),
        _ => Err("expected none, fork, exec or all".to_owned()),
    }
}

/// A percentage, in millionths.
///
/// # Errors
/// No number, or one out of range.
pub fn percent(text: &str) -> Result<u32, String> {
    let expected = || "expected a percentage from 0.01% to 100%, like 2%".to_owned();
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let percent: f64 = number.parse().map_err(|_| expected())?;
    if !(0.01..=100.0).contains(&percent) {
        return Err(expected());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 100 to a million"
    )]
    let millionths = (percent * 10_000.0).round() as u32;
    Ok(millionths)
}

/// A duty cycle: the time in which everything is on, and the length of the cycle.
///
/// # Errors
/// No two times, or times out of range.
pub fn duty(text: &str) -> Result<(Duration, Duration), String> {
    let expected = || {
        "expected TIME/CYCLE, like 5ms/1s: at least 1ms, in a longer cycle of at most 1h".to_owned()
    };
    let (on, every) = text.split_once('/').ok_or_else(expected)?;
    let (on, every) = (positive_duration(on)?, positive_duration(every)?);
    if on < Duration::from_millis(1) || on >= every || every > Duration::from_secs(3600) {
        return Err(expected());
    }
    Ok((on, every))
}

/// A mode of a session.
///
/// # Errors
/// Another word.
pub fn mode(text: &str) -> Result<Mode, String> {
    let mut modes = Mode::ALL.into_iter();
    modes
        .find(|mode| mode.name() == text)
        .ok_or_else(|| "expected flight, stream, profile or count".to_owned())
}

/// A length of time: `5s`, `1.5s`, `200ms`, `10us`, `2m`. A number alone means seconds.
///
/// # Errors
/// No number, an unknown unit, or a time of more than 584 years.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let unit_ns: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => {
            return Err(format!(
                "unknown unit {unit:?}: expected ns, us, ms, s, m or h"
            ));
        }
    };
    let wrong = || "expected a number and a unit, like 5s or 200ms".to_owned();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 9 {
        return Err(wrong());
    }
    let digits = |text: &str| {
        if text.is_empty() {
            Ok(0)
        } else {
            text.parse::<u64>()
        }
    };
    let whole = digits(whole).map_err(|_| wrong())?;
    let scale = (0..fraction.len()).fold(1_u128, |scale, _| scale * 10);
    let fraction = digits(fraction).map_err(|_| wrong())?;
    let ns = u128::from(whole) * u128::from(unit_ns)
        + u128::from(fraction) * u128::from(unit_ns) / scale;
    u64::try_from(ns)
        .map(Duration::from_nanos)
        .map_err(|_| "the time is too long".to_owned())
}

/// A [`duration`] that is greater than zero.
///
/// # Errors
/// As [`duration`], or 0.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| {
        if time.is_zero() {
            Err("expected a time greater than 0".into())
        } else {
            Ok(time)
        }
    })
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_power_of_two_within_its_limits() {
        for (text, expected) in [
            ("64KiB", Some(64 << 10)),
            ("1MiB", Some(1 << 20)),
            ("1GiB", Some(1 << 30)),
            ("32KiB", None),
            ("2GiB", None),
            ("65537", None),
            ("0", None),
        ] {
            assert_eq!(ring_size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        for (text, expected) in [
            ("5s", Some(5_000_000_000)),
            ("5", Some(5_000_000_000)),
            ("1.5s", Some(1_500_000_000)),
            (".5s", Some(500_000_000)),
            ("200ms", Some(200_000_000)),
            ("0.001us", Some(1)),
            ("7µs", Some(7_000)),
            ("3ns", Some(3)),
            ("2m", Some(120_000_000_000)),
            ("1h", Some(3_600_000_000_000)),
            ("0", Some(0)),
            ("s", None),
            (".", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("5 parsecs", None),
            ("99999999999h", None),
        ] {
            let expected = expected.map(Duration::from_nanos);
            assert_eq!(duration(text).ok(), expected, "{text}");
        }
        assert!(positive_duration("0s").is_err());
    }
}
