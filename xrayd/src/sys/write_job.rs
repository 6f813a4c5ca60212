//! Writes to the memory of a process that the OS thread which traces it carries out for another
//! one.

use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::mpsc::{SyncSender, sync_channel},
};

use crate::pid::TargetAddr;

/// Bytes to write, and their address.
pub(super) type Piece<'a> = (TargetAddr, &'a [u8]);

/// The result of writing pieces. An error comes with the number of pieces that were written.
pub(super) type Written = Result<(), (usize, io::Error)>;

/// Pieces to write. It holds copies of all that it needs, since another thread carries it out.
#[derive(Debug)]
pub(crate) struct WriteJob {
    memory: File,
    pieces: Vec<(TargetAddr, Vec<u8>)>,
    answer: SyncSender<Written>,
}

/// The way to the OS thread that traces a process. The function passes a job on. The job is dropped
/// if that thread does not trace the process any more.
pub(crate) struct TracerThread(Box<dyn Fn(WriteJob) + Send + Sync>);

// === impl WriteJob ===

impl WriteJob {
    /// Writes the pieces, and answers the thread that waits for that.
    pub(crate) fn carry_out(self) {
        let Self {
            memory,
            pieces,
            answer,
        } = self;
        let pieces = pieces.iter().map(|(at, bytes)| (*at, bytes.as_slice()));
        let _ = answer.send(write_each(&memory, pieces));
    }
}

// === impl TracerThread ===

impl TracerThread {
    /// `pass_on` passes a job to the thread, or drops it.
    pub(crate) fn new(pass_on: impl Fn(WriteJob) + Send + Sync + 'static) -> Self {
        Self(Box::new(pass_on))
    }

    /// Has the thread write pieces. `None` if it does not trace the process any more, or if the
    /// descriptor of the memory cannot be copied: then nothing is written.
    pub(super) fn write(&self, memory: &File, pieces: &[Piece<'_>]) -> Option<Written> {
        let (answer, answered) = sync_channel(1);
        (self.0)(WriteJob {
            memory: memory.try_clone().ok()?,
            pieces: pieces
                .iter()
                .map(|(at, bytes)| (*at, bytes.to_vec()))
                .collect(),
            answer,
        });
        answered.recv().ok()
    }
}

impl fmt::Debug for TracerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TracerThread")
    }
}

/// Writes pieces in their order, each by a write of its own.
pub(super) fn write_each<'a>(
    memory: &File,
    pieces: impl IntoIterator<Item = Piece<'a>>,
) -> Written {
    for (done, (address, bytes)) in pieces.into_iter().enumerate() {
        memory
            .write_all_at(bytes, address.0)
            .map_err(|error| (done, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn another_thread_writes_until_it_is_gone() {
        let file = tempfile::tempfile().unwrap();
        let (jobs, received) = sync_channel::<WriteJob>(1);
        let tracer = TracerThread::new(move |job| drop(jobs.send(job)));
        let pieces: [Piece<'_>; 2] = [(TargetAddr(2), b"ab"), (TargetAddr(0), b"c")];
        let writer = thread::spawn(move || received.recv().unwrap().carry_out());
        assert!(matches!(tracer.write(&file, &pieces), Some(Ok(()))));
        writer.join().unwrap();
        let mut there = [9; 4];
        file.read_exact_at(&mut there, 0).unwrap();
        assert_eq!(&there, b"c\0ab");
        assert!(tracer.write(&file, &pieces).is_none());
    }

    #[test]
    fn an_error_has_the_number_of_pieces_before_it() {
        let file = File::open("/dev/null").unwrap();
        let pieces: [Piece<'_>; 2] = [(TargetAddr(0), b""), (TargetAddr(0), b"c")];
        let (done, _) = write_each(&file, pieces).unwrap_err();
        assert_eq!(done, 1);
    }
}
