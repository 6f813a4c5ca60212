//! Traces whose events stay in their file.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use xray_trace::analysis::{Filter, Siblings, Side, StackRoots, StackTrie, account};
use xray_trace::container::{Completeness, DecodeError};
use xray_trace::model::CallKind::{Enter, Exit};
use xray_trace::model::{Event, Trace};
use xray_trace::sink::{Sink as _, Xtrace};

use crate::common::{call, file, trace};

fn busy(calls: u64) -> Vec<Event> {
    (0..calls)
        .flat_map(|at| {
            let function = u32::try_from(at % 3).unwrap();
            [
                call(at * 20, function, Enter),
                call(at * 20 + 7, function, Exit),
            ]
        })
        .collect()
}

fn stored(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file
}

#[test]
fn a_stored_trace_is_the_same_trace() {
    let events = busy(5000);
    let bytes = file(&["a", "b", "c"], &[&events, &events]);
    let read = Trace::read(bytes.as_slice()).unwrap();
    let opened = Trace::open(stored(&bytes)).unwrap();
    assert_eq!(opened.coverage().completeness, Completeness::Complete);
    assert_eq!(opened.blocks(), read.blocks());
    assert_eq!(opened.totals(), read.totals());
    let all = Filter::default();
    assert_eq!(
        account(&opened, &all, Default::default()),
        account(&read, &all, Default::default())
    );
    assert!(opened.write(Vec::new(), &[]).unwrap() == read.write(Vec::new(), &[]).unwrap());
}

/// A stored trace that is cut anywhere equals the trace that is read from front to back.
#[test]
fn a_stored_trace_may_be_cut_at_any_byte() {
    let bytes = file(&["a", "b", "c"], &[&busy(40)]);
    for cut in 0..bytes.len() {
        let read = Trace::read(&bytes[..cut]);
        let opened = Trace::open(stored(&bytes[..cut]));
        match (read, opened) {
            (Ok(read), Ok(opened)) => {
                assert_eq!(opened.blocks(), read.blocks(), "{cut}");
                assert_eq!(
                    opened.coverage().completeness,
                    read.coverage().completeness,
                    "{cut}"
                );
            }
            (Err(read), Err(opened)) => assert_eq!(read.to_string(), opened.to_string(), "{cut}"),
            (read, opened) => panic!("{cut}: {read:?} but {opened:?}"),
        }
    }
}

#[test]
fn damage_in_a_block_is_found_when_its_events_are_read() {
    let bytes = file(&["a", "b", "c"], &[&busy(5000)]);
    let file = stored(&bytes);
    let trace = Trace::open(file.try_clone().unwrap()).unwrap();
    assert!(trace.blocks()[3].events().all(|event| event.is_ok()));
    let middle = bytes.len() as u64 / 2;
    file.write_all_at(&[0xee; 8], middle).unwrap();
    let damaged: Vec<_> = trace
        .blocks()
        .iter()
        .filter_map(|block| block.events().find_map(Result::err))
        .collect();
    assert!(
        matches!(damaged[..], [DecodeError::Checksum { .. }]),
        "{damaged:?}"
    );
    assert_eq!(
        account(&trace, &Filter::default(), Default::default())
            .notes
            .damaged_blocks,
        1
    );
    // A rewritten trace does not have the block.
    let mut copy = Vec::new();
    let report = Xtrace.write(&trace, &mut copy).unwrap();
    let reported = "damaged blocks, of which some events cannot be decoded".to_owned();
    assert_eq!(report.left_out, [(reported, 1)]);
    let copy = Trace::read(copy.as_slice()).unwrap();
    assert_eq!(copy.blocks().len(), trace.blocks().len() - 1);
    // A file that was truncated causes no more than that.
    file.set_len(middle).unwrap();
    let unreadable = trace
        .blocks()
        .iter()
        .filter(|block| matches!(block.events().next(), Some(Err(DecodeError::Unreadable(_)))));
    assert!(unreadable.count() > 1);
}

/// Threads are divided among processors. The order of stacks does not depend on their number.
#[test]
fn stacks_come_in_order_of_threads() {
    let busy = |(function, calls): (u32, u64)| {
        let calls = (0..calls).flat_map(|at| {
            [
                call(at * 20, function, Enter),
                call(at * 20 + 7, function, Exit),
            ]
        });
        calls.collect::<Vec<_>>()
    };
    // Long enough to be divided; the longest is neither first nor last.
    let lives = [
        (4, 40_000),
        (3, 90_000),
        (2, 60_000),
        (1, 150_000),
        (0, 90_000),
    ]
    .map(busy);
    let lives = lives.each_ref().map(Vec::as_slice);
    let trace = trace(&["a", "b", "c", "d", "e"], &lives);
    let mut stacks = StackTrie::default();
    let (all, roots) = (Filter::default(), StackRoots::PerThread);
    let _ = stacks.add(&trace, &all, Siblings::Closed, roots, Side::Before);
    let names: Vec<_> = stacks
        .nodes()
        .iter()
        .map(|node| stacks.name(node))
        .collect();
    let expected = ["e", "d", "c", "b", "a"];
    let found = names.chunks(2).map(|pair| pair[1]);
    assert_eq!(found.collect::<Vec<_>>(), expected, "{names:?}");
}
