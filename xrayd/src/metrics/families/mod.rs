//! The families of metrics, and their samples. The text formats are in `exposition`.
//!
//! `docs/metrics.md` lists the families, and a test compares.

mod policies;

use std::collections::HashMap;

use super::{
    exposition::{Exposition, Family, Format, Kind, Labels, Seconds},
    own_use::OwnUse,
};
use crate::{
    policies::PolicyStatus,
    store::{Figures, Latencies, Measured, Reading, Readings, Standing},
    types::{Mode, Phase},
};

/// Estimated cost of an event for the recording thread, in nanoseconds: half the cost of a call in
/// docs/benchmarks.md, which is two events.
const EVENT_NS: u64 = 35;

const STATES: [&str; 5] = ["tracing", "detaching", "failed", "exited", "detached"];

const BUILD: Family = Family {
    name: "xrayd_build",
    kind: Kind::Info,
    unit: None,
    help: "The daemon's version.",
};
const SESSIONS: Family = gauge(
    "xrayd_sessions",
    None,
    "Sessions by state. An ended session counts as long as it is on this page.",
);
const SESSIONS_LEFT_OUT: Family = gauge(
    "xrayd_sessions_left_out",
    None,
    "Sessions without series of their own, because there are too many sessions.",
);
const SESSIONS_BEGUN: Family = counter(
    "xrayd_sessions_begun",
    None,
    "Attached processes since the daemon's start.",
);
const EVENTS: Family = counter(
    "xrayd_events",
    None,
    "Recorded events of all sessions since the daemon's start.",
);
const EVENTS_LOST: Family = counter(
    "xrayd_events_lost",
    None,
    "Events lost in the targets of all sessions since the daemon's start.",
);
const FUNCTIONS_MEASURED: Family = gauge(
    "xrayd_functions_measured",
    None,
    "Functions that have a histogram.",
);
const FUNCTIONS_MOST: Family = gauge(
    "xrayd_functions_measured_max",
    None,
    "Limit on functions of traced processes that have a histogram.",
);
const FUNCTIONS_LEFT_OUT: Family = gauge(
    "xrayd_functions_left_out",
    None,
    "Chosen functions that were called and have no histogram, because the limit is reached.",
);

const SESSION: Family = Family {
    name: "xrayd_session",
    kind: Kind::Info,
    unit: None,
    help: "The user of the process.",
};
const STATE: Family = Family {
    name: "xrayd_session_state",
    kind: Kind::StateSet,
    unit: None,
    help: "The state of the session.",
};
const MODE: Family = Family {
    name: "xrayd_session_mode",
    kind: Kind::StateSet,
    unit: None,
    help: "The mode of the session.",
};
const ATTACHED: Family = gauge(
    "xrayd_session_attach_time_seconds",
    Some("seconds"),
    "Time of the attach, since the Unix epoch.",
);
const SESSION_EVENTS: Family = counter(
    "xrayd_session_events",
    None,
    "Recorded events since the attach; an estimate in mode flight.",
);
const SESSION_LOST: Family = counter(
    "xrayd_session_events_lost",
    None,
    "Events lost in the target since the attach.",
);
const SESSION_OVERWRITTEN: Family = counter(
    "xrayd_session_events_overwritten",
    None,
    "Events that newer ones have replaced. They are not losses.",
);
const RECORDING: Family = counter(
    "xrayd_session_recording_seconds",
    Some("seconds"),
    "Estimated processor time that recording has cost the target, at a fixed time for each event.",
);
const RETAINED_BYTES: Family = gauge(
    "xrayd_session_retained_bytes",
    Some("bytes"),
    "Packed bytes of the retained events.",
);
const RETAINED_EVENTS: Family = gauge("xrayd_session_retained_events", None, "Retained events.");
const RING_USE: Family = gauge(
    "xrayd_session_ring_use_ratio",
    Some("ratio"),
    "Fill level of the fullest ring when the daemon read the rings last: how far the daemon is \
     behind.",
);
const THREADS: Family = gauge("xrayd_session_threads", None, "Threads that have a ring.");
const FUNCTIONS: Family = gauge("xrayd_session_functions", None, "Functions with sleds.");
const FUNCTIONS_ON: Family = gauge("xrayd_session_functions_on", None, "Functions that are on.");
const COPIED: Family = gauge(
    "xrayd_session_copied_bytes",
    Some("bytes"),
    "Memory that patching made private to the target.",
);
const UNASSIGNED: Family = counter(
    "xrayd_session_calls_unassigned",
    None,
    "Calls that are in no histogram, because the daemon lacked memory to find their function.",
);

const DURATION: Family = Family {
    name: "xrayd_function_duration_seconds",
    kind: Kind::Histogram,
    unit: Some("seconds"),
    help: "Durations of a function's calls, callees included.",
};
const WITHOUT_EXIT: Family = counter(
    "xrayd_function_calls_without_exit",
    None,
    "Calls that ended without an exit, for example by an exception. They are in no histogram.",
);

const CPU: Family = counter(
    "process_cpu_seconds",
    Some("seconds"),
    "Processor time of the daemon.",
);
const RESIDENT: Family = gauge(
    "process_resident_memory_bytes",
    Some("bytes"),
    "Resident memory of the daemon.",
);
const VIRTUAL: Family = gauge(
    "process_virtual_memory_bytes",
    Some("bytes"),
    "Address space of the daemon.",
);
const OWN_THREADS: Family = gauge("process_threads", None, "Threads of the daemon.");
const OPEN_FDS: Family = gauge("process_open_fds", None, "Open descriptors of the daemon.");
const MAX_FDS: Family = gauge(
    "process_max_fds",
    None,
    "Limit on open descriptors of the daemon.",
);
const START: Family = gauge(
    "process_start_time_seconds",
    Some("seconds"),
    "Start of the daemon, since the Unix epoch.",
);

/// Limit on sessions with series of their own, of all users together.
const MOST_SESSIONS: usize = 500;

/// The whole page. `own` is absent if it cannot be read.
pub(super) fn page(
    readings: &Readings,
    of_policies: &[PolicyStatus],
    own: Option<OwnUse>,
    format: Format,
) -> String {
    let mut page = Exposition::new(format);
    let reported = reported(&readings.sessions);
    daemon(&mut page, readings, &reported);
    policies::policies(&mut page, of_policies);
    sessions(&mut page, &reported);
    if readings.measured.is_some() {
        functions(&mut page, &reported);
    }
    if let Some(own) = own {
        process(&mut page, &own);
    }
    page.finish()
}

/// The sessions with series of their own. If there are too many, users with few sessions keep
/// theirs.
fn reported(sessions: &[Reading]) -> Vec<&Reading> {
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let ranked = sessions.iter().enumerate().map(|(at, reading)| {
        let count = of_user.entry(reading.subject.uid).or_default();
        *count += 1;
        (*count, at)
    });
    let mut ranked: Vec<(usize, usize)> = ranked.collect();
    ranked.sort_unstable();
    ranked.truncate(MOST_SESSIONS);
    ranked.sort_unstable_by_key(|(_, at)| *at);
    ranked.into_iter().map(|(_, at)| &sessions[at]).collect()
}

fn daemon(page: &mut Exposition, readings: &Readings, reported: &[&Reading]) {
    let Readings {
        sessions,
        totals,
        measured,
    } = readings;
    page.family(&BUILD);
    page.sample(&BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family(&SESSIONS);
    for state in STATES {
        let are = sessions.iter().filter(|reading| state_of(reading) == state);
        page.sample(&SESSIONS, &[("state", state)], are.count());
    }
    let mut tell = |family: &Family, value: u64| {
        page.family(family);
        page.sample(family, &[], value);
    };
    tell(&SESSIONS_LEFT_OUT, (sessions.len() - reported.len()) as u64);
    tell(&SESSIONS_BEGUN, totals.sessions);
    tell(&EVENTS, totals.events);
    tell(&EVENTS_LOST, totals.lost);
    if let Some(Measured { most, left_out }) = *measured {
        let series = reported.iter().map(|reading| reading.figures.series.len());
        tell(&FUNCTIONS_MEASURED, series.sum::<usize>() as u64);
        tell(&FUNCTIONS_MOST, most.into());
        tell(&FUNCTIONS_LEFT_OUT, left_out.into());
    }
}

fn sessions(page: &mut Exposition, sessions: &[&Reading]) {
    each(page, sessions, &SESSION, |page, reading, labels| {
        let uid = reading.subject.uid.to_string();
        let labels = [labels, &[("uid", &uid)]].concat();
        page.sample(&SESSION, &labels, 1);
    });
    each(page, sessions, &STATE, |page, reading, labels| {
        page.states(&STATE, labels, STATES, state_of(reading));
    });
    each(page, sessions, &MODE, |page, reading, labels| {
        let all = Mode::ALL.map(Mode::name);
        page.states(&MODE, labels, all, reading.figures.mode.name());
    });
    each(page, sessions, &ATTACHED, |page, reading, labels| {
        page.sample(&ATTACHED, labels, Seconds(reading.subject.attached_wall_ns));
    });
    type Number = fn(&Figures) -> u64;
    let numbers: [(Family, Number); 10] = [
        (SESSION_EVENTS, |figures| figures.events),
        (SESSION_LOST, |figures| figures.lost),
        (SESSION_OVERWRITTEN, |figures| figures.overwritten),
        (RETAINED_BYTES, |figures| figures.retained_bytes),
        (RETAINED_EVENTS, |figures| figures.retained_events),
        (THREADS, |figures| figures.threads.into()),
        (FUNCTIONS, |figures| figures.functions.into()),
        (FUNCTIONS_ON, |figures| figures.functions_on.into()),
        (COPIED, |figures| figures.copied_bytes),
        (UNASSIGNED, |figures| figures.unassigned.unwrap_or(0)),
    ];
    for (family, number) in numbers {
        each(page, sessions, &family, |page, reading, labels| {
            if family != UNASSIGNED || reading.figures.unassigned.is_some() {
                page.sample(&family, labels, number(&reading.figures));
            }
        });
    }
    each(page, sessions, &RECORDING, |page, reading, labels| {
        let ns = reading.figures.events.saturating_mul(EVENT_NS);
        page.sample(&RECORDING, labels, Seconds(ns));
    });
    each(page, sessions, &RING_USE, |page, reading, labels| {
        let permille = f64::from(reading.figures.ring_use_permille);
        page.sample(&RING_USE, labels, permille / 1000.0);
    });
}

fn functions(page: &mut Exposition, sessions: &[&Reading]) {
    type Tell = fn(&mut Exposition, &Latencies, &Labels<'_>);
    let mut each_series = |family: &Family, tell: Tell| {
        page.family(family);
        for reading in sessions {
            let pid = reading.subject.pid.to_string();
            for series in &reading.figures.series {
                let labels = [
                    ("pid", pid.as_str()),
                    ("process", &reading.subject.process),
                    ("module", &series.module),
                    ("function", &series.function),
                ];
                tell(page, &series.latencies, &labels);
            }
        }
    };
    each_series(&DURATION, |page, latencies, labels| {
        let (count, sum) = (latencies.finished(), Seconds(latencies.sum_ns()));
        page.histogram(&DURATION, labels, latencies.cumulative(), count, sum);
    });
    each_series(&WITHOUT_EXIT, |page, latencies, labels| {
        page.sample(&WITHOUT_EXIT, labels, latencies.unfinished());
    });
}

fn process(page: &mut Exposition, own: &OwnUse) {
    let OwnUse {
        cpu_seconds,
        resident_bytes,
        virtual_bytes,
        threads,
        open_fds,
        max_fds,
        start_time,
    } = *own;
    page.family(&CPU);
    page.sample(&CPU, &[], cpu_seconds);
    for (family, number) in [
        (RESIDENT, resident_bytes),
        (VIRTUAL, virtual_bytes),
        (OWN_THREADS, threads),
        (OPEN_FDS, open_fds),
        (MAX_FDS, max_fds),
    ] {
        page.family(&family);
        page.sample(&family, &[], number);
    }
    page.family(&START);
    page.sample(&START, &[], start_time);
}

/// Writes a family with a sample of each session.
fn each(
    page: &mut Exposition,
    sessions: &[&Reading],
    family: &Family,
    tell: impl Fn(&mut Exposition, &Reading, &Labels<'_>),
) {
    page.family(family);
    for reading in sessions {
        let pid = reading.subject.pid.to_string();
        let process = reading.subject.process.as_str();
        tell(page, reading, &[("pid", &pid), ("process", process)]);
    }
}

fn state_of(reading: &Reading) -> &'static str {
    match reading.standing {
        Standing::Is(Phase::Tracing) => "tracing",
        Standing::Is(Phase::Detaching) => "detaching",
        Standing::Is(Phase::Failed) => "failed",
        Standing::Is(Phase::Exited) => "exited",
        Standing::Past => "detached",
    }
}

const fn gauge(name: &'static str, unit: Option<&'static str>, help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        unit,
        help,
    }
}

const fn counter(name: &'static str, unit: Option<&'static str>, help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        unit,
        help,
    }
}

#[cfg(test)]
mod tests;
