//! All segments of this daemon: made, removed, and found from the daemon before.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

use super::{SegmentName, sender::StoreSender};
use crate::{
    lock::lock,
    notify::{self, NamedFile},
};

/// The most segments at a time, which is `FileDescriptorStoreMax=` of the unit.
pub(crate) const MOST_SEGMENTS: usize = 4096;

/// The flag for a file that is never executed: `MFD_NOEXEC_SEAL`. `vm.memfd_noexec` can demand it.
const NOEXEC: MFdFlags = MFdFlags::from_bits_retain(0x8);

/// Seals of a segment that gets no more events.
const COMPLETE: SealFlag = SealFlag::F_SEAL_WRITE
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_SEAL);

/// A folder with files of segments.
pub(crate) trait SegmentFolder: fmt::Debug + Send + Sync {
    /// Makes an empty file for a segment.
    ///
    /// # Errors
    /// There is a file with that name, or the error of the system.
    fn create(&self, name: SegmentName) -> io::Result<File>;

    /// Removes the file of a segment.
    fn remove(&self, name: SegmentName);

    /// The segments of the daemon before, at most so many.
    fn found(&self, most: usize) -> Vec<(SegmentName, File)>;
}

/// All segments of this daemon.
#[derive(Debug)]
pub(crate) struct SegmentStore {
    place: Place,
    /// Set when the daemon leaves its sessions to the next one: from then on nothing is removed.
    leaves: AtomicBool,
    segments: Mutex<Segments>,
}

#[derive(Debug)]
enum Place {
    /// Memory. The service manager keeps it, if there is one.
    Memory(Option<Arc<StoreSender>>),
    Folder(Arc<dyn SegmentFolder>),
}

#[derive(Debug, Default)]
struct Segments {
    /// All that there are.
    files: BTreeMap<SegmentName, Arc<File>>,
    /// Those of the daemon before which no session has taken over so far.
    found: Vec<Segment>,
    /// True once a segment was refused because there are too many.
    is_full: bool,
}

/// A segment. It is removed when it is dropped, unless the daemon leaves its sessions to the next
/// one.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: SegmentName,
    pub(crate) file: Arc<File>,
    store: Arc<SegmentStore>,
}

// === impl SegmentStore ===

impl SegmentStore {
    /// Segments in memory. The service manager keeps them, if there is one, and a program that this
    /// process executes inherits them. `files` are those of the daemon before. They are charged to
    /// this daemon's control group, which has `room` for more bytes if it has a limit.
    pub(crate) fn in_memory(files: Vec<NamedFile>, room: Option<u64>) -> Arc<Self> {
        let sender = notify::has_manager().then(StoreSender::start);
        let sender = sender.and_then(|started| {
            let failed = |error: &io::Error| {
                tracing::error!(
                    %error,
                    "cannot start a thread: retained events do not outlive this daemon"
                );
            };
            started.inspect_err(failed).ok()
        });
        let take_back = |file: &File| {
            if let (Some(sender), Ok(name)) = (&sender, stored_as(file)) {
                sender.take_back(name);
            }
        };
        let mut found = Vec::new();
        for NamedFile { name, descriptor } in files {
            let file = File::from(descriptor);
            match (name.parse(), seal(&file)) {
                (Ok(name), Ok(())) if found.len() < MOST_SEGMENTS => found.push((name, file)),
                (_, sealed) => {
                    let why = sealed.err();
                    tracing::warn!(name, ?why, "refused a file of the service manager");
                    take_back(&file);
                }
            }
        }
        let dropped = room.map_or_else(Vec::new, |room| oldest_without_room(&mut found, room));
        if !dropped.is_empty() {
            tracing::warn!(
                files = dropped.len(),
                "dropped the oldest retained events, because they took most of the memory that the \
                 daemon's control group allows: raise MemoryMax= or lower --retain"
            );
            dropped.iter().for_each(take_back);
        }
        Self::new(Place::Memory(sender), found)
    }

    /// Segments as files of a folder.
    pub(crate) fn in_folder(folder: Arc<dyn SegmentFolder>) -> Arc<Self> {
        let found = folder.found(MOST_SEGMENTS);
        Self::new(Place::Folder(folder), found)
    }

    fn new(place: Place, found: Vec<(SegmentName, File)>) -> Arc<Self> {
        let store = Arc::new(Self {
            place,
            leaves: AtomicBool::new(false),
            segments: Mutex::default(),
        });
        let mut segments = lock(&store.segments);
        for (name, file) in found {
            let file = Arc::new(file);
            segments.files.insert(name, Arc::clone(&file));
            segments.found.push(Segment {
                name,
                file,
                store: Arc::clone(&store),
            });
        }
        segments.found.sort_by_key(|segment| segment.name);
        drop(segments);
        store
    }

    /// Makes an empty segment.
    ///
    /// # Errors
    /// There are too many segments, or the error of the system.
    pub(crate) fn create(self: &Arc<Self>, name: SegmentName) -> io::Result<Segment> {
        {
            let mut segments = lock(&self.segments);
            if segments.files.len() >= MOST_SEGMENTS {
                let is_first = !std::mem::replace(&mut segments.is_full, true);
                if is_first {
                    tracing::warn!(
                        "there are {MOST_SEGMENTS} files of retained events: further events do not \
                         outlive this daemon"
                    );
                }
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        }
        let file = match &self.place {
            Place::Memory(_) => {
                let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
                // The next daemon reads this name.
                let text = name.to_string();
                let made = memfd_create(text.as_str(), flags | NOEXEC);
                // Linux before 6.3.
                let made = made.or_else(|_| memfd_create(text.as_str(), flags));
                File::from(made?)
            }
            Place::Folder(folder) => folder.create(name)?,
        };
        let file = Arc::new(file);
        if let Place::Memory(Some(sender)) = &self.place {
            sender.give(stored_as(&file)?, Arc::downgrade(&file));
        }
        lock(&self.segments).files.insert(name, Arc::clone(&file));
        Ok(Segment {
            name,
            file,
            store: Arc::clone(self),
        })
    }

    /// Takes the segments that the daemon before has left, and that are wanted, in order.
    pub(crate) fn take_found(&self, is_wanted: impl Fn(&SegmentName) -> bool) -> Vec<Segment> {
        let mut segments = lock(&self.segments);
        let found = &mut segments.found;
        let wanted = found.extract_if(.., |segment| is_wanted(&segment.name));
        wanted.collect()
    }

    /// From now on nothing is removed: the next daemon gets all segments.
    pub(crate) fn leave(&self) {
        self.leaves.store(true, Relaxed);
    }

    /// True if nothing is removed any more.
    pub(crate) fn are_left(&self) -> bool {
        self.leaves.load(Relaxed)
    }

    /// Waits until the service manager has all segments, at most for `time`.
    pub(crate) fn flush(&self, time: Duration) {
        if let Place::Memory(Some(sender)) = &self.place {
            sender.flush(time);
        }
    }

    /// The files in memory, for a program that this process executes.
    pub(crate) fn files_in_memory(&self) -> Vec<Arc<File>> {
        match &self.place {
            Place::Memory(_) => lock(&self.segments).files.values().cloned().collect(),
            Place::Folder(_) => Vec::new(),
        }
    }

    fn remove(&self, name: SegmentName, file: &File) {
        if self.are_left() {
            return;
        }
        lock(&self.segments).files.remove(&name);
        match &self.place {
            Place::Memory(Some(sender)) => match stored_as(file) {
                Ok(name) => sender.take_back(name),
                Err(error) => tracing::debug!(%name, %error, "cannot take back a file of events"),
            },
            Place::Memory(None) => {}
            Place::Folder(folder) => folder.remove(name),
        }
    }
}

/// The memory that these files take, in bytes.
pub(crate) fn bytes_of_files(files: &[NamedFile]) -> u64 {
    let sizes = files.iter().filter_map(|NamedFile { descriptor, .. }| {
        let metadata = File::from(descriptor.try_clone().ok()?).metadata().ok()?;
        Some(bytes_of(&metadata))
    });
    sizes.sum()
}

/// The memory that a file takes, in bytes. Blocks of stat(2) have 512 bytes.
fn bytes_of(metadata: &Metadata) -> u64 {
    metadata.blocks() * 512
}

/// Has the service manager close the files of a daemon that kept retained events in memory.
pub(crate) fn refuse_files(files: &[NamedFile]) {
    for NamedFile { name, descriptor } in files {
        tracing::warn!(
            name,
            "removed a file of retained events: events are not kept in memory"
        );
        let removed = descriptor
            .try_clone()
            .and_then(|descriptor| notify::remove_stored(&stored_as(&File::from(descriptor))?));
        if let Err(error) = removed {
            tracing::debug!(name, %error, "cannot take back a file of events");
        }
    }
}

/// Takes the oldest segments out of `found`, until the others are not larger than the room that is
/// left beside them. Otherwise a daemon that the kernel killed for its memory would leave so much
/// of it to the next daemon that the kernel kills that one, too.
fn oldest_without_room(found: &mut Vec<(SegmentName, File)>, mut room: u64) -> Vec<File> {
    let facts = |file: &File| {
        let metadata = file.metadata().ok()?;
        Some((metadata.modified().ok()?, bytes_of(&metadata)))
    };
    found.sort_by_cached_key(|(_, file)| facts(file).map(|(time, _)| time));
    let size = |file: &File| facts(file).map_or(0, |(_, bytes)| bytes);
    let mut taken: u64 = found.iter().map(|(_, file)| size(file)).sum();
    let stay = found.iter().position(|(_, file)| {
        let stays = taken <= room;
        if !stays {
            taken -= size(file);
            room += size(file);
        }
        stays
    });
    let dropped = found.drain(..stay.unwrap_or(found.len()));
    dropped.map(|(_, file)| file).collect()
}

/// The name of a file for the service manager. All these names have to fit into one variable of the
/// environment, which has 128 KiB.
fn stored_as(file: &File) -> io::Result<String> {
    Ok(format!("events-{:x}", file.metadata()?.ino()))
}

/// Has the contents of a file stay as they are, whichever other process has it open.
fn seal(file: &File) -> io::Result<()> {
    match fcntl(file, FcntlArg::F_ADD_SEALS(COMPLETE)) {
        Err(Errno::EPERM) if is_sealed(file) => Ok(()),
        sealed => sealed.map(drop).map_err(io::Error::from),
    }
}

fn is_sealed(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(COMPLETE))
}

// === impl Segment ===

impl Segment {
    /// Leaves the segment to the next daemon.
    pub(crate) fn leave(self) {
        let store = Arc::clone(&self.store);
        lock(&store.segments).found.push(self);
    }

    /// Notes that the segment gets no more events. In memory, it cannot be changed from now on.
    pub(crate) fn complete(&self) {
        if let Place::Memory(_) = self.store.place
            && let Err(error) = seal(&self.file)
        {
            tracing::debug!(name = %self.name, %error, "cannot seal a file of events");
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.store.remove(self.name, &self.file);
    }
}
