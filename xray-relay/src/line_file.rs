//! Files with a line of JSON for each thing that happened to a policy. A line that finds no room on
//! the disk waits in memory.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// The size at which a file makes room. One earlier file is kept.
const LONGEST: u64 = 1 << 20;

/// The most bytes of lines that wait for room on the disk.
const MOST_WAITING: usize = 1 << 20;

/// The lines that could not be written so far, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct LineFiles(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Line>,
    bytes: usize,
}

/// A line, and the folder and the name of its file.
#[derive(Debug)]
struct Line {
    folder: PathBuf,
    name: &'static str,
    text: String,
}

// === impl LineFiles ===

impl LineFiles {
    /// Appends a line to `NAME.jsonl` in the folder of a policy. If that fails, it is written
    /// later. The oldest such lines are dropped, if there are too many of them, with a message in
    /// the log.
    pub(crate) fn append(&self, folder: PathBuf, name: &'static str, line: &impl Serialize) {
        let mut text = match serde_json::to_string(line) {
            Ok(text) => text,
            Err(error) => return tracing::error!(name, %error, "a line cannot be written"),
        };
        text.push('\n');
        let mut waiting = self.lock();
        waiting.bytes += text.len();
        waiting.lines.push_back(Line { folder, name, text });
        while waiting.bytes > MOST_WAITING
            && let Some(oldest) = waiting.lines.pop_front()
        {
            waiting.bytes -= oldest.text.len();
            tracing::error!(name, line = oldest.text.trim_end(), "a line was dropped");
        }
        drop(waiting);
        self.write();
    }

    /// Writes the lines that wait, as far as that is possible.
    pub(crate) fn write(&self) {
        let mut waiting = self.lock();
        let (mut kept, mut failed) = (VecDeque::new(), BTreeSet::new());
        while let Some(line) = waiting.lines.pop_front() {
            // The lines of a file stay in order. Those of other folders are written.
            if failed.contains(&line.folder) {
                kept.push_back(line);
                continue;
            }
            match append(&line.folder, line.name, &line.text) {
                Ok(()) => waiting.bytes -= line.text.len(),
                Err(error) => {
                    let folder = line.folder.display();
                    tracing::error!(%folder, %error, "lines wait until they can be written");
                    failed.insert(line.folder.clone());
                    kept.push_back(line);
                }
            }
        }
        waiting.lines = kept;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(folder)?;
    let path = folder.join(format!("{name}.jsonl"));
    if fs::metadata(&path).is_ok_and(|found| found.len() >= LONGEST) {
        fs::rename(&path, folder.join(format!("{name}.1.jsonl")))?;
    }
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)?;
    let before = file.metadata()?.len();
    file.write_all(text.as_bytes()).inspect_err(|_| {
        // A part of the line would make the next one unreadable.
        let _ = file.set_len(before);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("p");
        append(&folder, "a", &"x".repeat(1 << 20)).unwrap();
        append(&folder, "a", "1\n").unwrap();
        append(&folder, "a", "2\n").unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read("a.jsonl"), "1\n2\n");
        assert!(read("a.1.jsonl").starts_with("xx"));
    }

    #[test]
    fn lines_wait_for_room() {
        let dir = tempfile::tempdir().unwrap();
        // No folder can be made here.
        let folder = dir.path().join("p");
        fs::write(&folder, "").unwrap();
        let files = LineFiles::default();
        let long = "x".repeat(MOST_WAITING / 2);
        for line in [&long, &long, "1", "2"] {
            files.append(folder.clone(), "a", &line);
        }
        fs::remove_file(&folder).unwrap();
        files.append(folder.clone(), "a", &"3");
        let text = fs::read_to_string(folder.join("a.jsonl")).unwrap();
        // Of the long lines, one found no room.
        assert!(text.starts_with("\"xx") && text.ends_with("x\"\n\"1\"\n\"2\"\n\"3\"\n"));
        assert_eq!(text.lines().count(), 4);
        files.write();
        assert_eq!(fs::read_to_string(folder.join("a.jsonl")).unwrap(), text);
    }
}
