//! The HTTP server of the metrics: it answers `GET /metrics`, and nothing else.
//!
//! The endpoint is unauthenticated, and no client can keep others from it. A connection serves one
//! request and lives for a few seconds. If there are too many connections, the oldest one is
//! closed. One page is made at a time, and all requests within a moment get the same page.
//!
//! A hostile web page can make a browser connect to a loopback address under a name of the page's
//! own (DNS rebinding). So a request to a loopback address is answered only if its `Host` is a
//! loopback name.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Bytes},
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST, HeaderValue, VARY},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::Mutex,
    task::{AbortHandle, JoinSet},
};

use super::{
    Listener, exposition::Format, families::page, negotiation::format_for, own_use::OwnUse,
};
use crate::{policies::Policies, shutdown::Stopping, socket::SocketFile, store::Metering};

/// Limit on connections.
const MOST_CONNECTIONS: usize = 64;
/// Longest life of a connection, and longest time until its request is read.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Limits on a request's head in bytes, and on its header lines.
const MOST_REQUEST_BYTES: usize = 16 << 10;
const MOST_HEADERS: usize = 64;
/// Time for which a page is served to further requests.
const FRESH: Duration = Duration::from_millis(100);
/// Pause after a failed accept, as when the daemon is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for answers under way when the daemon stops.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A page and its time, by format.
type Latest = [Option<(Instant, Bytes)>; 2];

/// A connection.
type Stream = Box<dyn Io>;

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A listener that tokio polls.
#[derive(Debug)]
pub(crate) struct Server {
    accepting: Accepting,
    /// The socket file to remove at the end.
    file: Option<SocketFile>,
}

#[derive(Debug)]
enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The host names that a request may use for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Names of the loopback interface.
    Loopback,
    /// Any name. Other machines may use names that are not known here, and no browser reaches a
    /// unix socket.
    Any,
}

/// The latest pages.
#[derive(Debug)]
pub(super) struct Pages {
    names: Names,
    metering: Arc<Metering>,
    policies: Option<Policies>,
    /// Locked while a page is made.
    latest: Arc<Mutex<Latest>>,
}

/// Serves clients until the daemon stops.
pub(crate) async fn serve(
    server: Server,
    metering: Arc<Metering>,
    policies: Policies,
    stopping: Stopping,
) {
    let Server { accepting, file } = server;
    let pages = Arc::new(Pages::new(accepting.names(), metering, Some(policies)));
    let mut connections = JoinSet::new();
    // In order of their begin.
    let mut places: VecDeque<AbortHandle> = VecDeque::new();
    let stop = stopping.clone().wait();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accepting.accept() => accepted,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        places.retain(|place| !place.is_finished());
        if places.len() >= MOST_CONNECTIONS
            && let Some(oldest) = places.pop_front()
        {
            tracing::debug!("too many connections for metrics: closing the oldest");
            oldest.abort();
        }
        let answering = answer(stream, Arc::clone(&pages), stopping.clone());
        places.push_back(connections.spawn(answering));
    }
    drop(accepting);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Connections that have not ended by then are closed.
    let _ = tokio::time::timeout(DRAIN_TIME, ended).await;
    if let Some(error) = file.and_then(|file| file.remove().err()) {
        tracing::warn!(%error, "cannot remove the socket for metrics");
    }
}

/// Serves one connection.
pub(super) async fn answer(stream: Stream, pages: Arc<Pages>, stopping: Stopping) {
    let service = service_fn(move |request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(pages.respond(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(MOST_REQUEST_BYTES)
        .max_headers(MOST_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::time::timeout(CONNECTION_TIME, async {
        tokio::select! {
            ended = &mut connection => return ended,
            () = stopping.wait() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    });
    match ended.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics failed"),
        Err(_) => tracing::debug!("a connection for metrics timed out"),
    }
}

// === impl Server ===

impl TryFrom<Listener> for Server {
    type Error = io::Error;

    fn try_from(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => Self {
                accepting: Accepting::Tcp(TcpListener::from_std(listener)?),
                file: None,
            },
            Listener::Unix(socket) => {
                let (listener, file) = socket.into_parts();
                Self {
                    accepting: Accepting::Unix(UnixListener::from_std(listener)?),
                    file,
                }
            }
        })
    }
}

// === impl Accepting ===

impl Accepting {
    async fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }

    fn names(&self) -> Names {
        let address = match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        };
        match address {
            Some(address) if address.ip().to_canonical().is_loopback() => Names::Loopback,
            _ => Names::Any,
        }
    }
}

// === impl Names ===

impl Names {
    /// True if a `Host` is among the names. Its port is not compared, because it differs behind a
    /// tunnel.
    fn contain(self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_own = |address: IpAddr| address.to_canonical().is_loopback();
        self == Self::Any
            || name.eq_ignore_ascii_case("localhost")
            || name.parse().is_ok_and(is_own)
    }
}

// === impl Pages ===

impl Pages {
    /// No pages yet.
    pub(super) fn new(names: Names, metering: Arc<Metering>, policies: Option<Policies>) -> Self {
        Self {
            policies,
            names,
            metering,
            latest: Arc::default(),
        }
    }

    /// The answer to a request. For HEAD, hyper leaves out the body.
    async fn respond(&self, request: &Request<impl Body>) -> Response<Full<Bytes>> {
        // Every browser sends it.
        let host = request.headers().get(HOST);
        let host = host.map(|host| host.to_str().unwrap_or_default());
        if host.is_some_and(|host| !self.names.contain(host)) {
            return plain_response(
                StatusCode::MISDIRECTED_REQUEST,
                "this address serves metrics only if the Host is localhost or a loopback address\n",
            );
        }
        if request.uri().path() != "/metrics" {
            return plain_response(
                StatusCode::NOT_FOUND,
                "not found: metrics are at /metrics\n",
            );
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut response = plain_response(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD only\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        let accept = request.headers().get_all(ACCEPT).iter();
        let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
        let format = format_for(&accept.join(","));
        let Some(page) = self.page(format).await else {
            let text = "a bug in xrayd: see the daemon's log\n";
            return plain_response(StatusCode::INTERNAL_SERVER_ERROR, text);
        };
        let mut response = Response::new(Full::new(page));
        let kind = HeaderValue::from_static(format.content_type());
        response.headers_mut().insert(CONTENT_TYPE, kind);
        let vary = HeaderValue::from_static("Accept");
        response.headers_mut().insert(VARY, vary);
        response
    }

    /// A page that is recent enough. `None` if making it panicked, which the panic hook has logged.
    async fn page(&self, format: Format) -> Option<Bytes> {
        // Held until the page is made, even if its client is gone. So one page is made at a time.
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((made, page)) = &latest[format as usize]
            && made.elapsed() < FRESH
        {
            return Some(page.clone());
        }
        let metering = Arc::clone(&self.metering);
        let policies = self.policies.clone();
        let made = Instant::now();
        let making = tokio::task::spawn_blocking(move || {
            let own = OwnUse::now().inspect_err(|error| {
                tracing::debug!(%error, "cannot read the daemon's own use of resources");
            });
            let policies = policies
                .map(|policies| policies.latest())
                .unwrap_or_default();
            let page = Bytes::from(page(&metering.read(), &policies, own.ok(), format));
            latest[format as usize] = Some((made, page.clone()));
            page
        });
        making.await.ok()
    }
}

fn plain_response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_interface_are_its_own() {
        for (host, expected) in [
            ("localhost", true),
            ("LocalHost:9464", true),
            ("127.0.0.1:9464", true),
            ("127.0.0.1", true),
            ("127.1.2.3:80", true),
            ("[::1]:9464", true),
            ("[::ffff:127.0.0.1]", true),
            ("", false),
            ("evil.example:9464", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:9464", false),
            ("192.0.2.1:9464", false),
            ("[2001:db8::1]:9464", false),
            ("[::1", false),
        ] {
            assert_eq!(Names::Loopback.contain(host), expected, "{host}");
            assert!(Names::Any.contain(host));
        }
    }
}
