//! Tests of the metrics page: its families, samples and bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use xray_trace::model::CallSums;

use super::*;
use crate::{
    Pid,
    policies::{PolicySource, TracedProcess},
    refusal::{Reason, Refusal},
    store::{Series, Subject, Totals},
};

/// A hostile name of a program or a function.
const HOSTILE: &str = "a\"} 1\nxrayd_events_total 9\n# EOF\n\\";

fn reading(pid: u32, standing: Standing, functions: &[&str]) -> Reading {
    let series = functions.iter().map(|function| {
        let mut calls = CallSums::default();
        calls.finish(1_500);
        calls.finish(3_000_000_000);
        calls.calls += 1;
        calls.unfinished += 1;
        let mut latencies = Latencies::default();
        latencies.add(&calls, |ticks| ticks);
        Series {
            module: "lib.so".to_owned(),
            function: (*function).to_owned(),
            latencies,
        }
    });
    Reading {
        subject: Subject {
            pid: Pid::try_from(pid).unwrap(),
            uid: 1000,
            process: HOSTILE.to_owned(),
            attached_wall_ns: 1_500_000_000_000_000_000,
        },
        standing,
        figures: Figures {
            phase: Phase::Tracing,
            mode: Mode::Profile,
            events: 2_000_000_000,
            lost: 3,
            overwritten: 4,
            retained_bytes: 5,
            retained_events: 6,
            threads: 7,
            ring_use_permille: 250,
            functions: 9,
            functions_on: 10,
            copied_bytes: 11,
            unassigned: (!functions.is_empty()).then_some(12),
            series: series.collect(),
        },
    }
}

fn readings() -> Readings {
    Readings {
        sessions: vec![
            reading(7, Standing::Is(Phase::Tracing), &["f", HOSTILE]),
            reading(8, Standing::Past, &[]),
        ],
        totals: Totals {
            sessions: 5,
            events: 6,
            lost: 7,
        },
        measured: Some(Measured {
            most: 100,
            left_out: 2,
        }),
    }
}

fn policy() -> PolicyStatus {
    let refused = |pid: u32, reason| {
        let message = HOSTILE.to_owned();
        (Pid::try_from(pid).unwrap(), Refusal { reason, message })
    };
    PolicyStatus {
        name: "checkout".to_owned(),
        text: "name = \"checkout\"".into(),
        source: PolicySource::File(HOSTILE.into()),
        has_expired: false,
        expires: None,
        mistakes: Vec::new(),
        matched: 6,
        traced: vec![TracedProcess {
            pid: Pid::try_from(7).unwrap(),
            meant_since: Duration::ZERO,
            traced_since: Duration::ZERO,
        }],
        too_young: 1,
        beyond: 2,
        refused: vec![refused(8, Reason::Mode), refused(9, Reason::Mode)],
        events: 100,
        lost: 5,
        mode: crate::types::Mode::Profile,
        output: None,
        triggers: Arc::default(),
    }
}

fn text(format: Format) -> String {
    page(&readings(), &[policy()], Some(OwnUse::default()), format)
}

/// Name without the suffix and type of each family, in OpenMetrics terms.
fn families(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut families = BTreeMap::new();
    for line in lines {
        let (name, kind) = line.split_once(' ').unwrap();
        let before = families.insert(name.to_owned(), kind.to_owned());
        assert_eq!(before, None, "{name} comes twice");
    }
    families
}

#[test]
fn the_manual_lists_what_there_is_and_nothing_else() {
    let manual = include_str!("../../../../docs/metrics.md");
    let rows = manual.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        // Options have a table, too.
        if name.starts_with('-') {
            return None;
        }
        let kind = cells.next()?;
        let ending = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = name.strip_suffix(ending).expect("it ends as its kind says");
        Some((name.to_owned(), kind.to_owned()))
    });
    let documented: BTreeMap<String, String> = rows.collect();
    let there = families(&text(Format::OpenMetrics));
    assert_eq!(documented, there);
}

#[test]
fn a_family_with_a_unit_ends_in_it() {
    let page = text(Format::OpenMetrics);
    let units = page.lines().filter_map(|line| line.strip_prefix("# UNIT "));
    let mut count = 0;
    for line in units {
        let (name, unit) = line.split_once(' ').unwrap();
        assert!(name.ends_with(&format!("_{unit}")), "{line}");
        count += 1;
    }
    assert!(count > 5);
    for name in families(&page).into_keys() {
        for unit in ["seconds", "bytes", "ratio"] {
            let reported = page.contains(&format!("# UNIT {name} {unit}\n"));
            assert_eq!(name.ends_with(&format!("_{unit}")), reported, "{name}");
        }
    }
}

#[test]
fn hostile_names_change_nothing_else() {
    for format in [Format::OpenMetrics, Format::Text] {
        let page = text(format);
        let quoted = page.replace("\\\\", "").replace("\\\"", "");
        for line in quoted.lines().filter(|line| !line.starts_with("# ")) {
            assert!(line.matches('"').count() % 2 == 0, "{line}");
            assert!(!line.starts_with("xrayd_events_total 9"), "{line}");
        }
        assert_eq!(page.matches("\nxrayd_events_total ").count(), 1);
        let ends = page.lines().filter(|line| *line == "# EOF").count();
        assert_eq!(ends, usize::from(format == Format::OpenMetrics));
    }
}

#[test]
fn no_sample_comes_twice_and_each_is_of_the_family_before_it() {
    for format in [Format::OpenMetrics, Format::Text] {
        let (mut seen, mut family) = (BTreeSet::new(), String::new());
        for line in text(format).lines() {
            if let Some(typed) = line.strip_prefix("# TYPE ") {
                family = typed.split_once(' ').unwrap().0.to_owned();
            } else if !line.starts_with('#') {
                let (sample, _) = line.rsplit_once(' ').unwrap();
                assert!(sample.starts_with(&family), "{sample} in {family}");
                assert!(seen.insert(sample.to_owned()), "{sample} comes twice");
            }
        }
    }
}

#[test]
fn numbers_are_reported_in_their_units() {
    let page = text(Format::OpenMetrics);
    let labels = "{pid=\"7\",process=\"a\\\"} 1\\nxrayd_events_total 9\\n# EOF\\n\\\\\"";
    let function = format!("{labels},module=\"lib.so\",function=\"f\"");
    for expected in [
        "xrayd_events_total 6".to_owned(),
        "xrayd_sessions{state=\"tracing\"} 1".to_owned(),
        "xrayd_sessions{state=\"detached\"} 1".to_owned(),
        "xrayd_sessions{state=\"failed\"} 0".to_owned(),
        format!("xrayd_session_info{labels},uid=\"1000\"}} 1"),
        format!("xrayd_session_attach_time_seconds{labels}}} 1500000000.000000000"),
        format!("xrayd_session_recording_seconds_total{labels}}} 70.000000000"),
        format!("xrayd_session_ring_use_ratio{labels}}} 0.25"),
        format!("xrayd_session_mode{labels},xrayd_session_mode=\"profile\"}} 1"),
        format!("xrayd_session_mode{labels},xrayd_session_mode=\"flight\"}} 0"),
        format!("xrayd_session_calls_unassigned_total{labels}}} 12"),
        format!("xrayd_function_duration_seconds_bucket{function},le=\"1e-06\"}} 0"),
        format!("xrayd_function_duration_seconds_bucket{function},le=\"2.5e-06\"}} 1"),
        format!("xrayd_function_duration_seconds_bucket{function},le=\"2.5\"}} 1"),
        format!("xrayd_function_duration_seconds_bucket{function},le=\"5.0\"}} 2"),
        format!("xrayd_function_duration_seconds_bucket{function},le=\"+Inf\"}} 2"),
        format!("xrayd_function_duration_seconds_count{function}}} 2"),
        format!("xrayd_function_duration_seconds_sum{function}}} 3.000001500"),
        format!("xrayd_function_calls_without_exit_total{function}}} 1"),
        "xrayd_functions_measured 2".to_owned(),
        "xrayd_policies{state=\"in-force\"} 1".to_owned(),
        "xrayd_policies{state=\"broken\"} 0".to_owned(),
        "xrayd_policy_processes{policy=\"checkout\",state=\"traced\"} 1".to_owned(),
        "xrayd_policy_processes{policy=\"checkout\",state=\"beyond-max\"} 2".to_owned(),
        "xrayd_policy_refused{policy=\"checkout\",reason=\"mode\"} 2".to_owned(),
        "xrayd_policy_events_total{policy=\"checkout\"} 100".to_owned(),
        "xrayd_policy_events_lost_total{policy=\"checkout\"} 5".to_owned(),
        "xrayd_functions_left_out 2".to_owned(),
    ] {
        let found = page.lines().any(|line| line == expected);
        assert!(found, "no {expected} in {page}");
    }
    // A session without measured functions has no such sample.
    assert!(!page.contains("xrayd_session_calls_unassigned_total{pid=\"8\""));
}

#[test]
fn without_chosen_functions_nothing_is_said_of_them() {
    let readings = Readings {
        measured: None,
        ..Readings::default()
    };
    let page = page(&readings, &[], None, Format::Text);
    assert!(!page.contains("xrayd_function"));
    assert!(!page.contains("process_"));
    assert!(page.contains("\nxrayd_sessions{state=\"tracing\"} 0\n"));
}

#[test]
fn series_are_bounded_over_all_sessions_and_users_share_them() {
    let of = |uid: u32, pid: u32| {
        let mut reading = reading(pid, Standing::Is(Phase::Tracing), &[]);
        reading.subject.uid = uid;
        reading.subject.process = format!("of{uid}");
        reading
    };
    let mut readings = readings();
    let greedy = (1..=2000).map(|pid| of(1, pid));
    readings.sessions = greedy.chain((3001..=3005).map(|pid| of(2, pid))).collect();
    let page = page(&readings, &[], None, Format::Text);
    let series = |user: &str| {
        let label = format!("process=\"{user}\"");
        let lines = page
            .lines()
            .filter(|line| line.starts_with("xrayd_session_info{"));
        lines.filter(|line| line.contains(&label)).count()
    };
    assert_eq!((series("of1"), series("of2")), (MOST_SESSIONS - 5, 5));
    assert!(page.contains("\nxrayd_sessions_left_out 1505\n"), "{page}");
    assert!(page.contains("\nxrayd_sessions{state=\"tracing\"} 2005\n"));
}
