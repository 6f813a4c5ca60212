//! A target's memory through `/proc/<pid>/mem`.
//!
//! The descriptor is bound to the address space that the process had at the open. After an `exec`
//! it reads and writes the old address space, or nothing, and never the new program (P49). Writes
//! also reach pages without write permission (`FOLL_FORCE`).
//!
//! A kernel from 6.12 on may allow such writes only to the tracer of the thread that the descriptor
//! was opened through (`proc_mem.force_override=ptrace`). Then an OS thread becomes its tracer for
//! a few writes. It does not stop the thread. A signal that arrives meanwhile waits until the
//! writes are done.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::OnceLock,
    thread,
    time::Duration,
};

use nix::libc;

use super::{
    ptrace::Seized,
    write_job::{Piece, TracerThread, Written, write_each},
};
use crate::pid::{Pid, TargetAddr, Tid};

/// Looks at a thread that another OS thread of this daemon may trace for a moment.
const TRACER_LOOKS: u32 = 500;
const TRACER_PAUSE: Duration = Duration::from_micros(200);

/// The memory of one process.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    /// The thread that it was opened through. `None` for a file in place of a memory.
    thread: Option<(Pid, Tid)>,
    /// The OS thread that traces this thread, if xrayd has started the process.
    tracer: OnceLock<TracerThread>,
}

// === impl Memory ===

impl Memory {
    /// Opens the memory of `pid` for reading and writing, through its thread `tid`. A leader that
    /// has exited has no memory (P3).
    pub(crate) fn open(pid: Pid, tid: Tid) -> io::Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/mem");
        Ok(Self {
            file: OpenOptions::new().read(true).write(true).open(path)?,
            thread: Some((pid, tid)),
            tracer: OnceLock::new(),
        })
    }

    /// Opens the memory for reading alone.
    pub(crate) fn open_to_read(pid: Pid, tid: Tid) -> io::Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/mem");
        Ok(Self {
            file: File::open(path)?,
            thread: None,
            tracer: OnceLock::new(),
        })
    }

    /// A file in place of the memory of a process.
    #[cfg(fuzzing)]
    pub(crate) fn of_file(file: File) -> Self {
        Self {
            file,
            thread: None,
            tracer: OnceLock::new(),
        }
    }

    /// From now on, writes that only a tracer may make are passed to this thread.
    pub(crate) fn traced_by(&self, tracer: TracerThread) {
        // A process is held by one thread, which is set once.
        let _ = self.tracer.set(tracer);
    }

    /// Fills `into` from `address`.
    pub(crate) fn read(&self, address: TargetAddr, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, address.0)
    }

    /// Writes all of `bytes` to `address`.
    pub(crate) fn write(&self, address: TargetAddr, bytes: &[u8]) -> io::Result<()> {
        self.write_pieces(&[(address, bytes)])
            .map_err(|(_, error)| error)
    }

    /// Writes pieces in their order, each by a write of its own.
    ///
    /// # Errors
    /// The address of the first piece that could not be written, and the reason. The pieces before
    /// it were written.
    pub(crate) fn write_pieces(&self, pieces: &[Piece<'_>]) -> Result<(), (TargetAddr, io::Error)> {
        let Err((done, error)) = self.write_directly(pieces) else {
            return Ok(());
        };
        let rest = pieces.get(done..).unwrap_or_default();
        let written = match self.thread {
            Some((pid, tid)) if error.raw_os_error() == Some(libc::EIO) => {
                let tracer = self.tracer.get();
                let written = tracer.and_then(|tracer| tracer.write(&self.file, rest));
                written.unwrap_or_else(|| self.write_as_tracer(pid, tid, rest, error))
            }
            _ => Err((0, error)),
        };
        written.map_err(|(done, error)| {
            let at = rest.get(done).map_or(TargetAddr(0), |&(at, _)| at);
            (at, error)
        })
    }

    /// The same as this OS thread.
    fn write_directly(&self, pieces: &[Piece<'_>]) -> Written {
        write_each(&self.file, pieces.iter().copied())
    }

    /// Writes pieces as the tracer of a thread. `refused` is the error without a tracer. It stays
    /// the error if the thread cannot be traced.
    fn write_as_tracer(
        &self,
        pid: Pid,
        tid: Tid,
        pieces: &[Piece<'_>],
        refused: io::Error,
    ) -> Written {
        // The kernel releases the thread when the OS thread that traces it ends.
        let done = thread::scope(|scope| {
            let writer = thread::Builder::new().name(format!("write-{pid}"));
            let writer = writer.spawn_scoped(scope, || {
                let Some(_seized) = seize(pid, tid) else {
                    return Err((0, refused));
                };
                self.write_directly(pieces)
            });
            writer.map(thread::ScopedJoinHandle::join)
        });
        // An OS thread can be joined a moment before the kernel releases what it traces.
        for _ in 0..TRACER_LOOKS {
            if tracer_here(pid, tid) != Some(true) {
                break;
            }
            thread::sleep(TRACER_PAUSE);
        }
        let done = done.map_err(|error| (0, error))?;
        done.unwrap_or_else(|_| Err((0, io::Error::other("a bug in xrayd"))))
    }

    /// Reads a little-endian word of 8 bytes.
    pub(crate) fn read_u64(&self, address: TargetAddr) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a little-endian word of 4 bytes.
    pub(crate) fn read_u32(&self, address: TargetAddr) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// Becomes the tracer of a thread of this process. `None` if it has another tracer, or has ended.
fn seize(pid: Pid, tid: Tid) -> Option<Seized> {
    for _ in 0..TRACER_LOOKS {
        if let Ok(seized) = Seized::seize(tid) {
            // The id of a thread that is traced is not used again, so it is the thread's now.
            let thread = format!("/proc/{pid}/task/{tid}");
            return Path::new(&thread).exists().then_some(seized);
        }
        if tracer_here(pid, tid) == Some(false) {
            return None;
        }
        thread::sleep(TRACER_PAUSE);
    }
    None
}

/// Whether the tracer of a thread is an OS thread of this daemon. `None` if the thread has no
/// tracer, or has ended.
fn tracer_here(pid: Pid, tid: Tid) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let mut lines = status.lines();
    let tracer = lines
        .find_map(|line| line.strip_prefix("TracerPid:"))?
        .trim();
    (tracer != "0").then(|| Path::new("/proc/self/task").join(tracer).exists())
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsRawFd as _, unix::process::ExitStatusExt as _},
        process::{Child, Command},
        ptr,
        time::Instant,
    };

    use nix::sys::signal::{Signal, kill};

    use super::*;

    const PAGE: usize = 4096;

    /// Maps a page of `file` for reading, for the life of this process.
    fn map(file: &File, kind: i32) -> TargetAddr {
        let descriptor = file.as_raw_fd();
        // SAFETY: a new mapping at a place that the kernel chooses.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ, kind, descriptor, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        TargetAddr(address.expose_provenance() as u64)
    }

    /// Between the check of its text and the write, a target may map a file in place of the text.
    /// The write does not reach that file.
    #[test]
    fn a_file_is_never_written_through_memory_that_maps_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [7; PAGE]).unwrap();
        let pid = Pid::this();
        let memory = Memory::open(pid, pid.leader()).unwrap();
        let readable = File::open(&path).unwrap();
        let writable = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        for file in [&readable, &writable] {
            let shared = map(file, libc::MAP_SHARED);
            assert!(memory.write(shared, &[8]).is_err());
            let private = map(file, libc::MAP_PRIVATE);
            memory.write(private, &[8]).unwrap();
            let mut byte = [0];
            memory.read(private, &mut byte).unwrap();
            assert_eq!(byte, [8]);
        }
        assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 7));
    }

    /// Writes a byte of a program's text to itself, as a tracer.
    fn rewrite_as_tracer(pid: Pid) -> io::Result<()> {
        let memory = Memory::open(pid, pid.leader())?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let text = maps.lines().find(|line| line.contains("r-xp"));
        let start = text.and_then(|line| line.split('-').next());
        let start = start.ok_or(io::ErrorKind::NotFound)?;
        let address = TargetAddr(u64::from_str_radix(start, 16).unwrap());
        let mut byte = [0];
        memory.read(address, &mut byte)?;
        let refused = io::Error::from_raw_os_error(libc::EIO);
        let piece = (address, &byte[..]);
        let written = memory.write_as_tracer(pid, pid.leader(), &[piece; 3], refused);
        written.map_err(|(_, error)| error)
    }

    fn sleeper() -> (Child, Pid) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        // Until it executes the program, it is a copy of this one.
        let has_text = || {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            let mut lines = maps.lines();
            lines.any(|line| line.contains("r-xp") && line.ends_with("/sleep"))
        };
        while !has_text() {
            thread::sleep(Duration::from_millis(1));
        }
        (child, pid)
    }

    #[test]
    fn a_thread_runs_on_after_writes_by_a_tracer() {
        let (mut child, pid) = sleeper();
        for _ in 0..200 {
            rewrite_as_tracer(pid).unwrap();
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(!status.contains("State:\tt"), "{status}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Nothing waits for the child meanwhile: a wait of another thread would take the stop, and
    /// with it the signal.
    #[test]
    fn a_signal_during_writes_by_a_tracer_is_delivered() {
        for round in 0..50_u64 {
            let (mut child, pid) = sleeper();
            let since = Instant::now();
            let in_time = || since.elapsed() < Duration::from_secs(20);
            thread::scope(|scope| {
                scope.spawn(move || while in_time() && rewrite_as_tracer(pid).is_ok() {});
                thread::sleep(Duration::from_micros(37 * round));
                kill(pid.leader().as_nix(), Signal::SIGTERM).unwrap();
            });
            let has_ended = || {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                status.contains("State:\tZ")
            };
            while in_time() && !has_ended() {
                thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(libc::SIGTERM), "round {round}");
        }
    }

    #[test]
    fn the_first_error_stays_where_another_tracer_is() {
        let (mut child, pid) = sleeper();
        let _seized = Seized::seize(pid.leader()).unwrap();
        let error = rewrite_as_tracer(pid).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
