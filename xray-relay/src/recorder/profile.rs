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
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::iter;
use xray_trace::analysis::SummedProfile;
use xrayd_proto::v1::{FetchProfileRequest, SumsBegin};

use super::{Backoff, LastFile, Order, Periods, is_over, is_stopped};
use crate::daemon::Daemon;
use crate::losses::Loss;
use crate::store::{Place, SUMS, Unfinished, replace};
use crate::utc;

/// The most bytes of all sums of a process.
const MOST_BYTES: u64 = 1 << 30;
/// The longest description of kept sums, in bytes.
const LONGEST_DESCRIPTION: u64 = 1 << 20;

/// Why calls are missing although a program adds them up.
const TAKEN_ALONG: &str = "a daemon ended that alone had a part of the sums";

/// Held while sums are subtracted.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What is known of kept sums.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The begin of the sums of each process, as the daemon identifies them.
    begins: BTreeMap<u32, u64>,
    /// The number of daemons that had taken a part of the sums along.
    #[serde(default)]
    taken: BTreeMap<u32, u64>,
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
/// stopped, and one more then.
pub(super) async fn run(
    daemon: Daemon,
    place: &Place,
    periods: Periods,
    mut orders: watch::Receiver<Order>,
) {
    let mut backoff = Backoff::new();
    let (mut since, mut covered) = (Instant::now(), utc::now());
    let mut failed = false;
    loop {
        let is_last = tokio::select! {
            () = is_stopped(&mut orders) => true,
            () = tokio::time::sleep_until(since + periods.every) => false,
        };
        let mut last_file = LastFile::new();
        let written = loop {
            match period(&daemon, place).await {
                Err(why) if is_last && last_file.again(&why).await => {}
                written => break written,
            }
        };
        let why = match written {
            Ok(true) => {
                (since, covered) = (Instant::now(), utc::now());
                backoff = Backoff::new();
                failed = false;
                match is_last {
                    true => return,
                    false => continue,
                }
            }
            Ok(false) => "the daemon has no sums of the process any more".to_owned(),
            Err(why) => why,
        };
        // The next file has these calls, too. A daemon that starts has no session at first.
        if !is_last {
            if !std::mem::replace(&mut failed, true) {
                let (policy, pid) = (&place.policy, place.pid);
                tracing::warn!(policy, pid, why, "a profile failed, and is tried again");
            }
            // If the recorder is stopped meanwhile, this is the last attempt.
            backoff.wait(&mut orders).await;
            continue;
        }
        // If the relay ends, the next one has the calls.
        if *orders.borrow() != Order::Pause {
            place.note(&Loss::new(place.pid, (covered, utc::now()), 0, why));
        }
        return;
    }
}

/// Writes the rest of the sums of a process that is not traced any more. False if there is none.
pub(super) async fn rest(daemon: &Daemon, place: &Place) -> bool {
    let has_sums = Sums::of(place).is_ok_and(|sums| sums.kept.exists());
    if !has_sums {
        return false;
    }
    let mut last_file = LastFile::new();
    loop {
        match period(daemon, place).await {
            Err(why) if last_file.again(&why).await => {}
            written => return written.unwrap_or(false),
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
    let _place = daemon.place().await;
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
        // The sums of a process are in memory several times.
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let later = read(&self.new)?;
        let taken: BTreeMap<u32, u64> = begins.iter().map(|it| (it.pid, it.taken_along)).collect();
        let begins: BTreeMap<u32, u64> = begins.iter().map(|it| (it.pid, it.ticks)).collect();
        let mut file = place
            .begin(Unfinished::Useless)
            .map_err(|error| error.to_string())?;
        let mut earlier = None;
        let mut missing = None;
        let before = read_kept(&self.kept);
        let has_lost = has_lost_part(before.as_ref(), &begins, &taken);
        if let Some(kept) = before {
            // Sums of another process, or from another begin, are not a part of these.
            let is_same =
                |pid: u32| begins.contains_key(&pid) && begins.get(&pid) == kept.begins.get(&pid);
            match read(&self.sums) {
                Ok(mut sums) => {
                    sums.retain_processes(is_same);
                    // Fewer calls of one period can hide in the calls of the next one.
                    if has_lost {
                        missing = Some(TAKEN_ALONG.to_owned());
                    } else if later.covers(&sums) {
                        earlier = Some(sums);
                    } else {
                        missing = Some("the sums of the process are fewer than before".to_owned());
                    }
                }
                Err(why) => missing = Some(format!("the sums of before cannot be read: {why}")),
            }
        } else if has_lost {
            // No file has any of these calls.
            let since = place.begun().unwrap_or(file.begun);
            place.note(&Loss::new(place.pid, (since, utc::now()), 0, TAKEN_ALONG));
        }
        // Without the sums of before, calls would be in two files. So this period has no calls.
        let base = match missing {
            Some(_) => Some(&later),
            None => earlier.as_ref(),
        };
        let out = BufWriter::new(&mut file);
        later
            .write_since(base, out)
            .map_err(|error| error.to_string())?;
        if let Some(why) = missing {
            let since = fs::metadata(&self.sums)
                .and_then(|found| found.modified())
                .ok();
            let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
            let times = (since.unwrap_or(file.begun), utc::now());
            place.note(&Loss::new(place.pid, times, 0, why));
        }
        let kept = Kept {
            begins,
            taken,
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
        match fs::rename(&self.new, &self.sums) {
            // A relay was killed after this step.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(&self.new_kept, &self.kept)
    }
}

/// True if daemons have taken a part of the sums along since the description was written.
fn has_lost_part(
    before: Option<&Kept>,
    begins: &BTreeMap<u32, u64>,
    taken: &BTreeMap<u32, u64>,
) -> bool {
    taken.iter().any(|(pid, now)| {
        let before = before.filter(|kept| kept.begins.get(pid) == begins.get(pid));
        let before = before.and_then(|kept| kept.taken.get(pid));
        *now > before.copied().unwrap_or(0)
    })
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
            taken: BTreeMap::from([(7, 5)]),
            file: "/x".into(),
        };
        replace(&path, &serde_json::to_vec(&kept).unwrap()).unwrap();
        assert_eq!(read_kept(&path), Some(kept));
        fs::write(&path, "{").unwrap();
        assert_eq!(read_kept(&path), None);
    }

    #[test]
    fn each_daemon_that_took_a_part_along_is_noticed_once() {
        let maps =
            |begin: u64, taken: u64| (BTreeMap::from([(7, begin)]), BTreeMap::from([(7, taken)]));
        for (before, now, has_lost) in [
            (Some((1, 0)), (1, 0), false),
            (Some((1, 0)), (1, 1), true),
            (Some((1, 1)), (1, 1), false),
            (Some((1, 1)), (1, 2), true),
            // Other sums.
            (Some((1, 3)), (2, 0), false),
            (Some((1, 3)), (2, 1), true),
            // The first file.
            (None, (1, 0), false),
            (None, (1, 1), true),
        ] {
            let kept = before.map(|(begin, taken)| {
                let (begins, taken) = maps(begin, taken);
                Kept {
                    begins,
                    taken,
                    file: PathBuf::new(),
                }
            });
            let (begins, taken) = maps(now.0, now.1);
            let found = has_lost_part(kept.as_ref(), &begins, &taken);
            assert_eq!(found, has_lost, "{before:?} {now:?}");
        }
    }
}
