//! The choice between the two formats, by the `Accept` header. Other headers are not read.

use super::exposition::Format;

/// The format for an `Accept` header: OpenMetrics, if the client accepts it and does not prefer the
/// text format.
pub(super) fn format_for(accept: &str) -> Format {
    let (mut open, mut text) = (0, 0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut version) = (1000, None);
        for part in parts {
            match part.split_once('=') {
                Some((name, value)) if name.trim().eq_ignore_ascii_case("q") => {
                    quality = permille(value.trim());
                }
                Some((name, value)) if name.trim().eq_ignore_ascii_case("version") => {
                    version = Some(value.trim().trim_matches('"'));
                }
                _ => {}
            }
        }
        match kind.as_str() {
            // Version 0.0.1 is the draft of 1.0.0.
            "application/openmetrics-text"
                if version.is_none_or(|version| ["1.0.0", "0.0.1"].contains(&version)) =>
            {
                open = open.max(quality);
            }
            "text/plain" | "text/*" | "*/*" => text = text.max(quality),
            _ => {}
        }
    }
    match open {
        0 => Format::Text,
        _ if open < text => Format::Text,
        _ => Format::OpenMetrics,
    }
}

/// A quality in thousandths. The text is `0` to `1` with three decimals at most. An invalid text
/// counts as 1, as if it were absent.
fn permille(quality: &str) -> u32 {
    let (whole, decimals) = quality.split_once('.').unwrap_or((quality, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 3 || !digits(decimals) {
        return 1000;
    }
    let thousandths: u32 = format!("{decimals:0<3}").parse().unwrap_or(0);
    match whole {
        "0" => thousandths,
        _ => 1000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_what_it_asks_for() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, expected) in [
            (prometheus_2, Format::OpenMetrics),
            (prometheus_3, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "Application/OpenMetrics-Text ; Version=\"1.0.0\" ; Q=0.5 , text/plain;q=0.4",
                Format::OpenMetrics,
            ),
            (
                "text/plain, application/openmetrics-text",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;q=0.5, text/plain",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=0.000", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain;version=0.0.4", Format::Text),
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                Format::Text,
            ),
            (";;;,,,=;q=;q", Format::Text),
            ("application/openmetrics-text;q=x", Format::OpenMetrics),
        ] {
            assert_eq!(format_for(accept), expected, "{accept}");
        }
    }
}
