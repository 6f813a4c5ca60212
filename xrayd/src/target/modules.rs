//! Finds the modules of a process that have sleds, and their load addresses.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use xray_trace::{
    FileAddr,
    instr_map::{Machine, Object, ObjectError, Segment},
};

use super::{MapEntry, Maps, Objects, Threads};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal},
};

/// Executable segments of a file that are searched for among the mappings; linkers make one or two.
const EXECUTABLE_SEGMENTS: usize = 16;

/// Identifies one load of a file among all loads in a process at one time: a file can be loaded
/// several times (dlmopen).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    device: (u32, u32),
    inode: u64,
    /// Start of its first executable mapping.
    text: u64,
}

/// A module with sleds, loaded.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    /// Its path as the process sees it.
    pub(crate) path: String,
    /// The parsed file.
    pub(crate) object: Arc<Object>,
    /// The number to add to an address in the file to get the address in the target, modulo 2^64.
    pub(crate) bias: u64,
    /// The mapping of its first segment. It serves to open the file again.
    pub(crate) entry: MapEntry,
    /// The load of the file.
    pub(crate) load: Load,
    /// Whether the module can be unloaded at any moment.
    pub(crate) stay: Stay,
}

/// The time for which a module stays loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// As long as the process has this address space.
    Lasting,
    /// Until the program unloads it.
    Passing,
}

/// A module that has sleds (or may have) and cannot be traced.
#[derive(Debug, Clone)]
pub(crate) struct RefusedModule {
    /// Its path as the process sees it.
    pub(crate) path: String,
    /// The load of the file.
    pub(crate) load: Load,
    /// The reason.
    pub(crate) refusal: Refusal,
}

/// The result of [`modules_of`].
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Modules with sleds, the main program first if it has any.
    pub(crate) modules: Vec<Module>,
    /// Modules that cannot be traced.
    pub(crate) refused: Vec<RefusedModule>,
    /// True if the main program is 32-bit.
    pub(crate) thirty_two_bit: bool,
}

// === impl Load ===

impl Load {
    /// Start of its first executable mapping.
    pub(crate) fn text(&self) -> u64 {
        self.text
    }
}

// === impl Module ===

impl Module {
    /// A module of a process that has ended, as a trace describes it.
    pub(crate) fn ended(path: String, bias: u64, object: Object) -> Self {
        let entry = MapEntry {
            range: 0..0,
            permissions: *b"----",
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: path.clone(),
            deleted: true,
        };
        Self {
            path,
            object: Arc::new(object),
            bias,
            load: Load {
                device: entry.device,
                inode: entry.inode,
                text: 0,
            },
            entry,
            stay: Stay::Lasting,
        }
    }

    /// The address in the target of `address` in the file.
    pub(crate) fn in_target(&self, address: FileAddr) -> TargetAddr {
        TargetAddr(address.0.wrapping_add(self.bias))
    }

    /// True if `entry` is still a mapping of this module's file.
    pub(crate) fn is_mapped_by(&self, entry: &MapEntry) -> bool {
        entry.inode == self.entry.inode && entry.device == self.entry.device
    }

    /// True if `entry` maps text of this load of the file.
    pub(crate) fn maps(&self, entry: &MapEntry) -> bool {
        let place = entry.range.start.wrapping_sub(entry.offset);
        self.is_mapped_by(entry)
            && self.object.segments().iter().any(|segment| {
                let start = segment.address.0.wrapping_sub(segment.file_offset);
                segment.executable && start.wrapping_add(self.bias) == place
            })
    }

    /// The offset in the file of the byte at `address`, which `entry` maps. `None` unless the byte
    /// is text of this module, mapped from the file. In a module that is never unloaded, memory
    /// without a file at the place of its text is its text as well: programs copy their text there
    /// to have it on huge pages.
    pub(crate) fn offset_of(&self, entry: &MapEntry, address: u64) -> Option<u64> {
        let offset = self.offset_in_file(address)?;
        let is_text = if self.is_mapped_by(entry) {
            let into = address.checked_sub(entry.range.start)?;
            entry.offset.checked_add(into) == Some(offset)
        } else {
            self.took_place(entry)
        };
        (entry.executable() && is_text).then_some(offset)
    }

    /// The parts of `maps` that are text of this module, each with the offset in the file at which
    /// it begins.
    pub(crate) fn texts(&self, maps: &Maps) -> Vec<(Range<u64>, u64)> {
        let mut texts = Vec::new();
        for entry in maps.iter().filter(|entry| entry.executable()) {
            if self.maps(entry) {
                texts.push((entry.range.clone(), entry.offset));
            } else if self.took_place(entry) {
                for segment in self.text_segments() {
                    let begin = segment.address.0.wrapping_add(self.bias);
                    let start = begin.max(entry.range.start);
                    let end = begin.saturating_add(segment.file_size).min(entry.range.end);
                    if start < end {
                        let offset = segment.file_offset.saturating_add(start - begin);
                        texts.push((start..end, offset));
                    }
                }
            }
        }
        texts
    }

    fn took_place(&self, entry: &MapEntry) -> bool {
        self.stay == Stay::Lasting && entry.is_anonymous()
    }

    fn text_segments(&self) -> impl Iterator<Item = &Segment> {
        let segments = self.object.segments().iter();
        segments.filter(|segment| segment.executable)
    }

    fn offset_in_file(&self, address: u64) -> Option<u64> {
        let in_file = address.wrapping_sub(self.bias);
        self.text_segments().find_map(|segment| {
            let into = in_file.checked_sub(segment.address.0)?;
            (into < segment.file_size).then(|| segment.file_offset.checked_add(into))?
        })
    }

    /// True if `other` is the same build of the same file at the same place. Both may have been
    /// loaded at different times.
    pub(crate) fn is_again(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.object, &other.object)
            && self.load == other.load
            && self.bias == other.bias
    }
}

/// All loads of files with code, with sleds or without.
pub(crate) fn loads_of(maps: &Maps) -> HashSet<Load> {
    let groups = executable_files(maps);
    groups.iter().map(Group::load).collect()
}

/// The modules with sleds that process `pid` has mapped.
pub(crate) fn modules_of(pid: Pid, maps: &Maps, objects: &Objects) -> Found {
    modules_among(pid, maps, objects, |_| true)
}

/// The modules with sleds among those loads that are `wanted`.
pub(crate) fn modules_among(
    pid: Pid,
    maps: &Maps,
    objects: &Objects,
    wanted: impl Fn(&Load) -> bool,
) -> Found {
    let mut found = Found::default();
    let main = main_inode(pid);
    for group in executable_files(maps) {
        let load = group.load();
        if !wanted(&load) {
            continue;
        }
        let first = group.first;
        let is_main = main == Some(first.inode);
        let refuse = |reason, message: String| RefusedModule {
            path: first.name.clone(),
            load,
            refusal: Refusal::new(reason, message),
        };
        match objects.get(pid, first) {
            Ok(Ok(object)) if object.machine() != Machine::X86_64 => {
                let message = format!(
                    "{}: its sleds are for another architecture than x86-64",
                    first.name
                );
                found.refused.push(refuse(Reason::Not64Bit, message));
            }
            Ok(Ok(object)) => match load_bias(&object, &group) {
                Some(bias) => {
                    let module = Module {
                        path: first.name.clone(),
                        object,
                        bias,
                        entry: first.clone(),
                        load,
                        stay: Stay::Passing,
                    };
                    if is_main {
                        found.modules.insert(0, module);
                    } else {
                        found.modules.push(module);
                    }
                }
                None => found.refused.push(refuse(
                    Reason::NoSleds,
                    format!(
                        "{}: its segments are not mapped as the file says",
                        first.name
                    ),
                )),
            },
            Ok(Err(ObjectError::ThirtyTwoBit)) => found.thirty_two_bit |= is_main,
            Ok(Err(ObjectError::NoMap | ObjectError::NotElf)) => {}
            // Nothing shows that such a file has sleds.
            Ok(Err(ObjectError::NoSectionHeaders)) => {}
            Ok(Err(error)) => {
                let message = format!("{}: {error}", first.name);
                found.refused.push(refuse(Reason::NoSleds, message));
            }
            Err(error) => {
                let message = format!("cannot read {}: {error}", first.name);
                found.refused.push(refuse(Reason::Permission, message));
            }
        }
    }
    found
}

/// Mappings of one file, of which at least one is executable.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) first: &'a MapEntry,
    pub(super) executable: Vec<&'a MapEntry>,
}

// === impl Group ===

impl Group<'_> {
    pub(super) fn load(&self) -> Load {
        let text = self.executable.first();
        Load {
            device: self.first.device,
            inode: self.first.inode,
            text: text.map_or(0, |entry| entry.range.start),
        }
    }
}

pub(super) fn executable_files(maps: &Maps) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    // By file: its newest groups, with the offset at which each began. A process may have 65,530
    // mappings.
    let mut newest: HashMap<(u64, (u32, u32)), Newest> = HashMap::new();
    // Text that was copied into memory without a file. It lies, without a gap, between mappings of
    // its file.
    let mut between: Vec<&MapEntry> = Vec::new();
    let mut before: Option<(usize, u64)> = None;
    for entry in maps.iter() {
        if !entry.is_file() {
            before = match before {
                Some((index, end))
                    if entry.range.start == end && entry.is_anonymous() && entry.executable() =>
                {
                    between.push(entry);
                    Some((index, entry.range.end))
                }
                _ => None,
            };
            continue;
        }
        let copied = std::mem::take(&mut between);
        let file = (entry.inode, entry.device);
        let group = newest
            .get(&file)
            .and_then(|newest| newest.of_other_offset(entry.offset));
        let index = group.unwrap_or(groups.len());
        if before == Some((index, entry.range.start))
            && let Some(group) = groups.get_mut(index)
        {
            group.executable.extend(copied);
        }
        before = Some((index, entry.range.end));
        match groups.get_mut(index) {
            Some(group) if entry.executable() => group.executable.push(entry),
            Some(_) => {}
            None => {
                let began = (entry.offset, groups.len());
                newest
                    .entry(file)
                    .and_modify(|newest| newest.add(began))
                    .or_insert(Newest {
                        last: began,
                        other: None,
                    });
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

/// The newest group of a file, and the newest group that began at another offset. Each has offset
/// and index.
#[derive(Debug)]
struct Newest {
    last: (u64, usize),
    other: Option<(u64, usize)>,
}

// === impl Newest ===

impl Newest {
    /// The newest group that a mapping of this offset can belong to. One load of a file maps it in
    /// one run. A second load of the file (dlmopen) begins again at the same offset.
    fn of_other_offset(&self, offset: u64) -> Option<usize> {
        let (began, index) = self.last;
        if began == offset {
            self.other.map(|(_, index)| index)
        } else {
            Some(index)
        }
    }

    fn add(&mut self, began: (u64, usize)) {
        if began.0 != self.last.0 {
            self.other = Some(self.last);
        }
        self.last = began;
    }
}

/// The load bias, from the executable segment whose file offset an executable mapping covers. If
/// the program has copied all executable segments elsewhere, it is from the segment that the first
/// mapping covers.
pub(super) fn load_bias(object: &Object, group: &Group<'_>) -> Option<u64> {
    let from_file = |entry: &&MapEntry| entry.is_file();
    let mapped: Vec<&MapEntry> = group.executable.iter().copied().filter(from_file).collect();
    let (mapped, executable) = match mapped.is_empty() {
        true => (vec![group.first], false),
        false => (mapped, true),
    };
    object
        .segments()
        .iter()
        .filter(|segment| segment.executable == executable)
        .take(EXECUTABLE_SEGMENTS)
        .find_map(|segment| {
            mapped.iter().find_map(|entry| {
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

pub(super) fn main_inode(pid: Pid) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("{}/exe", Threads::proc_dir(pid)))
        .ok()
        .map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(maps: &str) -> Vec<(u64, Vec<u64>)> {
        executable_files(&Maps::parse(maps.as_bytes()))
            .into_iter()
            .map(|group| {
                let executable = group.executable.iter().map(|entry| entry.range.start);
                (group.first.range.start, executable.collect())
            })
            .collect()
    }

    #[test]
    fn a_file_that_is_loaded_twice_makes_two_groups() {
        let maps = "\
            1000-2000 r--p 00000000 fe:00 42 /a\n\
            2000-3000 r-xp 00001000 fe:00 42 /a\n\
            3000-4000 r--p 00000000 fe:00 43 /b\n\
            4000-5000 r--p 00000000 fe:00 42 /a\n\
            5000-6000 r-xp 00001000 fe:00 42 /a\n\
            6000-7000 rw-p 00002000 fe:00 42 /a\n\
            7000-8000 r-xp 00000000 fe:01 42 /c\n\
            8000-9000 r-xp 00000000 fe:01 42 /c\n";
        let expected = [
            (0x1000, vec![0x2000]),
            (0x4000, vec![0x5000]),
            (0x7000, vec![0x7000]),
            (0x8000, vec![0x8000]),
        ];
        assert_eq!(groups(maps), expected);
    }

    /// The maps of a program that has copied its text to huge pages. Other executable memory lies
    /// elsewhere.
    #[test]
    fn copied_text_belongs_to_the_file_around_it() {
        let maps = "\
            1000-2000 r--p 00000000 fe:00 42 /a\n\
            2000-3000 r-xp 00001000 fe:00 42 /a\n\
            3000-5000 r-xp 00000000 00:00 0 \n\
            5000-6000 r-xp 00000000 00:00 0 [anon:text]\n\
            6000-7000 r--p 00005000 fe:00 42 /a\n\
            7000-8000 r-xp 00000000 00:00 0 \n\
            9000-a000 r--p 00000000 fe:00 43 /b\n\
            a000-b000 r-xp 00000000 00:00 0 \n\
            b000-c000 r--p 00002000 fe:00 43 /b\n\
            c000-d000 r-xp 00000000 00:00 0 \n\
            d000-e000 r--p 00000000 fe:00 44 /c\n";
        let expected = [
            (0x1000, vec![0x2000, 0x3000, 0x5000]),
            (0x9000, vec![0xa000]),
        ];
        assert_eq!(groups(maps), expected);
    }

    /// The largest number of mappings that the kernel allows, once of the same page and once of
    /// different pages.
    #[test]
    fn every_mapping_that_a_process_can_have_is_sorted_in_its_turn() {
        use std::fmt::Write as _;
        const MAPPINGS: u64 = 65_530;
        let (mut same, mut other) = (String::new(), String::new());
        for start in (1..=MAPPINGS).map(|page| page << 12) {
            let end = start + 0x1000;
            writeln!(same, "{start:x}-{end:x} r-xp 00000000 fe:00 42 /a").unwrap();
            writeln!(other, "{start:x}-{end:x} r-xp {start:x} fe:00 {start} /a").unwrap();
        }
        for maps in [same, other] {
            assert_eq!(groups(&maps).len() as u64, MAPPINGS);
        }
    }
}
