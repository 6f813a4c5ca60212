//! LLVM's log formats at the level of records: compared with LLVM's own tests, and with `llvm-xray`
//! on the same bytes; and damaged logs.
//!
//! Tests with upstream's names (`fdr_producer_consumer::…`, `fdr_block_verifier::…`) check the same
//! facts (llvm/unittests/XRay, compiler-rt/lib/xray/tests/unit and llvm/test/tools/llvm-xray of
//! LLVM 19). docs/upstream-scenarios.md lists them.

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
