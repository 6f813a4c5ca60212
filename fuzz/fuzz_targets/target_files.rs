//! A file that a target has mapped, as the daemon reads it. The input has the content of the file
//! and its length, holes included. The daemon's memory is bounded by the bytes that exist.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((bytes, &[length, copy])) = input.split_last_chunk() else {
        return;
    };
    let file = tempfile::tempfile().expect("a file");
    write(&file, bytes, 0);
    // The second half again, behind a hole.
    if copy != 0 {
        let half = &bytes[bytes.len() / 2..];
        write(&file, half, 1 << (copy % 40));
    }
    let length = 1 << (length % 42);
    let there = file.metadata().expect("it is open").len();
    file.set_len(length.max(there)).expect("a sparse file");
    xrayd::target::fuzzing::read_file(&file);
});

fn write(file: &File, bytes: &[u8], at: u64) {
    file.write_all_at(bytes, at).expect("room for the input");
}
