//! Names of anonymous mappings.

use std::sync::LazyLock;

use nix::libc;

/// include/uapi/linux/prctl.h
pub(crate) const PR_SET_VMA: i32 = 0x5356_4d41;

static NAMES: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: names the 0 bytes from address 0 on, which is nothing: the call only tells whether the kernel knows it.
    unsafe { libc::prctl(PR_SET_VMA, 0, 0, 0, 0) == 0 }
});

/// Whether this kernel names anonymous mappings (CONFIG_ANON_VMA_NAME, from 5.17).
pub(crate) fn kernel_names_mappings() -> bool {
    *NAMES
}
