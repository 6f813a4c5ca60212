//! Opens perf events of three kinds. Events of the first kind count nothing: for them, the kernel
//! records mappings, forks, or the switches of a thread. An event of the second kind counts the run
//! time of a thread. For an event of the third kind, the kernel records each event of a tracepoint.
//! This file does not read the records.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsRawFd as _, FromRawFd},
};

use nix::libc;

const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_COUNT_SW_TASK_CLOCK: u64 = 1;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_SAMPLE_CPU: u64 = 1 << 7;
const PERF_SAMPLE_RAW: u64 = 1 << 10;
/// `PERF_EVENT_IOC_SET_OUTPUT`, which is `_IO('$', 5)`.
const SET_OUTPUT: libc::Ioctl = 0x2405;
/// A read of the file also returns the number of records that had no room. Since Linux 6.0.
const PERF_FORMAT_LOST: u64 = 1 << 4;
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
const CONTEXT_SWITCH: u64 = 1 << 26;

/// The third version of `perf_event_attr`, include/uapi/linux/perf_event.h. Every kernel since 4.1
/// has it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
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

/// A watermark for rings that no thread polls for records. With a low one, the kernel interrupts
/// the thread for each record, to wake up the thread that polls.
const FULL: u32 = u32::MAX;

const EVERY_PROCESS: libc::pid_t = -1;
const ANY_PROCESSOR: libc::c_int = -1;

const ATTRIBUTES_BYTES: u32 = 96;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_BYTES as usize);

/// Makes the kernel record each executable mapping that any process makes while it runs on
/// processor `cpu`. Each record ends with the thread and the time by `CLOCK_MONOTONIC`, and wakes a
/// thread that polls the file.
///
/// # Errors
/// As [`open_task_event`].
pub(crate) fn open_mapping_event(cpu: i32) -> io::Result<File> {
    let attributes = records(MMAP);
    open(&attributes, EVERY_PROCESS, cpu)
}

/// Makes the kernel record each process and thread on processor `cpu` that is forked, ends or calls
/// `exec`.
///
/// # Errors
/// The error of perf_event_open(2): EACCES without `CAP_PERFMON`, where
/// `kernel.perf_event_paranoid` is more than 0.
pub(crate) fn open_task_event(cpu: i32) -> io::Result<File> {
    let attributes = records(TASK | COMM | COMM_EXEC);
    open(&attributes, EVERY_PROCESS, cpu)
}

/// Makes the kernel record each time at which a thread gets or gives up a processor, from now on.
/// A last record is about its end. Each record ends with the thread, the time by `CLOCK_MONOTONIC`
/// and the processor. A poll of the file does not show that there are records. Until the file is
/// closed, each switch to or from the thread takes about 0.3 µs longer. Switches of other threads
/// do not become measurably slower.
///
/// # Errors
/// As [`open_task_clock`].
pub(crate) fn open_switch_event(tid: libc::pid_t) -> io::Result<File> {
    let attributes = Attributes {
        sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU,
        wakeup_watermark: FULL,
        ..records(CONTEXT_SWITCH | TASK)
    };
    open_with_losses(attributes, tid)
}

/// Makes the kernel record each event of the tracepoint with this number that happens while a
/// thread runs, into the ring of `output`. That is an event of the same thread, and its ring is
/// mapped. Each record has the thread that ran, the time by `CLOCK_MONOTONIC`, the
/// processor, and the kernel's record of the event.
///
/// # Errors
/// The error of perf_event_open(2): EACCES without `CAP_PERFMON`, where
/// `kernel.perf_event_paranoid` is more than -1 and the tracepoint is not about the thread's own
/// system calls.
pub(crate) fn open_tracepoint(tid: libc::pid_t, id: u16, output: &File) -> io::Result<File> {
    let attributes = Attributes {
        kind: PERF_TYPE_TRACEPOINT,
        size: ATTRIBUTES_BYTES,
        config: id.into(),
        sample_period: 1,
        sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_RAW,
        flags: EXCLUDE_HV | WATERMARK | USE_CLOCKID,
        wakeup_watermark: FULL,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    let event = open_with_losses(attributes, tid)?;
    // SAFETY: the request takes a descriptor, and no memory. Both descriptors are open.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, output.as_raw_fd()) };
    match result {
        0 => Ok(event),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of records of a thread's event, from [`open_switch_event`] or [`open_tracepoint`],
/// for which the ring had no room so far. `None` if this kernel does not count them.
pub(crate) fn lost_records(mut event: &File) -> Option<u64> {
    // The value of the event, which is 0 or the number of its records, and the losses.
    let mut both = [0; 16];
    let length = event.read(&mut both).ok()?;
    let lost = both.get(8..length)?.first_chunk()?;
    Some(u64::from_ne_bytes(*lost))
}

/// Counts the run time of a thread from now on. A read of the file gives 8 bytes, the nanoseconds,
/// also while the thread runs. Until the file is closed, each switch to or from the thread costs it
/// 0.2 µs.
///
/// # Errors
/// The error of perf_event_open(2): EACCES where `kernel.perf_event_paranoid` is more than 2, or
/// where the kernel does not let us trace the thread.
pub(crate) fn open_task_clock(tid: libc::pid_t) -> io::Result<File> {
    let attributes = Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: ATTRIBUTES_BYTES,
        config: PERF_COUNT_SW_TASK_CLOCK,
        flags: EXCLUDE_KERNEL | EXCLUDE_HV,
        ..Attributes::default()
    };
    open(&attributes, tid, ANY_PROCESSOR)
}

/// Attributes of an event for which the kernel writes records.
fn records(what: u64) -> Attributes {
    Attributes {
        kind: PERF_TYPE_SOFTWARE,
        size: ATTRIBUTES_BYTES,
        config: PERF_COUNT_SW_DUMMY,
        sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
        flags: what | EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID,
        wakeup_watermark: 1,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    }
}

/// Opens an event of a thread. The kernel counts its lost records, if it can.
fn open_with_losses(attributes: Attributes, tid: libc::pid_t) -> io::Result<File> {
    let counting = Attributes {
        read_format: PERF_FORMAT_LOST,
        ..attributes
    };
    match open(&counting, tid, ANY_PROCESSOR) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            open(&attributes, tid, ANY_PROCESSOR)
        }
        opened => opened,
    }
}

/// Opens an event. Closing the file ends it.
fn open(attributes: &Attributes, pid: libc::pid_t, cpu: libc::c_int) -> io::Result<File> {
    let no_group: libc::c_int = -1;
    // SAFETY: perf_event_open reads `size` bytes of the attributes, a live local of that size. The
    // other arguments are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            pid,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let raw = i32::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor as a new one; nothing else owns it.
    Ok(unsafe { File::from_raw_fd(raw) })
}
