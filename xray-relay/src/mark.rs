//! What the mark of a process says of its stream: up to where the stream is in a file. The next
//! recorder cuts the file there, and resumes the stream at that position.

use std::cmp::Ordering;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The bytes of the line in a mark. Lines of one length are written in place, by one write of a
/// part of a page, so that there is no half of one.
const LINE: usize = 512;

/// Where a stream goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamMark {
    /// The date and the name of the latest file.
    file: String,
    /// The bytes of the file before the position.
    bytes: u64,
    /// The position for the daemon, in hexadecimal.
    position: String,
    /// True if nothing after the position is missing: the policy let the process go, or what is
    /// missing was noted.
    #[serde(default)]
    pub(crate) is_left: bool,
}

/// What a file has of a stream, up to its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartOfStream {
    /// The whole file is an earlier one.
    All,
    /// So many bytes come before the position.
    Bytes(u64),
    /// The file was begun later. What it has comes again.
    Nothing,
}

/// The mark of a process, open.
#[derive(Debug)]
pub(crate) struct Marker(File);

// === impl StreamMark ===

impl StreamMark {
    pub(crate) fn new(file: &Path, bytes: u64, position: &[u8]) -> Self {
        let digits = position.iter().map(|byte| format!("{byte:02x}"));
        Self {
            file: name_of(file),
            bytes,
            position: digits.collect(),
            is_left: false,
        }
    }

    /// Reads a mark. `None`: it has no stream that can be resumed.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let mut text = String::new();
        let file = File::open(path).ok()?;
        file.take(LINE as u64).read_to_string(&mut text).ok()?;
        let mark: Self = serde_json::from_str(text.trim_end()).ok()?;
        (!mark.position().is_empty()).then_some(mark)
    }

    /// The position, as the daemon has given it.
    pub(crate) fn position(&self) -> Vec<u8> {
        let digits = self.position.as_bytes().chunks(2);
        let bytes = digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        bytes.collect::<Option<_>>().unwrap_or_default()
    }

    /// The same, with a note that nothing after the position is missing.
    pub(crate) fn left(self) -> Self {
        Self {
            is_left: true,
            ..self
        }
    }

    /// What a file has before the position.
    pub(crate) fn part_of(&self, file: &Path) -> PartOfStream {
        // Names begin with the date and the time.
        match name_of(file).cmp(&self.file) {
            Ordering::Less => PartOfStream::All,
            Ordering::Equal => PartOfStream::Bytes(self.bytes),
            Ordering::Greater => PartOfStream::Nothing,
        }
    }
}

/// The last two parts of a path: the date and the name.
fn name_of(file: &Path) -> String {
    let date = file.parent().and_then(Path::file_name).unwrap_or_default();
    let name = file.file_name().unwrap_or_default();
    format!("{}/{}", date.to_string_lossy(), name.to_string_lossy())
}

// === impl PartOfStream ===

impl PartOfStream {
    /// Makes the file whole: cuts it to this part, and gives it its name. A file of which nothing
    /// counts is removed.
    pub(crate) fn finish(self, now: &Path, path: &Path) -> io::Result<()> {
        match self {
            Self::Nothing | Self::Bytes(0) => return fs::remove_file(now),
            Self::Bytes(bytes) => {
                let file = OpenOptions::new().write(true).open(now)?;
                if bytes < file.metadata()?.len() {
                    file.set_len(bytes)?;
                }
            }
            Self::All => {}
        }
        fs::rename(now, path)
    }
}

// === impl Marker ===

impl Marker {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(path)?;
        Ok(Self(file))
    }

    /// Writes where the stream goes on.
    pub(crate) fn write(&self, mark: &StreamMark) -> io::Result<()> {
        let mut line = serde_json::to_vec(mark)?;
        if line.len() >= LINE {
            return Err(io::Error::other("the mark of a stream is too long"));
        }
        line.resize(LINE - 1, b' ');
        line.push(b'\n');
        self.0.write_all_at(&line, 0)
    }

    /// Notes that no recorder goes on with the stream.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.write(&StreamMark::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_another_text_has_no_position() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        assert_eq!(StreamMark::read(&path), None);
        let marker = Marker::open(&path).unwrap();
        assert_eq!(StreamMark::read(&path), None);
        let file = Path::new("/x/p/2026-11-30/1Z-7.xtrace");
        for (bytes, position) in [(u64::MAX, &[0, 15, 255][..]), (1, &[7; 64])] {
            let mark = StreamMark::new(file, bytes, position);
            marker.write(&mark).unwrap();
            let read = StreamMark::read(&path).unwrap();
            assert_eq!((read.position().as_slice(), &read), (position, &mark));
            let part_of = |name: &str| read.part_of(&Path::new("/x/p").join(name));
            assert_eq!(
                part_of("2026-11-30/1Z-7.xtrace"),
                PartOfStream::Bytes(bytes)
            );
            assert_eq!(part_of("2026-11-29/2Z-7.xtrace"), PartOfStream::All);
            assert_eq!(part_of("2026-11-30/2Z-7.xtrace"), PartOfStream::Nothing);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), LINE as u64);
        }
        marker.clear().unwrap();
        assert_eq!(StreamMark::read(&path), None);
        for text in [
            "",
            "{}",
            "{\"file\":\"a\",\"bytes\":1,\"position\":\"xx\"}",
            "\u{0}",
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(StreamMark::read(&path), None);
        }
    }
}
