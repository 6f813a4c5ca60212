//! The size of a process's address space, to find out cheaply whether its mappings may have
//! changed.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use crate::pid::Pid;

/// Bytes of `/proc/<pid>/statm`: seven numbers.
const MOST: usize = 160;

/// The open file `/proc/<pid>/statm` of a process. After an `exec` it shows the new program.
#[derive(Debug)]
pub(crate) struct VmSize(File);

// === impl VmSize ===

impl VmSize {
    /// # Errors
    /// The process is gone, or no descriptor is left.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/statm")).map(Self)
    }

    /// The size in pages: the first number of the file. `None` if the process is gone.
    pub(crate) fn pages(&self) -> Option<u64> {
        let mut bytes = [0; MOST];
        let read = self.0.read_at(&mut bytes, 0).ok()?;
        let text = str::from_utf8(bytes.get(..read)?).ok()?;
        text.split(' ').next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    #[test]
    fn a_mapping_changes_the_size() {
        let size = VmSize::open(Pid::this()).unwrap();
        let before = size.pages().unwrap();
        // Other tests map and unmap meanwhile, but not as much.
        let map = MmapMut::map_anon(8 << 30).unwrap();
        let with_map = size.pages().unwrap();
        assert!(with_map > before + (4 << 30) / 4096, "{before} {with_map}");
        drop(map);
        assert!(size.pages().unwrap() < with_map);
    }
}
