//! Memory of another version of xrayd.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};

/// The place of the version in the handshake of a code mapping.
const VERSION_AT: u64 = 7;
/// No xrayd has this version.
const OTHER: u8 = 0xee;

/// Marks xrayd's memory in a process as another version's. What the versions have in common stays:
/// the beginning of the handshake, and the tracer's record in the table.
///
/// # Errors
/// The process has no memory of xrayd, or it cannot be written.
pub fn mark_as_other_version(pid: i32) -> Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = OpenOptions::new()
        .write(true)
        .read(true)
        .open(format!("/proc/{pid}/mem"))?;
    let mut marked = 0;
    for line in maps.lines().filter(|line| line.contains("r-xp")) {
        let (start, _) = line.split_once('-').context("no range")?;
        let start = u64::from_str_radix(start, 16)?;
        let mut begin = [0; 8];
        if memory.read_exact_at(&mut begin, start).is_ok() && begin.starts_with(b"xrayd\0\0") {
            memory.write_all_at(&[OTHER], start + VERSION_AT)?;
            marked += 1;
        }
    }
    ensure!(marked > 0, "process {pid} has no memory of xrayd: {maps}");
    Ok(())
}
