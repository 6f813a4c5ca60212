//! The places where a program keeps the names of its typed events' types. This file finds them in
//! the object file; the names themselves are read from the running process.

use super::FileAddr;
use super::bytes::RawName;

/// The table of LLVM's runtime, and its counter of registered types:
/// <https://github.com/llvm/llvm-project/blob/llvmorg-19.1.7/compiler-rt/lib/xray/xray_interface.cpp>
const LLVM_TABLE: &[u8] = b"_ZN6__xray24TypeDescriptorAddressMapE";
const LLVM_COUNTER: &[u8] = b"_ZN6__xray26TypeEventDescriptorCounterE";

/// The section with the table of a program without that runtime:
/// `integration/without-runtime/xray_events.c`.
pub(super) const SECTION: &str = "xray_event_types";

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
