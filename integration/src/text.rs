//! Compares the code of a running process with the file it came from. It writes to neither.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use goblin::elf::Elf;
use goblin::elf::program_header::{PF_X, PT_LOAD};
use procfs::process::{MMPermissions, MMapPath, Process};

/// A run of bytes that differ from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextDifference {
    /// The address in the process.
    pub address: u64,
    /// The same place in the file's own addresses, as in [`crate::Sled::address`].
    pub file_address: u64,
    /// The file's bytes.
    pub expected: Vec<u8>,
    /// The process's bytes, the same number.
    pub found: Vec<u8>,
}

/// Every byte of `module`'s executable segments in process `pid` that differs from the file.
///
/// `mapped_as` is the path in the process's map, `file` the path of its content. They differ if the
/// file has been moved away. A mapped path that has been deleted counts with and without the
/// kernel's " (deleted)".
///
/// # Errors
/// The process or the file cannot be read, or the process has no executable mapping of that path.
pub fn text_differences(pid: i32, mapped_as: &Path, file: &Path) -> Result<Vec<TextDifference>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let elf = Elf::parse(&bytes).with_context(|| format!("cannot parse {}", file.display()))?;
    let process = Process::new(pid).with_context(|| format!("no process {pid}"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))
        .with_context(|| format!("cannot open the memory of {pid}"))?;

    let mut differences = Vec::new();
    let mut compared = 0;
    for map in process
        .maps()
        .with_context(|| format!("cannot read the map of {pid}"))?
    {
        let MMapPath::Path(path) = &map.pathname else {
            continue;
        };
        let same = path == mapped_as
            || path
                .to_str()
                .and_then(|p| p.strip_suffix(" (deleted)"))
                .map(Path::new)
                == Some(mapped_as);
        if !same || !map.perms.contains(MMPermissions::EXECUTE) {
            continue;
        }
        for segment in elf
            .program_headers
            .iter()
            .filter(|header| header.p_type == PT_LOAD && header.p_flags & PF_X != 0)
        {
            // The part of this segment that this mapping shows; the kernel maps whole pages.
            let map_end = map.offset + (map.address.1 - map.address.0);
            let begin = segment.p_offset.max(map.offset);
            let end = (segment.p_offset + segment.p_filesz).min(map_end);
            if begin >= end {
                continue;
            }
            let expected = usize::try_from(begin)
                .ok()
                .zip(usize::try_from(end).ok())
                .and_then(|(begin, end)| bytes.get(begin..end))
                .context("a segment lies outside the file")?;
            let address = map.address.0 + (begin - map.offset);
            let mut found = vec![0; expected.len()];
            memory
                .read_exact_at(&mut found, address)
                .with_context(|| format!("cannot read the memory of {pid} at {address:#x}"))?;
            let file_address = segment.p_vaddr + (begin - segment.p_offset);
            collect(expected, &found, address, file_address, &mut differences);
            compared += expected.len();
        }
    }
    ensure!(
        compared > 0,
        "process {pid} has no executable mapping of {}",
        mapped_as.display()
    );
    Ok(differences)
}

fn collect(
    expected: &[u8],
    found: &[u8],
    address: u64,
    file_address: u64,
    differences: &mut Vec<TextDifference>,
) {
    let mut last = None;
    for (offset, (&wanted, &got)) in expected.iter().zip(found).enumerate() {
        if wanted == got {
            continue;
        }
        if last != Some(offset.wrapping_sub(1)) || differences.is_empty() {
            differences.push(TextDifference {
                address: address + offset as u64,
                file_address: file_address + offset as u64,
                expected: Vec::new(),
                found: Vec::new(),
            });
        }
        let run = differences
            .last_mut()
            .expect("one has just been pushed or was there");
        run.expected.push(wanted);
        run.found.push(got);
        last = Some(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_bytes_make_one_difference() {
        let mut differences = Vec::new();
        collect(
            &[1, 2, 3, 4, 5],
            &[9, 8, 3, 4, 7],
            0x1000,
            0x10,
            &mut differences,
        );
        let places: Vec<_> = differences
            .iter()
            .map(|d| (d.address, d.file_address, d.found.clone()))
            .collect();
        assert_eq!(
            places,
            [(0x1000, 0x10, vec![9, 8]), (0x1004, 0x14, vec![7])]
        );
    }
}
