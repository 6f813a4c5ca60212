//! Symbols of C++ and Rust: the demangler keeps to its budget, and splits names into parts.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(symbol) = std::str::from_utf8(input) {
        xray_trace::instr_map::read_symbol(symbol);
    }
});
