//! Entry point for a fuzz target: the answer of the metrics server to arbitrary bytes. It exists
//! only with `--cfg fuzzing`.

use std::sync::{Arc, LazyLock};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime::Runtime,
};

use super::server::{Names, Pages, answer};
use crate::{shutdown, store::Metering};

/// Bytes that are buffered in either direction: enough for a page and every request.
const ROOM: usize = 1 << 20;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime")
});

/// Sends these bytes over a new connection, and returns the server's answer.
///
/// # Panics
/// The server does not end the connection.
pub fn ask(bytes: &[u8]) -> Vec<u8> {
    RUNTIME.block_on(async {
        let metering = Metering::new(None, 0).expect("no clock is read");
        let pages = Arc::new(Pages::new(Names::Loopback, Arc::new(metering), None));
        let (_stop, stopping) = shutdown::channel();
        let (server, mut client) = tokio::io::duplex(ROOM);
        let answering = answer(Box::new(server), pages, stopping);
        let asking = async {
            // The server may end the connection before it has read everything.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        tokio::join!(answering, asking).1
    })
}
