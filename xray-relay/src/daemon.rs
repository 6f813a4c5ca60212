//! Connections to xrayd.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::transport::{Channel, Endpoint, Uri};
use xrayd_proto::MAX_MESSAGE_BYTES;
use xrayd_proto::v1::xrayd_client::XraydClient;

/// A client of the daemon.
pub(crate) type Rpc = XraydClient<Channel>;

/// The connections. A connection has 64 calls at most, and each recorder has one or two.
const CONNECTIONS: usize = 32;

/// The daemon. Connections are made when they are used, and again after they have failed. Clones
/// share them.
#[derive(Debug, Clone)]
pub(crate) struct Daemon(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    channels: Vec<Channel>,
    next: AtomicUsize,
    /// The connection of the supervisor, which no recorder uses.
    own: Channel,
    /// The places for requests that the daemon bounds for each user.
    places: Semaphore,
}

/// The requests under way at a time, streams aside. The daemon admits 16 of a user.
const REQUESTS: usize = 8;

// === impl Daemon ===

impl Daemon {
    /// The daemon at a socket. Needs a runtime, and does not wait.
    pub(crate) fn new(socket: &Path) -> Self {
        let channels = (0..CONNECTIONS).map(|_| channel(socket.to_owned()));
        Self(Arc::new(Inner {
            channels: channels.collect(),
            next: AtomicUsize::new(0),
            own: channel(socket.to_owned()),
            places: Semaphore::new(REQUESTS),
        }))
    }

    /// A client over the supervisor's own connection.
    pub(crate) fn own_rpc(&self) -> Rpc {
        XraydClient::new(self.0.own.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Waits for a place for a request.
    pub(crate) async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.0.places.acquire().await.ok()
    }

    /// A client over the next of the connections.
    pub(crate) fn rpc(&self) -> Rpc {
        let next = self.0.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let channel = self.0.channels[next].clone();
        XraydClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

fn channel(socket: PathBuf) -> Channel {
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Endpoint::from_static("http://xrayd").connect_with_connector_lazy(connect)
}
