//! Connects to the engine through `xrayd.v1`: to a daemon over its socket, or to the engine in this
//! process.

use std::io;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use xrayd::{
    process::{Registry, RegistryConfig},
    target::Caller,
};
use xrayd_proto::MAX_MESSAGE_BYTES;
use xrayd_proto::v1::xrayd_client::XraydClient;

use crate::failure::Failure;

/// A client of the service, in a daemon or in this process.
pub(crate) type Rpc = XraydClient<Channel>;

/// The sockets at which a daemon may listen.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// The socket that the user named; no other one is tried. `None` for the usual places.
    socket: Option<PathBuf>,
}

/// No daemon answers at a socket: the socket does not exist, or its daemon is dead.
#[derive(Debug)]
struct Silent {
    path: PathBuf,
    source: io::Error,
}

// === impl Daemon ===

impl Daemon {
    pub(crate) fn new(socket: Option<PathBuf>) -> Self {
        Self { socket }
    }

    /// Connects to the daemon.
    pub(crate) async fn connect(&self) -> anyhow::Result<Rpc> {
        let silent = match self.find().await? {
            Ok(rpc) => return Ok(rpc),
            Err(silent) => silent,
        };
        let tried: Vec<_> = silent.iter().map(Silent::to_string).collect();
        let what = format!("no daemon answers at {}", tried.join(", nor at "));
        let advice = match self.socket {
            Some(_) => "",
            None => "; start one with `xrayd`, or name its socket with --socket",
        };
        Err(Failure::Unreachable(what + advice).into())
    }

    /// Connects to the daemon. Without a daemon, and without a socket that the user named, connects
    /// to the engine in this process.
    pub(crate) async fn connect_or_embed(&self) -> anyhow::Result<Rpc> {
        if self.socket.is_some() {
            return self.connect().await;
        }
        match self.find().await? {
            Ok(rpc) => Ok(rpc),
            Err(_) => Ok(embed().await?.0),
        }
    }

    async fn find(&self) -> anyhow::Result<Result<Rpc, Vec<Silent>>> {
        let paths = self
            .socket
            .clone()
            .map_or_else(xrayd::client_paths, |path| vec![path]);
        let mut silent = Vec::new();
        for path in paths {
            match UnixStream::connect(&path).await {
                Ok(stream) => return Ok(Ok(over(stream, &path).await?)),
                Err(source) if answers(&source) => {
                    let what = format!(
                        "cannot connect to the daemon at {}: {source}",
                        path.display()
                    );
                    return Err(Failure::Unreachable(what).into());
                }
                Err(source) => silent.push(Silent { path, source }),
            }
        }
        Ok(Err(silent))
    }
}

// === impl Silent ===

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self.source.kind() {
            io::ErrorKind::NotFound => "no such socket",
            _ => "no process listens",
        };
        write!(f, "{} ({why})", self.path.display())
    }
}

/// Starts the engine in this process. The registry offers operations that the service does not.
pub(crate) async fn embed() -> anyhow::Result<(Rpc, Registry)> {
    let registry = Registry::new(RegistryConfig::default());
    let channel = xrayd::embedded(registry.clone(), Caller::this_process()).await?;
    Ok((client(channel), registry))
}

/// True if a socket is there that refuses us, false if there is none or its daemon is dead.
fn answers(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Speaks gRPC over a connected stream. It never connects again: the sessions of a daemon end with
/// the daemon, so another daemon would have nothing to continue.
async fn over(stream: UnixStream, path: &Path) -> anyhow::Result<Rpc> {
    let mut stream = Some(TokioIo::new(stream));
    let connect = tower::service_fn(move |_: Uri| {
        let stream = stream.take();
        async { stream.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset)) }
    });
    let channel = Endpoint::from_static("http://xrayd")
        .connect_with_connector(connect)
        .await;
    let channel = channel.map_err(|error| {
        Failure::Unreachable(format!("no xrayd answers at {}: {error}", path.display()))
    })?;
    Ok(client(channel))
}

fn client(channel: Channel) -> Rpc {
    XraydClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}
