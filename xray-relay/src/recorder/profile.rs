//! The sums of a process in mode profile, for each period.
//!
//! The daemon has the sums since the mode began. The recorder asks for them at the end of each
//! period, subtracts those of the time before, and writes the difference. So no call is in two
//! files, and none is missing, also if a relay or a daemon was gone for a while.
//!
//! ```text
//!  .sums/PID.xtrace    the sums of the latest file's end          PID.json   what identifies them
//!  .sums/PID.new       the next ones, until the file is there
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::iter;
use xray_trace::analysis::SummedProfile;
use xrayd_proto::v1::{FetchProfileRequest, SumsBegin};

use super::{Backoff, Order, Periods, is_over, is_stopped};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::store::{Place, SUMS, replace};
use crate::utc;

/// The most bytes of all sums of a process.
const MOST_BYTES: u64 = 1 << 30;
/// The longest description of kept sums, in bytes.
const LONGEST_DESCRIPTION: u64 = 1 << 20;

/// What is known of kept sums.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The begin of the sums of each process, as the daemon identifies them.
    begins: BTreeMap<u32, u64>,
    /// The file that was made with these sums.
    file: PathBuf,
}

/// The kept sums of one process for one policy.
struct Sums {
    /// The latest sums and their description, and the next ones.
    sums: PathBuf,
    kept: PathBuf,
    new: PathBuf,
    new_kept: PathBuf,
}

/// Writes a file for each period until the process is not traced any more, or the recorder is
/// stopped, and one more then. True if the daemon has no session of the process any more.
pub(super) async fn run(
    daemon: Daemon,
    place: &Place,
    periods: Periods,
    mut orders: watch::Receiver<Order>,
) -> bool {
    let mut backoff = Backoff::new();
    let (mut since, mut covered) = (Instant::now(), utc::now());
    loop {
        let is_last = tokio::select! {
            () = is_stopped(&mut orders) => true,
            () = tokio::time::sleep_until(since + periods.every) => false,
        };
        match period(&daemon, place).await {
            Ok(is_there) => {
                (since, covered) = (Instant::now(), utc::now());
                backoff = Backoff::new();
                if !is_there || is_last {
                    return !is_there;
                }
            }
            Err(why) => {
                if is_last || !backoff.wait(&mut orders).await {
                    place.note(&Loss::new(place.pid, (covered, utc::now()), 0, why));
                    return false;
                }
                tracing::debug!(pid = place.pid, why, "a profile failed, and is tried again");
            }
        }
    }
}

/// Writes the rest of the sums of a process that is not traced any more. False if there is none.
pub(super) async fn rest(daemon: &Daemon, place: &Place) -> bool {
    let has_sums = Sums::of(place).is_ok_and(|sums| sums.kept.exists());
    has_sums && period(daemon, place).await.unwrap_or(false)
}

/// Removes the kept sums of a process.
pub(super) fn forget(place: &Place) {
    if let Ok(Sums {
        sums,
        kept,
        new,
        new_kept,
    }) = Sums::of(place)
    {
        for path in [kept, sums, new, new_kept] {
            // Most are not there.
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes the file of a period. False if the daemon has no sums of the process.
async fn period(daemon: &Daemon, place: &Place) -> Result<bool, String> {
    let sums = Sums::of(place).map_err(|error| error.to_string())?;
    let request = FetchProfileRequest {
        pid: place.pid,
        from_now: false,
        undo: None,
    };
    let mut chunks = match daemon.rpc().fetch_profile(iter([request])).await {
        Ok(begun) => begun.into_inner(),
        Err(status) if is_over(&status) => return Ok(false),
        Err(status) => return Err(status.message().to_owned()),
    };
    let mut new = sums.begin().map_err(|error| error.to_string())?;
    let (mut begins, mut bytes) = (Vec::new(), 0_u64);
    loop {
        match chunks.message().await {
            Ok(Some(chunk)) => {
                bytes += chunk.data.len() as u64;
                if bytes > MOST_BYTES {
                    return Err(format!("the profile has more than {MOST_BYTES} bytes"));
                }
                begins = chunk.sums;
                new.write_all(&chunk.data)
                    .map_err(|error| error.to_string())?;
            }
            Ok(None) => break,
            Err(status) if is_over(&status) => return Ok(false),
            Err(status) => return Err(status.message().to_owned()),
        }
    }
    drop(new);
    let place = place.clone();
    let written = tokio::task::spawn_blocking(move || sums.difference(&place, &begins)).await;
    // The panic hook has logged a panic.
    written.map_err(|_| "a bug, which is logged".to_owned())??;
    Ok(true)
}

// === impl Sums ===

impl Sums {
    fn of(place: &Place) -> io::Result<Self> {
        let folder = place.hidden_folder(SUMS)?;
        let file = |end: &str| folder.join(format!("{}.{end}", place.pid));
        let this = Self {
            sums: file("xtrace"),
            kept: file("json"),
            new: file("new"),
            new_kept: file("new.json"),
        };
        // A relay was killed after it had written a file, and before it kept the sums.
        if let Some(new) = read_kept(&this.new_kept)
            && new.file.exists()
        {
            this.keep()?;
        }
        Ok(this)
    }

    /// The file of the next sums.
    fn begin(&self) -> io::Result<File> {
        // Without its description, it is not taken for whole.
        match fs::remove_file(&self.new_kept) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .open(&self.new)
    }

    /// Writes what has come since the latest sums as a file, and keeps the new ones.
    fn difference(&self, place: &Place, begins: &[SumsBegin]) -> Result<(), String> {
        let later = read(&self.new)?;
        let begins: BTreeMap<u32, u64> = begins.iter().map(|it| (it.pid, it.ticks)).collect();
        let earlier = match read_kept(&self.kept) {
            None => None,
            Some(kept) => {
                // Sums of another process, or from another begin, are not a part of these.
                let is_same = |pid: u32| {
                    begins.contains_key(&pid) && begins.get(&pid) == kept.begins.get(&pid)
                };
                let earlier = read(&self.sums);
                let earlier = earlier.map(|mut earlier| {
                    earlier.retain_processes(is_same);
                    earlier
                });
                earlier
                    .inspect_err(|why| {
                        tracing::warn!(pid = place.pid, why, "earlier sums are lost")
                    })
                    .ok()
            }
        };
        let mut file = place.begin().map_err(|error| error.to_string())?;
        let out = BufWriter::new(&mut file);
        if let Err(error) = later.write_since(earlier.as_ref(), out) {
            file.abandon();
            return Err(error.to_string());
        }
        let kept = Kept {
            begins,
            file: file.path().to_owned(),
        };
        let described = serde_json::to_vec(&kept).map_err(|error| error.to_string())?;
        replace(&self.new_kept, &described).map_err(|error| error.to_string())?;
        file.finish().map_err(|error| error.to_string())?;
        self.keep().map_err(|error| error.to_string())
    }

    /// Takes the new sums for the latest ones.
    fn keep(&self) -> io::Result<()> {
        // The description goes first: sums with an older one are subtracted in vain, and the other
        // way round, calls would be in two files.
        match fs::remove_file(&self.kept) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&self.new, &self.sums)?;
        fs::rename(&self.new_kept, &self.kept)
    }
}

fn read(path: &Path) -> Result<SummedProfile, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    SummedProfile::read(BufReader::new(file)).map_err(|error| error.to_string())
}

/// The description of sums, if there are any.
fn read_kept(path: &Path) -> Option<Kept> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(LONGEST_DESCRIPTION)
        .read_to_string(&mut text)
        .ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.json");
        assert_eq!(read_kept(&path), None);
        let kept = Kept {
            begins: BTreeMap::from([(7, 123)]),
            file: "/x".into(),
        };
        replace(&path, &serde_json::to_vec(&kept).unwrap()).unwrap();
        assert_eq!(read_kept(&path), Some(kept));
        fs::write(&path, "{").unwrap();
        assert_eq!(read_kept(&path), None);
    }
}
