//! A target's memory through `/proc/<pid>/mem`.
//!
//! The descriptor is bound to the address space that the process had at the open. After an `exec`
//! it reads and writes the old address space, or nothing, and never the new program (P49). Writes
//! also reach pages without write permission (`FOLL_FORCE`).

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
};

use crate::pid::{Pid, TargetAddr, Tid};

/// The memory of one process.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
}

// === impl Memory ===

impl Memory {
    /// Opens the memory of `pid` for reading and writing, through its thread `tid`. A leader that
    /// has exited has no memory (P3).
    pub(crate) fn open(pid: Pid, tid: Tid) -> io::Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/mem");
        Ok(Self {
            file: OpenOptions::new().read(true).write(true).open(path)?,
        })
    }

    /// Opens the memory for reading alone.
    pub(crate) fn open_to_read(pid: Pid, tid: Tid) -> io::Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/mem");
        Ok(Self {
            file: File::open(path)?,
        })
    }

    /// A file in place of the memory of a process.
    #[cfg(fuzzing)]
    pub(crate) fn of_file(file: File) -> Self {
        Self { file }
    }

    /// Fills `into` from `address`.
    pub(crate) fn read(&self, address: TargetAddr, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, address.0)
    }

    /// Writes all of `bytes` to `address`.
    pub(crate) fn write(&self, address: TargetAddr, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, address.0)
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

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::AsRawFd as _, ptr};

    use nix::libc;

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
}
