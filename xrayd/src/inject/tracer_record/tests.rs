//! Tests of the record of the tracer.

use std::{hint::black_box, sync::Barrier};

use super::*;

/// A table in this process.
struct Table {
    memory: Arc<Memory>,
    bytes: Box<[u8; 4096]>,
}

impl Table {
    fn new() -> Self {
        let memory = Memory::open(Pid::this(), Pid::this().leader()).unwrap();
        Self {
            memory: Arc::new(memory),
            bytes: Box::new([0; 4096]),
        }
    }

    fn address(&self) -> TargetAddr {
        TargetAddr(black_box(&self.bytes).as_ptr().addr() as u64)
    }

    fn take_as(&self, tracer: Tracer) -> Result<TableClaim> {
        TableClaim::take_as(tracer, &self.memory, self.address(), Pid::this())
    }

    fn set_live(&self, live: u64) {
        self.memory
            .write(self.address(), &live.to_le_bytes())
            .unwrap();
    }
}

/// A tracer in a pid namespace of its own.
fn elsewhere(number: u64) -> Tracer {
    Tracer {
        namespace: number,
        random: number,
        ..Tracer::this().unwrap()
    }
}

#[test]
fn records_are_read_as_they_are_written_and_mixtures_are_none() {
    let tracer = Tracer::this().unwrap();
    let mut bytes = [0u8; RECORD_BYTES];
    let empty = Seen::understand(&bytes);
    assert_eq!((empty.tracer, empty.counter), (None, 0));
    bytes[..BYTES].copy_from_slice(&tracer.bytes());
    assert_eq!(Seen::understand(&bytes).tracer, Some(tracer));
    let other = elsewhere(7).bytes();
    for cut in 1..WORDS {
        let mut mixed = bytes;
        mixed[cut * 8..BYTES].copy_from_slice(&other[cut * 8..]);
        let seen = Seen::understand(&mixed).tracer;
        let is_whole = mixed[..BYTES] == other || mixed[..BYTES] == bytes[..BYTES];
        assert!(is_whole || seen.is_none(), "{cut}");
    }
}

#[test]
fn the_life_of_others_is_judged_by_what_can_be_seen() {
    let this = Tracer::this().unwrap();
    let check = |other: Tracer, expected| assert_eq!(this.life_of(&other), expected, "{other:?}");
    check(Tracer { boot: 1, ..this }, Life::Gone);
    check(
        Tracer {
            namespace: 1,
            ..this
        },
        Life::Hidden,
    );
    check(Tracer { random: 1, ..this }, Life::Gone);
    check(
        Tracer {
            pid: u64::MAX,
            ..this
        },
        Life::Gone,
    );
    check(
        Tracer {
            pid: (1 << 22) + 1,
            ..this
        },
        Life::Gone,
    );
    check(Tracer { pid: 1, ..this }, Life::Hidden);
    let first = Process::new(1).and_then(|process| process.stat());
    let start = first.unwrap().starttime;
    check(
        Tracer {
            pid: 1,
            start,
            ..this
        },
        Life::Lives,
    );
}

/// A stopped tracer renews nothing. If it can be seen, it keeps its table.
#[test]
fn a_tracer_that_can_be_seen_keeps_its_table_however_long_it_stands_still() {
    let table = Table::new();
    let this = Tracer::this().unwrap();
    let first = Process::new(1).and_then(|process| process.stat());
    let seen = Tracer {
        pid: 1,
        start: first.unwrap().starttime,
        ..this
    };
    let its = TableClaim::new(&table.memory, table.address(), seen);
    its.write_record(&seen.bytes()).unwrap();
    let refusal = table.take_as(this).unwrap_err();
    assert_eq!(refusal.reason, Reason::Busy);
    assert!(
        refusal.message.contains(&seen.describe()),
        "{}",
        refusal.message
    );
    let left = Seen::read(&table.memory, table.address()).unwrap();
    assert_eq!(left.tracer, Some(seen));
}

#[test]
fn one_of_many_gets_the_table() {
    let table = Table::new();
    let together = Barrier::new(8);
    let claims: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (1..=8)
            .map(|number| {
                let (table, together) = (&table, &together);
                scope.spawn(move || {
                    together.wait();
                    let mut claim = table.take_as(elsewhere(number)).ok()?;
                    table.set_live(1);
                    // Until the others have given up, which takes them longer than a renewal.
                    let until = Instant::now() + 3 * RENEW_EVERY;
                    let mut is_held = true;
                    while Instant::now() < until {
                        is_held &= claim.tend() == ClaimState::Held;
                        thread::sleep(WATCH_EVERY);
                    }
                    is_held.then_some(claim)
                })
            })
            .collect();
        threads
            .into_iter()
            .filter_map(|one| one.join().unwrap())
            .collect()
    });
    assert_eq!(claims.len(), 1);
}

#[test]
fn a_table_that_is_taken_over_or_closed_is_lost() {
    let table = Table::new();
    let this = Tracer::this().unwrap();
    let mut first = table.take_as(this).unwrap();
    table.set_live(1);
    assert_eq!(first.tend(), ClaimState::Held);
    // A slow tracer has removed its record again.
    first.withdraw();
    assert_eq!(first.tend(), ClaimState::Held);
    assert_eq!(
        Seen::read(&table.memory, table.address()).unwrap().tracer,
        Some(this)
    );
    // The record of an ended session in this process is free at once.
    let second = table
        .take_as(Tracer {
            random: !this.random,
            ..this
        })
        .unwrap();
    let ClaimState::Lost(why) = first.tend() else {
        panic!("it is not lost")
    };
    assert!(why.contains(&this.describe()), "{why}");
    drop(first);
    let seen = Seen::read(&table.memory, table.address()).unwrap();
    assert_eq!(seen.tracer, Some(second.tracer));
    table.set_live(0);
    drop(second);
    let mut third = table.take_as(this).unwrap();
    // Its record is there, so trampolines have closed recording, or the program has.
    assert_eq!(third.tend(), ClaimState::Closed(Ticks(0)));
    // Another tracer had the table, and has detached.
    third.withdraw();
    assert!(matches!(third.tend(), ClaimState::Lost(_)));
}
