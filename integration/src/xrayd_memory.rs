//! xrayd's memory in a process, as another version or a dead daemon leaves it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use shm_ring::{Geometry, layout};

/// The place of the version in the handshake of a code mapping.
const VERSION_AT: u64 = 7;
/// The places of the addresses of table and rings in the handshake.
const TABLE_AT: u64 = 16;
const RINGS_AT: u64 = 24;
/// The place of the sizes of rings and table.
const SHIFTS_AT: u64 = 48;
/// No xrayd has this version.
const OTHER: u8 = 0xee;

/// Marks xrayd's memory in a process as another version's. What the versions have in common stays:
/// the beginning of the handshake, and the tracer's record in the table.
///
/// # Errors
/// The process has no memory of xrayd, or it cannot be written.
pub fn mark_as_other_version(pid: i32) -> Result<()> {
    let memory = memory(pid)?;
    for handshake in handshakes(pid, &memory)? {
        memory.write_all_at(&[OTHER], handshake + VERSION_AT)?;
    }
    Ok(())
}

/// Makes the deadline of recording pass, as time does when no daemon moves it. A living daemon
/// moves it again.
///
/// # Errors
/// The process has no memory of xrayd, or it cannot be written.
pub fn pass_deadline(pid: i32) -> Result<()> {
    let memory = memory(pid)?;
    for handshake in handshakes(pid, &memory)? {
        let rings = word(&memory, handshake + RINGS_AT)?;
        memory.write_all_at(&1_u64.to_le_bytes(), rings + layout::rings::DEADLINE)?;
    }
    Ok(())
}

/// Closes recording as a program may do that writes to xrayd's memory. `at` is the time that it
/// names.
///
/// # Errors
/// The process has no memory of xrayd, or it cannot be written.
pub fn close_recording(pid: i32, at: u64) -> Result<()> {
    let memory = memory(pid)?;
    for handshake in handshakes(pid, &memory)? {
        let table = word(&memory, handshake + TABLE_AT)?;
        memory.write_all_at(&at.to_le_bytes(), table + layout::table::CLOSED_AT)?;
        memory.write_all_at(&[0; 8], table + layout::table::LIVE)?;
    }
    Ok(())
}

/// The owners of the slots of the process's table, 0 for free ones.
///
/// # Errors
/// The process has no memory of xrayd, or it cannot be read.
pub fn slot_owners(pid: i32) -> Result<Vec<u32>> {
    let memory = memory(pid)?;
    let handshakes = handshakes(pid, &memory)?;
    let first = handshakes.first().context("no memory of xrayd")?;
    let table = word(&memory, first + TABLE_AT)?;
    let shifts = word(&memory, first + SHIFTS_AT)?;
    let geometry = Geometry::from_word(shifts)?;
    let owner = |slot: u32| {
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, table + geometry.slot_offset(slot))?;
        anyhow::Ok(u32::from_le_bytes(bytes))
    };
    (0..geometry.slots()).map(owner).collect()
}

/// True if recording has closed itself in the process, or no tracer records in it.
///
/// # Errors
/// The process has no memory of xrayd, or it cannot be read.
pub fn has_closed(pid: i32) -> Result<bool> {
    let memory = memory(pid)?;
    let handshakes = handshakes(pid, &memory)?;
    let first = handshakes.first().context("no memory of xrayd")?;
    let table = word(&memory, first + TABLE_AT)?;
    Ok(word(&memory, table + layout::table::LIVE)? == 0)
}

fn memory(pid: i32) -> Result<File> {
    let path = format!("/proc/{pid}/mem");
    let memory = OpenOptions::new().write(true).read(true).open(&path);
    memory.with_context(|| format!("cannot open {path}"))
}

fn word(memory: &File, address: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, address)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The addresses of the handshakes of xrayd's code mappings, at least one.
fn handshakes(pid: i32, memory: &File) -> Result<Vec<u64>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains("r-xp")) {
        let (start, _) = line.split_once('-').context("no range")?;
        let start = u64::from_str_radix(start, 16)?;
        let mut begin = [0; 8];
        if memory.read_exact_at(&mut begin, start).is_ok() && begin.starts_with(b"xrayd\0\0") {
            found.push(start);
        }
    }
    ensure!(
        !found.is_empty(),
        "process {pid} has no memory of xrayd: {maps}"
    );
    Ok(found)
}
