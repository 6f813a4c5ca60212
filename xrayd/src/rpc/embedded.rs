//! The service within the client's own process. A command line without a daemon uses the same code
//! path as one with a daemon.

use hyper_util::rt::TokioIo;
use tokio::{io::DuplexStream, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{
    connection::{Client, Connection},
    handling::Service,
    server::serve_connections,
    workers::Workers,
};
use crate::{access::AccessRules, audit::AuditLog, process::Registry, target::Caller};

/// Buffer between client and service in bytes, about that of a socket.
const BUFFER_BYTES: usize = 256 * 1024;

/// Serves `registry` over memory to a client that acts as `caller`, and connects to it.
///
/// The service ends when the last clone of the channel is dropped. The sessions go on. The owner of
/// the registry ends them ([`Registry::detach_all`]). Works within a tokio runtime only.
///
/// # Errors
///
/// The error of the transport.
pub async fn embedded(
    registry: Registry,
    caller: Caller,
) -> Result<Channel, tonic::transport::Error> {
    let (sender, incoming) = mpsc::channel::<Connection<DuplexStream>>(1);
    tokio::spawn(async move {
        let service = Service::new(
            registry,
            (AuditLog::off(), AccessRules::none()),
            Workers::new(),
            None,
            None,
        );
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
                .send(Connection::new(
                    server,
                    Client::new(caller, Vec::new()),
                    None,
                ))
                .await
                .map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
            Ok::<_, std::io::Error>(TokioIo::new(client))
        }
    });
    Endpoint::from_static("http://embedded")
        .connect_with_connector(connect)
        .await
}
