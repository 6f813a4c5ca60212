//! Exact decimal numbers: times in JSON are microseconds with a fraction, which floating point
//! cannot hold beyond some months.

/// The most digits that are kept, so that one more does not overflow.
const MOST_DIGITS: u128 = 10_u128.pow(36);

/// Microseconds in JSON as nanoseconds, rounded to the nearest. `None` for negative numbers, other
/// texts, and times beyond 64 bits.
pub(super) fn nanoseconds(text: &[u8]) -> Option<u64> {
    let exponent_at = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (mantissa, exponent) = match exponent_at {
        None => (text, 0),
        Some(at) => {
            let exponent = std::str::from_utf8(text.get(at + 1..)?).ok()?;
            (text.get(..at)?, exponent.parse::<i32>().ok()?)
        }
    };
    let mut digits = 0_u128;
    let mut decimals = 0_i32;
    let mut has_digits = false;
    let mut in_fraction = false;
    for byte in mantissa {
        match byte {
            b'0'..=b'9' => {
                has_digits = true;
                if digits < MOST_DIGITS {
                    digits = digits * 10 + u128::from(byte - b'0');
                    decimals = decimals.checked_add(i32::from(in_fraction))?;
                } else if !in_fraction {
                    return None;
                }
            }
            b'.' if !in_fraction => in_fraction = true,
            _ => return None,
        }
    }
    if !has_digits {
        return None;
    }
    let shift = exponent.checked_add(3)?.checked_sub(decimals)?;
    let power = 10_u128.checked_pow(shift.unsigned_abs());
    let ns = match (shift < 0, power) {
        (false, Some(power)) => digits.checked_mul(power)?,
        (false, None) if digits > 0 => return None,
        (true, Some(power)) => digits.checked_add(power / 2)? / power,
        (_, None) => 0,
    };
    u64::try_from(ns).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("1234.567", Some(1_234_567)),
            ("18446744073709551.615", Some(u64::MAX)),
            ("18446744073709551.616", None),
            ("9007199254740993.001", Some(9_007_199_254_740_993_001)),
            ("0.0004", Some(0)),
            ("0.0005", Some(1)),
            (
                "12.34500000000000000000000000000000000000000000000001",
                Some(12_345),
            ),
            ("1.5e3", Some(1_500_000)),
            ("1.5E+3", Some(1_500_000)),
            ("15e-4", Some(2)),
            ("1e-99999", Some(0)),
            ("0e99999", Some(0)),
            ("1e99999", None),
            ("1e99999999999", None),
            ("100000000000000000000000000000000000000000000", None),
            ("-1", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("1e", None),
            ("nan", None),
        ] {
            assert_eq!(nanoseconds(text.as_bytes()), expected, "{text}");
        }
    }
}
