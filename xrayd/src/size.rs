//! Sizes as people write them: `256MiB`, `64 KiB`, `4096`.
//!
//! The daemon and the command line share this parser, so `MB` means the same in both.

use std::{fmt, num::ParseIntError, str::FromStr};

/// A number of bytes.
///
/// ```
/// use xrayd::ByteSize;
///
/// assert_eq!("1MiB".parse::<ByteSize>().unwrap().bytes(), 1 << 20);
/// assert_eq!("1MB".parse::<ByteSize>().unwrap().bytes(), 1_000_000);
/// assert_eq!(ByteSize::new(1 << 20).to_string(), "1MiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

/// The reason why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The number is missing or malformed.
    #[error("`{text}` is not a size: give a whole number and a unit, such as 256MiB")]
    Number {
        /// The input.
        text: String,
        /// The error of the number.
        source: ParseIntError,
    },
    /// An unknown unit.
    #[error("`{unit}` is not a unit of size: use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")]
    Unit {
        /// The text after the number.
        unit: String,
    },
    /// More than 2^64 - 1 bytes.
    #[error("{text} is too large: the maximum is 2^64 - 1 bytes")]
    TooLarge {
        /// The input.
        text: String,
    },
}

/// Units in the order in which [`ByteSize`]'s `Display` tries them.
const BINARY: [(&str, u64); 4] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

// === impl ByteSize ===

impl ByteSize {
    /// A size of this number of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let digits = trimmed
            .bytes()
            .position(|byte| !byte.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim_start();
        let factor = factor(unit).ok_or_else(|| SizeError::Unit {
            unit: unit.to_owned(),
        });
        let number: u64 = match number.parse() {
            Ok(number) => number,
            Err(source) if number.is_empty() => {
                return Err(SizeError::Number {
                    text: text.to_owned(),
                    source,
                });
            }
            Err(_) => {
                return Err(SizeError::TooLarge {
                    text: text.to_owned(),
                });
            }
        };
        number
            .checked_mul(factor?)
            .map(Self)
            .ok_or_else(|| SizeError::TooLarge {
                text: text.to_owned(),
            })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BINARY
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
        {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Bytes of one unit. Upper and lower case mean the same, because no size is in millibits.
fn factor(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: u64) {
        assert_eq!(
            text.parse::<ByteSize>().map(ByteSize::bytes),
            Ok(expected),
            "{text}"
        );
    }

    fn check_error(text: &str, expected: &str) {
        let error = text.parse::<ByteSize>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        check("0", 0);
        check("4096", 4096);
        check("4096B", 4096);
        check("64KiB", 65_536);
        check("64k", 65_536);
        check("1MiB", 1 << 20);
        check(" 256 MiB ", 256 << 20);
        check("256mib", 256 << 20);
        check("2g", 2 << 30);
        check("1TiB", 1 << 40);
        check("1kB", 1_000);
        check("3MB", 3_000_000);
        check("18446744073709551615", u64::MAX);
    }

    #[test]
    fn a_malformed_size_is_refused_with_the_reason() {
        check_error("", "not a size");
        check_error("MiB", "not a size");
        check_error("-1", "not a size");
        check_error("1.5GiB", "not a unit");
        check_error("1 2", "not a unit");
        check_error("1XiB", "`XiB` is not a unit");
        check_error("18446744073709551616", "too large");
        check_error("18446744073709551615KiB", "too large");
        check_error("16777216TiB", "too large");
    }

    #[test]
    fn a_size_is_shown_in_its_largest_whole_unit_and_reads_back() {
        for (bytes, text) in [
            (0, "0B"),
            (1000, "1000B"),
            (1024, "1KiB"),
            (256 << 20, "256MiB"),
            (3 << 40, "3TiB"),
        ] {
            assert_eq!(ByteSize::new(bytes).to_string(), text);
            check(text, bytes);
        }
    }
}
