//! The file behind the rings. It is proven on the open descriptor before anything is done with it.
//!
//! The target's threads run while one of them is borrowed. They can change at any moment what its
//! descriptors, links and mappings lead to. So a name or a number only shows where to look. The
//! opened file is judged by itself. Until it is proven, it is neither written nor cut nor extended:
//!
//! * [`RingsFile::fresh`]: a memfd that a borrowed thread has just made. It is empty, has no name
//!   in any file system, and its own name holds a number that nothing could foresee. It then gets
//!   its length and is sealed.
//! * [`RingsFile::mapped`]: the file that is mapped at a place in the target. The target may write
//!   it itself, so the daemon writes nothing that the target could not write. Its length is fixed.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{FileExt as _, MetadataExt as _},
    },
};

use nix::{
    fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl},
    libc,
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::{major, minor},
        statfs::{TMPFS_MAGIC, fstatfs},
    },
    unistd::{Whence, lseek},
};
use shm_ring::Mapping;

use crate::{
    pid::Pid,
    target::{Maps, Threads, open_map_file},
};

const PAGE: u64 = 4096;
/// Start of the names that [`RingsFile::new_name`] makes.
const NAME: &str = "xrayd-rings:";
/// Bytes of such a name, with the zero at its end.
pub(super) const NAME_BYTES: usize = NAME.len() + 32 + 1;
/// Seals that fix the length of the file, and its seals.
const FIXED: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);
/// The seal that a memfd without execute permission has from the start: Linux 6.3,
/// `vm.memfd_noexec`.
const EXEC: SealFlag = SealFlag::from_bits_retain(0x20);

/// A proven file.
#[derive(Debug)]
pub(crate) struct RingsFile {
    file: File,
}

/// The reason why a file was not proven.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unproven {
    /// It is something else.
    #[error("it is {0}")]
    Other(&'static str),
    /// The kernel refused to open or describe it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<nix::Error> for Unproven {
    fn from(errno: nix::Error) -> Self {
        Self::Io(errno.into())
    }
}

// === impl RingsFile ===

impl RingsFile {
    /// A name for a memfd, which nothing can foresee.
    pub(super) fn new_name() -> io::Result<String> {
        use std::{fmt::Write as _, io::Read as _};
        let mut random = [0u8; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let mut name = NAME.to_owned();
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
        }
        Ok(name)
    }

    /// Takes a copy of a descriptor that a borrowed thread has just made by `memfd_create` with
    /// `name`. Gives the file its length, and seals that.
    ///
    /// # Errors
    /// The descriptor leads to another file. Then nothing was done to that file.
    pub(super) fn fresh(copy: OwnedFd, name: &str, bytes: u64) -> Result<Self, Unproven> {
        let file = File::from(copy);
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        if flags.contains(OFlag::O_PATH) || flags & OFlag::O_ACCMODE != OFlag::O_RDWR {
            return Err(Unproven::Other("not open for reading and writing"));
        }
        is_shared_memory(&file)?;
        let metadata = file.metadata()?;
        if metadata.len() != 0 || metadata.blocks() != 0 {
            return Err(Unproven::Other("not empty"));
        }
        if !(seals(&file)? - EXEC).is_empty() {
            return Err(Unproven::Other("sealed already"));
        }
        if link_of(&file)? != format!("/memfd:{name} (deleted)") {
            return Err(Unproven::Other("not the file that xrayd made"));
        }
        file.set_len(bytes)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(FIXED))?;
        if !seals(&file)?.contains(FIXED) || file.metadata()?.len() != bytes {
            return Err(Unproven::Other("of changing length"));
        }
        Ok(Self { file })
    }

    /// Opens the file that the target has mapped at `range`, through `map_files`.
    ///
    /// The first open is by `O_PATH`, since opening a device or a FIFO has effects. Anonymous
    /// shared memory has no descriptor, and only a descriptor can change its length. `map_files`
    /// gives one to processes with CAP_CHECKPOINT_RESTORE in the initial user namespace. So
    /// anonymous memory is not taken over from a target that may have this capability.
    ///
    /// # Errors
    /// It is another file, or may not be opened. Then nothing was done to it.
    pub(super) fn mapped(pid: Pid, range: &Range<u64>) -> Result<Self, Unproven> {
        let handle = open_map_file(pid, range)?;
        is_shared_memory(&handle)?;
        let file = File::options()
            .read(true)
            .write(true)
            .open(own_link(&handle))?;
        let seals = seals(&file)?;
        let is_anonymous = seals == SealFlag::F_SEAL_SEAL
            && link_of(&file)? == "/dev/zero (deleted)"
            && !Threads::can_open_map_files(pid);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) && !is_anonymous {
            return Err(Unproven::Other("memory whose length can change"));
        }
        let mapped = Self { file };
        mapped.is_mapped_at(pid, range)?;
        Ok(mapped)
    }

    /// Checks that the target has this file mapped at `range`, from its beginning, and may write
    /// it.
    pub(super) fn is_mapped_at(&self, pid: Pid, range: &Range<u64>) -> Result<(), Unproven> {
        let metadata = self.file.metadata()?;
        let device = (major(metadata.dev()), minor(metadata.dev()));
        let tid = Threads::live(pid).unwrap_or(pid.leader());
        let maps = Maps::read(pid, tid)?;
        let is_it = maps.at(range.start).is_some_and(|entry| {
            entry.range == *range
                && entry.offset == 0
                && entry.permissions == *b"rw-s"
                && entry.inode == metadata.ino()
                && (u64::from(entry.device.0), u64::from(entry.device.1)) == device
        });
        if is_it {
            Ok(())
        } else {
            Err(Unproven::Other("not the file that is mapped there"))
        }
    }

    /// Maps a part of the file here; `None` if the file is shorter.
    pub(crate) fn map(&self, offset: u64, bytes: u64) -> io::Result<Option<Mapping>> {
        let is_whole = offset
            .checked_add(bytes)
            .is_some_and(|end| self.file.metadata().is_ok_and(|it| it.len() >= end));
        is_whole
            .then(|| Mapping::new(&self.file, offset, bytes))
            .transpose()
    }

    /// The parts of a range that may hold something else than zeros. To read a part that was never
    /// written would take memory.
    pub(crate) fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let seek = |from: u64, whence| {
            let from = i64::try_from(from).map_err(io::Error::other)?;
            let to = lseek(&self.file, from, whence)?;
            u64::try_from(to).map_err(io::Error::other)
        };
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let begin = match seek(at, Whence::SeekData) {
                Ok(begin) => begin.max(at),
                // Nothing is written from there on.
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
                Err(_) => at,
            };
            if begin >= range.end {
                break;
            }
            let end = seek(begin, Whence::SeekHole).unwrap_or(range.end);
            // The target can take the part away meanwhile.
            let page = begin / PAGE * PAGE;
            let end = end.max(page + PAGE).min(range.end);
            parts.push(begin..end);
            at = end;
        }
        parts
    }

    /// Writes bytes at this place, which are in the file afterwards as a whole or in part.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Copies `length` bytes from this place.
    pub(crate) fn read_at(&self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Returns the memory of a part to the system. The part then reads as zero.
    pub(crate) fn give_back(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, bytes)?)
    }

    /// Bytes of memory that the file takes; 0 if that is unknown.
    pub(crate) fn resident(&self) -> u64 {
        /// Unit of the kernel's count, whatever the blocks of the file system are.
        const BLOCK: u64 = 512;
        let metadata = self.file.metadata();
        metadata.map_or(0, |it| it.blocks().saturating_mul(BLOCK))
    }

    /// A file of our own, for tests.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn own(file: File) -> Self {
        Self { file }
    }
}

/// Checks that a file has no name, has ordinary pages, and lies on the kernel's own mount for
/// shared memory. No path leads to such a file.
fn is_shared_memory(file: &File) -> Result<(), Unproven> {
    let own = File::from(memfd_create(c"xrayd", MFdFlags::MFD_CLOEXEC)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unproven::Other("not a regular file"));
    }
    if metadata.dev() != own.metadata()?.dev() || metadata.nlink() != 0 {
        return Err(Unproven::Other("a file of a file system"));
    }
    let system = fstatfs(file)?;
    // The C libraries declare the size with different types.
    let block_size = u64::try_from(system.block_size());
    if system.filesystem_type() != TMPFS_MAGIC || block_size != Ok(PAGE) {
        return Err(Unproven::Other("memory with pages of another size"));
    }
    Ok(())
}

fn seals(file: &File) -> Result<SealFlag, Unproven> {
    Ok(SealFlag::from_bits_retain(fcntl(
        file,
        FcntlArg::F_GET_SEALS,
    )?))
}

/// The path of one of our descriptors in `/proc`. It leads to the open file, also if the file's
/// name leads elsewhere by now.
fn own_link(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn link_of(file: &File) -> io::Result<String> {
    let link = fs::read_link(own_link(file))?;
    Ok(link.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::OpenOptions,
        io::Write as _,
        os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    };

    use super::*;

    fn memfd(name: &str, flags: MFdFlags) -> File {
        File::from(memfd_create(name, flags | MFdFlags::MFD_CLOEXEC).unwrap())
    }

    fn refused(file: File, name: &str) -> String {
        let length = file.metadata().unwrap().len();
        let copy = file.try_clone().unwrap();
        let error = RingsFile::fresh(file.into(), name, 1 << 20).unwrap_err();
        assert_eq!(copy.metadata().unwrap().len(), length, "{error}");
        error.to_string()
    }

    #[test]
    fn a_fresh_memfd_is_taken_and_sealed() {
        let name = RingsFile::new_name().unwrap();
        assert_eq!(name.len() + 1, NAME_BYTES);
        let file = memfd(&name, MFdFlags::MFD_ALLOW_SEALING);
        let other = file.try_clone().unwrap();
        let taken = RingsFile::fresh(file.into(), &name, 1 << 20).unwrap();
        assert!(other.set_len(0).is_err());
        assert!(other.set_len(1 << 30).is_err());
        assert!(taken.map(4096, (1 << 20) - 4096).unwrap().is_some());
        assert!(taken.map(8192, (1 << 20) - 4096).unwrap().is_none());
        taken.give_back(0, 1 << 20).unwrap();
    }

    #[test]
    fn any_other_file_is_left_as_it_is() {
        let name = RingsFile::new_name().unwrap();
        let sealing = MFdFlags::MFD_ALLOW_SEALING;
        let other = RingsFile::new_name().unwrap();
        assert!(refused(memfd(&other, sealing), &name).contains("not the file that xrayd made"));
        assert!(refused(memfd(&name, MFdFlags::empty()), &name).contains("sealed"));
        let mut file = memfd(&name, sealing);
        file.write_all(b"x").unwrap();
        assert!(refused(file, &name).contains("empty"));
        let file = memfd(&name, sealing);
        file.set_len(1).unwrap();
        assert!(refused(file, &name).contains("empty"));
        let file = memfd(&name, sealing);
        let readable = File::open(own_link(&file)).unwrap();
        assert!(refused(readable, &name).contains("not open"));
        let mut path = OpenOptions::new();
        path.read(true).custom_flags(libc::O_PATH);
        let path = path.open(own_link(&file)).unwrap();
        assert!(refused(path, &name).contains("not open"));
        let device = File::options().read(true).write(true).open("/dev/null");
        assert!(refused(device.unwrap(), &name).contains("not a regular file"));
        let file = tempfile::tempfile().unwrap();
        assert!(refused(file, &name).contains("file system"));
        // Pages of another size are on another mount. A kernel without them makes none.
        let huge = MFdFlags::MFD_HUGETLB | sealing | MFdFlags::MFD_CLOEXEC;
        if let Ok(huge) = memfd_create(name.as_str(), huge) {
            assert!(refused(File::from(huge), &name).contains("file system"));
        }
    }

    #[test]
    fn the_written_parts_of_a_file_are_found() {
        let file = memfd("parts", MFdFlags::MFD_CLOEXEC);
        file.set_len(64 * 4096).unwrap();
        let rings = RingsFile::own(file);
        assert_eq!(rings.written(0..64 * 4096), []);
        for page in [3_u64, 4, 60] {
            rings.file.write_at(b"x", page * 4096 + 7).unwrap();
        }
        let parts = rings.written(4096..64 * 4096);
        assert_eq!(parts, [3 * 4096..5 * 4096, 60 * 4096..61 * 4096]);
        let within = rings.written(3 * 4096 + 64..4 * 4096 + 64);
        assert!(
            within
                .into_iter()
                .eq([(3 * 4096 + 64, 4 * 4096 + 64)].map(|(a, b)| a..b))
        );
        rings.give_back(3 * 4096, 4096).unwrap();
        let parts = rings.written(0..8 * 4096);
        assert!(
            parts
                .into_iter()
                .eq([(4 * 4096, 5 * 4096)].map(|(a, b)| a..b))
        );
    }
}
