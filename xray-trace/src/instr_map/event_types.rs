//! The places where a program keeps the names of its typed events' types, and its descriptions of
//! events. This file finds them in the object file; the names themselves are read from the running
//! process.

use std::collections::HashSet;

use super::FileAddr;
use super::bytes::{ObjectBytes, RawName};
use super::file::{ObjectFile, address_to_offset};

/// The table of LLVM's runtime, and its counter of registered types:
/// <https://github.com/llvm/llvm-project/blob/llvmorg-19.1.7/compiler-rt/lib/xray/xray_interface.cpp>
const LLVM_TABLE: &[u8] = b"_ZN6__xray24TypeDescriptorAddressMapE";
const LLVM_COUNTER: &[u8] = b"_ZN6__xray26TypeEventDescriptorCounterE";

/// The section with the table of a program without that runtime:
/// `integration/without-runtime/xray_events.c`.
pub(super) const SECTION: &str = "xray_event_types";

/// The section with the descriptions of events, zero-terminated texts, in any program:
/// `integration/without-runtime/xray_events.h`.
const FORMATS: &str = "xray_event_formats";
/// The most bytes of that section that are read. A text can be there once for each source file.
const MOST_SECTION_BYTES: u64 = 1 << 20;
/// The most different descriptions, and their most bytes together.
const MOST_FORMATS: usize = 256;
const MOST_FORMAT_BYTES: usize = 16 << 10;

/// The tables that will hold the names of event types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTypeTables {
    /// The table of LLVM's runtime and its counter of types, unless the file is stripped.
    pub llvm: Option<(FileAddr, FileAddr)>,
    /// The table of a program without the runtime: its address, and its size in bytes.
    pub plain: Option<(FileAddr, u64)>,
}

/// The parts of LLVM's table that were found among the symbols of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LlvmTable {
    table: Option<FileAddr>,
    counter: Option<FileAddr>,
}

/// The descriptions of events in a file, as texts. Those that are not UTF-8 are left out.
pub(super) fn formats(file: &dyn ObjectFile, bytes: ObjectBytes<'_>) -> Vec<String> {
    let segments = &file.identity().segments;
    let section = file.section_range(FORMATS).and_then(|(address, size)| {
        let from = usize::try_from(address_to_offset(segments, address)?).ok()?;
        let size = usize::try_from(size.min(MOST_SECTION_BYTES)).ok()?;
        bytes.all().get(from..from.checked_add(size)?)
    });
    let section = section.unwrap_or_default();
    // A text that the limit cuts has no zero byte behind it.
    let end = section.iter().rposition(|&byte| byte == 0).unwrap_or(0);
    let texts = section.get(..end).unwrap_or_default();
    let texts = texts.split(|&byte| byte == 0);
    let texts = texts.filter(|text| !text.is_empty());
    let (mut known, mut left) = (HashSet::new(), MOST_FORMAT_BYTES);
    let new = texts.filter(|text| known.insert(*text));
    let fitting = new.take_while(|text| match left.checked_sub(text.len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    let valid = fitting.filter_map(|text| std::str::from_utf8(text).ok());
    valid.take(MOST_FORMATS).map(str::to_owned).collect()
}

// === impl LlvmTable ===

impl LlvmTable {
    /// Records the address of the symbol, if it is one of the two.
    pub(super) fn meet(&mut self, name: RawName<'_>, address: FileAddr) {
        if name.is(LLVM_TABLE) {
            self.table = Some(address);
        } else if name.is(LLVM_COUNTER) {
            self.counter = Some(address);
        }
    }

    /// Both addresses, if both symbols were found.
    pub(super) fn found(self) -> Option<(FileAddr, FileAddr)> {
        self.table.zip(self.counter)
    }
}
