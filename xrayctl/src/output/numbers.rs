//! Numbers as llvm-xray prints them.

use xray_trace::model::{Calibration, Trace};

/// Converts nanoseconds to llvm-xray's unit: seconds, or ticks if the rate of the counter is not
/// known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale(f64);

// === impl Scale ===

impl Scale {
    /// The scale of a trace.
    pub(crate) fn of(trace: &Trace) -> Self {
        match trace.clock().calibration() {
            Calibration::Measured => Self(1e9),
            Calibration::None | Calibration::SingleAnchor => Self(1.0),
        }
    }

    pub(crate) fn seconds(self, ns: u64) -> f64 {
        ns as f64 / self.0
    }
}

/// The number as C's `%e` prints it: `3.131839e-03`.
pub(crate) fn exponential(number: f64) -> String {
    let text = format!("{number:.6e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_have_a_sign_and_two_digits() {
        for (number, expected) in [
            (0.0, "0.000000e+00"),
            (0.003_131_839, "3.131839e-03"),
            (1234.5, "1.234500e+03"),
            (1e-123, "1.000000e-123"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(exponential(number), expected);
        }
    }
}
