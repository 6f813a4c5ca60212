//! Makes files and directories that only their owner can read: traces, snapshots and reports hold
//! names, arguments and results of another program's calls.
//!
//! A file that is replaced or overwritten keeps its mode, which its owner chose. Under `sudo` a new
//! file is root's.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The mode of a file that only its owner reads and writes.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Makes a file that did not exist.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Makes a directory that did not exist.
pub(crate) fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use crate::output_folder::OutputFolder;
    use crate::trace_file::{OutputFile, Overwrite};
    use crate::whole_file::WholeFile;

    #[test]
    fn a_new_file_is_private_and_a_replaced_file_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        for overwrite in [Overwrite::No, Overwrite::Yes] {
            let mut trace = OutputFile::open(&dir.path().join("trace"), overwrite).unwrap();
            trace.begin().unwrap();
            let report = WholeFile::open(&dir.path().join("report"), overwrite).unwrap();
            report.write_with(|out| out.write_all(b"x")).unwrap();
            let expected = match overwrite {
                Overwrite::No => 0o600,
                Overwrite::Yes => 0o644,
            };
            for name in ["trace", "report"] {
                assert_eq!(mode(name), expected, "{name}");
                let shared = fs::Permissions::from_mode(0o644);
                fs::set_permissions(dir.path().join(name), shared).unwrap();
            }
        }
        let folder = OutputFolder::create(&dir.path().join("export")).unwrap();
        folder.write_with(|folder| folder.begin("stream")).unwrap();
        assert_eq!((mode("export"), mode("export/stream")), (0o700, 0o600));
    }
}
