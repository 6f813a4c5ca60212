//! Symbols of C++ and Rust: the demangler of C++ keeps to its bound, and names of both languages
//! keep to their budget and split into parts.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// The longest C++ name, in bytes.
const LONGEST: usize = 32 * 1024;

fuzz_target!(|input: &[u8]| {
    let Ok(symbol) = std::str::from_utf8(input) else {
        return;
    };
    let mut spent = 0;
    let name = cxx_demangle::demangle(symbol, LONGEST, &mut spent);
    let length = name.as_ref().map_or(0, String::len);
    assert!(length <= LONGEST && length <= spent);
    // A lower bound may take the name away, and does not change it.
    for longest in [length / 2, length] {
        let again = cxx_demangle::demangle(symbol, longest, &mut 0);
        assert!(again.as_ref().is_none_or(|again| again.len() <= longest));
        assert!(again.is_none() || again == name);
    }
    xray_trace::instr_map::read_symbol(symbol);
});
