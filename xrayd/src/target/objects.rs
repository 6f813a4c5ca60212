//! A cache of the ELF files of targets. Each file is parsed once per build.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use xray_trace::instr_map::{Object, ObjectError};

use super::{
    FoundFile, MapEntry, effective_user,
    image::{Image, Parts},
};
use crate::{liveness::Alone, lock::lock, pid::Pid};

/// Most files in the cache, apart from those in use.
const MAX_FILES: usize = 512;
/// Most bytes of parsed files that the cache itself keeps.
const MAX_BYTES: usize = 128 << 20;

/// The result of parsing a file.
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
    /// Filled by `get`.
    files: Mutex<Files<Object>>,
    /// A lock for each file that a thread is reading and parsing. Other threads that need the same
    /// file wait for that thread. Threads that need other files do not wait. A thread never holds
    /// two of these locks.
    reading: Mutex<HashMap<Key, Arc<Alone>>>,
}

/// The files that were parsed. The same file is the same allocation for all processes.
#[derive(Debug)]
struct Files<T> {
    /// By device, inode, time of change and size.
    by_key: HashMap<Key, Remembered<T>>,
    /// Bytes of all files that are kept.
    bytes: usize,
    /// Number of uses so far.
    now: u64,
}

#[derive(Debug)]
struct Remembered<T> {
    what: What<T>,
    /// Bytes of the file, if it is kept.
    bytes: usize,
    /// Number of its last use.
    used: u64,
}

#[derive(Debug)]
enum What<T> {
    Kept(Arc<T>),
    /// Exists as long as a user of it.
    InUse(Weak<T>),
    Unusable(ObjectError),
}

// === impl Objects ===

impl Objects {
    /// The object file that `entry` of process `pid` maps.
    ///
    /// # Errors
    /// The file cannot be opened or read, or it is not the mapped one.
    pub(crate) fn get(&self, pid: Pid, entry: &MapEntry) -> io::Result<Parsed> {
        let file = FoundFile::mapped(pid, entry)?;
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
        if let Some(found) = self.files().find(&key) {
            return Ok(found);
        }
        let read = self.alone_with(&key, || {
            if let Some(found) = self.files().find(&key) {
                return Ok(found);
            }
            let parsed = parse(&file.open()?, effective_user(pid))?;
            let bytes = parsed.as_ref().map_or(0, |object| object.memory());
            Ok(self.files().keep(key.clone(), parsed, bytes))
        });
        read.unwrap_or_else(|| {
            Err(io::Error::other(
                "another thread reads the file, and the file does not answer",
            ))
        })
    }

    /// Runs `work` while no other thread reads this file. `None` if another thread reads it and
    /// hangs.
    fn alone_with<T>(&self, key: &Key, work: impl FnOnce() -> T) -> Option<T> {
        let turn = Arc::clone(
            lock(&self.reading)
                .entry(key.clone())
                .or_insert_with(|| Arc::new(Alone::new())),
        );
        let alone = turn.lock();
        let done = alone.is_some().then(work);
        drop(alone);
        let mut reading = lock(&self.reading);
        // This reference and the map's: no thread waits for the lock, and no further one can come.
        if Arc::strong_count(&turn) <= 2 {
            reading.remove(key);
        }
        done
    }

    fn files(&self) -> MutexGuard<'_, Files<Object>> {
        lock(&self.files)
    }
}

// === impl Files ===

impl<T> Default for Files<T> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            bytes: 0,
            now: 0,
        }
    }
}

impl<T> Files<T> {
    fn find(&mut self, key: &Key) -> Option<Result<Arc<T>, ObjectError>> {
        self.now += 1;
        let remembered = self.by_key.get_mut(key)?;
        remembered.used = self.now;
        match &remembered.what {
            What::Kept(file) => Some(Ok(Arc::clone(file))),
            What::InUse(file) => file.upgrade().map(Ok),
            What::Unusable(error) => Some(Err(error.clone())),
        }
    }

    /// Adds a parsed file, unless it is there by now. Returns the file that is there.
    fn keep(
        &mut self,
        key: Key,
        parsed: Result<Arc<T>, ObjectError>,
        bytes: usize,
    ) -> Result<Arc<T>, ObjectError> {
        if let Some(found) = self.find(&key) {
            return found;
        }
        let what = match &parsed {
            Ok(file) => What::Kept(Arc::clone(file)),
            Err(error) => What::Unusable(error.clone()),
        };
        self.bytes += bytes;
        let used = self.now;
        // The place was empty, or held a file that nothing uses any more.
        self.by_key.insert(key, Remembered { what, bytes, used });
        self.make_room();
        parsed
    }

    /// Drops files, the longest unused ones first. A file in use can still be found while it is
    /// used.
    fn make_room(&mut self) {
        if self.bytes <= MAX_BYTES && self.by_key.len() <= MAX_FILES {
            return;
        }
        let mut oldest: Vec<(u64, Key)> = self
            .by_key
            .iter()
            .filter(|(_, remembered)| !matches!(remembered.what, What::InUse(_)))
            .map(|(key, remembered)| (remembered.used, key.clone()))
            .collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        // Leaves room for more, so that not every new file comes here.
        let most = MAX_FILES / 2;
        let mut left = oldest.len();
        for (_, key) in oldest {
            if self.bytes <= MAX_BYTES && left <= most {
                break;
            }
            left -= 1;
            if let Some(remembered) = self.by_key.get_mut(&key) {
                self.bytes -= std::mem::take(&mut remembered.bytes);
                remembered.what = match &remembered.what {
                    What::Kept(file) => What::InUse(Arc::downgrade(file)),
                    // It cannot be found any more.
                    What::InUse(_) | What::Unusable(_) => What::InUse(Weak::new()),
                };
            }
        }
        self.by_key.retain(|_, remembered| match &remembered.what {
            What::InUse(file) => file.strong_count() > 0,
            What::Kept(_) | What::Unusable(_) => true,
        });
    }
}

fn parse(file: &File, user: u32) -> io::Result<Parsed> {
    let mut magic = [0; 4];
    let is_elf = file.read_exact_at(&mut magic, 0).is_ok() && magic == *b"\x7fELF";
    if !is_elf {
        return Ok(Err(ObjectError::NotElf));
    }
    let image = Image::read(file, Parts::Map, user)?;
    let parsed = Object::parse(image.bytes());
    // A large image holds a turn, which the next one may need.
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
        add_debug_file(&mut object, user);
    }
    Ok(Ok(Arc::new(object)))
}

/// Adds the names of a stripped file from the place where distributions put them:
/// `/usr/lib/debug/.build-id/ab/cdef….debug`.
fn add_debug_file(object: &mut Object, user: u32) {
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
    let read = File::open(&path).and_then(|file| Image::read(&file, Parts::Map, user));
    if let Ok(image) = read
        && let Err(error) = object.add_symbols_from(image.bytes())
    {
        tracing::warn!(path = %path.display(), %error, "cannot use a debug file");
    }
}

#[cfg(test)]
mod tests {
    use std::{process::Command, sync::mpsc::sync_channel, thread};

    use super::*;
    use crate::target::Target;

    fn key(inode: u64) -> Key {
        Key {
            device: 1,
            inode,
            modified: (0, 0),
            size: 0,
        }
    }

    /// A trace recognises by the allocation that processes have loaded the same file.
    #[test]
    fn a_file_that_is_in_use_stays_the_same_allocation_however_many_come() {
        let mut files = Files::default();
        let used = files.keep(key(0), Ok(Arc::new(0)), 100).unwrap();
        for inode in 1..5 * MAX_FILES as u64 {
            let _ = files.keep(key(inode), Ok(Arc::new(inode)), 100);
            let _ = files.keep(key(inode | 1 << 40), Err(ObjectError::NotElf), 0);
            assert!(files.by_key.len() <= MAX_FILES + 1);
        }
        let again = files.keep(key(0), Ok(Arc::new(0)), 100).unwrap();
        assert!(Arc::ptr_eq(&used, &again));
    }

    #[test]
    fn files_that_are_kept_are_bounded_in_bytes_and_the_last_used_stay() {
        const EACH: usize = MAX_BYTES / 8;
        let mut files = Files::default();
        let first = files.keep(key(0), Ok(Arc::new(0)), EACH).unwrap();
        for inode in 1..100 {
            let _ = files.keep(key(inode), Ok(Arc::new(inode)), EACH);
            assert!(files.bytes <= MAX_BYTES);
            let kept = files.by_key.values().filter(|remembered| {
                matches!(&remembered.what, What::Kept(file) if Arc::strong_count(file) == 1)
            });
            assert!(kept.count() <= 8);
            assert!(files.find(&key(1)).is_some(), "used all the time");
        }
        assert!(files.find(&key(2)).is_none());
        let again = files.find(&key(0)).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        // A file that is too large by itself is not kept.
        let large = files
            .keep(key(200), Ok(Arc::new(0)), 2 * MAX_BYTES)
            .unwrap();
        assert!(files.bytes <= MAX_BYTES);
        assert!(files.find(&key(200)).is_some());
        drop(large);
        assert!(files.find(&key(200)).is_none());
    }

    #[test]
    fn two_parses_of_the_same_file_yield_one_allocation() {
        let mut files = Files::default();
        let first = files.keep(key(0), Ok(Arc::new(0)), 1).unwrap();
        let second = files.keep(key(0), Ok(Arc::new(0)), 1).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(files.bytes, 1);
    }

    #[test]
    fn files_of_processes_that_are_not_shown_are_not_read() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        // The child first exists as a copy of this process.
        let is_sleep = || super::super::command_of(pid).starts_with("sleep");
        while !is_sleep() {
            thread::yield_now();
        }
        let objects = Arc::new(Objects::default());
        let list = |shown: bool| {
            let shown = move |target: &Target| shown && target.pid() == pid;
            super::super::list(
                Arc::clone(&objects),
                shown,
                |_| None,
                |_| crate::target::ProcessState::LeftOn,
            )
            .unwrap()
        };
        // The child has no sleds either.
        assert_eq!(list(false), []);
        assert!(objects.files().by_key.is_empty());
        assert_eq!(list(true), []);
        assert!(!objects.files().by_key.is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A read of a file on a file system that does not answer never ends.
    #[test]
    fn a_read_that_hangs_keeps_only_readers_of_the_same_file_waiting() {
        let objects = Arc::new(Objects::default());
        let (end, ends) = sync_channel::<()>(0);
        let (begun, begins) = sync_channel(0);
        let hung = {
            let objects = Arc::clone(&objects);
            thread::spawn(move || {
                objects.alone_with(&key(1), || {
                    begun.send(()).unwrap();
                    ends.recv().unwrap();
                });
            })
        };
        begins.recv().unwrap();
        let pid = Pid::this();
        let maps = super::super::Maps::read(pid, pid.leader()).unwrap();
        let own = maps.iter().find(|entry| entry.is_file()).unwrap();
        assert!(objects.get(pid, own).is_ok());
        assert!(objects.files().find(&key(2)).is_none());
        assert_eq!(lock(&objects.reading).len(), 1);
        end.send(()).unwrap();
        hung.join().unwrap();
        assert!(lock(&objects.reading).is_empty());
    }
}
