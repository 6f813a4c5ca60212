//! Sleds that are switched on and off in text of which the target changes bytes: bytes of sleds and no others are written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| xrayd::fuzzing::switch_sleds(input));
