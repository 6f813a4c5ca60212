//! Rings of threads that wait for room.

use super::*;

/// A reader for which threads wait for so many ticks.
fn lossless_reader(drain: &mut Drain, wait: u64) -> EventSubscription {
    let (publisher, reader) = subscription(1, None, wait);
    let output = Arc::clone(&drain.owners.rings.output);
    output.subscribe(publisher.sender(Source::default()));
    drain.settle_mode();
    reader
}

/// Where threads wait for room, a turn is a chunk. A hole that is a whole chunk takes a turn, and
/// the drain goes on behind it.
#[test]
fn a_hole_as_long_as_a_turn_does_not_end_the_reading() {
    const TID: u32 = 64;
    let events = 5000;
    for waits in [false, true] {
        let mut drain = drain();
        let _reader = waits.then(|| lossless_reader(&mut drain, 1));
        let g = drain.owners.rings.geometry();
        let table = Table::new(g);
        for now in 0..events {
            record(&drain, &table, TID, 0x1007, now);
        }
        let second = g.ring_offset(0) + g.chunk_bytes();
        let slots = &drain.owners.rings.slots;
        slots.rings.zero(second, g.chunk_bytes());
        drain.owners.discover();
        drain.finish();
        let counters = drain.owners.rings.output.counters();
        let hole = events - counters.events;
        assert!((1..=g.chunk_bytes() / 8).contains(&hole), "{counters:?}");
        assert!((1..=hole).contains(&counters.lost), "{counters:?}");
    }
}

/// Where threads wait for room, busy rings among many have further turns, one after the other.
#[test]
fn busy_rings_among_many_share_the_further_turns() {
    const BUSY: [u32; 2] = [64, 65];
    // Looks at so many rings take as long as one turn.
    const RINGS: usize = 32;
    let mut drain = drain();
    let geometry = drain.owners.rings.geometry();
    let _reader = lossless_reader(&mut drain, 1);
    let table = Table::new(geometry);
    for tid in BUSY {
        for now in 0..6000 {
            record(&drain, &table, tid, 0x1007, now);
        }
    }
    let rings = &drain.owners.rings.slots.rings;
    let owners = 0..geometry.slots();
    let owners = owners.map(|index| geometry.control_offset(index) + layout::control::OWNER);
    let idle = owners.filter(|owner| rings.load(*owner) == 0);
    for (owner, tid) in idle.take(RINGS - BUSY.len()).zip(1000..) {
        rings.store(owner, tid);
    }
    drain.owners.discover();
    assert_eq!(drain.owners.rings.by_slot.len(), RINGS);
    let turn = geometry.chunk_bytes();
    let unread = |drain: &Drain| {
        let rings = &drain.owners.rings;
        BUSY.map(|tid| {
            let mut of = rings.by_slot.values().filter(|ring| ring.owner == tid);
            of.next().unwrap().backlog(&rings.slots)
        })
    };
    // Each sweep has a turn for each ring, and one further turn.
    drain.owners.rings.read(true);
    let before = unread(&drain);
    for turns in [[1, 2], [3, 3], [4, 5]] {
        assert_eq!(drain.owners.rings.read(true), Busy::Full);
        let after = unread(&drain);
        let mut read = [before[0] - after[0], before[1] - after[1]].map(|bytes| bytes / turn);
        read.sort_unstable();
        assert_eq!(read, turns);
    }
}

/// Threads wait while a reader asks for it. The drain reads no faster than that reader takes items,
/// but for a flush, and for a reader that has been behind for long.
#[test]
fn rings_are_read_as_fast_as_a_lossless_reader_reads() {
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    let mut drain = drain();
    let output = Arc::clone(&drain.owners.rings.output);
    let table = Table::new(drain.owners.rings.geometry());
    let wait = |drain: &Drain| drain.owners.rings.slots.rings.load(layout::rings::WAIT);
    drain.owners.rings.slots.rings.store(layout::rings::WAIT, 7);
    drain.settle_mode();
    assert_eq!(wait(&drain), 0, "a wait of an earlier collector");
    let mut reader = lossless_reader(&mut drain, 1000);
    assert_eq!(wait(&drain), 1000);
    drain.owners.discover();
    let mut now = 0;
    let mut record_one = |drain: &Drain| {
        now += 10;
        record(drain, &table, living, 0x1007, now);
    };
    // Each block takes a place in the queue.
    let mut blocks = 0;
    while !output.readers_are_behind() {
        record_one(&drain);
        drain.flush();
        blocks += 1;
        assert!(blocks < 10_000, "the reader is never behind");
    }
    record_one(&drain);
    drain.owners.discover();
    let counted = output.counters().events;
    assert_eq!(drain.read(true), Busy::Some);
    assert_eq!(
        output.counters().events,
        counted,
        "it was read nevertheless"
    );
    drain.flush();
    assert_eq!(output.counters().events, counted + 1);
    assert!(output.readers_are_behind());
    // The reader goes on, one item at a time: it is behind all the time, and loses nothing.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let events = std::cell::Cell::new(0);
    let take = |reader: &mut EventSubscription| match runtime.block_on(reader.next()) {
        Some((_, StreamItem::Block(published))) => events.set(events.get() + published.events()),
        Some((_, StreamItem::Lost { .. })) => panic!("the reader lost events"),
        Some(_) => {}
        None => panic!("the stream ended"),
    };
    for _ in 0..10 {
        record_one(&drain);
        drain.flush();
        drain.flush();
        take(&mut reader);
        assert!(output.readers_are_behind());
    }
    // A request reads everything, however full the queue is. What finds no place is kept.
    for _ in 0..2_000 {
        record_one(&drain);
        drain.flush();
    }
    // The reader has taken nothing for long.
    std::thread::sleep(STALLED);
    assert!(!output.readers_are_behind());
    take(&mut reader);
    assert!(output.readers_are_behind(), "it goes on");
    // The reader takes the rest, which the next items bring with them, and nothing was lost.
    while output.readers_are_behind() {
        take(&mut reader);
        take(&mut reader);
        drain.anchor();
    }
    record_one(&drain);
    let counted = output.counters().events;
    drain.read(true);
    assert_eq!(output.counters().events, counted + 1);
    drain.flush();
    while events.get() < output.counters().events {
        take(&mut reader);
        drain.anchor();
    }
    // A limit on the overhead ends the waits, and so does the reader's end.
    output.limits_overhead.store(true, Relaxed);
    drain.settle_mode();
    assert_eq!(wait(&drain), 0);
    output.limits_overhead.store(false, Relaxed);
    drain.settle_mode();
    assert_eq!(wait(&drain), 1000);
    drop(reader);
    drain.settle_mode();
    assert_eq!(wait(&drain), 0);
}
