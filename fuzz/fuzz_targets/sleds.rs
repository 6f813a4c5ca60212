//! Sleds are switched on and off in text whose bytes the target changes. The patcher writes bytes
//! of sleds and no others.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| xrayd::fuzzing::switch_sleds(input));
