//! Memory that looks as if an earlier tracer had left it in a target: the region with its handshake
//! and trampolines, and the record that names the tracer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| xrayd::fuzzing::adopt(input));
