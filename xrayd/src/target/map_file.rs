//! What a process has mapped, as a file: `/proc/<pid>/map_files`.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::OpenOptionsExt as _,
};

use nix::libc;

use super::Threads;
use crate::pid::Pid;

/// Opens what `pid` has mapped at `range`, for looking at it alone (`O_PATH`): another mapping may be there by now, and opening
/// a device or a FIFO has effects. Takes CAP_CHECKPOINT_RESTORE.
///
/// # Errors
/// What the system says; nothing is mapped there.
pub(crate) fn open_map_file(pid: Pid, range: &Range<u64>) -> io::Result<File> {
    let dir = Threads::proc_dir(pid);
    let path = format!("{dir}/map_files/{:x}-{:x}", range.start, range.end);
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
}
