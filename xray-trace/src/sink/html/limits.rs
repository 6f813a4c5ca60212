//! The limits on the size of a page.
//!
//! | | at most | bytes each, at worst | together |
//! |---|---|---|---|
//! | names | | | 3 MB |
//! | functions | 5,000 | 130 | 0.7 MB |
//! | bars of their pictures | 300,000 | 5 | 1.5 MB |
//! | stacks | 40,000, and the sums of those left out | 30 | 2.4 MB |
//! | calls | 180,000, and 500,000 where all else leaves room | 18 | 3.2 MB |
//! | slices | 60,000, and those of 256 threads with 128 lanes | 20 | 1.9 MB |
//! | the longest calls | 4 for each function | 22 | 0.4 MB |
//! | gaps | 8,000, and 2 for each thread | 30 | 0.3 MB |
//!
//! If the trace has run times:
//!
//! | | at most | bytes each, at worst | together |
//! |---|---|---|---|
//! | calls | 65,000, and 250,000 where all else leaves room | 32 | 2.1 MB |
//! | the longest calls | 4 for each function | 36 | 0.7 MB |
//! | times without a processor | 40,000 | 20 | 0.8 MB |
//!
//! The sum is less than 14 MB. The calls of one lane share the time of the trace, so only a small
//! number of them can be far apart. So a call takes less than its three to five numbers could. The
//! same holds for the times of a thread without a processor.

use crate::analysis::TimelineLimits;
use crate::model::Trace;

/// Functions in the table.
pub(super) const FUNCTIONS: usize = 5_000;
/// Bars of all functions together.
pub(super) const BARS: usize = 300_000;
/// Stacks in the flame graph.
pub(super) const STACKS: usize = 40_000;
/// Bytes of names in the document.
pub(super) const NAMES: usize = 3_000_000;
/// Bytes of a name.
pub(super) const NAME: usize = 1_000;
/// Bytes of a path or of a heading.
pub(super) const PATH: usize = 400;
/// Bytes of a thread's name.
pub(super) const THREAD_NAME: usize = 64;
/// Notes, and bytes of one note.
pub(super) const NOTES: usize = 500;
pub(super) const NOTE: usize = 600;

/// Bytes of a document before compression, approximately.
const DOCUMENT: usize = 13_500_000;
/// Bytes of the other parts of a document, without names, functions, stacks and calls, at worst.
const REST: usize = 2_700_000;
/// Bytes of a call, at worst.
const CALL: usize = 18;
/// Calls of a timeline. A browser cannot draw more in the time of a frame.
const CALLS: usize = 500_000;

/// More bytes of the other parts of a document, if the trace has run times.
const MORE_REST: usize = 1_100_000;
/// Bytes of a call that has run times, at worst.
const CALL_WITH_RUNS: usize = 32;
/// Calls of a timeline with run times. With this number, names, functions and stacks have as much
/// room as without run times before fewer calls fit.
const CALLS_WITH_RUNS: usize = 250_000;
/// Times without a processor.
const OFF_CPU: usize = 40_000;

/// The limits for a page's timeline, after `taken` bytes of the document are used.
pub(super) fn timeline(trace: &Trace, taken: usize) -> TimelineLimits {
    let (rest, call, most) = if trace.has_runs() {
        (REST + MORE_REST, CALL_WITH_RUNS, CALLS_WITH_RUNS)
    } else {
        (REST, CALL, CALLS)
    };
    TimelineLimits {
        threads: 256,
        calls: (DOCUMENT.saturating_sub(rest.saturating_add(taken)) / call).min(most),
        slices: 60_000,
        gaps: 4_000,
        off_cpu: OFF_CPU,
        longest: 4,
    }
}

/// The limits for a part of the timeline, which is drawn in more detail.
pub(super) const WINDOW: TimelineLimits = TimelineLimits {
    threads: 256,
    calls: 100_000,
    slices: 60_000,
    gaps: 4_000,
    off_cpu: OFF_CPU,
    longest: 0,
};
