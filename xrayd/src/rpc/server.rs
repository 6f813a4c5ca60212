//! The gRPC server: it accepts connections, bounds them, and combines the services. The calls are
//! in `service`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{UnixListener, UnixStream},
    sync::{Notify, mpsc},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::transport::{Server, server::Router};
use xrayd_proto::{FILE_DESCRIPTOR_SET, v1::xrayd_server::XraydServer};

use super::{
    admission::Admission,
    authorise::Authority,
    connection::Connection,
    error,
    handling::Service,
    peer::{Peer, is_out_of_descriptors},
    workers::{WorkerKind, Workers},
};
use crate::{
    access::AccessRules,
    audit::{AuditLog, Operation},
    policies::Policies,
    process::Registry,
    shutdown::Stopping,
};

/// Limit on connections of one user.
const CONNECTIONS_PER_USER: u32 = 64;

/// Limit on calls and streams of one connection.
const CALLS_PER_CONNECTION: u32 = 64;

/// Limit on a request in bytes. The longest requests are selections.
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Time to answer a ping. A peer that takes longer is gone or stopped, and its connection is
/// closed.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Pause after a failed accept, as when the daemon is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most tries to identify the peer of a connection while the daemon is out of descriptors.
const PEER_TRIES: u32 = 50;

/// The reason why serving ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The reflection service cannot read the contract.
    #[error("cannot serve the API by reflection")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("the transport failed")]
    Transport(#[from] tonic::transport::Error),
    /// A bug. The panic hook has logged the panic.
    #[error("the server panicked")]
    Panicked,
}

/// Serves `registry` to the clients of `listener`, until `stopping` is notified and every call has
/// ended. `restart` is notified when a client wants the daemon executed anew. `None` refuses such a
/// client.
///
/// # Errors
///
/// The transport fails as a whole. A connection that fails is no error.
pub async fn serve(
    listener: UnixListener,
    registry: Registry,
    audit: AuditLog,
    stopping: Stopping,
    restart: Option<Arc<Notify>>,
    (policies, access): (Policies, AccessRules),
) -> Result<(), ServeError> {
    let (sender, accepted) = mpsc::channel(1);
    let workers = Workers::new();
    let accepting = accept(
        listener,
        sender,
        (audit.clone(), access.clone()),
        workers.clone(),
    );
    let accepting = tokio::spawn(accepting);
    let service = Service::new(registry, (audit, access), workers, restart, Some(policies));
    serve_connections(ReceiverStream::new(accepted), service, async {
        stopping.wait().await;
        // Also closes the listener, so that further connections are refused instead of waiting.
        accepting.abort();
    })
    .await
}

/// Serves the connections of `incoming`, until it ends or `stop` is done, and every call has ended.
pub(super) async fn serve_connections<T>(
    incoming: impl Stream<Item = Connection<T>>,
    service: Service,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<XraydServer<Service>>().await;
    let router = router(service)?.add_service(health_service);
    let stop = async {
        stop.await;
        health.set_not_serving::<XraydServer<Service>>().await;
    };
    router
        .serve_with_incoming_shutdown(incoming.map(Ok::<_, Infallible>), stop)
        .await?;
    Ok(())
}

fn router(service: Service) -> Result<Router, ServeError> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Server::builder()
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION as usize)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .http2_max_header_list_size(16 * 1024)
        .add_service(
            XraydServer::new(service)
                .max_decoding_message_size(MAX_REQUEST_BYTES)
                .max_encoding_message_size(xrayd_proto::MAX_MESSAGE_BYTES),
        )
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?))
}

/// Accepts connections until the server is gone. Peers that cannot be identified or have too many
/// connections are rejected.
async fn accept(
    listener: UnixListener,
    accepted: mpsc::Sender<Connection<UnixStream>>,
    (audit, access): (AuditLog, AccessRules),
    workers: Workers,
) {
    let admission = Admission::new(CONNECTIONS_PER_USER);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let mut peer = Peer::of(&stream);
        for _ in 1..PEER_TRIES {
            if !peer.as_ref().is_err_and(is_out_of_descriptors) {
                break;
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
            peer = Peer::of(&stream);
        }
        let peer = match peer {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "closed a connection: its peer is unknown");
                continue;
            }
        };
        let Some(admitted) = admission.admit(peer.uid()) else {
            let refused = error::too_many("connections", peer.uid());
            let mut call = audit.call(peer.without_rights(), Operation::Connect);
            call.decide::<()>(&Err(refused));
            continue;
        };
        let (accepted, audit, workers) = (accepted.clone(), audit.clone(), workers.clone());
        let access = access.clone();
        // The look at a peer with many threads takes a while, and other peers must not wait for it.
        tokio::spawn(async move {
            // The panic hook has logged a panic. The lane is the one for releases, because a user
            // whose other places are taken connects to undo what took them.
            let looked = workers.run(WorkerKind::Release, peer.uid(), || peer.look());
            let Ok(client) = looked.await else {
                return;
            };
            if let Err(refused) = Authority::of(&client, &access) {
                let mut call = audit.call(client.caller, Operation::Connect);
                call.decide::<()>(&Err(refused));
            }
            let connection = Connection::new(stream, client, Some(admitted));
            // The server may be gone.
            let _ = accepted.send(connection).await;
        });
    }
}
