//! The reported numbers of sessions that come, count and go.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use xray_trace::instr_map::Selection;

use super::*;
use crate::types::Mode;

/// Events, losses and the phase of a session, which a test changes.
#[derive(Debug, Default)]
struct Counted {
    events: AtomicU64,
    lost: AtomicU64,
    exited: AtomicU64,
    series: usize,
}

impl Numbers for Arc<Counted> {
    fn last_figures(&self) -> Figures {
        Figures {
            overwritten: 0,
            ..self.figures()
        }
    }

    fn figures(&self) -> Figures {
        let series = (0..self.series).map(|at| Series {
            module: "m".to_owned(),
            function: format!("f{at}"),
            latencies: Latencies::default(),
        });
        Figures {
            phase: match self.exited.load(Relaxed) {
                0 => Phase::Tracing,
                _ => Phase::Exited,
            },
            mode: Mode::Stream,
            events: self.events.load(Relaxed),
            lost: self.lost.load(Relaxed),
            overwritten: self.lost.load(Relaxed),
            retained_bytes: 1,
            retained_events: 1,
            threads: 1,
            ring_use_permille: 0,
            functions: 20,
            functions_on: 10,
            copied_bytes: 0,
            unassigned: None,
            series: series.collect(),
        }
    }
}

fn books(most: u32) -> Arc<Metering> {
    Arc::new(
        Metering::new(
            Some(CompiledSelection::new(&Selection::all()).unwrap()),
            most,
        )
        .unwrap(),
    )
}

fn begin(books: &Arc<Metering>, pid: i32, series: usize) -> (Arc<Counted>, Metered) {
    let counted = Arc::new(Counted {
        series,
        ..Counted::default()
    });
    let subject = Subject {
        pid: Pid::try_from(pid.unsigned_abs()).unwrap(),
        uid: 0,
        process: format!("p{pid}"),
        attached_wall_ns: 0,
    };
    let metered = books.enter(subject, Arc::clone(&counted));
    (counted, metered)
}

/// Pid, standing, events and number of series of each session.
fn reported(readings: &Readings) -> Vec<(i32, Standing, u64, usize)> {
    let rows = readings.sessions.iter().map(|reading| {
        let Figures { events, series, .. } = &reading.figures;
        (
            reading.subject.pid.as_raw(),
            reading.standing,
            *events,
            series.len(),
        )
    });
    rows.collect()
}

/// Moves the first reports of ended sessions back in time.
fn wait(books: &Metering, time: Duration) {
    let mut books = lock(&books.books);
    let earlier = |since: &mut Option<Instant>| *since = since.map(|since| since - time);
    books
        .living
        .values_mut()
        .for_each(|living| earlier(&mut living.ended));
    books
        .past
        .iter_mut()
        .for_each(|reported| earlier(&mut reported.since));
}

const TRACING: Standing = Standing::Is(Phase::Tracing);
const EXITED: Standing = Standing::Is(Phase::Exited);

#[test]
fn counters_never_go_down() {
    let books = books(9);
    let (counted, metered) = begin(&books, 7, 0);
    counted.events.store(100, Relaxed);
    assert_eq!(reported(&books.read()), [(7, TRACING, 100, 0)]);
    // In mode `flight`, the contents of a ring are estimated anew.
    counted.events.store(90, Relaxed);
    counted.lost.store(3, Relaxed);
    assert_eq!(reported(&books.read()), [(7, TRACING, 100, 0)]);
    counted.events.store(110, Relaxed);
    drop(metered);
    for _ in 0..2 {
        let readings = books.read();
        assert_eq!(reported(&readings), [(7, Standing::Past, 110, 0)]);
        let expected = Totals {
            sessions: 1,
            events: 110,
            lost: 3,
        };
        assert_eq!(readings.totals, expected);
        let [Reading { figures, .. }] = &*readings.sessions else {
            panic!("{readings:?}");
        };
        assert_eq!((figures.overwritten, figures.retained_bytes), (3, 0));
    }
}

#[test]
fn an_ended_session_is_reported_for_a_while_and_stays_in_the_totals() {
    let books = books(9);
    let (counted, metered) = begin(&books, 7, 0);
    counted.events.store(5, Relaxed);
    drop(metered);
    wait(&books, LINGER * 2);
    assert_eq!(reported(&books.read()), [(7, Standing::Past, 5, 0)]);
    wait(&books, LINGER / 2);
    assert_eq!(reported(&books.read()).len(), 1);
    wait(&books, LINGER / 2);
    let readings = books.read();
    assert_eq!(reported(&readings), []);
    assert_eq!((readings.totals.sessions, readings.totals.events), (1, 5));
    assert!(lock(&books.books).past.is_empty());
}

/// The recorded events are retained for longer.
#[test]
fn an_ended_process_is_reported_for_a_while_although_its_session_stays() {
    let books = books(9);
    let (counted, metered) = begin(&books, 7, 0);
    counted.events.store(5, Relaxed);
    counted.exited.store(1, Relaxed);
    assert_eq!(reported(&books.read()), [(7, EXITED, 5, 0)]);
    wait(&books, LINGER);
    assert_eq!(reported(&books.read()), []);
    assert_eq!(books.read().totals.events, 5);
    // It is not reported again when the session goes.
    drop(metered);
    assert_eq!(reported(&books.read()), []);
    assert_eq!(books.read().totals.events, 5);
}

/// Two sessions with the same labels would make the answer invalid.
#[test]
fn the_latest_session_of_a_pid_is_reported() {
    let books = books(9);
    let (first, metered) = begin(&books, 7, 0);
    first.events.store(5, Relaxed);
    first.exited.store(1, Relaxed);
    let (second, _second) = begin(&books, 7, 0);
    second.events.store(1, Relaxed);
    assert_eq!(reported(&books.read()), [(7, TRACING, 1, 0)]);
    drop(metered);
    let readings = books.read();
    assert_eq!(reported(&readings), [(7, TRACING, 1, 0)]);
    assert_eq!((readings.totals.sessions, readings.totals.events), (2, 6));
}

#[test]
fn sessions_that_come_and_go_take_bounded_memory() {
    let books = books(9);
    let rounds = i32::try_from(MOST_PAST).unwrap() * 3;
    for pid in 1..=rounds {
        let (counted, _metered) = begin(&books, pid, 0);
        counted.events.store(1, Relaxed);
    }
    let readings = books.read();
    assert_eq!(readings.sessions.len(), MOST_PAST);
    assert_eq!(reported(&readings)[0].0, rounds);
    assert_eq!(readings.totals.events, u64::from(rounds.unsigned_abs()));
}

/// All ended sessions together keep as many functions as living ones may have.
#[test]
fn functions_of_sessions_that_are_past_take_bounded_memory() {
    let books = books(5);
    for pid in 1..=20 {
        drop(begin(&books, pid, 3));
    }
    let series = |books: &Books| {
        let past = books.past.iter();
        past.map(|reported| reported.reading.figures.series.len())
            .collect::<Vec<_>>()
    };
    let expected = [vec![0; 18], vec![2, 3]].concat();
    assert_eq!(series(&lock(&books.books)), expected);
}

#[test]
fn series_are_limited_and_ended_processes_give_theirs_up_first() {
    let books = books(5);
    let (_old, metered) = begin(&books, 1, 3);
    drop(metered);
    let (_one, _first) = begin(&books, 2, 2);
    let (_other, _second) = begin(&books, 3, 1);
    let expected = [
        (3, TRACING, 0, 1),
        (2, TRACING, 0, 2),
        (1, Standing::Past, 0, 2),
    ];
    assert_eq!(reported(&books.read()), expected);
}
