//! Symbols of C++ and Rust: their names, within a budget, and the parts of a name.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(symbol) = std::str::from_utf8(input) {
        xray_trace::instr_map::read_symbol(symbol);
    }
});
