//! The files with code that a process has mapped, for readers that trace nothing.

use std::{fs::File, io};

use xray_trace::instr_map::Object;

use super::{
    MapEntry, Target,
    modules::{Group, executable_files, load_bias, main_inode},
    open_mapped,
};
use crate::{pid::Pid, refusal::Result};

/// A file that a process has mapped as executable. The process chose it, so it may be anything.
#[derive(Debug)]
pub struct MappedFile {
    /// Its path as the process saw it.
    pub path: String,
    /// True if it is the process's main program.
    pub is_main: bool,
    pid: Pid,
    first: MapEntry,
    executable: Vec<MapEntry>,
}

/// The files that `pid` has mapped as executable now, the main program first and the others by
/// address. A file that is loaded several times is listed once.
///
/// # Errors
/// There is no such process, or its maps may not be read.
pub fn mapped_files(pid: Pid) -> Result<Vec<MappedFile>> {
    let target = Target::open(pid)?;
    let maps = target.maps()?;
    let main = main_inode(pid);
    let mut files: Vec<MappedFile> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for group in executable_files(&maps) {
        let first = group.first;
        if known.insert((first.inode, first.device)) {
            files.push(MappedFile {
                path: first.name.clone(),
                is_main: main == Some(first.inode),
                pid,
                first: first.clone(),
                executable: group.executable.into_iter().cloned().collect(),
            });
        }
    }
    files.sort_by_key(|file| !file.is_main);
    // If this process has ended by now, the data may be another process's.
    if target.has_exited() {
        return Err(target.exited());
    }
    Ok(files)
}

// === impl MappedFile ===

impl MappedFile {
    /// Opens the file that is mapped, also if it was deleted or replaced.
    ///
    /// # Errors
    /// The error of the system. A file that is no longer at its path needs CAP_CHECKPOINT_RESTORE,
    /// unless it is the main program.
    pub fn open(&self) -> io::Result<File> {
        open_mapped(self.pid, &self.first)
    }

    /// The number to add to an address in the file to get the address in the process, modulo 2^64.
    /// `object` is the file. `None` if the file is not mapped as it specifies.
    #[must_use]
    pub fn load_bias(&self, object: &Object) -> Option<u64> {
        let group = Group {
            first: &self.first,
            executable: self.executable.iter().collect(),
        };
        load_bias(object, &group)
    }
}
