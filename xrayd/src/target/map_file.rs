//! Finds and opens the files that a process has mapped.
//!
//! A process chooses what it maps and under which names, and it changes both while the daemon
//! looks. So the daemon finds a file first without opening it (`O_PATH`). That has no effect on a
//! FIFO or a device, and it waits for no lease. The daemon then judges the descriptor, not a name.
//! Only a regular file that proves to be the mapped one is opened for reading, through that same
//! descriptor.
//!
//! ```text
//!  /proc/PID/map_files/RANGE   the mapped file itself. Takes CAP_CHECKPOINT_RESTORE.
//!  /proc/PID/exe               the main program itself
//!  /proc/PID/root + name       the file of that name now. Only for processes of our own user.
//! ```
//!
//! If `map_files` answers, there is no other way: a mapping that it does not show is gone. A name
//! is resolved inside the process's root (`RESOLVE_IN_ROOT`), so absolute symbolic links stay
//! there.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    ops::Range,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _, unix::fs::OpenOptionsExt as _},
    path::Path,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    libc,
    sys::stat::{major, minor},
    unistd::geteuid,
};

use super::{MapEntry, Maps, Threads, memory_owner};
use crate::pid::Pid;

/// Looks at the maps, if they change meanwhile or show another inode than the file has.
const LOOKS: usize = 4;

/// A file that was found and is not open for reading.
#[derive(Debug)]
pub(crate) struct FoundFile(File);

// === impl FoundFile ===

impl FoundFile {
    /// The file that `entry` of process `pid` maps, also if it was deleted or replaced (P65).
    ///
    /// # Errors
    /// It is not mapped any more, or it cannot be reached without CAP_CHECKPOINT_RESTORE.
    pub(crate) fn mapped(pid: Pid, entry: &MapEntry) -> io::Result<Self> {
        let mut range = entry.range.clone();
        for _ in 0..LOOKS {
            let error = match open_map_file(pid, &range) {
                Ok(file) => return proven(pid, &range, entry, file).map(Self),
                Err(error) => error,
            };
            match error.raw_os_error() {
                // Closed to us: it needs the capability.
                Some(libc::EPERM | libc::EACCES) => return without_map_files(pid, entry).map(Self),
                // A part of the mapping was unmapped or got other permissions, or all of it is
                // gone.
                Some(libc::ENOENT) => range = place_of(pid, entry)?,
                _ => return Err(error),
            }
        }
        Err(other_file())
    }

    /// The program that a process runs.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn program(pid: Pid) -> io::Result<Self> {
        find(format!("{}/exe", Threads::proc_dir(pid))).map(Self)
    }

    /// The file system's data about the file.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Opens the file for reading. If another process holds a lease on it, this fails and does not
    /// wait.
    ///
    /// # Errors
    /// The error of the system, or the file is no regular file.
    pub(crate) fn open(&self) -> io::Result<File> {
        if !self.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// The file that `entry` of process `pid` maps, open for reading. See [`FoundFile::mapped`].
///
/// # Errors
/// Those of [`FoundFile::mapped`], or the file is no regular file.
pub(crate) fn open_mapped(pid: Pid, entry: &MapEntry) -> io::Result<File> {
    FoundFile::mapped(pid, entry)?.open()
}

/// Opens the file that `pid` has mapped at `range`, only to examine it (`O_PATH`). Another file may
/// be mapped there by now, and opening a device or a FIFO has effects. Needs
/// CAP_CHECKPOINT_RESTORE.
///
/// # Errors
/// The error of the system, or nothing is mapped there.
pub(crate) fn open_map_file(pid: Pid, range: &Range<u64>) -> io::Result<File> {
    let dir = Threads::proc_dir(pid);
    find(format!("{dir}/map_files/{:x}-{:x}", range.start, range.end))
}

/// Follows a link of `/proc`, which leads to the file itself.
fn find(link: String) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(link)
}

/// The file, if it is the one that `entry` maps.
fn proven(pid: Pid, range: &Range<u64>, entry: &MapEntry, file: File) -> io::Result<File> {
    match is_of(&file.metadata()?, entry) {
        Some(true) => Ok(file),
        Some(false) => Err(other_file()),
        None => settled(
            file,
            || open_map_file(pid, range),
            || {
                let now = maps_of(pid)?;
                let now = now.at(range.start);
                Ok(now.is_some_and(|now| is_same(now, entry)))
            },
        ),
    }
}

/// A range at which the process has the file of `entry` mapped now.
fn place_of(pid: Pid, entry: &MapEntry) -> io::Result<Range<u64>> {
    let maps = maps_of(pid)?;
    let place = maps.iter().find(|now| is_same(now, entry));
    Ok(place.ok_or_else(other_file)?.range.clone())
}

fn maps_of(pid: Pid) -> io::Result<Maps> {
    Maps::read(pid, Threads::live(pid).unwrap_or(pid.leader()))
}

fn is_same(now: &MapEntry, entry: &MapEntry) -> bool {
    (now.device, now.inode) == (entry.device, entry.inode)
}

/// The main program by its link, another file by its name.
fn without_map_files(pid: Pid, entry: &MapEntry) -> io::Result<File> {
    let is_entry = |file: &File| {
        let found = file.metadata();
        found.is_ok_and(|found| found.ino() == entry.inode)
    };
    let program = FoundFile::program(pid).map(|found| found.0);
    if let Some(program) = program.ok().filter(is_entry) {
        return Ok(program);
    }
    // The process chose the names. A daemon with more rights than the process does not follow them.
    if memory_owner(pid) != Some(geteuid().as_raw()) {
        return Err(io::Error::other(
            "reading the files of another user's process needs CAP_CHECKPOINT_RESTORE, for \
             /proc/PID/map_files",
        ));
    }
    let root = find(format!("{}/root", Threads::proc_dir(pid)))?;
    let found = find_inside(&root, Path::new(&entry.name))?;
    if is_entry(&found) {
        return Ok(found);
    }
    Err(io::Error::other(
        "the file on disk is not the mapped file any more, and reading the mapped file needs \
         CAP_CHECKPOINT_RESTORE",
    ))
}

/// Finds a name as a process with this root does. Symbolic links do not lead out of the root, and
/// links of a `/proc` in it are not followed.
fn find_inside(root: &File, name: &Path) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(openat2(root, name, how)?.into())
}

/// True if this is the file that `entry` maps. `None` if that is unknown: some file systems show
/// another device and inode in the maps than in the file (overlayfs).
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

/// Opens the file repeatedly, and checks each time that the maps still show the same. If two
/// libraries alternate at this place, another one may be there at the open, and the right one again
/// when the maps are read, but not at every one of these looks.
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
    io::Error::other("the file is not mapped any more")
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{
            fs::{FileTypeExt as _, symlink},
            process::CommandExt as _,
        },
        process::Command,
        sync::mpsc::sync_channel,
        thread,
        time::Duration,
    };

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;
    use crate::target::command_of;

    fn entry_of(device: (u64, u64), inode: u64, name: &str) -> MapEntry {
        let (major, minor) = device;
        let line = format!("1000-2000 r-xp 00000000 {major:x}:{minor:x} {inode} {name}\n");
        Maps::parse(line.as_bytes()).iter().next().unwrap().clone()
    }

    fn device_of(metadata: &Metadata) -> (u64, u64) {
        (major(metadata.dev()), minor(metadata.dev()))
    }

    /// Another inode on the same device is another library at the same place. It does not come from
    /// a file system that shows other numbers (P63).
    #[test]
    fn another_file_of_the_same_device_is_not_the_one_that_is_mapped() {
        let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
        let device = device_of(&metadata);
        let elsewhere = (device.0, device.1 ^ 1);
        let rows = [
            (device, metadata.ino(), Some(true)),
            (elsewhere, metadata.ino(), Some(true)),
            (device, metadata.ino() ^ 1, Some(false)),
            (elsewhere, metadata.ino() ^ 1, None),
        ];
        for (device, inode, expected) in rows {
            assert_eq!(is_of(&metadata, &entry_of(device, inode, "/f")), expected);
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

    /// The mapping was there when the maps were read, and is gone. A FIFO has the file's name by
    /// now.
    #[test]
    fn a_fifo_in_the_place_of_a_mapped_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let metadata = fs::metadata(&fifo).unwrap();
        let entry = entry_of(device_of(&metadata), metadata.ino(), fifo.to_str().unwrap());
        let (done, was_done) = sync_channel(2);
        thread::spawn(move || {
            done.send(open_mapped(Pid::this(), &entry).is_err())
                .unwrap();
            // The same without map_files.
            let found = FoundFile(without_map_files(Pid::this(), &entry).unwrap());
            assert!(found.metadata().unwrap().file_type().is_fifo());
            done.send(found.open().is_err()).unwrap();
        });
        for _ in 0..2 {
            let refused = was_done.recv_timeout(Duration::from_secs(20));
            assert!(refused.expect("something waits for a writer"));
        }
    }

    /// Other permissions cut a mapping in two. The rest of it is still that file.
    #[test]
    fn a_mapping_that_was_cut_still_leads_to_its_file() {
        let pid = Pid::this();
        let maps = maps_of(pid).unwrap();
        let own = maps.iter().find(|entry| entry.is_file()).unwrap();
        let mut before = own.clone();
        before.range.end += 0x1000;
        let found = FoundFile::mapped(pid, &before).unwrap();
        assert_eq!(found.metadata().unwrap().ino(), own.inode);
        assert!(found.open().is_ok());
    }

    /// Without map_files, and with more rights than the process has. Only root can run this test.
    #[test]
    fn names_of_another_user_s_process_are_not_followed() {
        if !geteuid().is_root() {
            return;
        }
        let mut child = Command::new("sleep")
            .arg("600")
            .uid(65_534)
            .spawn()
            .unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let is_sleep = || command_of(pid).starts_with("sleep");
        while !is_sleep() {
            thread::yield_now();
        }
        let program = FoundFile::program(pid).unwrap().metadata().unwrap().ino();
        let (mut own, mut others) = (0, 0);
        for entry in maps_of(pid).unwrap().iter().filter(|entry| entry.is_file()) {
            let found = without_map_files(pid, entry);
            if entry.inode == program {
                assert_eq!(found.unwrap().metadata().unwrap().ino(), program);
                own += 1;
            } else {
                let refused = found.unwrap_err().to_string();
                assert!(refused.contains("another user's"), "{refused}");
                others += 1;
            }
        }
        assert!(own > 0 && others > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn names_stay_inside_the_process_s_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("etc/deep")).unwrap();
        fs::write(path("etc/passwd"), "inside").unwrap();
        symlink("/etc", path("absolute")).unwrap();
        symlink("../../../../../../../../etc", path("etc/deep/upwards")).unwrap();
        symlink("/etc/passwd", path("last")).unwrap();
        symlink("/proc/self/root", path("magic")).unwrap();
        let root = find(dir.path().to_str().unwrap().to_owned()).unwrap();
        for name in [
            "/etc/passwd",
            "/absolute/passwd",
            "/etc/deep/upwards/passwd",
            "/../../etc/passwd",
        ] {
            let file = FoundFile(find_inside(&root, Path::new(name)).unwrap());
            let text = io::read_to_string(file.open().unwrap()).unwrap();
            assert_eq!(text, "inside", "{name}");
        }
        // The last name of a mapped file is never a link.
        let link = FoundFile(find_inside(&root, Path::new("/last")).unwrap());
        assert!(link.open().is_err());
        // There is no /proc inside. Outside, its links are not followed.
        assert!(find_inside(&root, Path::new("/magic/etc/passwd")).is_err());
        let outside = find("/".to_owned()).unwrap();
        let magic = Path::new("/proc/self/root/etc/passwd");
        assert!(find_inside(&outside, magic).is_err());
    }
}
