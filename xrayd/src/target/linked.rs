//! The modules that stay loaded as long as the process lives: the main program, and the libraries
//! that it is linked against, directly or through other libraries. The loader keeps all of them.
//! Everything else may be unloaded at any moment.
//!
//! The links are read from files that the target chose. If a file lies, writes that need a stop are
//! made without one, but only into memory of that target.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
};

use super::{
    Load, Maps,
    modules::{executable_files, main_inode},
    open_mapped,
};
use crate::pid::Pid;

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
/// Longest table that is read, in bytes. Longer tables are cut.
const MAX_TABLE: u64 = 1 << 16;
const MAX_NAME: usize = 256;

/// The names in a file's dynamic section.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    own: Option<String>,
    needed: Vec<String>,
}

/// The loads among `maps` that are never unloaded.
pub(crate) fn linked(pid: Pid, maps: &Maps) -> HashSet<Load> {
    let main = main_inode(pid);
    let mut by_name: HashMap<String, Vec<(Load, Names)>> = HashMap::new();
    let mut wanted = Vec::new();
    let mut linked = HashSet::new();
    for group in executable_files(maps) {
        let Ok(file) = open_mapped(pid, group.first) else {
            continue;
        };
        let names = names_of(&file).unwrap_or_default();
        if main == Some(group.first.inode) {
            linked.insert(group.load());
            wanted.extend(names.needed);
            continue;
        }
        let path = Path::new(&group.first.name).file_name();
        let name = names
            .own
            .clone()
            .or_else(|| Some(path?.to_str()?.to_owned()));
        if let Some(name) = name {
            by_name.entry(name).or_default().push((group.load(), names));
        }
    }
    while let Some(name) = wanted.pop() {
        // If several loads have this name (dlmopen), one of them is linked. It is not known which
        // one.
        if let Some([(load, names)]) = by_name.remove(&name).as_deref() {
            linked.insert(*load);
            wanted.extend(names.needed.iter().cloned());
        }
    }
    linked
}

/// The names in a file. `None` unless it is a 64-bit ELF file with a dynamic section.
pub(super) fn names_of(file: &File) -> Option<Names> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    let segments = read(file, word(&header, 32)?, (count * SEGMENT) as u64)?;
    let segments = segments.as_chunks::<SEGMENT>().0;
    let of_kind = |kind: u32| {
        let its = move |segment: &&[u8; SEGMENT]| segment[..4] == kind.to_le_bytes();
        segments.iter().filter(its)
    };
    let dynamic = of_kind(PT_DYNAMIC).next()?;
    let dynamic = read(file, word(dynamic, 8)?, word(dynamic, 32)?)?;
    let entries = dynamic.as_chunks::<16>().0;
    let values = |tag: u64| {
        let its = move |entry: &&[u8; 16]| entry[..8] == tag.to_le_bytes();
        entries
            .iter()
            .filter(its)
            .filter_map(|entry| word(entry, 8))
    };
    let strings = values(DT_STRTAB).next()?;
    let strings = of_kind(PT_LOAD).find_map(|segment| {
        let into = strings.checked_sub(word(segment, 16)?)?;
        let inside = into < word(segment, 32)?;
        inside.then_some(word(segment, 8)?.checked_add(into)?)
    })?;
    let name = |offset: u64| -> Option<String> {
        let bytes = read(file, strings.checked_add(offset)?, MAX_NAME as u64)?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        Some(std::str::from_utf8(&bytes[..end]).ok()?.to_owned())
    };
    Some(Names {
        own: values(DT_SONAME).next().and_then(name),
        needed: values(DT_NEEDED).filter_map(name).collect(),
    })
}

/// This part of a file, as far as it exists.
fn read(file: &File, offset: u64, length: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(length.min(MAX_TABLE)).ok()?;
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, offset).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::loads_of;

    /// This program is linked against a C library, and its loader is mapped as well.
    #[test]
    fn what_this_program_is_linked_against_is_linked() {
        let pid = Pid::this();
        let maps = Maps::read(pid, pid.leader()).unwrap();
        let linked = linked(pid, &maps);
        assert!(linked.is_subset(&loads_of(&maps)));
        let own = names_of(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert!(!own.needed.is_empty());
        assert!(linked.len() > own.needed.len(), "{linked:?} {own:?}");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_files_never_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..400)) {
            use std::io::Write as _;
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"\x7fELF\x02\x01").unwrap();
            file.write_all(&bytes).unwrap();
            let _ = names_of(&file);
        }
    }
}
