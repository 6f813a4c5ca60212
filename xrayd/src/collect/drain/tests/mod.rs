//! The drain's treatment of rings that a reference producer writes.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use shm_ring::{Content, Event, Geometry, Mapping, Outcome, Table, Target};
use xray_trace::model::{CallKind, EventBody, FunctionId, ProcessId, Values};

use super::{growth::Growth, *};
use crate::{
    collect::{
        CallSite, Look, SiteKind, TimeRange, Window, ring_copies, thread_decoders::ThreadDecoders,
    },
    inject::{Layout, RingsFile},
    store::{EventSubscription, STALLED, Source, StreamItem, subscription},
    target::RunClocks,
    types::Mode,
};

mod lossless;

/// No thread has such an id.
const ENDED: u32 = 0x3fff_ffff;

/// A drain of this process, whose rings are empty.
fn drain() -> Drain {
    let geometry = Geometry::new(1 << 16, 8).unwrap();
    let budget = RingBudget::unlimited(geometry, geometry.slots());
    drain_with(geometry, 0, budget)
}

fn drain_with(geometry: Geometry, table: u64, budget: RingBudget) -> Drain {
    let file = File::from(memfd_create(c"rings", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(geometry.rings_bytes()).unwrap();
    let rings = Mapping::new(&file, 0, geometry.rings_bytes()).unwrap();
    let layout = Layout {
        table,
        rings: 0,
        rings_map: (0, geometry.rings_bytes()),
        geometry,
        tid_offset: 0,
    };
    let pid = Pid::this();
    let memory = Arc::new(Memory::open(pid, pid.leader()).unwrap());
    let slots = Slots::new(layout, rings, RingsFile::own(file));
    let output = Arc::new(EventStore::new(ProcessId(0), 0, 1 << 20));
    Drain::new(pid, memory, slots, budget, sites(Ticks(0)), output)
}

/// Makes the drain one that has found no ring so far, with an empty event store.
fn forget_rings(drain: &mut Drain) {
    let rings = &mut drain.owners.rings;
    rings.by_slot.clear();
    rings.order.clear();
    rings.decoders = ThreadDecoders::new(Arc::default(), rings.output.keeps());
    rings.output = Arc::new(EventStore::new(ProcessId(0), 0, 1 << 20));
}

/// The entry of a function and its exit.
fn sites(since: Ticks) -> SiteTable {
    let mut sites = SiteTable::new();
    for (name, kind) in [(0x1007, CallKind::Enter), (0x2007, CallKind::Exit)] {
        let function = FunctionId(0);
        let kind = SiteKind::Call(kind);
        let site = CallSite {
            name,
            function,
            kind,
        };
        sites.insert(site, since);
    }
    sites
}

fn record(drain: &Drain, table: &Table, tid: u32, site: u32, now: u64) {
    let target = Target {
        table,
        rings: &drain.owners.rings.slots.rings,
        geometry: drain.owners.rings.geometry(),
    };
    let event = Event {
        site,
        sp: 0x7fff_0000,
        content: Content::Nothing,
    };
    assert_eq!(target.record(tid, event, now), Outcome::Recorded);
}

/// A thread first has another slot than its home, since an ended thread holds the home slot. Once
/// that is free, the thread goes on to it. It stays one thread of the trace, its events are in
/// order, and the call that was open then is one call. The drain takes up the first ring before
/// that, or finds both rings.
#[test]
fn a_thread_that_goes_on_to_another_ring_stays_one() {
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    for (seen_before, lost) in [(true, 0), (false, 0), (true, 2), (false, 2)] {
        let mut drain = drain();
        let g = drain.owners.rings.geometry();
        let table = Table::new(g);
        let home = living & (g.slots() - 1);
        let ended = ENDED & !(g.slots() - 1) | home;
        record(&drain, &table, ended, 0x1007, 10);
        record(&drain, &table, living, 0x1007, 20);
        record(&drain, &table, living, 0x2007, 30);
        record(&drain, &table, living, 0x1007, 40);
        let first = g.control_offset((home + 1) & (g.slots() - 1));
        let place = first + layout::control::LOST;
        drain.owners.rings.slots.rings.store(place, lost);
        drain.owners.discover();
        assert_eq!(drain.owners.rings.by_slot.len(), 2);
        drain.owners.retire_dead();
        table.free(home);
        assert_eq!(drain.owners.rings.by_slot.len(), 1);
        if !seen_before {
            forget_rings(&mut drain);
        }
        record(&drain, &table, living, 0x2007, 50);
        assert_eq!(table.owner(home), living);
        drain.flush();
        assert_eq!(drain.owners.rings.by_slot.len(), 2);
        let snapshot = drain.owners.rings.output.snapshot();
        let mut threads = snapshot.threads.iter();
        let thread = threads.find(|thread| thread.tid == living).unwrap().id;
        assert!(threads.all(|thread| thread.tid != living));
        let blocks = snapshot.blocks.iter();
        let blocks = blocks.filter(|block| block.thread == thread);
        let events = blocks.flat_map(|block| block.events().map(Result::unwrap));
        let reported: Vec<_> = events.map(|event| (event.ticks.0, event.body)).collect();
        let call = |ticks, kind| {
            let body = EventBody::Call {
                function: FunctionId(0),
                kind,
                values: Values::NONE,
            };
            (ticks, body)
        };
        let mut expected = vec![
            call(20, CallKind::Enter),
            call(30, CallKind::Exit),
            call(40, CallKind::Enter),
            call(50, CallKind::Exit),
        ];
        if lost > 0 {
            expected.insert(3, (40, EventBody::Lost { events: lost }));
        }
        assert_eq!(reported, expected, "seen before: {seen_before}");
    }
}

/// A thread leaves its ring for another one. In mode `stream` the drain then reads the old ring,
/// even if the ring says that its thread takes a chunk back. While rings keep the newest events,
/// the drain does not read it, and reports its contents as overwritten.
#[test]
fn a_ring_that_its_thread_has_left_is_kept_or_reported() {
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    for mode in [Mode::Stream, Mode::Flight] {
        let mut drain = drain();
        let g = drain.owners.rings.geometry();
        let table = Table::new(g);
        let mask = g.slots() - 1;
        let home = living & mask;
        record(&drain, &table, ENDED & !mask | home, 0x1007, 10);
        // Two chunks are begun.
        let chunk = (g.chunk_bytes() - layout::GUARD_BYTES) / 8 + 1;
        for now in 0..chunk + 5 {
            record(&drain, &table, living, 0x1007, 20 + now);
        }
        drain.owners.begun = true;
        drain.owners.discover();
        drain.owners.retire_dead();
        table.free(home);
        drain.owners.rings.output.set_mode(mode);
        drain.settle_mode();
        let released = g.control_offset((home + 1) & mask) + layout::control::RELEASED;
        drain
            .owners
            .rings
            .slots
            .rings
            .store(released, layout::control::TAKING);
        record(&drain, &table, living, 0x2007, 1 << 20);
        drain.owners.discover();
        assert_eq!(drain.owners.rings.by_slot.len(), 2);
        drain.finish();
        let counters = drain.owners.rings.output.counters();
        let blocks = drain.owners.rings.output.snapshot().blocks;
        let kept: u64 = blocks.iter().map(|block| u64::from(block.calls)).sum();
        // The drain estimates the number of events from the number of unread words.
        let recorded = 1 + chunk + 5 + 1;
        assert!(counters.events.abs_diff(recorded) < 8, "{counters:?}");
        assert_eq!(kept + counters.overwritten_events, counters.events);
        // Kept is the last event, in the thread's present ring, or also events of the ring that it
        // left.
        assert_eq!(kept > 5, mode == Mode::Stream, "{counters:?}");
        assert!(kept > 0);
    }
}

/// A ring has all its memory while its thread is busy, and little when the thread is slow. No event
/// is lost by that.
#[test]
fn the_ring_of_a_slow_thread_has_little_memory() {
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    let mut drain = drain();
    drain.owners.begun = true;
    let g = drain.owners.rings.geometry();
    let table = Table::new(g);
    let home = living & (g.slots() - 1);
    let memory = |drain: &Drain| drain.owners.rings.slots.ring_memory(home);
    let mut recorded = 0;
    let mut rush = |drain: &mut Drain, events: u64| {
        for _ in 0..events {
            record(drain, &table, living, 0x1007, 20 + recorded);
            recorded += 1;
            if recorded % 2000 == 0 {
                drain.flush();
            }
        }
        drain.flush();
        drain.times.make_due();
        drain.chores();
        assert_eq!(drain.owners.rings.output.counters().events, recorded);
        assert_eq!(drain.owners.rings.output.counters().lost, 0);
    };
    for _ in 0..3 {
        rush(&mut drain, 10_000);
        assert_eq!(memory(&drain), g.ring_bytes());
        rush(&mut drain, 3);
        // The chunk under way, and the next three of sixteen.
        assert_eq!(memory(&drain), g.ring_bytes() / 4);
    }
}

/// The drain does not wait for a hole when a session ends. It reads the events behind the hole, and
/// leaves the whole ring to the next collector.
#[test]
fn at_the_end_of_a_session_what_is_behind_a_hole_is_read() {
    const TID: u32 = 64;
    let events = 5000;
    for hole in [1, 30, 400] {
        let mut drain = drain();
        let g = drain.owners.rings.geometry();
        let table = Table::new(g);
        for now in 0..events {
            record(&drain, &table, TID, 0x1007, now);
        }
        let first = g.ring_offset(0) + layout::GUARD_BYTES + 80;
        drain.owners.rings.slots.rings.zero(first, 8 * hole);
        drain.owners.discover();
        drain.finish();
        let counters = drain.owners.rings.output.counters();
        assert_eq!(counters.events, events - hole);
        assert!((1..=hole).contains(&counters.lost), "{counters:?}");
        let line = g.control_offset(0);
        let word = |place| drain.owners.rings.slots.rings.load(line + place);
        let begun = word(layout::control::STARTED);
        assert!(begun > 1 && word(layout::control::RELEASED) == begun - 1);
    }
}

/// A thread first finds no slot, and then two. It is one thread, and ends when nothing is left of
/// it.
#[test]
fn a_thread_with_two_rings_and_a_bucket_ends_once() {
    for rings_end_first in [true, false] {
        let mut drain = drain();
        let g = drain.owners.rings.geometry();
        let store =
            |drain: &Drain, place, value| drain.owners.rings.slots.rings.store(place, value);
        store(
            &drain,
            g.bucket_offset(1) + layout::bucket::TID,
            ENDED.into(),
        );
        store(&drain, g.bucket_offset(1) + layout::bucket::LOST, 3);
        store(&drain, layout::rings::BUCKETS_TAKEN, 1);
        drain.owners.report_without_slot();
        for index in [4, 6] {
            store(
                &drain,
                g.control_offset(index) + layout::control::OWNER,
                ENDED.into(),
            );
            drain.owners.discover();
        }
        assert_eq!(drain.owners.rings.by_slot.len(), 2);
        let threads = |drain: &Drain| drain.owners.rings.output.counters().threads;
        assert_eq!(threads(&drain), 1);
        assert_eq!(drain.owners.rings.output.snapshot().threads.len(), 1);
        if rings_end_first {
            drain.owners.retire_dead();
            assert_eq!(threads(&drain), 1);
        }
        // The first call frees the bucket, and the second one notices that it is free.
        drain.owners.retire_ringless();
        drain.owners.retire_ringless();
        assert_eq!(threads(&drain), if rings_end_first { 0 } else { 1 });
        drain.owners.retire_dead();
        assert!(drain.owners.rings.by_slot.is_empty());
        assert_eq!(threads(&drain), 0);
    }
}

/// A thread gets the id of an ended thread, and counts in that thread's bucket between the last
/// look at the bucket and the moment in which it is freed. No thread takes the bucket again.
#[test]
fn losses_in_a_bucket_that_is_freed_meanwhile_are_counted() {
    let mut drain = drain();
    let bucket = drain.owners.rings.geometry().bucket_offset(1);
    let store = |place, value| drain.owners.rings.slots.rings.store(place, value);
    store(bucket + layout::bucket::TID, ENDED.into());
    store(bucket + layout::bucket::LOST, 3);
    store(layout::rings::BUCKETS_TAKEN, 1);
    drain.owners.report_without_slot();
    assert_eq!(drain.owners.rings.output.counters().lost, 3);
    let store = |place, value| drain.owners.rings.slots.rings.store(place, value);
    store(bucket + layout::bucket::LOST, 43);
    drain
        .owners
        .rings
        .slots
        .buckets()
        .free(&HashSet::from([ENDED]));
    drain.finish();
    assert_eq!(drain.owners.rings.output.counters().lost, 43);
    let blocks = drain.owners.rings.output.snapshot().blocks;
    let lost: u64 = blocks.iter().map(|block| block.lost).sum();
    assert_eq!(lost, 43);
}

/// A session ends with a ring that is read to the end of its last chunk. The next session finds
/// that ring, and the thread records more before the drain's first look into it.
#[test]
fn the_counter_agrees_with_the_trace_after_a_ring_was_read_to_its_end() {
    const TID: u32 = 64;
    const MORE: u64 = 3;
    let mut drain = drain();
    let g = drain.owners.rings.geometry();
    let table = Table::new(g);
    // One event of each chunk stands in the guard.
    let full = g.chunks() * ((g.chunk_bytes() - layout::GUARD_BYTES) / 8 + 1);
    for now in 0..full {
        record(&drain, &table, TID, 0x1007, now);
    }
    drain.owners.discover();
    drain.finish();
    assert_eq!(drain.owners.rings.output.counters().events, full);

    forget_rings(&mut drain);
    drain.owners.discover();
    drain.owners.begun = true;
    for now in full..full + MORE {
        record(&drain, &table, TID, 0x1007, now);
    }
    drain.finish();
    let blocks = drain.owners.rings.output.snapshot().blocks;
    let kept: u64 = blocks.iter().map(|block| u64::from(block.calls)).sum();
    assert_eq!(
        (kept, drain.owners.rings.output.counters().events),
        (MORE, MORE)
    );
}

/// A ring fills if a quarter of it is unread, and until hardly anything is.
#[test]
fn a_ring_fills_until_it_is_read() {
    let mut drain = drain();
    let table = Table::new(drain.owners.rings.geometry());
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    let words = drain.owners.rings.geometry().ring_bytes() / 8;
    let mut now = 0;
    for (share, is_filling) in [(100, false), (2, true), (10, true), (100, false)] {
        for _ in 0..words / share {
            now += 1;
            record(&drain, &table, living, 0x1007, now);
        }
        drain.round();
        assert_eq!(drain.owners.rings.is_filling, is_filling, "1/{share}");
    }
}

/// The chores find a ring after the round has read the others, so its events are estimated. The
/// next round reads it.
#[test]
fn an_event_that_was_unread_counts_once() {
    const EVENTS: u64 = 100;
    let mut drain = drain();
    let table = Table::new(drain.owners.rings.geometry());
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    for now in 0..EVENTS {
        record(&drain, &table, living, 0x1007, now);
    }
    drain.owners.begun = true;
    drain.owners.discover();
    drain.owners.rings.count_unread();
    let unread = drain.owners.rings.output.counters().events;
    assert!(unread > 0);
    drain.round();
    let counters = drain.owners.rings.output.counters();
    assert_eq!(counters.events, EVENTS);
    drain.owners.rings.count_unread();
    assert_eq!(drain.owners.rings.output.counters().events, EVENTS);
}

/// A thread has no processor in the middle of a trampoline until its session is over. The event
/// that it stores then is no event of the next session. After a collector that died, it is one.
#[test]
fn an_event_that_is_stored_after_its_session_is_none_of_the_next_one() {
    const TID: u32 = 64;
    for let_go in [true, false] {
        let mut earlier = drain();
        let table = Table::new(earlier.owners.rings.geometry());
        record(&earlier, &table, TID, 0x1007, 10);
        earlier.owners.discover();
        if let_go {
            earlier.finish();
            assert_eq!(earlier.owners.rings.output.counters().events, 1);
        }
        record(&earlier, &table, TID, 0x2007, 20);
        let since = events_since(&earlier.owners.rings.slots.rings);
        let RingOwners {
            rings: Rings { pid, slots, .. },
            memory,
            growth,
            ..
        } = earlier.owners;
        let output = Arc::new(EventStore::new(ProcessId(0), 0, 1 << 20));
        let mut drain = Drain::new(pid, memory, slots, growth.budget, sites(since), output);
        assert_eq!(events_since(&drain.owners.rings.slots.rings), Ticks(0));
        drain.owners.discover();
        record(&drain, &table, TID, 0x1007, ticks_now().0);
        drain.finish();
        let counters = drain.owners.rings.output.counters();
        let expected = if let_go { (1, 1) } else { (3, 0) };
        assert_eq!((counters.events, counters.lost), expected);
    }
}

/// A table with closed slots, as in a target's memory.
fn closed_table(geometry: Geometry) -> Vec<AtomicU32> {
    let words = (0..geometry.table_bytes() / 4).map(|_| AtomicU32::new(0));
    let table: Vec<AtomicU32> = words.collect();
    for index in 0..geometry.slots() {
        owner_in(&table, geometry, index).store(layout::slot::CLOSED, Relaxed);
    }
    table
}

fn owner_in(table: &[AtomicU32], geometry: Geometry, index: u32) -> &AtomicU32 {
    &table[usize::try_from((geometry.slot_offset(index) + layout::slot::TID) / 4).unwrap()]
}

/// A thread that has a bucket gets its first choice, and so do the 16 threads behind it. Ended
/// threads get no slot, and nothing happens until a thread has taken a bucket. The slot of an ended
/// thread is closed.
#[test]
fn slots_are_opened_for_living_threads_without_one() {
    let geometry = Geometry::new(1 << 16, 64).unwrap();
    let table = closed_table(geometry);
    let address = table.as_ptr().addr() as u64;
    let mut drain = drain_with(geometry, address, RingBudget::unlimited(geometry, 0));
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    let open = || {
        let slots = 0..geometry.slots();
        let is_open = |index: &u32| owner_in(&table, geometry, *index).load(Relaxed) == 0;
        slots.filter(is_open).collect::<Vec<u32>>()
    };
    for (bucket, owner) in [(3, ENDED), (5, living)] {
        let place = geometry.bucket_offset(bucket) + layout::bucket::TID;
        drain.owners.rings.slots.rings.store(place, owner.into());
    }
    drain.owners.open_slots();
    assert!(open().is_empty());
    drain
        .owners
        .rings
        .slots
        .rings
        .store(layout::rings::BUCKETS_TAKEN, 1);
    drain.owners.open_slots();
    let with_next = living..=living + 16;
    let mut expected: Vec<u32> = with_next.map(|thread| thread % geometry.slots()).collect();
    expected.sort_unstable();
    assert_eq!(open(), expected);
    assert_eq!(drain.owners.growth.budget.open_slots(), 17);

    // The thread has its slot, or will take it.
    drain.owners.growth = Growth::new(drain.owners.growth.budget, Instant::now());
    drain.owners.open_slots();
    assert_eq!(open(), expected);
    // Other threads take the slots, each one its first choice.
    for index in &expected {
        owner_in(&table, geometry, *index).store(*index + geometry.slots(), Relaxed);
    }
    drain.owners.growth = Growth::new(drain.owners.growth.budget, Instant::now());
    drain.owners.open_slots();
    assert_eq!(drain.owners.growth.budget.open_slots(), 17 + 1 + 18);
    assert_eq!(open().len(), 1 + 18);

    // A thread with a ring causes more slots behind it to be opened, with or without a bucket.
    drain.owners.growth = Growth::new(drain.owners.growth.budget, Instant::now());
    drain
        .owners
        .rings
        .slots
        .rings
        .store(layout::rings::BUCKETS_TAKEN, 0);
    drain.owners.open_slots();
    assert_eq!(open().len(), 1 + 18);
    drain.owners.growth.expect_more_than(living + 50);
    drain.owners.open_slots();
    assert_eq!(open().len(), 1 + 18 + 17);
    let open_slots = drain.owners.growth.budget.open_slots();
    let mark = drain.owners.rings.geometry().mark_offset(expected[0]) + layout::mark::BLOCK;
    drain.owners.rings.slots.rings.store(mark, 7);
    drain.owners.free_slot(expected[0]);
    // It was about the words of the thread that had the slot.
    assert_eq!(drain.owners.rings.slots.rings.load(mark), 0);
    assert_eq!(drain.owners.growth.budget.open_slots(), open_slots - 1);
    let closed = owner_in(&table, geometry, expected[0]).load(Relaxed);
    assert_eq!(closed, layout::slot::CLOSED);

    // A closed slot is no thread's claim.
    drain.owners.take_up_unused();
    assert!(!drain.owners.rings.by_slot.contains_key(&0));
    let is_closed =
        |index: &u32| owner_in(&table, geometry, *index).load(Relaxed) == layout::slot::CLOSED;
    let closed = (0..geometry.slots()).filter(is_closed).count();
    assert_eq!(
        closed,
        (geometry.slots() - drain.owners.growth.budget.open_slots()) as usize
    );
}

/// A thread loses events at its end, after the last event that fitted. When rings keep their newest
/// events by themselves next, these losses are dropped with the events that were read.
#[test]
fn losses_go_with_the_events_that_were_read() {
    const TID: u32 = 64;
    let mut drain = drain();
    let output = Arc::clone(&drain.owners.rings.output);
    output.set_mode(Mode::Stream);
    drain.settle_mode();
    let g = drain.owners.rings.geometry();
    record(&drain, &Table::new(g), TID, 0x1007, 10);
    drain.owners.discover();
    drain.read(true);
    let lost = g.control_offset(TID & (g.slots() - 1)) + layout::control::LOST;
    drain.owners.rings.slots.rings.store(lost, 5);
    output.set_mode(Mode::Flight);
    drain.settle_mode();
    drain.finish();
    let snapshot = output.snapshot();
    let dropped = snapshot.overwritten.iter();
    let dropped: u64 = dropped.filter_map(|its| its.events).sum();
    assert!(snapshot.blocks.is_empty() && snapshot.lost.is_empty());
    assert_eq!((dropped, output.counters().lost), (6, 5));
}

/// After a ring was read, the thread records some chunks more. Each event counts once in a
/// snapshot: as an event of the ring, as overwritten in it, or as dropped after it was read.
#[test]
fn events_that_were_read_are_not_copied_again() {
    const READ: u64 = 5_000;
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    for more in [0, 3, 100, 50_000] {
        let mut drain = drain();
        let output = Arc::clone(&drain.owners.rings.output);
        let table = Table::new(drain.owners.rings.geometry());
        let call = |drain: &Drain, event: u64| {
            let site = if event % 2 == 1 { 0x1007 } else { 0x2007 };
            record(drain, &table, living, site, event * 10);
        };
        output.set_mode(Mode::Stream);
        drain.settle_mode();
        drain.owners.discover();
        for event in 1..=READ {
            call(&drain, event);
            drain.read(true);
        }
        drain.owners.discover();
        drain.flush();
        output.set_mode(Mode::Flight);
        drain.settle_mode();
        (READ + 1..=READ + more).for_each(|event| call(&drain, event));
        let copies = drain.copy_rings(1 << 20, ring_copies::Moment::Past);
        let all = TimeRange::between(Ticks(0), Ticks(u64::MAX));
        let snapshot = copies.into_snapshot(ProcessId(0), 1, all, |_| {});
        let blocks = snapshot.blocks.iter();
        let copied: u64 = blocks.map(|block| u64::from(block.calls)).sum();
        let dropped = snapshot.overwritten.iter();
        let dropped: u64 = dropped.filter_map(|its| its.events).sum();

        assert!(copied <= more && snapshot.lost.is_empty());
        // The number of overwritten events is an estimate.
        assert!(
            (copied + dropped).abs_diff(READ + more) <= more / 100,
            "{more}: {copied} {dropped}"
        );
        assert!(copied == more || more > 8_000, "{more}: {copied}");
    }
}

/// The gap word of losses that were reported early is overwritten, and more events are lost. A
/// snapshot shows the later losses.
#[test]
fn losses_after_an_overwritten_gap_are_shown() {
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    let mut drain = drain();
    let output = Arc::clone(&drain.owners.rings.output);
    let g = drain.owners.rings.geometry();
    let table = Table::new(g);
    output.set_mode(Mode::Stream);
    drain.settle_mode();
    record(&drain, &table, living, 0x1007, 10);
    drain.owners.discover();
    drain.read(true);
    let lost = g.control_offset(living & (g.slots() - 1)) + layout::control::LOST;
    drain.owners.rings.slots.rings.store(lost, 1000);
    output.set_mode(Mode::Flight);
    drain.settle_mode();
    (2..20_000).for_each(|event| record(&drain, &table, living, 0x1007, event * 10));
    drain.owners.rings.slots.rings.store(lost, 1005);
    (20_000..25_000).for_each(|event| record(&drain, &table, living, 0x1007, event * 10));
    drain.owners.rings.count_unreported();
    let copies = drain.copy_rings(1 << 20, ring_copies::Moment::Past);
    let all = TimeRange::between(Ticks(0), Ticks(u64::MAX));
    let snapshot = copies.into_snapshot(ProcessId(0), 1, all, |_| {});
    let blocks: u64 = snapshot.blocks.iter().map(|block| block.lost).sum();
    let others: u64 = snapshot.lost.iter().map(|(_, lost)| lost).sum();
    assert_eq!((blocks + others, output.counters().lost), (5, 1005));
}

/// A ring that is not read keeps its newest 8,000 events or so. A window whose begin is overwritten
/// is shown by its rest, unless too little is left of it.
#[test]
fn an_overwritten_window_is_shown_by_its_rest() {
    const EVENTS: u64 = 12_000;
    let mut drain = drain();
    drain.owners.rings.output.set_mode(Mode::Flight);
    let table = Table::new(drain.owners.rings.geometry());
    let living = nix::unistd::gettid().as_raw().cast_unsigned();
    drain.settle_mode();
    record(&drain, &table, living, 0x1007, 1);
    let sample = drain.sample(&Look::Newest(HashMap::new()));
    let before: HashMap<_, _> = sample.rings.iter().map(|it| (it.ring, it.given)).collect();
    for event in 1..=EVENTS {
        let site = if event % 2 == 1 { 0x2007 } else { 0x1007 };
        record(&drain, &table, living, site, event * 10);
    }
    let clocks = RunClocks::of(Pid::this(), &[]);
    let window = Arc::new(Window::new(Arc::new(clocks)));
    let mut tally = |first: u64, last: u64| {
        let mut sample = drain.sample(&Look::All(before.clone(), Arc::clone(&window)));
        let window = Ticks(first * 10)..=Ticks(last * 10);
        let mut tallies = sample.tallies(Ticks(2), &window).into_values();
        tallies
            .next()
            .map(|tally| (tally.events, tally.unseen, tally.passed))
    };
    let near = |number: u64, expected: u64| number.abs_diff(expected) < expected / 20;
    let (events, unseen, passed) = tally(9_001, 11_000).unwrap();
    assert_eq!((events, unseen), (2_000, 0));
    assert!(near(passed, EVENTS), "{passed}");
    let (events, unseen, passed) = tally(2_001, EVENTS).unwrap();
    assert!((5_000..9_000).contains(&events), "{events}");
    assert!(near(events + unseen, 10_000), "{events} {unseen}");
    assert!(near(passed, EVENTS), "{passed}");
    assert_eq!(tally(1, 4_000), None);
}
