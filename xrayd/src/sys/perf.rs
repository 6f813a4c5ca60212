//! Software perf events that count nothing: they have the kernel write down what is mapped, and who is forked.

use std::{fs::File, io, os::fd::FromRawFd};

use nix::libc;

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;

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

/// Has the kernel write a record of each executable mapping that any process makes while it runs on processor `cpu`. Each record ends with
/// the thread and the time by `CLOCK_MONOTONIC`; each wakes who polls.
///
/// # Errors
/// As [`open_task_event`].
pub(crate) fn open_mapping_event(cpu: i32) -> io::Result<File> {
    open(cpu, MMAP)
}

/// The same of each process and thread that is forked, ends, or becomes another program.
///
/// # Errors
/// What perf_event_open(2) says; EACCES without `CAP_PERFMON`, where `kernel.perf_event_paranoid` is more than 0.
pub(crate) fn open_task_event(cpu: i32) -> io::Result<File> {
    open(cpu, TASK | COMM | COMM_EXEC)
}

/// Of processors, not of a process: whose threads have events of their own pays for them whenever it is switched to or from, 0.2 µs here; this costs it
/// nothing.
///
/// Closing the file takes everything back.
fn open(cpu: i32, what: u64) -> io::Result<File> {
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: ATTRIBUTES_BYTES,
        config: PERF_COUNT_SW_DUMMY,
        sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
        flags: what | EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID,
        wakeup_watermark: 1,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    let (every_process, no_group): (libc::pid_t, libc::c_int) = (-1, -1);
    // SAFETY: perf_event_open reads `size` bytes of the attributes, a live local of that size; the rest are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            every_process,
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
