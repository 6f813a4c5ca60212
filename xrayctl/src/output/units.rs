//! Numbers for users: times, bytes, counts.

const NS_UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
const BYTE_UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// A time in a fitting unit with four significant digits: `7 ns`, `1.234 µs`, `56.78 ms`, `123.4
/// s`.
pub(crate) fn time(ns: u64) -> String {
    let mut unit = 0;
    // Nanoseconds of one unit.
    let mut worth = 1_u128;
    while unit + 1 < NS_UNITS.len() && rounded(ns, worth) >= worth * 1000 {
        worth *= 1000;
        unit += 1;
    }
    let ns = rounded(ns, worth);
    let places = places(ns, worth);
    let scale = 10_u128.pow(places);
    let (whole, fraction) = (ns / worth, ns % worth * scale / worth);
    if places == 0 {
        format!("{whole} {}", NS_UNITS[unit])
    } else {
        format!(
            "{whole}.{fraction:0width$} {}",
            NS_UNITS[unit],
            width = places as usize
        )
    }
}

/// A time in the longest unit that is not longer than the time, with all digits: `10 ms`, `1.5 s`.
pub(crate) fn exact_time(ns: u64) -> String {
    let mut unit = 0;
    let mut worth = 1_u64;
    while unit + 1 < NS_UNITS.len() && ns / worth >= 1000 {
        worth *= 1000;
        unit += 1;
    }
    let (whole, rest) = (ns / worth, ns % worth);
    if rest == 0 {
        return format!("{whole} {}", NS_UNITS[unit]);
    }
    let fraction = format!("{rest:0width$}", width = unit * 3);
    format!(
        "{whole}.{} {}",
        fraction.trim_end_matches('0'),
        NS_UNITS[unit]
    )
}

/// A number of bytes in a fitting unit: `999 B`, `1.00 MiB`, `12.34 GiB`, `150 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut unit = 0;
    let mut worth = 1_u128;
    let exact = u128::from(bytes);
    while unit + 1 < BYTE_UNITS.len() && exact >= worth * 1024 {
        worth *= 1024;
        unit += 1;
    }
    if unit == 0 {
        return format!("{bytes} B");
    }
    let hundredths = (exact * 100 + worth / 2) / worth;
    if hundredths >= 10_000 {
        format!("{} {}", (hundredths + 50) / 100, BYTE_UNITS[unit])
    } else {
        format!(
            "{}.{:02} {}",
            hundredths / 100,
            hundredths % 100,
            BYTE_UNITS[unit]
        )
    }
}

/// A count with its thousands separated: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// An estimate rounded to its two significant digits.
pub(crate) fn rough(number: u64) -> u64 {
    let digits = number.checked_ilog10().unwrap_or(0);
    let step = 10_u64.pow(digits.saturating_sub(1));
    let half = step / 2;
    number.saturating_add(half) / step * step
}

/// A count and its noun: `1 event`, `2,000 events`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    let plural = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", count(number))
}

/// The bytes of one event: `2.31`.
pub(crate) fn bytes_per_event(bytes: u64, events: u64) -> Option<String> {
    let hundredths = (u128::from(bytes) * 100).checked_div(u128::from(events))?;
    Some(format!("{}.{:02}", hundredths / 100, hundredths % 100))
}

/// `ns` rounded to the digits that [`time`] shows in a unit worth `worth` nanoseconds.
fn rounded(ns: u64, worth: u128) -> u128 {
    let ns = u128::from(ns);
    let step = (worth / 10_u128.pow(places(ns, worth))).max(1);
    (ns + step / 2) / step * step
}

/// Digits behind the point, so that four digits are shown in all.
fn places(ns: u128, worth: u128) -> u32 {
    match ns / worth {
        _ if worth == 1 => 0,
        0..=9 => 3,
        10..=99 => 2,
        100..=999 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_times_have_all_digits() {
        for (ns, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (10_000_000, "10 ms"),
            (10_000_001, "10.000001 ms"),
            (90_000_000_000, "90 s"),
        ] {
            assert_eq!(exact_time(ns), expected);
        }
    }

    #[test]
    fn times_have_four_digits_and_a_fitting_unit() {
        for (ns, expected) in [
            (0, "0 ns"),
            (7, "7 ns"),
            (999, "999 ns"),
            (1_000, "1.000 µs"),
            (1_234, "1.234 µs"),
            (9_999, "9.999 µs"),
            (12_345, "12.35 µs"),
            (99_999, "100.0 µs"),
            (123_456, "123.5 µs"),
            (999_949, "999.9 µs"),
            (999_950, "1.000 ms"),
            (999_999_999, "1.000 s"),
            (1_500_000_000, "1.500 s"),
            (123_456_000_000, "123.5 s"),
            (12_345_600_000_000, "12346 s"),
            (u64::MAX, "18446744074 s"),
        ] {
            assert_eq!(time(ns), expected, "{ns}");
        }
    }

    #[test]
    fn bytes_have_a_fitting_unit() {
        for (number, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1_048_576, "1.00 MiB"),
            (150 << 20, "150 MiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(number), expected, "{number}");
        }
    }

    #[test]
    fn counts_are_grouped_and_counted_nouns_agree() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(number), expected);
        }
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(2_000, "event"), "2,000 events");
        assert_eq!(bytes_per_event(462, 200).as_deref(), Some("2.31"));
        assert_eq!(bytes_per_event(462, 0), None);
    }
}
