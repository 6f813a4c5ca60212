//! When the allocator gives memory back to the kernel.

#[cfg(target_env = "gnu")]
use nix::libc;

/// Allocations from this size on, in bytes, get a mapping of their own. They are the tables of
/// large programs. Buffers of the drains are smaller, and stay in the heap.
#[cfg(target_env = "gnu")]
const OWN_MAPPING: libc::c_int = 4 << 20;
/// A heap returns memory when so much is free at its end, in bytes. This is twice the bound above,
/// as glibc itself keeps them.
#[cfg(target_env = "gnu")]
const FREE_AT_THE_END: libc::c_int = 2 * OWN_MAPPING;

/// Makes large allocations return to the kernel when they are freed. Only glibc needs it.
///
/// By itself glibc raises its bound up to 32 MiB, with each large allocation that is freed. Later
/// tables lie in the heap then, and leave holes there.
pub(crate) fn return_large_allocations() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_MMAP_THRESHOLD, OWN_MAPPING),
        (libc::M_TRIM_THRESHOLD, FREE_AT_THE_END),
    ] {
        // SAFETY: mallopt(3) changes a number in the allocator. Earlier allocations stay as they
        // are.
        let accepted = unsafe { libc::mallopt(parameter, value) };
        if accepted == 0 {
            tracing::warn!(parameter, "the allocator refuses a setting");
        }
    }
}
