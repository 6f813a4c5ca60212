//! The list head of a thread's robust futexes. It lies inside the thread's control block, and the
//! kernel returns its address without a stop of the thread.

use std::io;

use nix::libc;

use crate::pid::{TargetAddr, Tid};

/// The list head of thread `tid`; `None` if it registered none.
pub(crate) fn robust_list(tid: Tid) -> io::Result<Option<TargetAddr>> {
    let mut head: u64 = 0;
    let mut length: libc::size_t = 0;
    let (head_at, length_at) = (&raw mut head, &raw mut length);
    // SAFETY: get_robust_list(2) writes one pointer and one size_t. Both pointers are to live
    // locals of that size.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid.as_raw(), head_at, length_at) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((head != 0).then_some(TargetAddr(head)))
}
