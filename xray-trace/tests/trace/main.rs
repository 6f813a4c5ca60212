//! The trace model, its file format, its analyses and its sinks, through the public interface.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what a test builds, it knows; a surprise ends the test"
)]

mod analyses;
mod any_trace;
mod blocks;
mod budget;
mod common;
mod documented;
mod files;
mod function_call_trie;
mod golden;
mod graph;
mod imports;
mod kernel_events;
mod merge;
mod one_pass;
mod profile_sums;
mod round_trips;
mod runs;
mod sinks;
mod sources;
mod stored;
mod timeline;
mod user_events;
mod windows;
mod xray_ids;
