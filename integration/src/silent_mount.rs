//! A file system whose server does not answer. Its files can be opened and mapped, and never be
//! read.
//!
//! It speaks only the part of FUSE that this takes:
//! <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/fuse.h>

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::{is_root_for, not_run};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// In the answer to OPEN: the file's pages stay as they are. Without it, the kernel waits for pages
/// that are being read.
const KEEP_CACHE: u64 = 2;

const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Seconds for which the kernel keeps names and attributes.
const VALID: u64 = 1000;
const SIZE: u64 = 1 << 20;

/// The mount. When it is dropped, each read that waits fails.
#[derive(Debug)]
pub struct SilentMount {
    dir: tempfile::TempDir,
    was_read: Arc<AtomicBool>,
}

// === impl SilentMount ===

impl SilentMount {
    /// Makes the mount. `None` if none can be made here, which is reported.
    ///
    /// # Errors
    /// No mount can be made here, under CI.
    pub fn new(test: &str) -> Result<Option<SilentMount>> {
        if !is_root_for(test)? {
            return Ok(None);
        }
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = match device {
            Ok(device) => device,
            Err(error) => {
                not_run(test, &format!("/dev/fuse: {error}"))?;
                return Ok(None);
            }
        };
        let dir = tempfile::tempdir()?;
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0,allow_other");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let name = Some("silent");
        if let Err(error) = mount(name, dir.path(), Some("fuse"), flags, Some(&*options)) {
            not_run(test, &format!("mounting a FUSE file system: {error}"))?;
            return Ok(None);
        }
        let was_read = Arc::new(AtomicBool::new(false));
        let mount = SilentMount {
            dir,
            was_read: Arc::clone(&was_read),
        };
        std::thread::spawn(move || serve(&device, &was_read));
        Ok(Some(mount))
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// One of many such files.
    #[must_use]
    pub fn numbered(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("file{number}"))
    }

    /// True if a read waits.
    #[must_use]
    pub fn was_read(&self) -> bool {
        self.was_read.load(Ordering::SeqCst)
    }
}

impl Drop for SilentMount {
    fn drop(&mut self) {
        let flags = MntFlags::MNT_FORCE | MntFlags::MNT_DETACH;
        // MNT_FORCE ends waiting reads, and the server. A mount that stays is an empty directory
        // without it.
        let _ = umount2(self.dir.path(), flags);
    }
}

/// Answers until the file system is unmounted.
fn serve(device: &File, was_read: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    loop {
        let length = match (&*device).read(&mut request) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // The request was taken back.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => continue,
            Err(_) => return,
        };
        let Some(head) = request.get(..length).and_then(|it| it.first_chunk::<40>()) else {
            return;
        };
        let operation = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let node = u64::from_le_bytes(std::array::from_fn(|at| head[16 + at]));
        let answer = match operation {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            READ => {
                was_read.store(true, Ordering::SeqCst);
                continue;
            }
            INIT => {
                let (major, minor) = (7_u32, 31_u32);
                let mut answer = words(&[major, minor, 4096, 0, 0, 4096, 1, 0]);
                answer.resize(64, 0);
                Ok(answer)
            }
            LOOKUP if request[40..length].starts_with(b"file") => {
                let digits = request[44..length].iter().filter(|it| it.is_ascii_digit());
                let number = digits.fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0'));
                let mut answer = longs(&[FILE + number, 0, VALID, VALID, 0]);
                answer.extend(attributes(FILE + number));
                Ok(answer)
            }
            LOOKUP => Err(Errno::ENOENT),
            GETATTR => {
                let mut answer = longs(&[VALID, 0]);
                answer.extend(attributes(node));
                Ok(answer)
            }
            OPEN => Ok(longs(&[1, KEEP_CACHE])),
            RELEASE => Ok(Vec::new()),
            _ => Err(Errno::ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-(error as i32), Vec::new()),
        };
        let mut whole = Vec::new();
        let length = u32::try_from(16 + body.len()).unwrap_or(16);
        whole.extend(length.to_le_bytes());
        whole.extend(error.to_le_bytes());
        whole.extend(&head[8..16]);
        whole.extend(body);
        if (&*device).write_all(&whole).is_err() {
            return;
        }
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT { 0o040_755 } else { 0o100_755 };
    let mut attributes = longs(&[node, SIZE, SIZE / 512, 0, 0, 0]);
    attributes.extend(words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    attributes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|word| word.to_le_bytes()).collect()
}
