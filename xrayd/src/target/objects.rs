//! ELF files of targets, parsed once per file and build.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use nix::sys::stat::{major, minor};
use xray_trace::instr_map::{Object, ObjectError};

use super::{
    MapEntry, Maps, Threads,
    image::{Image, Parts},
};
use crate::{lock::lock, pid::Pid};

/// Parsed files kept.
const MAX_CACHED: usize = 512;

/// Looks at the maps where they show another inode than the file has.
const LOOKS: usize = 4;

/// What a file turned out to be.
pub(crate) type Parsed = std::result::Result<Arc<Object>, ObjectError>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

/// A cache of parsed files.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// By device, inode, time of change and size. Filled by `get`; emptied when it is full, but for what is in use: the same file is
    /// the same allocation for everybody.
    parsed: Mutex<HashMap<Key, Parsed>>,
}

// === impl Objects ===

impl Objects {
    /// The object file that `entry` of process `pid` maps.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is another one than what is mapped.
    pub(crate) fn get(&self, pid: Pid, entry: &MapEntry) -> io::Result<Parsed> {
        let file = open_mapped(pid, entry)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Err(ObjectError::NotElf));
        }
        let key = Key {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            size: metadata.len(),
        };
        if let Some(found) = self.lock().get(&key) {
            return Ok(found.clone());
        }
        let parsed = parse(&file)?;
        Ok(keep(&mut self.lock(), key, parsed))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Parsed>> {
        lock(&self.parsed)
    }
}

/// Adds what was parsed, unless somebody else has meanwhile; returns what is kept.
fn keep<T>(
    cache: &mut HashMap<Key, Result<Arc<T>, ObjectError>>,
    key: Key,
    parsed: Result<Arc<T>, ObjectError>,
) -> Result<Arc<T>, ObjectError> {
    if cache.len() >= MAX_CACHED {
        cache.retain(|_, kept| kept.as_ref().is_ok_and(|kept| Arc::strong_count(kept) > 1));
    }
    cache.entry(key).or_insert(parsed).clone()
}

fn parse(file: &File) -> io::Result<Parsed> {
    let mut magic = [0; 4];
    let is_elf = file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF";
    if !is_elf {
        return Ok(Err(ObjectError::NotElf));
    }
    let image = Image::read(file, Parts::Map)?;
    let parsed = Object::parse(&*image);
    // There is one image at a time.
    drop(image);
    let mut object = match parsed {
        Ok(object) => object,
        Err(error) => return Ok(Err(error)),
    };
    if object
        .functions()
        .iter()
        .all(|function| function.symbol.is_none())
    {
        add_debug_file(&mut object);
    }
    Ok(Ok(Arc::new(object)))
}

/// Names of a stripped file from where distributions put them: `/usr/lib/debug/.build-id/ab/cdef….debug`.
fn add_debug_file(object: &mut Object) {
    let Some(id) = object
        .build_id()
        .map(ToString::to_string)
        .filter(|id| id.len() > 2 && id.is_ascii())
    else {
        return;
    };
    let (head, tail) = id.split_at(2);
    let path = Path::new("/usr/lib/debug/.build-id")
        .join(head)
        .join(format!("{tail}.debug"));
    let read = File::open(&path).and_then(|file| Image::read(&file, Parts::Map));
    if let Ok(bytes) = read
        && let Err(error) = object.add_symbols_from(&*bytes)
    {
        tracing::warn!(path = %path.display(), %error, "a debug file that does not fit");
    }
}

/// Opens the very file that is mapped, also if it was deleted or replaced: by `map_files` where we may, by `exe` for the main program, by its path as
/// the process sees it if that still leads to the same inode (P65).
///
/// # Errors
/// What the system says; it is not mapped any more.
pub(crate) fn open_mapped(pid: Pid, entry: &MapEntry) -> io::Result<File> {
    let dir = Threads::proc_dir(pid);
    let range = format!("{:x}-{:x}", entry.range.start, entry.range.end);
    let same = |file: File| -> Option<File> {
        let metadata = file.metadata().ok()?;
        (metadata.ino() == entry.inode).then_some(file)
    };
    let open = || File::open(format!("{dir}/map_files/{range}"));
    if let Ok(file) = open() {
        return match is_of(&file.metadata()?, entry) {
            Some(true) => Ok(file),
            Some(false) => Err(other_file()),
            None => settled(file, open, || {
                let tid = Threads::live(pid).unwrap_or(pid.leader());
                let maps = Maps::read(pid, tid)?;
                let now = maps.at(entry.range.start);
                Ok(now.is_some_and(|now| (now.device, now.inode) == (entry.device, entry.inode)))
            }),
        };
    }
    if let Some(file) = File::open(format!("{dir}/exe")).ok().and_then(same) {
        return Ok(file);
    }
    let inside: PathBuf = [format!("{dir}/root"), entry.name.clone()].concat().into();
    let file = File::open(&inside)?;
    same(file).ok_or_else(|| {
        io::Error::other(
            "the file on disk is no longer the one that is mapped, and reading the mapped one needs CAP_CHECKPOINT_RESTORE",
        )
    })
}

/// Whether this is the file that `entry` maps. `None` if that cannot be told: some file systems show another device and inode in the maps than
/// in the file (overlayfs).
fn is_of(metadata: &Metadata, entry: &MapEntry) -> Option<bool> {
    let device = (major(metadata.dev()), minor(metadata.dev()));
    let (shown_major, shown_minor) = entry.device;
    let same_device = device == (shown_major.into(), shown_minor.into());
    match (metadata.ino() == entry.inode, same_device) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

/// Opens it again and again, and looks after each time whether the maps still show what they showed. Where libraries take turns, another one may
/// be there as it is opened, and the right one again as the maps are read: not as often as this.
fn settled(
    file: File,
    open: impl Fn() -> io::Result<File>,
    still_there: impl Fn() -> io::Result<bool>,
) -> io::Result<File> {
    let name = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    let first = name(&file)?;
    for _ in 0..LOOKS {
        if !still_there()? || name(&open()?)? != first {
            return Err(other_file());
        }
    }
    Ok(file)
}

fn other_file() -> io::Error {
    io::Error::other("it is not mapped any more")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(inode: u64) -> Key {
        Key {
            device: 1,
            inode,
            modified: (0, 0),
            size: 0,
        }
    }

    /// By the allocation a trace knows that processes have the same file loaded.
    #[test]
    fn a_file_that_is_in_use_stays_the_same_allocation_however_many_come() {
        let mut cache = HashMap::new();
        let used = keep(&mut cache, key(0), Ok(Arc::new(0))).unwrap();
        for inode in 1..5 * MAX_CACHED as u64 {
            let _ = keep(&mut cache, key(inode), Ok(Arc::new(inode)));
            let _ = keep(&mut cache, key(inode | 1 << 40), Err(ObjectError::NotElf));
            assert!(cache.len() <= MAX_CACHED);
        }
        let again = keep(&mut cache, key(0), Ok(Arc::new(0))).unwrap();
        assert!(Arc::ptr_eq(&used, &again));
    }

    #[test]
    fn who_parses_a_file_at_the_same_time_gets_what_the_first_one_got() {
        let mut cache = HashMap::new();
        let first = keep(&mut cache, key(0), Ok(Arc::new(0))).unwrap();
        let second = keep(&mut cache, key(0), Ok(Arc::new(0))).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
    }

    fn entry_of(device: (u32, u32), inode: u64) -> MapEntry {
        let line = format!(
            "1000-2000 r-xp 00000000 {:x}:{:x} {inode} /some/file\n",
            device.0, device.1
        );
        Maps::parse(line.as_bytes()).iter().next().unwrap().clone()
    }

    /// Another library at the same place is no file system that shows other numbers (P63).
    #[test]
    fn another_file_of_the_same_device_is_not_the_one_that_is_mapped() {
        let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
        let device = (major(metadata.dev()), minor(metadata.dev()));
        let device = (
            u32::try_from(device.0).unwrap(),
            u32::try_from(device.1).unwrap(),
        );
        let elsewhere = (device.0, device.1 ^ 1);
        let rows = [
            (device, metadata.ino(), Some(true)),
            (elsewhere, metadata.ino(), Some(true)),
            (device, metadata.ino() ^ 1, Some(false)),
            (elsewhere, metadata.ino() ^ 1, None),
        ];
        for (device, inode, expected) in rows {
            assert_eq!(is_of(&metadata, &entry_of(device, inode)), expected);
        }
    }

    #[test]
    fn a_file_that_takes_turns_with_another_is_not_taken_for_it() {
        let file = || tempfile::tempfile().unwrap();
        let (one, other) = (file(), file());
        let copy = || one.try_clone().unwrap();
        assert!(settled(copy(), || one.try_clone(), || Ok(true)).is_ok());
        assert!(settled(copy(), || one.try_clone(), || Ok(false)).is_err());
        let turns = std::cell::Cell::new(0);
        let in_turn = || {
            turns.set(turns.get() + 1);
            if turns.get() % 2 == 0 { &one } else { &other }.try_clone()
        };
        assert!(settled(copy(), in_turn, || Ok(true)).is_err());
    }
}
