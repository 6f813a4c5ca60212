//! A check whether the kernel names anonymous mappings.

use std::sync::LazyLock;

use nix::libc;

/// include/uapi/linux/prctl.h
pub(crate) const PR_SET_VMA: i32 = 0x5356_4d41;

static NAMES: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: the call names the 0 bytes from address 0 on, which is nothing. Its result only shows
    // whether the kernel has the request.
    unsafe { libc::prctl(PR_SET_VMA, 0, 0, 0, 0) == 0 }
});

/// True if this kernel names anonymous mappings (CONFIG_ANON_VMA_NAME, Linux 5.17 and newer).
pub(crate) fn kernel_names_mappings() -> bool {
    *NAMES
}
