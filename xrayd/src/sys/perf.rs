//! Software perf events that count nothing: they have the kernel write down what a thread maps.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd},
};

use nix::libc;

use crate::pid::Tid;

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
/// `_IO('$', 5)`
const PERF_EVENT_IOC_SET_OUTPUT: libc::Ioctl = 0x2405;

const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const MMAP: u64 = 1 << 8;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCKID: u64 = 1 << 25;
/// From Linux 5.13 on.
const INHERIT_THREAD: u64 = 1 << 35;

/// The third version of `perf_event_attr`, include/uapi/linux/perf_event.h, which every kernel since 4.1 knows.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
}

const ATTRIBUTES_BYTES: u32 = 96;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_BYTES as usize);

/// Has the kernel write a record of each executable mapping, and of each fork, that thread `tid` and the threads that it starts from now on make
/// while they run on processor `cpu`. Each record ends with the thread and the time by `CLOCK_MONOTONIC`; each wakes who polls.
///
/// Closing the file takes everything back.
///
/// # Errors
/// What perf_event_open(2) says.
pub(crate) fn open_mapping_event(tid: Tid, cpu: i32) -> io::Result<File> {
    match open(tid, cpu, INHERIT_THREAD) {
        // An older kernel: the events are inherited by child processes as well, whose records name them.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(tid, cpu, 0),
        result => result,
    }
}

/// Has the kernel write `event`'s records into the ring of `owner`, which is of the same processor.
///
/// # Errors
/// What ioctl(2) says.
pub(crate) fn redirect(event: &File, owner: &File) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_SET_OUTPUT takes a descriptor by value and touches no memory of ours; both are open here.
    let result = unsafe {
        libc::ioctl(
            event.as_raw_fd(),
            PERF_EVENT_IOC_SET_OUTPUT,
            owner.as_raw_fd(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn open(tid: Tid, cpu: i32, more: u64) -> io::Result<File> {
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: ATTRIBUTES_BYTES,
        config: PERF_COUNT_SW_DUMMY,
        sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
        flags: INHERIT
            | EXCLUDE_KERNEL
            | EXCLUDE_HV
            | MMAP
            | TASK
            | WATERMARK
            | SAMPLE_ID_ALL
            | USE_CLOCKID
            | more,
        wakeup_watermark: 1,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    let no_group: libc::c_int = -1;
    // SAFETY: perf_event_open reads `size` bytes of the attributes, a live local of that size; the rest are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            tid.as_raw(),
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let raw = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel just returned this descriptor as a new one; nobody else owns it.
    Ok(unsafe { File::from_raw_fd(raw) })
}
