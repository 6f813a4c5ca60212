//! Folders and files of recordings: `POLICY/DATE/TIMEZ-PID.xtrace`, and the snapshots of triggers:
//! `POLICY/DATE/TIMEZ-PID-triggerN.xtrace`. A stream that is still written has `.part` behind its
//! name, and can be read up to its end. Another file that is still written has `.unfinished` behind
//! its name, and is of no use until it is whole.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};

use crate::counters::Counters;
use crate::firings::{self, Firing};
use crate::line_file::LineFiles;
use crate::losses::{self, Loss};
use crate::mark::{Marker, PartOfStream, StreamMark};
use crate::utc;

/// The folder of a policy with a file for each process that is recorded.
const MARKERS: &str = ".active";
/// The folder of a policy with the sums of its processes.
pub(crate) const SUMS: &str = ".sums";
/// The end of the name of a file that is not whole, and can be read up to its end: a stream.
const PART: &str = ".part";
/// The end of the name of a file that is of no use until it is whole.
const UNFINISHED: &str = ".unfinished";
/// The end of the name of a recording.
const TRACE: &str = ".xtrace";
/// The most files with one time and process.
const MOST_TRIES: u32 = 100;

/// The folder of all recordings. Clones share the numbers.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
    pub(crate) counters: Arc<Counters>,
    lines: Arc<LineFiles>,
    /// Bytes of the disk that stay free.
    leave: u64,
    /// Keeps other relays out of the folder.
    _lock: Arc<Flock<File>>,
}

/// The files of one process for one policy.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    store: Store,
    pub(crate) policy: String,
    pub(crate) pid: u32,
}

/// A file that is written.
#[derive(Debug)]
pub(crate) struct Recording {
    place: Place,
    file: File,
    /// The name that it will have, and the one that it has now.
    path: PathBuf,
    now: PathBuf,
    bytes: u64,
    pub(crate) begun: Duration,
    is_removed_on_drop: bool,
    /// True if the process is recorded up to the end of the file.
    is_period: bool,
}

/// The mark of a trigger: when a relay has waited for it last.
#[derive(Debug)]
pub(crate) struct WatchMark(PathBuf);

/// What a file is worth until it is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfinished {
    /// The file is a recording up to its end. It is kept if it is never finished.
    Readable,
    /// The file is of no use. It is removed if it is never finished.
    Useless,
}

// === impl Store ===

impl Store {
    /// Opens the folder, in which `leave` bytes of the disk stay free. Streams that an earlier
    /// relay has left are whole from now on: they can be read up to their ends. Those that go on in
    /// another file end where that one begins.
    ///
    /// # Errors
    /// The folder cannot be made, or not be written to, or another relay uses it.
    pub(crate) fn open(root: &Path, leave: u64, counters: Arc<Counters>) -> io::Result<Self> {
        make(root)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(root.join(".lock"))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::other(format!("another relay uses it: {errno}")))?;
        let this = Self {
            root: root.to_owned(),
            counters,
            lines: Arc::default(),
            leave,
            _lock: Arc::new(lock),
        };
        // Tells at once if the folder cannot be written to.
        this.write_counters()?;
        for file in this.files()? {
            let name = file.name();
            if name.ends_with(UNFINISHED) {
                fs::remove_file(&file.path)?;
            } else if let Some(name) = name.strip_suffix(PART) {
                let place = file.pid().map(|pid| this.place(&file.policy, pid));
                let path = file.path.with_file_name(name);
                let mark = place.as_ref().and_then(Place::stream_mark);
                let part = mark.map_or(PartOfStream::All, |mark| mark.part_of(&path));
                part.finish(&file.path, &path)?;
                // The process was recorded up to here.
                if let Some(place) = place {
                    place.mark(file.modified)?;
                }
            }
        }
        Ok(this)
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The files of a process for a policy.
    pub(crate) fn place(&self, policy: &str, pid: u32) -> Place {
        Place {
            store: self.clone(),
            policy: policy.to_owned(),
            pid,
        }
    }

    /// The processes that an earlier relay has recorded, and whose end it has not seen.
    pub(crate) fn marked(&self) -> io::Result<Vec<Place>> {
        let mut marked = Vec::new();
        for policy in folders(&self.root)? {
            let Ok(entries) = fs::read_dir(policy.join(MARKERS)) else {
                continue;
            };
            for entry in entries {
                let name = entry?.file_name();
                if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
                    marked.push(self.place(&name_of(&policy), pid));
                }
            }
        }
        Ok(marked)
    }

    /// The marks of triggers: the policy, the number, and the mark.
    pub(crate) fn watch_marks(&self) -> io::Result<Vec<(String, u32, WatchMark)>> {
        let mut marks = Vec::new();
        for policy in folders(&self.root)? {
            let Ok(entries) = fs::read_dir(policy.join(MARKERS)) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let number = name.to_str().and_then(|name| name.strip_prefix("trigger"));
                if let Some(number) = number.and_then(|number| number.parse().ok()) {
                    marks.push((name_of(&policy), number, WatchMark(entry.path())));
                }
            }
        }
        Ok(marks)
    }

    /// Removes kept sums that were written before this time, but not those of a marked process:
    /// its next file is the difference from them.
    pub(crate) fn remove_old_sums(&self, before: Duration) -> io::Result<()> {
        for policy in folders(&self.root)? {
            let Ok(entries) = fs::read_dir(policy.join(SUMS)) else {
                continue;
            };
            let markers = policy.join(MARKERS);
            for entry in entries.flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let pid = name.split('.').next().unwrap_or_default();
                // It may be gone meanwhile.
                let is_old = entry
                    .metadata()
                    .is_ok_and(|found| modified(&found) < before);
                if is_old
                    && !markers.join(pid).is_file()
                    && let Err(error) = fs::remove_file(entry.path())
                {
                    let path = entry.path();
                    tracing::debug!(path = %path.display(), %error, "cannot remove old sums");
                }
            }
        }
        Ok(())
    }

    /// Writes the numbers for metrics, and lines that wait for room.
    pub(crate) fn write_counters(&self) -> io::Result<()> {
        self.lines.write();
        replace(
            &self.root.join("metrics.prom"),
            self.counters.text().as_bytes(),
        )
    }

    /// All recordings, and parts of some. What cannot be read is left out.
    pub(crate) fn files(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for policy in folders(&self.root)? {
            for date in folders(&policy).unwrap_or_default() {
                let Ok(entries) = fs::read_dir(&date) else {
                    continue;
                };
                for entry in entries.flatten() {
                    let name = entry.file_name();
                    let name = name.to_string_lossy();
                    let whole = name.trim_end_matches(PART).trim_end_matches(UNFINISHED);
                    if !whole.ends_with(TRACE) {
                        continue;
                    }
                    // It may be gone meanwhile.
                    let Ok(metadata) = entry.metadata() else {
                        continue;
                    };
                    found.push(Found {
                        policy: name_of(&policy),
                        path: entry.path(),
                        bytes: metadata.len(),
                        modified: modified(&metadata),
                    });
                }
            }
        }
        Ok(found)
    }
}

/// A file that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) policy: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Since the Unix epoch.
    pub(crate) modified: Duration,
}

// === impl Found ===

impl Found {
    pub(crate) fn name(&self) -> String {
        name_of(&self.path)
    }

    /// The pid of its process, by its name.
    fn pid(&self) -> Option<u32> {
        let name = self.name();
        let (_, pid) = name.split_once('-')?;
        let end = pid.find(|character: char| !character.is_ascii_digit());
        pid.get(..end.unwrap_or(pid.len()))?.parse().ok()
    }

    /// True if it is still written.
    pub(crate) fn is_part(&self) -> bool {
        let name = self.name();
        name.ends_with(PART) || name.ends_with(UNFINISHED)
    }
}

/// When a file was written, since the Unix epoch.
fn modified(found: &fs::Metadata) -> Duration {
    let time = found.modified().ok();
    let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    time.unwrap_or_default()
}

/// Bytes of the disk of a folder that are free.
pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(folder)?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The folders in a folder, but hidden ones and links.
fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder)?.flatten() {
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_hidden {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

fn make(folder: &Path) -> io::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o750).create(folder);
    made.map_err(|error| {
        let message = format!("{}: {error}", folder.display());
        io::Error::new(error.kind(), message)
    })
}

/// Puts a file in the place of an earlier one. At any time there is one of the two, whole.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(PART);
    let part = PathBuf::from(part);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o640)
        .open(&part)?;
    file.write_all(bytes)?;
    fs::rename(part, path)
}

// === impl Place ===

impl Place {
    /// Begins a file.
    ///
    /// # Errors
    /// It cannot be made, or too little of the disk is free.
    pub(crate) fn begin(&self, unfinished: Unfinished) -> io::Result<Recording> {
        self.begin_as("", unfinished)
    }

    /// Begins the file of a moment at which the trigger with this number has fired.
    ///
    /// # Errors
    /// It cannot be made, or too little of the disk is free.
    pub(crate) fn begin_moment(&self, trigger: u32) -> io::Result<Recording> {
        let kind = format!("-trigger{trigger}");
        let mut begun = self.begin_as(&kind, Unfinished::Useless)?;
        begun.is_period = false;
        Ok(begun)
    }

    /// Begins a file with this behind the pid in its name.
    fn begin_as(&self, kind: &str, unfinished: Unfinished) -> io::Result<Recording> {
        if free_bytes(&self.store.root)? < self.store.leave {
            let mib = self.store.leave >> 20;
            return Err(io::Error::other(format!(
                "less than {mib} MiB of the disk are free"
            )));
        }
        let begun = utc::now();
        let folder = self.folder().join(utc::date(begun));
        make(&folder)?;
        let time = utc::time_of_day(begun);
        for attempt in 1..=MOST_TRIES {
            let more = match attempt {
                1 => String::new(),
                _ => format!("-{attempt}"),
            };
            let path = folder.join(format!("{time}Z-{}{kind}{more}{TRACE}", self.pid));
            let end = match unfinished {
                Unfinished::Readable => PART,
                Unfinished::Useless => UNFINISHED,
            };
            let at = |end: &str| path.with_file_name(name_of(&path) + end);
            let part = at(end);
            if path.exists() || at(PART).exists() || at(UNFINISHED).exists() {
                continue;
            }
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o640)
                .open(&part);
            match file {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    return Ok(Recording {
                        place: self.clone(),
                        file: file?,
                        path,
                        now: part,
                        bytes: 0,
                        begun,
                        is_removed_on_drop: unfinished == Unfinished::Useless,
                        is_period: true,
                    });
                }
            }
        }
        Err(io::Error::other("there are too many files of this time"))
    }

    /// The folder of the policy.
    pub(crate) fn folder(&self) -> PathBuf {
        self.store.root.join(&self.policy)
    }

    /// A hidden folder of the policy, for what is no recording.
    pub(crate) fn hidden_folder(&self, name: &str) -> io::Result<PathBuf> {
        let folder = self.folder().join(name);
        make(&folder)?;
        Ok(folder)
    }

    /// Marks the process as one that is recorded. Returns the time up to which an earlier relay has
    /// recorded it, if one has and the process had not ended.
    pub(crate) fn begin_process(&self) -> io::Result<Option<Duration>> {
        let marker = self.marker()?;
        let before = fs::metadata(&marker).ok().map(|found| modified(&found));
        if before.is_none() {
            replace(&marker, b"")?;
        }
        Ok(before)
    }

    /// Notes that the process is recorded up to this time.
    fn mark(&self, until: Duration) -> io::Result<()> {
        let marker = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(self.marker()?)?;
        marker.set_modified(UNIX_EPOCH + until)
    }

    /// When the process was marked, or recorded last.
    pub(crate) fn begun(&self) -> Option<Duration> {
        let marker = self.marker().ok()?;
        fs::metadata(marker).ok().map(|found| modified(&found))
    }

    /// The stream of the process that an earlier recorder has left, if it can be resumed.
    pub(crate) fn stream_mark(&self) -> Option<StreamMark> {
        StreamMark::read(&self.marker().ok()?)
    }

    /// Notes that no recorder goes on with the stream of an earlier one. True if some of it may be
    /// missing.
    pub(crate) fn end_stream(&self) -> io::Result<bool> {
        let Some(mark) = self.stream_mark() else {
            return Ok(false);
        };
        Marker::open(&self.marker()?)?.clear()?;
        Ok(!mark.is_left)
    }

    /// Notes that nothing after the stream's position is missing. If the policy traces the process
    /// again, a recorder goes on there. False if there is no stream.
    pub(crate) fn leave_stream(&self) -> bool {
        let Some(mark) = self.stream_mark() else {
            return false;
        };
        let written = self
            .marker()
            .and_then(|path| Marker::open(&path)?.write(&mark.left()));
        if let Err(error) = written {
            tracing::error!(policy = self.policy, pid = self.pid, %error, "cannot mark a process");
        }
        true
    }

    /// The file of the mark.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn marker(&self) -> io::Result<PathBuf> {
        Ok(self.hidden_folder(MARKERS)?.join(self.pid.to_string()))
    }

    /// Removes the mark: the process has ended, or is not traced any more.
    pub(crate) fn end_process(&self) {
        let removed = self
            .hidden_folder(MARKERS)
            .and_then(|folder| fs::remove_file(folder.join(self.pid.to_string())));
        if let Err(error) = removed {
            tracing::debug!(policy = self.policy, pid = self.pid, %error, "no mark to remove");
        }
    }

    /// Notes that something is in no file.
    pub(crate) fn note(&self, loss: &Loss) {
        self.store.counters.change(&self.policy, |numbers| {
            numbers.gaps += 1;
            numbers.lost = numbers.lost.saturating_add(loss.events);
        });
        tracing::warn!(
            policy = self.policy,
            pid = loss.pid,
            events = loss.events,
            why = loss.why,
            "not recorded"
        );
        self.append(losses::NAME, loss);
    }

    /// Notes the time before a process was recorded. Each process has one, so it is no gap.
    pub(crate) fn note_begin(&self, times: (Duration, Duration)) {
        let why = "the policy did not trace the process before";
        let loss = Loss {
            is_begin: true,
            ..Loss::new(self.pid, times, 0, why)
        };
        self.append(losses::BEGINS, &loss);
    }

    /// Notes that a trigger has fired.
    pub(crate) fn note_firing(&self, firing: &Firing) {
        self.store.counters.change(&self.policy, |numbers| {
            numbers.firings += u64::from(firing.pid > 0);
            numbers.skipped_firings = numbers.skipped_firings.saturating_add(firing.skipped);
        });
        if let Some(why) = &firing.why {
            let pid = firing.pid;
            tracing::warn!(
                policy = self.policy,
                pid,
                why,
                "no snapshot of a trigger's moment"
            );
        }
        self.append(firings::NAME, firing);
    }

    fn append(&self, name: &'static str, line: &impl serde::Serialize) {
        self.store.lines.append(self.folder(), name, line);
    }

    /// The same for another process of the policy.
    pub(crate) fn of_process(&self, pid: u32) -> Self {
        Self {
            pid,
            ..self.clone()
        }
    }

    /// The mark of the trigger with this number.
    pub(crate) fn watch_mark(&self, trigger: u32) -> WatchMark {
        let folder = self.folder().join(MARKERS);
        WatchMark(folder.join(format!("trigger{trigger}")))
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.store.counters
    }
}

// === impl WatchMark ===

impl WatchMark {
    /// When a relay has waited for the trigger last, if one has.
    pub(crate) fn touched(&self) -> Option<Duration> {
        fs::metadata(&self.0).ok().map(|found| modified(&found))
    }

    /// Notes that the relay waits for it now.
    pub(crate) fn touch(&self) {
        let folder = self.0.parent().map_or(Ok(()), make);
        if let Err(error) = folder.and_then(|()| replace(&self.0, b"")) {
            tracing::error!(path = %self.0.display(), %error, "cannot mark a trigger");
        }
    }

    /// Removes the mark: the policy has the trigger no more.
    pub(crate) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "no mark to remove");
        }
    }
}

// === impl Recording ===

impl Recording {
    /// Makes the file whole. If it is the file of a period, the process is recorded up to now.
    pub(crate) fn finish(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.now, &self.path)?;
        self.is_removed_on_drop = false;
        self.count(self.bytes)?;
        Ok(self.path.clone())
    }

    /// The path that it will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes that were written.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the file whole, without what was written after the first `bytes` bytes. On an error,
    /// it can be tried again.
    pub(crate) fn finish_at(&mut self, bytes: u64) -> io::Result<()> {
        PartOfStream::Bytes(bytes).finish(&self.now, &self.path)?;
        self.is_removed_on_drop = false;
        match bytes {
            0 => Ok(()),
            bytes => self.count(bytes),
        }
    }

    /// Counts a whole file.
    fn count(&self, bytes: u64) -> io::Result<()> {
        let place = &self.place;
        place.counters().change(&place.policy, |numbers| {
            numbers.files += 1;
            numbers.bytes = numbers.bytes.saturating_add(bytes);
        });
        match self.is_period {
            true => place.mark(utc::now()),
            false => Ok(()),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.is_removed_on_drop {
            // The next relay removes it otherwise.
            let _ = fs::remove_file(&self.now);
        }
    }
}

impl io::Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn store(root: &Path) -> Store {
        Store::open(root, 0, Arc::default()).unwrap()
    }

    #[test]
    fn a_stream_is_whole_for_the_next_relay_and_other_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("relay");
        let first = store(&root);
        // Another relay keeps out.
        assert!(Store::open(&root, 0, Arc::default()).is_err());
        let place = first.place("p", 7);
        let mut recording = place.begin(Unfinished::Readable).unwrap();
        recording.write_all(b"abc").unwrap();
        let part = first.files().unwrap();
        assert!(part[0].is_part() && part[0].bytes == 3 && part[0].policy == "p");
        // Of the same time: another name.
        let other = place.begin(Unfinished::Useless).unwrap().finish().unwrap();
        let path = recording.finish().unwrap();
        assert_ne!(path, other);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        // One that fails leaves nothing.
        drop(place.begin(Unfinished::Useless).unwrap());
        let files = first.files().unwrap();
        assert!(files.len() == 2 && files.iter().all(|file| !file.is_part()));
        // Those that a killed relay leaves.
        let day = path.parent().unwrap();
        let [cut, useless] = ["1Z-7.xtrace", "2Z-7.xtrace"].map(|name| day.join(name));
        fs::write(day.join("1Z-7.xtrace.part"), "x").unwrap();
        fs::write(day.join("2Z-7.xtrace.unfinished"), "x").unwrap();
        drop((place, first));
        assert_eq!(store(&root).files().unwrap().len(), 3);
        assert!(cut.exists() && !useless.exists());
        // The disk is full.
        let store = Store::open(&root, u64::MAX, Arc::default()).unwrap();
        assert!(store.place("p", 7).begin(Unfinished::Readable).is_err());
    }

    #[test]
    fn a_stream_that_is_cut_ends_where_the_next_one_begins() {
        let dir = tempfile::tempdir().unwrap();
        let first = store(dir.path());
        let place = first.place("p", 7);
        let day = place.folder().join("2026-11-30");
        make(&day).unwrap();
        let [earlier, marked, later] = ["1Z-7", "2Z-7", "3Z-7"].map(|name| day.join(name));
        for path in [&earlier, &marked, &later] {
            fs::write(path.with_extension("xtrace.part"), "0123456789").unwrap();
        }
        let file = marked.with_extension("xtrace");
        let marker = Marker::open(&place.marker().unwrap()).unwrap();
        marker.write(&StreamMark::new(&file, 4, &[1])).unwrap();
        drop((place, first));
        let next = store(dir.path());
        let read = |path: &Path| fs::read_to_string(path.with_extension("xtrace")).ok();
        assert_eq!(read(&earlier).as_deref(), Some("0123456789"));
        assert_eq!(read(&marked).as_deref(), Some("0123"));
        assert_eq!(read(&later), None);
        assert!(next.files().unwrap().iter().all(|file| !file.is_part()));

        // A file of which nothing counts is no recording.
        let place = next.place("p", 7);
        for (bytes, files) in [(0, 2), (2, 3)] {
            let mut recording = place.begin(Unfinished::Readable).unwrap();
            recording.write_all(b"abc").unwrap();
            recording.finish_at(bytes).unwrap();
            drop(recording);
            assert_eq!(next.files().unwrap().len(), files);
        }
    }

    #[test]
    fn a_process_is_marked_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let first = store(dir.path());
        let place = first.place("p", 7);
        assert_eq!(place.begin_process().unwrap(), None);
        place.begin(Unfinished::Readable).unwrap().finish().unwrap();
        drop((place, first));
        // The next relay.
        let next = store(dir.path());
        let marked = next.marked().unwrap();
        assert_eq!(
            (marked.len(), marked[0].pid, &*marked[0].policy),
            (1, 7, "p")
        );
        assert!(marked[0].begin_process().unwrap() > Some(Duration::from_secs(1)));
        marked[0].end_process();
        assert!(next.marked().unwrap().is_empty());
        assert_eq!(marked[0].begin_process().unwrap(), None);
    }

    #[test]
    fn old_sums_go_with_their_process() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let [running, ended] = [7, 70].map(|pid| store.place("p", pid));
        running.begin_process().unwrap();
        let folder = running.hidden_folder(SUMS).unwrap();
        let [kept, old] = ["7.sums", "70.sums"].map(|name| folder.join(name));
        for path in [&kept, &old] {
            fs::write(path, "x").unwrap();
        }
        // A folder in it keeps no file.
        fs::create_dir(folder.join("1")).unwrap();
        store.remove_old_sums(Duration::ZERO).unwrap();
        assert!(kept.exists() && old.exists());
        store.remove_old_sums(Duration::MAX).unwrap();
        assert!(kept.exists() && !old.exists());
        running.end_process();
        ended.end_process();
        store.remove_old_sums(Duration::MAX).unwrap();
        assert!(!kept.exists());
    }

    #[test]
    fn losses_are_counted_and_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let place = store.place("p", 7);
        let times = (Duration::from_millis(5), Duration::from_millis(9));
        place.note(&Loss::new(7, times, 3, "x\ny"));
        let text = fs::read_to_string(dir.path().join("p/losses.jsonl")).unwrap();
        let expected = "{\"pid\":7,\"since_ms\":5,\"until_ms\":9,\"events\":3,\"why\":\"x\\ny\"}\n";
        assert_eq!(text, expected);
        store.write_counters().unwrap();
        let metrics = fs::read_to_string(dir.path().join("metrics.prom")).unwrap();
        assert!(metrics.contains("xray_relay_lost_events_total{policy=\"p\"} 3"));
    }
}
