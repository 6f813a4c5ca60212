//! Metrics as text: OpenMetrics 1.0, and the text format 0.0.4 of Prometheus, which differ in
//! details. The metrics themselves are in `families`.
//!
//! Values of labels may come from a target. No value can begin a line or end a label.
//!
//! The formats: `prometheus/OpenMetrics:specification/OpenMetrics.md` (v1.0.0), and
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::{self, Display, Write as _};

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    /// The format of Prometheus, which all tools read.
    Text,
}

/// The type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number that goes up and down.
    Gauge,
    /// A number that only goes up. Its samples end in `_total`.
    Counter,
    /// Durations. The samples end in `_bucket`, `_count` and `_sum`.
    Histogram,
    /// Information in labels, with the value 1. Its samples end in `_info`.
    Info,
    /// The value is 1 for one of several states, and 0 for the others. The label of the state has
    /// the name of the family.
    StateSet,
}

/// A family of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    /// The name without the suffix of its samples. Ends in the unit, if there is one.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Option<&'static str>,
    pub(super) help: &'static str,
}

/// Names and values of labels.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// A page that is being written.
#[derive(Debug)]
pub(super) struct Exposition {
    format: Format,
    text: String,
}

/// Nanoseconds, displayed in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seconds(pub(super) u64);

// === impl Format ===

impl Format {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

// === impl Exposition ===

impl Exposition {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
        }
    }

    /// Begins a family. Its samples follow. Each family comes once.
    pub(super) fn family(&mut self, family: &Family) {
        let Family {
            name,
            kind,
            unit,
            help,
        } = *family;
        let (called, kind) = match (self.format, kind) {
            (_, Kind::Gauge) => ("", "gauge"),
            (_, Kind::Histogram) => ("", "histogram"),
            (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
            (Format::OpenMetrics, Kind::Info) => ("", "info"),
            (Format::OpenMetrics, Kind::StateSet) => ("", "stateset"),
            (Format::Text, Kind::Counter) => ("_total", "counter"),
            (Format::Text, Kind::Info) => ("_info", "gauge"),
            (Format::Text, Kind::StateSet) => ("", "gauge"),
        };
        self.line(format_args!("# HELP {name}{called} {help}"));
        self.line(format_args!("# TYPE {name}{called} {kind}"));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
    }

    /// Writes a sample of a gauge, a counter, or an info.
    pub(super) fn sample(&mut self, family: &Family, labels: &Labels<'_>, value: impl Display) {
        let ending = match family.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram | Kind::StateSet => "",
        };
        self.part(family, ending, labels, None, value);
    }

    /// Writes a sample for each state. The current one is 1.
    pub(super) fn states(
        &mut self,
        family: &Family,
        labels: &Labels<'_>,
        all: impl IntoIterator<Item = &'static str>,
        is: &str,
    ) {
        for state in all {
            let value = u8::from(state == is);
            self.part(family, "", labels, Some((family.name, state)), value);
        }
    }

    /// Writes a histogram: the number of calls up to each bound, then the number of all calls, and
    /// their sum.
    pub(super) fn histogram(
        &mut self,
        family: &Family,
        labels: &Labels<'_>,
        cumulative: impl Iterator<Item = (&'static str, u64)>,
        count: u64,
        sum: impl Display,
    ) {
        for (bound, count) in cumulative.chain([("+Inf", count)]) {
            self.part(family, "_bucket", labels, Some(("le", bound)), count);
        }
        self.part(family, "_count", labels, None, count);
        self.part(family, "_sum", labels, None, sum);
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.line(format_args!("# EOF"));
        }
        self.text
    }

    fn part(
        &mut self,
        family: &Family,
        ending: &str,
        labels: &Labels<'_>,
        last: Option<(&str, &str)>,
        value: impl Display,
    ) {
        self.text.push_str(family.name);
        self.text.push_str(ending);
        let labels = labels.iter().copied().chain(last);
        let mut open = '{';
        for (name, value) in labels {
            self.text.push(open);
            self.text.push_str(name);
            self.text.push_str("=\"");
            push_escaped(&mut self.text, value);
            self.text.push('"');
            open = ',';
        }
        if open == ',' {
            self.text.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn line(&mut self, rest: fmt::Arguments<'_>) {
        // Writing to a `String` does not fail.
        let _ = self.text.write_fmt(rest);
        self.text.push('\n');
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NS: u64 = 1_000_000_000;
        write!(f, "{}.{:09}", self.0 / NS, self.0 % NS)
    }
}

/// Appends a label's value. The three characters with a meaning in labels are escaped. Other
/// control characters are replaced, because they could drive a terminal.
fn push_escaped(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c if c.is_control() => text.push('\u{fffd}'),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: Family = Family {
        name: "calls",
        kind: Kind::Counter,
        unit: None,
        help: "Calls.",
    };
    const TIME: Family = Family {
        name: "time_seconds",
        kind: Kind::Histogram,
        unit: Some("seconds"),
        help: "Durations.",
    };
    const STATE: Family = Family {
        name: "state",
        kind: Kind::StateSet,
        unit: None,
        help: "State.",
    };
    const BUILD: Family = Family {
        name: "build",
        kind: Kind::Info,
        unit: None,
        help: "Build.",
    };

    fn text(format: Format) -> String {
        let mut text = Exposition::new(format);
        text.family(&CALLS);
        text.sample(&CALLS, &[], 3);
        text.sample(&CALLS, &[("a", "1"), ("b", "2")], 4.5);
        text.family(&TIME);
        let buckets = [("0.5", 1), ("1.0", 1)].into_iter();
        text.histogram(&TIME, &[("a", "1")], buckets, 2, Seconds(2_500_000_001));
        text.family(&STATE);
        text.states(&STATE, &[("a", "1")], ["on", "off"], "off");
        text.family(&BUILD);
        text.sample(&BUILD, &[("version", "1")], 1);
        text.finish()
    }

    #[test]
    fn openmetrics_is_written_as_specified() {
        let expected = "\
# HELP calls Calls.
# TYPE calls counter
calls_total 3
calls_total{a=\"1\",b=\"2\"} 4.5
# HELP time_seconds Durations.
# TYPE time_seconds histogram
# UNIT time_seconds seconds
time_seconds_bucket{a=\"1\",le=\"0.5\"} 1
time_seconds_bucket{a=\"1\",le=\"1.0\"} 1
time_seconds_bucket{a=\"1\",le=\"+Inf\"} 2
time_seconds_count{a=\"1\"} 2
time_seconds_sum{a=\"1\"} 2.500000001
# HELP state State.
# TYPE state stateset
state{a=\"1\",state=\"on\"} 0
state{a=\"1\",state=\"off\"} 1
# HELP build Build.
# TYPE build info
build_info{version=\"1\"} 1
# EOF
";
        assert_eq!(text(Format::OpenMetrics), expected);
    }

    #[test]
    fn the_older_format_has_the_same_samples() {
        let both = [Format::OpenMetrics, Format::Text].map(text);
        let samples = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(samples(&both[0]), samples(&both[1]));
        let comments = both[1].lines().filter(|line| line.starts_with("# TYPE"));
        let expected = [
            "# TYPE calls_total counter",
            "# TYPE time_seconds histogram",
            "# TYPE state gauge",
            "# TYPE build_info gauge",
        ];
        assert!(comments.eq(expected));
        assert!(!both[1].contains("# EOF") && !both[1].contains("# UNIT"));
    }

    #[test]
    fn a_hostile_name_stays_within_its_label() {
        for (value, expected) in [
            ("plain", "plain"),
            ("\"} 1\nxrayd_up 0", "\\\"} 1\\nxrayd_up 0"),
            ("\\", "\\\\"),
            ("\\n", "\\\\n"),
            (
                "a\r\u{1b}[2J\0\u{85}",
                "a\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}",
            ),
            ("{},=# ünï", "{},=# ünï"),
        ] {
            let mut text = Exposition::new(Format::Text);
            text.sample(&CALLS, &[("name", value)], 1);
            let text = text.finish();
            assert_eq!(text, format!("calls_total{{name=\"{expected}\"}} 1\n"));
            assert_eq!(text.lines().count(), 1);
        }
    }

    #[test]
    fn seconds_are_exact() {
        for (ns, shown) in [
            (0, "0.000000000"),
            (1, "0.000000001"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(Seconds(ns).to_string(), shown);
        }
    }
}
