//! Records of sessions in the daemon's state folder, behind their checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xrayd::state::read_record;

fuzz_target!(|input: &[u8]| read_record(input));
