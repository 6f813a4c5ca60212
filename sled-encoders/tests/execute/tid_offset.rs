//! The place of a thread's id in its control block, from which trampolines read it.

use std::sync::OnceLock;

use nix::libc;

/// The offset from `fs` at which the thread library keeps the thread's id: the place that holds it
/// in two threads.
pub(crate) fn tid_offset() -> i32 {
    static OFFSET: OnceLock<i32> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        let mine = places_of_tid();
        let other = std::thread::spawn(places_of_tid).join().unwrap();
        let found = mine.into_iter().find(|offset| other.contains(offset));
        found.expect("the thread library keeps the thread's id in its control block")
    })
}

fn places_of_tid() -> Vec<i32> {
    let block: *const i32;
    // SAFETY: the first word of the control block is its own address (x86-64 TLS ABI).
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(nostack, readonly)) };
    let tid: libc::pid_t = nix::unistd::gettid().as_raw();
    (0..512)
        .filter(|&i| {
            // SAFETY: glibc's control block (`struct pthread`) is longer than 2 KiB; it is always
            // mapped.
            let word = unsafe { block.add(i) };
            // SAFETY: as above; volatile, because the thread library may write it.
            unsafe { word.read_volatile() == tid }
        })
        .map(|i| i32::try_from(4 * i).unwrap())
        .collect()
}
