//! The smallest program that can map files. It stands at its first instruction until the test names
//! a function to call.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

/// The address of the program, and its three instructions.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;
/// `svc #0`
pub(crate) const SYSTEM_CALL: u64 = BASE + HEADERS;
/// `msr tpidr_el0, x0`
pub(crate) const SET_TLS: u64 = SYSTEM_CALL + 4;
/// `mrs x0, cntvct_el0`
pub(crate) const READ_COUNTER: u64 = SET_TLS + 4;
const TEXTS: u64 = SYSTEM_CALL + 12;

/// An ELF file of one segment, and the addresses of `texts` in its memory, which end with zero.
pub(crate) fn image(texts: &[&OsStr]) -> (Vec<u8>, Vec<u64>) {
    let mut content = Vec::new();
    let mut places = Vec::new();
    for word in [0xd400_0001u32, 0xd51b_d040, 0xd53b_e040] {
        content.extend(word.to_le_bytes());
    }
    for text in texts {
        places.push(SYSTEM_CALL + content.len() as u64);
        content.extend(text.as_bytes());
        content.push(0);
    }
    assert_eq!(places.first(), Some(&TEXTS));
    let bytes = HEADERS + content.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // Executable, AArch64, version 1.
    file.extend([2, 0, 183, 0, 1, 0, 0, 0]);
    for word in [SYSTEM_CALL, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    // Sizes: this header, a program header and one of them; no sections.
    for half in [64u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    // Loaded, readable and executable.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, BASE, BASE, bytes, bytes, 4096] {
        file.extend(word.to_le_bytes());
    }
    file.extend(content);
    (file, places)
}
