//! The scenarios of llvm-xray's own tests (`llvm/test/tools/llvm-xray` of LLVM 19 and 20). The same
//! inputs go through `llvm-xray` and through us. A test has the name of the scenario that it
//! restates. docs/upstream-scenarios.md lists them all.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod account;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "traces of our own format are for other tests")]
mod common;
mod convert;
mod graph;
mod graph_diff;
mod options;
mod runtime;
mod stack;
mod support;
