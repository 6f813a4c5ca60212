//! Tests of `events`.

use xray_trace::{
    container::BlockEncoder,
    model::{ProcessId, Ticks},
};

use super::*;

#[derive(Debug)]
struct Table;

impl Names for Table {
    fn function(&self, source: Source, id: FunctionId) -> Option<v1::FunctionName> {
        (id.0 < 100).then(|| v1::FunctionName {
            id: id.0,
            name: format!("f{}", id.0),
            module: "demo".to_owned(),
            pid: 70 + source.0,
        })
    }
}

fn batcher(wanted: Option<&[u32]>) -> EventBatcher<Table> {
    let anchor = |ticks, monotonic_ns| ClockAnchor {
        ticks: Ticks(ticks),
        monotonic_ns,
        wall_ns: 0,
    };
    let mut batcher = EventBatcher::new(Table, vec![anchor(0, 1000), anchor(1000, 1500)]);
    for (source, pid) in [(0, 70), (1, 71)] {
        let wanted = wanted.map(|ids| ids.iter().copied().map(FunctionId).collect());
        let began = batcher.batches(vec![(Source(source), Piece::Process { pid, wanted })]);
        assert!(began.is_empty());
    }
    batcher
}

fn thread(id: u32) -> (Source, Piece) {
    let name = format!("t{id}");
    of(
        0,
        Piece::Thread(Thread {
            id: ThreadId(id),
            process: ProcessId(0),
            tid: 100 + id,
            name,
        }),
    )
}

fn of(source: u32, piece: Piece) -> (Source, Piece) {
    (Source(source), piece)
}

fn block(thread: u32, calls: &[(u64, u32)]) -> (Source, Piece) {
    let mut encoder = BlockEncoder::new(ThreadId(thread));
    for (ticks, id) in calls {
        encoder.push_call(Ticks(*ticks), FunctionId(*id), CallKind::Enter, Some(9));
    }
    of(0, Piece::Block(encoder.finish().unwrap()))
}

#[test]
fn blocks_of_several_threads_are_merged_by_time_and_named_once() {
    let mut batcher = batcher(None);
    let pieces = vec![
        thread(1),
        thread(2),
        block(1, &[(10, 5), (30, 5), (50, 6)]),
        block(2, &[(20, 6), (40, 200)]),
    ];
    let batches = batcher.batches(pieces);
    assert_eq!(batches.len(), 1);
    let events: Vec<_> = batches[0]
        .events
        .iter()
        .map(|e| (e.monotonic_ns, e.tid, e.function))
        .collect();
    assert_eq!(
        events,
        [
            (1005, 101, 5),
            (1010, 102, 6),
            (1015, 101, 5),
            (1020, 102, 200),
            (1025, 101, 6)
        ]
    );
    assert!(batches[0].events.iter().all(|event| event.arguments == [9]));
    let names: Vec<_> = batches[0]
        .functions
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    assert_eq!(names, ["f5", "f6"]);
    assert_eq!(batches[0].threads.len(), 2);
    assert!(
        batcher.batches(vec![block(1, &[(60, 5)])])[0]
            .functions
            .is_empty()
    );
}

#[test]
fn events_of_several_processes_carry_the_process_and_its_names() {
    let mut batcher = batcher(None);
    let other = |(_, piece)| of(1, piece);
    let pieces = vec![
        thread(1),
        block(1, &[(10, 5)]),
        other(thread(1)),
        other(block(1, &[(20, 5)])),
        of(1, Piece::Ended),
    ];
    let batches = batcher.batches(pieces);
    let pids: Vec<_> = batches[0].events.iter().map(|event| event.pid).collect();
    assert_eq!(pids, [70, 71]);
    let named: Vec<_> = batches[0].functions.iter().map(|f| (f.pid, f.id)).collect();
    assert_eq!(named, [(70, 5), (71, 5)]);
    let threads: Vec<_> = batches[0].threads.iter().map(|t| (t.pid, t.tid)).collect();
    assert_eq!(threads, [(70, 101), (71, 101)]);
    assert_eq!(batcher.processes.len(), 1);
}

#[test]
fn names_of_event_types_are_handed_on() {
    let named = Piece::EventType(EventType {
        process: ProcessId(0),
        number: 9,
        name: "request".to_owned(),
    });
    let batches = batcher(None).batches(vec![thread(1), speech(1, 1), of(0, named)]);
    let name = v1::EventTypeName {
        r#type: 9,
        name: "request".to_owned(),
        pid: 70,
    };
    assert_eq!(batches[0].event_types, [name]);
}

/// A block with this many events of 4 KiB.
fn speech(thread: u32, events: u64) -> (Source, Piece) {
    let mut encoder = BlockEncoder::new(ThreadId(thread));
    for at in 0..events {
        let kind = DataKind::Typed(9);
        encoder.push_user_event(Ticks(at), kind, Some(FunctionId(5)), 10_000, &[7; 4096]);
    }
    of(0, Piece::Block(encoder.finish().unwrap()))
}

#[test]
fn user_events_come_with_their_place_and_their_true_size() {
    let batches = batcher(None).batches(vec![thread(1), speech(1, 1)]);
    let event = &batches[0].events[0];
    assert_eq!(
        (event.kind(), event.tid, event.function),
        (v1::EventKind::Typed, 101, 5)
    );
    let user_event = v1::UserEvent {
        data: vec![7; 4096],
        size: 10_000,
        r#type: Some(9),
    };
    assert_eq!(event.user_event, Some(user_event));
    assert_eq!(batches[0].functions[0].name, "f5");
    assert!(
        batcher(Some(&[6]))
            .batches(vec![speech(1, 1)])
            .iter()
            .all(|batch| batch.events.is_empty())
    );
}

#[test]
fn a_message_is_no_longer_than_clients_take() {
    let batches = batcher(None).batches(vec![speech(1, 1000)]);
    let events: usize = batches.iter().map(|batch| batch.events.len()).sum();
    assert_eq!(events, 1000);
    for batch in &batches {
        let user_events = batch
            .events
            .iter()
            .filter_map(|event| event.user_event.as_ref());
        let bytes: usize = user_events.map(|user_event| user_event.data.len()).sum();
        assert!(bytes <= MAX_USER_DATA + 4096, "{bytes}");
    }
}

#[test]
fn a_batch_has_a_bounded_number_of_events() {
    let calls: Vec<_> = (0..10_000).map(|n| (n, 1)).collect();
    let batches = batcher(None).batches(vec![block(1, &calls)]);
    let lengths: Vec<_> = batches.iter().map(|batch| batch.events.len()).collect();
    assert_eq!(lengths, [4096, 4096, 1808]);
    let times: Vec<_> = batches
        .iter()
        .flat_map(|batch| &batch.events)
        .map(|event| event.monotonic_ns)
        .collect();
    assert!(times.is_sorted());
    assert_eq!(
        batches
            .iter()
            .map(|batch| batch.functions.len())
            .sum::<usize>(),
        1
    );
}

#[test]
fn losses_are_reported_even_without_events() {
    let mut encoder = BlockEncoder::new(ThreadId(1));
    encoder.push_lost(Ticks(5), 70);
    let lost = Piece::Block(encoder.finish().unwrap());
    let pieces = vec![Piece::ReaderLost(5), lost, Piece::ReaderLost(1)];
    let pieces = pieces.into_iter().map(|piece| of(0, piece)).collect();
    let batches = batcher(None).batches(pieces);
    assert_eq!(batches.len(), 1);
    assert_eq!((batches[0].reader_lost, batches[0].target_lost), (6, 70));
    assert!(batcher(None).batches(Vec::new()).is_empty());
}

#[test]
fn only_wanted_functions_come_through() {
    let pieces = vec![block(1, &[(1, 5), (2, 6), (3, 5)])];
    let batches = batcher(Some(&[6])).batches(pieces);
    assert_eq!(batches[0].events.len(), 1);
    assert_eq!(batches[0].functions[0].name, "f6");
    // The thread is unknown.
    assert_eq!(batches[0].events[0].tid, 0);
    assert!(
        batcher(Some(&[]))
            .batches(vec![block(1, &[(1, 5)])])
            .is_empty()
    );
}

#[test]
fn threads_that_come_and_go_do_not_pile_up() {
    let mut threads = Threads::default();
    for id in 0..300_000 {
        threads.insert((Source(0), ThreadId(id)), id + 1);
        // The first thread is busy all the time.
        assert_eq!(threads.tid((Source(0), ThreadId(0))), 1);
    }
    assert!(threads.0.len() <= MAX_THREADS);
}
