//! What the daemon reads of a target's memory and of the maps of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xrayd::target::fuzzing;

fuzz_target!(|input: &[u8]| {
    fuzzing::read_maps(input);
    fuzzing::read_type_names(input);
});
