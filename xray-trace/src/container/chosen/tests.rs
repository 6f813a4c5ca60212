//! Tests of `chosen`.

use super::*;
use crate::model::ThreadId;

const THREAD: ThreadId = ThreadId(1);

fn call(encoder: &mut BlockEncoder, at: u64, function: i32) {
    let kind = match function > 0 {
        true => CallKind::Enter,
        false => CallKind::Exit,
    };
    encoder.push_call(Ticks(at), FunctionId(function.unsigned_abs()), kind, None);
}

fn from(since: u64) -> RecordedTime {
    RecordedTime {
        since: Ticks(since),
        until: None,
    }
}

fn shown(block: Option<Block>) -> Vec<(u64, String)> {
    let events = block.iter().flat_map(|block| block.events());
    let shown = events.map(|event| {
        let event = event.unwrap();
        let what = match event.body {
            EventBody::Call { function, kind, .. } => match kind {
                CallKind::Enter => format!("+{}", function.0),
                _ => format!("-{}", function.0),
            },
            EventBody::Unwound { calls } => format!("unwound {calls}"),
            EventBody::Lost { events } => format!("lost {events}"),
            other => format!("{other:?}"),
        };
        (event.ticks.0, what)
    });
    shown.collect()
}

/// Functions that are not selected, calls that began before, and earlier events are left out,
/// over several blocks.
#[test]
fn whole_calls_of_what_is_wanted_are_kept_from_a_moment_on() {
    let mut encoder = BlockEncoder::new(THREAD);
    let mut chosen = Chosen::default();
    let wanted = |id: FunctionId| id.0 <= 2;
    for (at, function) in [(5, -2), (10, 1), (11, 9), (20, 2), (21, 9), (22, -9)] {
        call(&mut encoder, at, function);
    }
    encoder.push_lost(Ticks(12), 7);
    let first = encoder.finish().unwrap();
    // A time before the latest event's is replaced by that event's.
    let expected = [(20, "+2".to_owned()), (22, "lost 7".to_owned())];
    assert_eq!(shown(chosen.of(&first, from(15), wanted).block), expected);
    for (at, function) in [(30, -2), (31, -1), (32, 2), (33, 9), (34, 1)] {
        call(&mut encoder, at, function);
    }
    encoder.push_unwound(Ticks(35), 2);
    encoder.push_unmatched_exit(Ticks(36));
    for (at, function) in [(36, -2), (40, -2)] {
        call(&mut encoder, at, function);
    }
    let second = encoder.finish().unwrap();
    // The entries of the first two may be among the lost events.
    let expected = [
        (30, "-2"),
        (31, "-1"),
        (32, "+2"),
        (34, "+1"),
        (35, "unwound 1"),
        (36, "UnmatchedExit"),
        (36, "-2"),
        (40, "-2"),
    ];
    let expected = expected.map(|(at, what)| (at, what.to_owned()));
    assert_eq!(shown(chosen.of(&second, from(15), wanted).block), expected);
}

#[test]
fn a_block_of_which_everything_is_kept_stays_as_it_is() {
    let mut encoder = BlockEncoder::new(THREAD);
    for (at, function) in [(10, 1), (11, 2), (12, -2), (13, -1)] {
        call(&mut encoder, at, function);
    }
    let block = encoder.finish().unwrap();
    let mut chosen = Chosen::default();
    let whole = chosen.of(&block, from(10), |_| true);
    assert_eq!(whole.block, Some(block.clone()));
    assert_eq!(chosen.of(&block, from(10), |_| false), Part::default());
    assert_eq!(chosen.take_excluded(), Excluded::default());
}

/// No event after the end is kept. Events that are left out are counted by kind.
#[test]
fn events_after_the_end_are_excluded_and_counted() {
    let time = RecordedTime {
        since: Ticks(10),
        until: Some(Ticks(20)),
    };
    let mut chosen = Chosen::default();
    let wanted = |id: FunctionId| id.0 <= 2;
    let mut encoder = BlockEncoder::new(THREAD);
    // Before: 1 is open when the recording begins; so is 3, which is not selected.
    for (at, function) in [(8, 1), (9, 3), (10, 2), (11, -2), (12, -3), (13, -1)] {
        call(&mut encoder, at, function);
    }
    // An exit of a call that began before the first block.
    call(&mut encoder, 14, -2);
    for (at, function) in [(20, 2), (21, -2), (22, 1), (23, 3), (24, -3)] {
        call(&mut encoder, at, function);
    }
    encoder.push_lost(Ticks(25), 7);
    let part = chosen.of(&encoder.finish().unwrap(), time, wanted);
    let expected = [(10, "+2"), (11, "-2"), (20, "+2")].map(|(at, what)| (at, what.to_owned()));
    assert_eq!(shown(part.block), expected);
    assert_eq!(part.lost, 0);
    let excluded = Excluded {
        earlier_exits: 2,
        later_events: 2,
        later_lost: 7,
    };
    assert_eq!(chosen.take_excluded(), excluded);
    assert!(!chosen.is_idle());
    call(&mut encoder, 30, -1);
    let part = chosen.of(&encoder.finish().unwrap(), time, wanted);
    assert_eq!(part, Part::default());
    assert_eq!(chosen.take_excluded().later_events, 1);
}

/// A thread reports a loss with its next event, or later.
#[test]
fn a_loss_across_the_end_is_a_loss_of_the_recording() {
    let time = RecordedTime {
        since: Ticks(10),
        until: Some(Ticks(20)),
    };
    let mut chosen = Chosen::default();
    let mut encoder = BlockEncoder::new(THREAD);
    call(&mut encoder, 15, 1);
    encoder.push_lost(Ticks(25), 7);
    encoder.push_lost(Ticks(26), 2);
    let part = chosen.of(&encoder.finish().unwrap(), time, |_| true);
    assert_eq!(shown(part.block), [(15, "+1".to_owned())]);
    assert_eq!(part.lost, 7);
    assert_eq!(chosen.take_excluded().later_lost, 2);
}

/// Events of calls that are too far in to be remembered are kept.
#[test]
fn calls_that_are_too_far_in_are_kept() {
    let mut chosen = Chosen::default();
    let mut encoder = BlockEncoder::new(THREAD);
    let deep = MOST_OPEN as u64 + 5;
    for at in 0..deep {
        call(&mut encoder, 10 + at, 1);
    }
    for at in 0..deep {
        call(&mut encoder, 10 + deep + at, -1);
    }
    let block = encoder.finish().unwrap();
    let part = chosen.of(&block, from(10), |_| true);
    assert_eq!(part.block, Some(block));
    assert!(chosen.is_idle());
    assert_eq!(chosen.take_excluded(), Excluded::default());
}
