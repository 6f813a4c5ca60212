//! Writes a file on a thread of its own, so that the producer of the bytes does not wait for the
//! system.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Bytes that are handed over at once.
const PIECE: usize = 1 << 18;
/// Pieces that wait to be written.
const WAITING: usize = 4;

/// The producer's end.
struct Pieces {
    pending: Vec<u8>,
    sender: SyncSender<Vec<u8>>,
    /// Written pieces, which are filled again.
    emptied: Receiver<Vec<u8>>,
}

/// Lets a function write to a file, from the position of the file on.
pub(crate) fn write<T>(
    mut file: &File,
    write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> io::Result<T> {
    thread::scope(|scope| {
        let (sender, pieces) = sync_channel::<Vec<u8>>(WAITING);
        // Besides the waiting pieces, one is being filled and one is being written.
        let (empty, emptied) = sync_channel(WAITING + 2);
        let writer = scope.spawn(move || {
            pieces.into_iter().try_for_each(|mut piece| {
                file.write_all(&piece)?;
                piece.clear();
                // At the end, no piece is filled again.
                let _ = empty.try_send(piece);
                Ok(())
            })
        });
        let mut output = Pieces {
            pending: Vec::with_capacity(PIECE),
            sender,
            emptied,
        };
        let made = write(&mut output).and_then(|value| output.flush().map(|()| value));
        drop(output);
        match writer.join() {
            // The error of the file is the cause of all later ones.
            Ok(written) => written.and(made),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

// === impl Pieces ===

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pending.len() + bytes.len() > PIECE && !self.pending.is_empty() {
            self.flush()?;
        }
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let next = self.emptied.try_recv();
        let next = next.unwrap_or_else(|_| Vec::with_capacity(PIECE));
        let piece = std::mem::replace(&mut self.pending, next);
        let sent = self.sender.send(piece);
        sent.map_err(|_| io::Error::other("the file takes no more"))
    }
}
