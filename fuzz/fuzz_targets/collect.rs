//! The collector over the memory of a hostile target: words of rings, control lines, counts, filter
//! pages and slots that change between its rounds, in every mode, and from one session to the next.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| xrayd::fuzzing::drain_rings(input));
