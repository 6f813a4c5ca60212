//! The service within one's own process: a command line without a daemon takes the same way as one with.

use hyper_util::rt::TokioIo;
use tokio::{io::DuplexStream, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{
    connection::Connection, server::serve_connections, service::Service, workers::Workers,
};
use crate::{audit::AuditLog, process::Registry, target::Caller};

/// Bytes on their way between client and service; as much as a socket would hold.
const BUFFER_BYTES: usize = 256 * 1024;

/// Serves `registry` over memory, to a client who is `caller`, and connects to it.
///
/// The service ends when the last clone of the channel is dropped. Sessions do not end with it: that is up to the
/// registry's owner ([`Registry::detach_all`]). Within a tokio runtime only.
///
/// # Errors
///
/// What the transport says; nothing leaves the process, so it has little to say.
pub async fn embedded(
    registry: Registry,
    caller: Caller,
) -> Result<Channel, tonic::transport::Error> {
    let (sender, incoming) = mpsc::channel::<Connection<DuplexStream>>(1);
    tokio::spawn(async move {
        let service = Service::new(registry, AuditLog::off(), Workers::new());
        let incoming = ReceiverStream::new(incoming);
        let served = serve_connections(incoming, service, std::future::pending());
        if let Err(error) = served.await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the embedded service ended"
            );
        }
    });
    let connect = tower::service_fn(move |_: Uri| {
        let sender = sender.clone();
        async move {
            let (client, server) = tokio::io::duplex(BUFFER_BYTES);
            sender
                .send(Connection::new(server, caller, None))
                .await
                .map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
            Ok::<_, std::io::Error>(TokioIo::new(client))
        }
    });
    Endpoint::from_static("http://embedded")
        .connect_with_connector(connect)
        .await
}
