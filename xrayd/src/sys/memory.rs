//! A target's memory through `/proc/<pid>/mem`.
//!
//! The descriptor is bound to the address space that the process had when it was opened: after an `exec` it reads and writes the old one, or
//! nothing, never the new program (P49). Writes go to pages without write permission as well (`FOLL_FORCE`).

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
    /// Opens the memory of `pid` for reading and writing, through its thread `tid` (a leader that has exited has none, P3).
    pub(crate) fn open(pid: Pid, tid: Tid) -> io::Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/mem");
        Ok(Self {
            file: OpenOptions::new().read(true).write(true).open(path)?,
        })
    }

    /// The same for reading alone.
    pub(crate) fn open_to_read(pid: Pid, tid: Tid) -> io::Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/mem");
        Ok(Self {
            file: File::open(path)?,
        })
    }

    /// A file that stands for the memory of a process.
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

    /// Reads a little-endian word.
    pub(crate) fn read_u64(&self, address: TargetAddr) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a little-endian half word.
    pub(crate) fn read_u32(&self, address: TargetAddr) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
}
