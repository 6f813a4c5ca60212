//! Which modules of a process carry sleds, and where they are loaded.

use std::sync::Arc;

use xray_trace::{
    FileAddr,
    instr_map::{Machine, Object, ObjectError},
};

use super::{MapEntry, Maps, Objects, Threads};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal},
};

/// A module with sleds, loaded.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    /// Its path as the process sees it.
    pub(crate) path: String,
    /// What the file says.
    pub(crate) object: Arc<Object>,
    /// What to add to a file's address to get the target's, modulo 2^64.
    pub(crate) bias: u64,
    /// The mapping that its first segment came with: opens the file again.
    pub(crate) entry: MapEntry,
}

/// A module that has sleds (or may have) and cannot be traced.
#[derive(Debug, Clone)]
pub(crate) struct RefusedModule {
    /// Its path as the process sees it.
    pub(crate) path: String,
    /// Why.
    pub(crate) refusal: Refusal,
}

/// What [`modules_of`] found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Modules with sleds, the main program first if it has any.
    pub(crate) modules: Vec<Module>,
    /// Modules that cannot be traced.
    pub(crate) refused: Vec<RefusedModule>,
    /// The main program is 32-bit.
    pub(crate) thirty_two_bit: bool,
}

// === impl Module ===

impl Module {
    /// Where `address` of the file is in the target.
    pub(crate) fn in_target(&self, address: FileAddr) -> TargetAddr {
        TargetAddr(address.0.wrapping_add(self.bias))
    }

    /// True if `entry` is still a mapping of this module's file.
    pub(crate) fn is_mapped_by(&self, entry: &MapEntry) -> bool {
        entry.inode == self.entry.inode && entry.device == self.entry.device
    }
}

/// The modules with sleds among what process `pid` has mapped.
pub(crate) fn modules_of(pid: Pid, maps: &Maps, objects: &Objects) -> Found {
    let mut found = Found::default();
    let main = main_inode(pid);
    for group in executable_files(maps) {
        let first = group.first;
        let is_main = main == Some(first.inode);
        let refuse = |reason, message: String| RefusedModule {
            path: first.name.clone(),
            refusal: Refusal::new(reason, message),
        };
        match objects.get(pid, first) {
            Ok(Ok(object)) if object.machine() != Machine::X86_64 => {
                let message = format!("{}: sleds of a machine other than x86-64", first.name);
                found.refused.push(refuse(Reason::Not64Bit, message));
            }
            Ok(Ok(object)) => match load_bias(&object, &group) {
                Some(bias) => {
                    let module = Module {
                        path: first.name.clone(),
                        object,
                        bias,
                        entry: first.clone(),
                    };
                    if is_main {
                        found.modules.insert(0, module);
                    } else {
                        found.modules.push(module);
                    }
                }
                None => found.refused.push(refuse(
                    Reason::NoSleds,
                    format!("{}: its segments are not where the file says", first.name),
                )),
            },
            Ok(Err(ObjectError::ThirtyTwoBit)) => found.thirty_two_bit |= is_main,
            Ok(Err(ObjectError::NoMap | ObjectError::NotElf)) => {}
            // Nothing says that such a file has sleds.
            Ok(Err(ObjectError::NoSectionHeaders)) => {}
            Ok(Err(error)) => {
                let message = format!("{}: {error}", first.name);
                found.refused.push(refuse(Reason::NoSleds, message));
            }
            Err(error) => {
                let message = format!("{}: cannot be read: {error}", first.name);
                found.refused.push(refuse(Reason::Permission, message));
            }
        }
    }
    found
}

/// Mappings of one file that is executable somewhere.
#[derive(Debug)]
struct Group<'a> {
    first: &'a MapEntry,
    executable: Vec<&'a MapEntry>,
}

fn executable_files(maps: &Maps) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for entry in maps.iter().filter(|entry| entry.is_file()) {
        // One load of a file maps it in one run; the same file loaded twice (dlmopen) begins again at offset 0.
        let same = |group: &&mut Group<'_>| {
            (group.first.inode, group.first.device) == (entry.inode, entry.device)
                && entry.offset != group.first.offset
        };
        match groups.iter_mut().rev().find(same) {
            Some(group) if entry.executable() => group.executable.push(entry),
            Some(_) => {}
            None => {
                let executable = if entry.executable() {
                    vec![entry]
                } else {
                    Vec::new()
                };
                groups.push(Group {
                    first: entry,
                    executable,
                });
            }
        }
    }
    groups.retain(|group| !group.executable.is_empty());
    groups
}

/// The load bias, by the executable segment whose file offset an executable mapping covers.
fn load_bias(object: &Object, group: &Group<'_>) -> Option<u64> {
    object
        .segments()
        .iter()
        .filter(|segment| segment.executable)
        .find_map(|segment| {
            group.executable.iter().find_map(|entry| {
                let into = segment.file_offset.checked_sub(entry.offset)?;
                let length = entry.range.end.checked_sub(entry.range.start)?;
                (into < length).then(|| {
                    entry
                        .range
                        .start
                        .wrapping_add(into)
                        .wrapping_sub(segment.address.0)
                })
            })
        })
}

fn main_inode(pid: Pid) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("{}/exe", Threads::proc_dir(pid)))
        .ok()
        .map(|metadata| metadata.ino())
}
