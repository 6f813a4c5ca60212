//! Every interleaving, up to a bound, of a thread in the trampoline, the signal handlers that
//! interrupt it, and the consumer: no event is lost uncounted, none comes twice, order and times
//! are right, and no access leaves the ring. `loom.rs` explores memory ordering.
// Safe code, and too much of it for miri.
#![cfg(not(any(loom, miri)))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod choices;
mod world;

use world::{Bounds, Carried, Explored, Start, explore};

/// Words that the hot path writes into a chunk, and the event in its guard.
const CALLS: u64 = 512 - 64 + 1;
/// Steps that no schedule makes.
const NEVER: u64 = 1 << 18;
/// Calls that fill a ring.
const RING: u64 = 16 * CALLS;

fn starts() -> Vec<Start> {
    let mut starts = vec![
        Start {
            calls: 0,
            undrained: 0,
            ..Start::PLAIN
        },
        // The next chunk is the ring's first.
        Start {
            calls: RING,
            undrained: 3,
            ..Start::PLAIN
        },
        Start {
            calls: RING - 1,
            undrained: 1,
            to_new_view: 12,
            ..Start::PLAIN
        },
        // The ring is full, or nearly.
        Start {
            calls: RING,
            undrained: RING,
            ..Start::PLAIN
        },
        Start {
            calls: RING - 1,
            undrained: RING - 1,
            ..Start::PLAIN
        },
    ];
    for left in 0..7 {
        starts.push(Start {
            calls: CALLS - left,
            undrained: 2,
            ..Start::PLAIN
        });
    }
    for to_new_view in [0, 1, 2, 3, 5, 8, 20] {
        starts.push(Start {
            calls: 20,
            undrained: 1,
            to_new_view,
            ..Start::PLAIN
        });
    }
    // Every other event is on another stack.
    for left in [0, 4, 7, 200] {
        starts.push(Start {
            calls: CALLS - left,
            undrained: 1,
            far: true,
            first: Carried::Nothing,
            ..Start::PLAIN
        });
    }
    // A payload of five words: where it fits, where it does not, and where it comes too late for
    // its view.
    for left in [1, 4, 5, 6, 200] {
        starts.push(Start {
            calls: CALLS - left,
            undrained: 2,
            to_new_view: if left == 200 { 4 } else { NEVER },
            first: Carried::Payload,
            ..Start::PLAIN
        });
    }
    // Handlers with a payload, the inner or the outer of two.
    starts.push(Start {
        calls: CALLS - 4,
        undrained: 2,
        first: Carried::Nothing,
        ..Start::PLAIN
    });
    starts
}

/// A ring that keeps the newest events. Its next event begins the last chunk, so that the thread
/// takes back the oldest one.
fn before_the_last_chunk() -> [Start; 1] {
    let calls = RING - CALLS;
    [Start {
        calls,
        undrained: calls,
        newest: true,
        ..Start::PLAIN
    }]
}

/// Runs every schedule within `bounds` for each of `starts`, and checks that there are many.
fn check(starts: &[Start], bounds: Bounds) -> Explored {
    let mut all = Explored::default();
    for &start in starts {
        let of_start = explore(start, bounds);
        all.schedules += of_start.schedules;
        all.waited += of_start.waited;
        all.freed += of_start.freed;
    }
    let least = if bounds.absences > 0 { 100 } else { 1000 };
    assert!(all.schedules > least, "it explored: {all:?}");
    all
}

#[test]
fn a_handler_and_a_handler_of_it() {
    check(
        &starts(),
        Bounds {
            handlers: 2,
            ..Bounds::NONE
        },
    );
}

#[test]
fn a_handler_and_the_consumer() {
    check(
        &starts(),
        Bounds {
            handlers: 1,
            switches: 1,
            ..Bounds::NONE
        },
    );
}

#[test]
fn the_consumer_interrupted_by_the_thread() {
    // Each access of the consumer is a choice, so starts with a whole ring to read are left out.
    let starts: Vec<Start> = starts()
        .into_iter()
        .filter(|start| start.undrained < 10)
        .collect();
    check(
        &starts,
        Bounds {
            switches: 2,
            ..Bounds::NONE
        },
    );
}

#[test]
fn a_handler_that_jumps_away() {
    check(
        &starts(),
        Bounds {
            handlers: 1,
            jumps: 1,
            ..Bounds::NONE
        },
    );
}

/// Handlers in handlers, and a handler beside the consumer.
fn check_with_all(starts: &[Start]) {
    for (handlers, switches) in [(2, 0), (1, 1)] {
        let bounds = Bounds {
            handlers,
            switches,
            ..Bounds::NONE
        };
        check(starts, bounds);
    }
}

/// The first slow path closes recording, whatever handlers and the consumer do meanwhile.
#[test]
fn a_deadline_that_is_over() {
    let starts = starts().into_iter().chain(before_the_last_chunk());
    let starts = starts.map(|start| Start {
        deadline_over: true,
        ..start
    });
    check_with_all(&starts.collect::<Vec<_>>());
}

/// The thread takes its slot back, whatever handlers and the consumer do meanwhile.
#[test]
fn a_paused_slot_is_taken_back() {
    // A thread has its id in its control line from its first event on.
    let starts = starts().into_iter().filter(|start| start.calls > 0);
    let starts = starts.map(|start| Start {
        paused: true,
        ..start
    });
    check_with_all(&starts.collect::<Vec<_>>());
}

#[test]
fn handlers_while_the_oldest_chunk_is_taken_back() {
    check(
        &before_the_last_chunk(),
        Bounds {
            handlers: 2,
            ..Bounds::NONE
        },
    );
}

#[test]
fn a_handler_and_a_copy() {
    check(
        &before_the_last_chunk(),
        Bounds {
            handlers: 1,
            switches: 1,
            ..Bounds::NONE
        },
    );
}

#[test]
fn a_copy_interrupted_by_the_thread() {
    check(
        &before_the_last_chunk(),
        Bounds {
            switches: 2,
            ..Bounds::NONE
        },
    );
}

/// A context that comes back to the slow path after others have gone on beside it: in the chunk
/// after its own, in a later one, and after they have come around the ring.
#[test]
fn a_handler_that_comes_back_after_the_ring_was_freed() {
    let rows = [
        (0, Carried::Argument, NEVER),
        (20, Carried::Nothing, 0),
        (20, Carried::Payload, 2),
        (CALLS - 4, Carried::Argument, 2),
        (CALLS - 6, Carried::Payload, NEVER),
        (RING, Carried::Argument, NEVER),
    ];
    let starts = |while_away| {
        rows.map(|(calls, first, to_new_view)| Start {
            calls,
            undrained: 0,
            to_new_view,
            first,
            while_away,
            ..Start::PLAIN
        })
    };
    let away = |handlers| Bounds {
        handlers,
        absences: 1,
        ..Bounds::NONE
    };
    check(&starts(0), away(1));
    check(&starts(3), away(1));
    check(&starts(CALLS), away(0));
    check(&starts(RING / 2), away(0));
}

/// A full ring, whose thread waits for room for so many steps.
#[test]
fn waits_for_room() {
    let starts = [RING - 1, RING].map(|calls| Start {
        calls,
        undrained: calls,
        wait: 30,
        ..Start::PLAIN
    });
    let switches = Bounds {
        switches: 1,
        handlers: 1,
        ..Bounds::NONE
    };
    assert!(check(&starts, switches).waited > 100);
    let handlers = Bounds {
        handlers: 2,
        ..Bounds::NONE
    };
    let without_room = check(&starts, handlers);
    assert_eq!(without_room.waited, 0, "no chunk was given back");
    let jumps = Bounds {
        handlers: 1,
        jumps: 1,
        ..Bounds::NONE
    };
    check(&starts, jumps);
    // It waits while another context closes recording.
    let closed = starts.map(|start| Start {
        deadline_over: true,
        ..start
    });
    check_with_all(&closed);
}

/// The collector frees memory while the thread goes on, and while the thread comes to the chunks
/// behind those that stay.
#[test]
fn unused_memory_is_freed() {
    let calls = [
        5 * CALLS,
        RING - 1,
        RING,
        RING + CALLS - 2,
        RING + 8 * CALLS,
    ];
    let starts = calls.map(|calls| Start {
        calls,
        undrained: 2,
        frees: true,
        ..Start::PLAIN
    });
    for (handlers, switches) in [(0, 2), (1, 1)] {
        let bounds = Bounds {
            handlers,
            switches,
            ..Bounds::NONE
        };
        let explored = check(&starts, bounds);
        assert!(explored.freed > 100, "{explored:?}");
    }
}
