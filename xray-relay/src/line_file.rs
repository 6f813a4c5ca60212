//! Files with a line of JSON for each thing that happened to a policy.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::Serialize;

/// The size at which a file makes room. One earlier file is kept.
const LONGEST: u64 = 1 << 20;

/// Appends a line to `NAME.jsonl` in the folder of a policy.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn append(folder: &Path, name: &str, line: &impl Serialize) -> io::Result<()> {
    let path = folder.join(format!("{name}.jsonl"));
    if fs::metadata(&path).is_ok_and(|found| found.len() >= LONGEST) {
        fs::rename(&path, folder.join(format!("{name}.1.jsonl")))?;
    }
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), "a", &"x".repeat(1 << 20)).unwrap();
        append(dir.path(), "a", &1).unwrap();
        append(dir.path(), "a", &2).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("a.jsonl"), "1\n2\n");
        assert!(read("a.1.jsonl").starts_with("\"xx"));
    }
}
