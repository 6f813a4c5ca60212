//! LLVM's log formats at the level of records: against LLVM's own tests, against `llvm-xray` on the same bytes, and
//! against damage.
//!
//! Tests named after upstream's (`fdr_producer_consumer::…`, `fdr_block_verifier::…`) state what those state
//! (llvm/unittests/XRay, compiler-rt/lib/xray/tests/unit and llvm/test/tools/llvm-xray of LLVM 19); docs/upstream-scenarios.md lists them.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod basic;
mod common;
mod convert;
mod damage;
mod fdr_block_indexer;
mod fdr_block_verifier;
mod fdr_events;
mod fdr_producer_consumer;
mod fdr_record_printer;
mod fdr_records;
mod fdr_trace_writer;
mod formats;
mod in_place;
mod llvm_xray;
mod logged;
mod profile;
mod profile_collector;
mod profile_in_memory;
mod round_trips;
mod runtime;
mod samples;
mod yaml;
