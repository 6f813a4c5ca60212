//! Functions for all clients of a server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context as _, Result};
use integration::DEADLINE;

/// A port that was free a moment ago. If another program takes it meanwhile, the server reports
/// that and ends.
pub(crate) fn free_port() -> Result<u16> {
    let socket = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(socket.local_addr()?.port())
}

/// Sends all of `questions`. Returns the answers until the server closes the connection.
pub(crate) fn converse(port: u16, questions: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("cannot connect")?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let mut sender = stream.try_clone()?;
    let mut answers = Vec::new();
    // Sends and reads at the same time: a server whose answers are not read stops reading.
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || sender.write_all(questions));
        stream.read_to_end(&mut answers).context("no answer")?;
        sent.join().ok().context("panicked")?.context("cannot ask")
    })?;
    Ok(answers)
}

/// Fails with the place of the first difference.
pub(crate) fn ensure_same(found: &[u8], expected: &[u8]) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let same = found.iter().zip(expected).take_while(|(a, b)| a == b);
    let from = same.count();
    let shown = |bytes: &[u8]| {
        let end = bytes.len().min(from + 80);
        String::from_utf8_lossy(&bytes[from.min(end)..end]).into_owned()
    };
    anyhow::bail!(
        "another answer from byte {from} on: {:?} ({} bytes) instead of {:?} ({} bytes)",
        shown(found),
        found.len(),
        shown(expected),
        expected.len()
    )
}
