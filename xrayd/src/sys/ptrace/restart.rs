//! Sets system calls that a stop interrupts to restart.
//!
//! The kernel restarts most calls by itself. Some return EINTR: at the stop such a thread shows
//! `orig_rax` ≥ 0 and `rax` = -EINTR. With -ERESTARTNOHAND in its place, the kernel restarts the
//! call as well, unless it runs a handler first. Then the program sees the EINTR, which is the
//! program's own (P8). A call that waits with a relative timeout waits in full again.

use nix::libc;

use super::Registers;

const EINTR: i64 = -4;
/// include/linux/errno.h. Only tracers see it, programs do not.
const ERESTARTNOHAND: i64 = -514;

/// Calls that return EINTR when a stop interrupts them, and that lose nothing when they are made
/// again. They wait and have not begun to act. `close` is never among them: the descriptor may be
/// another file's by then.
const RESTARTABLE: &[i64] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    // io_pgetevents, arch/x86/entry/syscalls/syscall_64.tbl
    333,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_futex,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_flock,
    libc::SYS_fcntl,
];

/// The registers with which the thread's interrupted call is restarted. `None` if no call needs it.
pub(super) fn restarting(registers: &Registers) -> Option<Registers> {
    let call = registers.orig_rax.cast_signed();
    let interrupted = registers.rax.cast_signed() == EINTR && RESTARTABLE.contains(&call);
    interrupted.then(|| {
        let mut restarting = *registers;
        restarting.rax = ERESTARTNOHAND.cast_unsigned();
        restarting
    })
}
