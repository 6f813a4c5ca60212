//! The maps of a target, and names in its memory, as the daemon reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xrayd::target::fuzzing;

fuzz_target!(|input: &[u8]| {
    fuzzing::read_maps(input);
    fuzzing::read_type_names(input);
});
