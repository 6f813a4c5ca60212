//! The activity of a thread, by `/proc/<pid>/task/<tid>/syscall`. It shows which thread is
//! disturbed least by being borrowed.

use nix::libc;

use super::proc_file;
use crate::pid::{Pid, Tid};

/// Activities, in the order in which threads are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Errand {
    /// The thread waits in a call that is restarted as if it had not been interrupted.
    Waiting,
    /// The thread sleeps in another call.
    Calling,
    /// The thread sleeps in a call that returns as soon as data has come. So no data has come.
    Receiving,
    /// The thread runs, or sleeps outside of a system call.
    Running,
    /// The thread sleeps in a call that may have transferred a part. If it is interrupted, the call
    /// returns that part, and no tracer can prevent it.
    Transferring,
}

const WAITS: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_pause,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_wait4,
    libc::SYS_waitid,
];
const RECEIVES: &[i64] = &[libc::SYS_read, libc::SYS_readv];
/// Receiving calls with flags: number of the call, and index of the flags. With the flag
/// `MSG_WAITALL` they wait until the buffer is full.
const RECEIVES_WITH_FLAGS: [(i64, usize); 2] = [(libc::SYS_recvfrom, 3), (libc::SYS_recvmsg, 2)];
const TRANSFERS: &[i64] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_splice,
    libc::SYS_vmsplice,
    libc::SYS_tee,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_getrandom,
    libc::SYS_io_uring_enter,
];

// === impl Errand ===

impl Errand {
    /// The activity of one thread.
    pub(super) fn of(pid: Pid, tid: Tid) -> Self {
        match proc_file::read(format!("/proc/{pid}/task/{tid}/syscall")) {
            Ok(line) => Self::parse(&line),
            Err(_) => Self::Calling,
        }
    }

    /// Parses the line: the number in decimal, and six arguments in hexadecimal. Outside of a call
    /// it is "running", or begins with -1.
    fn parse(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let mut words = line.split_ascii_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<i64>().ok()) else {
            return Self::Running;
        };
        let waits_for_all = |place: usize| {
            let flags = words.nth(place).and_then(|word| word.strip_prefix("0x"));
            let flags = flags.and_then(|flags| u64::from_str_radix(flags, 16).ok());
            let wanted = u64::from(libc::MSG_WAITALL.cast_unsigned());
            flags.is_none_or(|flags| flags & wanted != 0)
        };
        let flags = RECEIVES_WITH_FLAGS
            .iter()
            .find(|(call, _)| *call == number)
            .map(|&(_, place)| place);
        match flags.map(waits_for_all) {
            Some(true) => Self::Transferring,
            Some(false) => Self::Receiving,
            None if number < 0 => Self::Running,
            None if WAITS.contains(&number) => Self::Waiting,
            None if RECEIVES.contains(&number) => Self::Receiving,
            None if TRANSFERS.contains(&number) => Self::Transferring,
            None => Self::Calling,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_is_in_is_read_from_its_call() {
        let arguments = "0x3 0x7f0000000000 0x800000 0x100 0x0 0x0 0x7ffc00000000 0x7f1200000000";
        let plain = "0x3 0x7f0000000000 0x0 0x0 0x0 0x0 0x7ffc00000000 0x7f1200000000";
        let rows = [
            ("running".to_owned(), Errand::Running),
            (
                "-1 0x7ffc00000000 0x7f1200000000".to_owned(),
                Errand::Running,
            ),
            (format!("202 {plain}"), Errand::Waiting),
            (format!("232 {plain}"), Errand::Waiting),
            (format!("230 {plain}"), Errand::Waiting),
            (format!("0 {plain}"), Errand::Receiving),
            (format!("45 {plain}"), Errand::Receiving),
            (format!("47 {plain}"), Errand::Receiving),
            // MSG_WAITALL
            (format!("45 {arguments}"), Errand::Transferring),
            (
                "47 0x3 0x7f0000000000 0x100 0x0".to_owned(),
                Errand::Transferring,
            ),
            ("45".to_owned(), Errand::Transferring),
            (format!("44 {arguments}"), Errand::Transferring),
            (format!("1 {arguments}"), Errand::Transferring),
            (format!("275 {arguments}"), Errand::Transferring),
            (format!("73 {arguments}"), Errand::Calling),
            (String::new(), Errand::Running),
        ];
        for (line, expected) in rows {
            assert_eq!(Errand::parse(line.as_bytes()), expected, "{line}");
        }
        assert!(Errand::Waiting < Errand::Running && Errand::Running < Errand::Transferring);
    }
}
