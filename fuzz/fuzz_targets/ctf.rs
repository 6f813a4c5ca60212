//! Folders in the Common Trace Format. The input is the length of the metadata in two bytes, the
//! metadata, and a file of packets, which is read twice at the same time.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use xray_trace::analysis::Steps;
use xray_trace::llvm::Mode;
use xray_trace::source::{Options, open_folder};

fuzz_target!(|input: &[u8]| {
    let Some((length, rest)) = input.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (metadata, stream) = rest.split_at(length);
    let dir = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [("metadata", metadata), ("a", stream), ("b", stream)] {
        fs::write(dir.path().join(name), bytes).expect("room for the input");
    }
    for mode in [Mode::Strict, Mode::Salvage] {
        let options = Options {
            mode,
            ..Options::default()
        };
        match open_folder(dir.path(), &options) {
            Ok(opened) => {
                for mut steps in Steps::of_threads(&opened.trace) {
                    while steps.next().is_some() {}
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
