//! Numbers for metrics: a file in the text format of Prometheus, for its node exporter's textfile
//! collector. The relay has no network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The numbers of all policies.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<BTreeMap<String, Numbers>>);

/// The numbers of a policy since the relay began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Files and bytes that were written.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Files that were removed for room or for their age.
    pub(crate) removed: u64,
    /// Times for which something was not recorded.
    pub(crate) gaps: u64,
    /// Events that the daemon dropped because the relay was too slow.
    pub(crate) lost: u64,
    /// Bytes of all files of the policy.
    pub(crate) kept_bytes: u64,
    /// Recorders at work.
    pub(crate) recorders: u64,
    /// Firings of triggers, and moments that their limits did not allow.
    pub(crate) firings: u64,
    pub(crate) skipped_firings: u64,
}

// === impl Counters ===

impl Counters {
    /// Changes the numbers of a policy.
    pub(crate) fn change(&self, policy: &str, change: impl FnOnce(&mut Numbers)) {
        change(self.lock().entry(policy.to_owned()).or_default());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Numbers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers as text. The names of policies need no escapes.
    pub(crate) fn text(&self) -> String {
        let all = self.lock();
        let mut text = String::new();
        for (name, kind, help, value) in FAMILIES {
            // Writing to a `String` does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (policy, numbers) in &*all {
                let _ = writeln!(text, "{name}{{policy=\"{policy}\"}} {}", value(numbers));
            }
        }
        text
    }
}

/// A metric: its name, kind and help, and its value.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Numbers) -> u64,
);

const FAMILIES: [Family; 9] = [
    (
        "xray_relay_files_total",
        "counter",
        "Files that were written.",
        |numbers| numbers.files,
    ),
    (
        "xray_relay_written_bytes_total",
        "counter",
        "Bytes that were written.",
        |numbers| numbers.bytes,
    ),
    (
        "xray_relay_removed_files_total",
        "counter",
        "Files that were removed for room or for their age.",
        |numbers| numbers.removed,
    ),
    (
        "xray_relay_gaps_total",
        "counter",
        "Times in which a process was not recorded.",
        |numbers| numbers.gaps,
    ),
    (
        "xray_relay_lost_events_total",
        "counter",
        "Events that the daemon dropped because the relay was too slow.",
        |numbers| numbers.lost,
    ),
    (
        "xray_relay_kept_bytes",
        "gauge",
        "Bytes of all files.",
        |numbers| numbers.kept_bytes,
    ),
    (
        "xray_relay_recorders",
        "gauge",
        "Processes that are recorded.",
        |numbers| numbers.recorders,
    ),
    (
        "xray_relay_firings_total",
        "counter",
        "Firings of triggers.",
        |numbers| numbers.firings,
    ),
    (
        "xray_relay_skipped_firings_total",
        "counter",
        "Moments of triggers that their limits did not allow.",
        |numbers| numbers.skipped_firings,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_a_line_in_each_family() {
        let counters = Counters::default();
        counters.change("a", |numbers| numbers.files += 2);
        counters.change("b", |numbers| numbers.lost += 3);
        let text = counters.text();
        for line in [
            "# TYPE xray_relay_files_total counter",
            "xray_relay_files_total{policy=\"a\"} 2",
            "xray_relay_files_total{policy=\"b\"} 0",
            "xray_relay_lost_events_total{policy=\"b\"} 3",
        ] {
            assert!(text.lines().any(|its| its == line), "{line}: {text}");
        }
        assert_eq!(text.lines().count(), FAMILIES.len() * 4);
    }
}
