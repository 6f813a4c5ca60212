//! Where a program keeps the names of its typed events' types: found here in the file, read by whoever can read the process.

use super::FileAddr;
use super::bytes::RawName;

/// The table of LLVM's runtime, and how many types it has registered:
/// <https://github.com/llvm/llvm-project/blob/llvmorg-19.1.7/compiler-rt/lib/xray/xray_interface.cpp>
const LLVM_TABLE: &[u8] = b"_ZN6__xray24TypeDescriptorAddressMapE";
const LLVM_COUNTER: &[u8] = b"_ZN6__xray26TypeEventDescriptorCounterE";

/// The section that programs without that runtime keep theirs in: `integration/without-runtime/xray_events.c`.
pub(super) const SECTION: &str = "xray_event_types";

/// Where a file says that names of event types will be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTypeTables {
    /// That of LLVM's runtime, where the file is not stripped: the table, and the counter of types.
    pub llvm: Option<(FileAddr, FileAddr)>,
    /// That of a program without the runtime: where it begins, and how many bytes it has.
    pub plain: Option<(FileAddr, u64)>,
}

/// The parts of LLVM's as they are met among a file's symbols.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LlvmTable {
    table: Option<FileAddr>,
    counter: Option<FileAddr>,
}

// === impl LlvmTable ===

impl LlvmTable {
    /// Takes a symbol in that stands at `address`.
    pub(super) fn meet(&mut self, name: RawName<'_>, address: FileAddr) {
        if name.is(LLVM_TABLE) {
            self.table = Some(address);
        } else if name.is(LLVM_COUNTER) {
            self.counter = Some(address);
        }
    }

    /// Both, if both were there.
    pub(super) fn found(self) -> Option<(FileAddr, FileAddr)> {
        self.table.zip(self.counter)
    }
}
