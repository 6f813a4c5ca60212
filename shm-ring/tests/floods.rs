//! Floods, droughts, and threads and collectors that come and go: the events read and the events
//! counted as lost are together all events that were tried.
// Safe code, and too much of it for miri.
#![cfg(not(any(loom, miri)))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use proptest::prelude::*;
use shm_ring::{
    Consumer, Content, Data, Event, Geometry, Item, Outcome, Producer, SharedMemory, Table, Target,
    layout,
};
use support::Words;

#[derive(Debug, Clone)]
enum Action {
    /// This many events, every third with an argument, every seventh of the others with a payload.
    Record(u32),
    /// The counter goes on by this much.
    Wait(u64),
    /// The collector reads at most this many words.
    Drain(u64),
    /// The collector reports losses if it has read the whole ring.
    Tell,
    /// Another collector resumes the ring.
    Resume,
    /// A collector that holds dies after it has read at most this many words and reported losses.
    Die(u64),
    /// The thread ends, and another one gets its slot.
    Replace,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (1..2000u32).prop_map(Action::Record),
        1 => (9000..20_000u32).prop_map(Action::Record),
        1 => (1..1u64 << 34).prop_map(Action::Wait),
        3 => (1..3000u64).prop_map(Action::Drain),
        2 => Just(Action::Drain(u64::MAX)),
        2 => Just(Action::Tell),
        1 => Just(Action::Resume),
        1 => (1..3000u64).prop_map(Action::Die),
        1 => Just(Action::Replace),
    ];
    proptest::collection::vec(action, 1..40)
}

/// Reads and checks events: their order, their times, and the places of losses.
#[derive(Debug, Default)]
struct Reader {
    /// Numbers of the events that were recorded and not read yet, with their counters.
    expected: std::collections::VecDeque<(u64, u64)>,
    reported: u64,
    /// The number of events read.
    read: u64,
    /// The most bytes of a payload that are recorded.
    limit: usize,
}

impl Reader {
    fn take(&mut self, item: Item) {
        match item {
            Item::Lost(count) => self.reported += count,
            Item::Waited(_) => {}
            Item::Call {
                site,
                ticks,
                sp,
                argument,
            } => {
                let content = argument.map_or(Content::Nothing, Content::Argument);
                self.expect((site, ticks, sp), &content);
            }
            Item::Data(data) => {
                let Data {
                    site,
                    ticks,
                    sp,
                    kind,
                    size,
                    bytes,
                } = *data;
                self.expect((site, ticks, sp), &Content::Payload { kind, size, bytes });
            }
        }
    }

    fn expect(&mut self, place: (u32, u64, u64), content: &Content) {
        let (number, recorded) = self.expected.pop_front().expect("no more than recorded");
        assert_eq!(place, (site_of(number), recorded, sp_of(number)));
        assert_eq!(
            self.read + self.reported,
            number,
            "losses are told in their place"
        );
        self.read += 1;
        let mut tried = content_of(number);
        if let Content::Payload { bytes, .. } = &mut tried {
            bytes.truncate(self.limit);
        }
        assert_eq!(content, &tried);
    }
}

fn site_of(number: u64) -> u32 {
    u32::try_from(number & 0x7fff_ffff).unwrap() << 1 | 1
}

/// A stack that is deep at times, and two others that are far away.
fn sp_of(number: u64) -> u64 {
    let depth = 8 * (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54);
    match number / 64 % 16 {
        5 => 0x7ffd_2345_6788 - 20 * depth,
        9 => 0x5555_0000_8008 - depth,
        13 if number.is_multiple_of(2) => 0xff_ffff_ffff_f000 - depth,
        _ => 0x7ffd_2345_6788 - depth,
    }
}

fn content_of(number: u64) -> Content {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match number {
        _ if number.is_multiple_of(3) => Content::Argument(hash),
        _ if number.is_multiple_of(7) => {
            // The payload of some events cannot be read, and that of others is too long for any
            // ring.
            let size = u32::try_from(hash >> 48).unwrap() % 5000;
            let there = usize::try_from(size).unwrap() * usize::from(!number.is_multiple_of(5));
            Content::Payload {
                kind: u32::try_from(number % 0x1_0000).unwrap(),
                size,
                bytes: (0u8..=255).cycle().take(there).collect(),
            }
        }
        _ => Content::Nothing,
    }
}

fn flood(ring_shift: u32, holds: bool, actions: Vec<Action>) {
    let geometry = Geometry::new(1 << ring_shift, 1).unwrap();
    let words = Words::new(geometry);
    let table = Table::new(geometry);
    let target = Target {
        table: &table,
        rings: &words,
        geometry,
    };
    let resume = || match holds {
        true => Consumer::resume(&words, geometry, 0).holding(),
        false => Consumer::resume(&words, geometry, 0),
    };
    let mut consumer = resume();
    let mut reader = Reader {
        limit: usize::try_from(geometry.payload_limit()).unwrap(),
        ..Reader::default()
    };
    let (mut tid, mut now, mut tried, mut lost) = (geometry.slots(), 5u64, 0u64, 0u64);
    for action in actions {
        match action {
            Action::Record(events) => {
                for _ in 0..events {
                    now += 100;
                    let event = Event {
                        site: site_of(tried),
                        sp: sp_of(tried),
                        content: content_of(tried),
                    };
                    match target.record(tid, event, now) {
                        Outcome::Recorded => reader.expected.push_back((tried, now)),
                        Outcome::Lost => lost += 1,
                        other => panic!("{other:?}"),
                    }
                    tried += 1;
                }
            }
            Action::Wait(ticks) => now += ticks,
            Action::Drain(max) => {
                let done = consumer.drain(&words, Producer::Alive, 0, max, |i| reader.take(i));
                assert!(!done.at_hole, "{done:?}");
                assert!(done.at_end || done.words >= max, "{done:?}");
            }
            Action::Tell => {
                consumer.tell_quiet_losses(&words, |i| reader.take(i));
            }
            Action::Resume => {
                // No event is read twice or left out: the cursor and its state were saved.
                consumer = resume();
            }
            Action::Die(max) => {
                if holds {
                    consumer.drain(&words, Producer::Alive, 0, max, |_| {});
                    consumer.tell_quiet_losses(&words, |_| {});
                    consumer = resume();
                }
            }
            Action::Replace => {
                consumer.drain(&words, Producer::Gone, 0, u64::MAX, |i| reader.take(i));
                consumer.tell_losses(&words, |i| reader.take(i));
                assert_eq!(reader.reported, lost);
                words.zero(geometry.ring_offset(0), geometry.ring_bytes());
                words.zero(geometry.control_offset(0), layout::LINE_BYTES);
                table.free(0);
                tid += geometry.slots();
                consumer = resume();
            }
        }
        consumer.release(&words);
        assert!(consumer.is_saved());
        assert!(
            reader.reported <= lost,
            "told {} of {lost}",
            reader.reported
        );
    }
    let done = consumer.drain(&words, Producer::Alive, 0, u64::MAX, |i| reader.take(i));
    assert!(done.at_end && !done.at_hole);
    assert_eq!(reader.expected.len(), 0, "all that was recorded was read");
    consumer.tell_losses(&words, |i| reader.take(i));
    assert_eq!(reader.reported, lost, "of {tried}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_and_lost_are_all_that_was_tried(
        ring_shift in 16..19u32,
        holds in any::<bool>(),
        actions in actions(),
    ) {
        flood(ring_shift, holds, actions);
    }
}

#[test]
fn a_ring_that_nobody_reads_counts_the_rest() {
    flood(
        16,
        false,
        vec![
            Action::Record(9000),
            Action::Drain(u64::MAX),
            Action::Record(1),
        ],
    );
}

/// The smallest count that a hole allows: ten words, as many as a call with six values has, can all
/// belong to one event.
#[test]
fn a_hole_counts_the_fewest_events_that_can_have_left_it() {
    let geometry = Geometry::new(1 << 16, 1).unwrap();
    for (hole, fewest) in [(1, 1), (2, 1), (9, 1), (10, 1), (11, 2), (21, 3), (100, 10)] {
        let words = Words::new(geometry);
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &words,
            geometry,
        };
        for number in 0..200 {
            let event = Event {
                site: site_of(number),
                sp: sp_of(0),
                content: Content::Nothing,
            };
            assert_eq!(target.record(64, event, 5), Outcome::Recorded);
        }
        // Past the guard, where every word belongs to an event.
        let first = geometry.ring_offset(0) + layout::GUARD_BYTES + 80;
        for word in 0..hole {
            words.store(first + 8 * word, 0);
        }
        let mut consumer = Consumer::resume(&words, geometry, 0);
        let (mut calls, mut lost) = (0, 0);
        consumer.drain(&words, Producer::Gone, 0, u64::MAX, |item| match item {
            Item::Call { .. } => calls += 1,
            Item::Data(_) => panic!("no payload was written"),
            Item::Lost(count) => lost += count,
            Item::Waited(_) => {}
        });
        assert_eq!((calls, lost), (200 - hole, fewest), "{hole} words");
    }
}

/// A payload that ends in the middle belongs to one event. Where payloads may be, so does any hole
/// that is no longer than the longest event.
#[test]
fn a_hole_of_a_payload_is_one_event_and_is_seen_at_once() {
    let geometry = Geometry::new(1 << 20, 1).unwrap();
    let longest = geometry.longest_event();
    let payload = Content::Payload {
        kind: 1,
        size: 4096,
        bytes: vec![0xee; 4096],
    };
    // Words of the event that were written, missing words, the fewest events that can have left the
    // hole.
    for (written, missing, fewest) in [
        (0, longest, 1),
        (0, longest + 1, 2),
        (1, longest - 1, 1),
        (1, longest, 2),
        (300, longest - 300, 1),
        (longest - 1, 1, 1),
    ] {
        let words = Words::new(geometry);
        let table = Table::new(geometry);
        let target = Target {
            table: &table,
            rings: &words,
            geometry,
        };
        let event = |number, content| Event {
            site: site_of(number),
            sp: sp_of(0),
            content,
        };
        let record =
            |event| assert_eq!(target.record(geometry.slots(), event, 5), Outcome::Recorded);
        record(event(0, Content::Nothing));
        record(event(1, payload.clone()));
        // The events that go, and eight that stay.
        let gone = missing + written - longest;
        for number in 0..gone + 8 {
            record(event(number, Content::Nothing));
        }
        let first = geometry.ring_offset(0) + layout::GUARD_BYTES + 8 * written;
        for word in 0..missing {
            words.store(first + 8 * word, 0);
        }
        let mut consumer = Consumer::resume(&words, geometry, 0).with_payloads();
        // The consumer waits for a thread that lives. It looks as far as the longest event goes,
        // also where not even the size of that was written.
        let waited = consumer.drain(&words, Producer::Alive, 0, u64::MAX, |_| {});
        assert!(waited.at_end, "{written} {missing}");
        assert_eq!(
            waited.at_hole,
            missing < longest + 8 - written,
            "{written} {missing}"
        );
        // Losses that were counted meanwhile may stand behind the hole.
        let counter = geometry.control_offset(0) + layout::control::LOST;
        words.store(counter, 3);
        let reported = consumer.tell_quiet_losses(&words, |item| panic!("{item:?}"));
        assert!(!reported, "{written} {missing}");
        words.store(counter, 0);
        let (mut calls, mut lost) = (0, 0);
        consumer.drain(&words, Producer::Gone, 0, u64::MAX, |item| match item {
            Item::Call { .. } => calls += 1,
            Item::Data(data) => panic!("half a payload: {data:?}"),
            Item::Lost(count) => lost += count,
            Item::Waited(_) => {}
        });
        assert_eq!((calls, lost), (8, fewest), "{written} {missing}");
    }
}

/// A closed slot ends the search, whatever is free behind it. Once it is open, it is the thread's.
#[test]
fn a_closed_slot_ends_the_search() {
    const TID: u32 = 5;
    let geometry = Geometry::new(1 << 16, 8).unwrap();
    let (table, rings) = (Table::new(geometry), Words::new(geometry));
    let target = Target {
        table: &table,
        rings: &rings,
        geometry,
    };
    table.close(TID);
    let record = || {
        let event = Event {
            site: site_of(1),
            sp: sp_of(1),
            content: Content::Nothing,
        };
        target.record(TID, event, 100)
    };
    assert_eq!(record(), Outcome::Lost);
    assert_eq!(table.owner(TID), layout::slot::CLOSED);
    assert_eq!(table.owner(TID + 1), 0);
    table.free(TID);
    assert_eq!(record(), Outcome::Recorded);
    assert_eq!(table.owner(TID), TID);
}
