//! Listens on the loopback interface.
//!
//! Every user of the machine can connect there, and every page in a browser can make the browser
//! connect. So all paths begin with a random word, and a request must be addressed to a name of
//! this server that no other server has. Otherwise a page could come from a name that leads here
//! later (DNS rebinding).

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::respond::{Body, Report, failure};
use super::secret::Secret;

/// The most connections at a time. A browser opens six.
const CONNECTIONS: usize = 32;

/// The longest head of a request, in bytes.
const HEAD: usize = 16 << 10;

/// The longest time for a request's head, and for a connection without one.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server that listens.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    secret: Secret,
}

/// The data needed to answer a request.
#[derive(Clone)]
pub(super) struct Answering {
    report: Report,
    secret: Secret,
    port: u16,
}

// === impl Server ===

impl Server {
    /// Listens on a port; 0 for any.
    pub(crate) async fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            secret: Secret::new()?,
        })
    }

    /// The address of the report.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.secret.word())
    }

    /// Answers for as long as this is polled.
    pub(crate) async fn serve(&self, report: Report) {
        let answering = Answering::new(report, self.secret.clone(), self.address.port());
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(permit) = room.clone().acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Perhaps no descriptor is free, and none will be at once.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let answering = answering.clone();
            tokio::spawn(async move {
                answering.connection(stream).await;
                drop(permit);
            });
        }
    }
}

// === impl Answering ===

impl Answering {
    pub(super) fn new(report: Report, secret: Secret, port: u16) -> Self {
        Self {
            report,
            secret,
            port,
        }
    }

    pub(super) async fn connection(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service =
            service_fn(|request| async { Ok::<_, Infallible>(self.answer(request).await) });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(stream), service);
        // The end of the connection is the browser's affair.
        let _ = connection.await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let host = request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| self.is_called(host)) {
            return failure(StatusCode::MISDIRECTED_REQUEST);
        }
        let path = request.uri().path().strip_prefix('/').unwrap_or_default();
        let at = path.find('/').unwrap_or(path.len());
        let (word, path) = path.split_at(at);
        if !self.secret.is(word) {
            return failure(StatusCode::NOT_FOUND);
        }
        if request.method() != Method::GET {
            return failure(StatusCode::METHOD_NOT_ALLOWED);
        }
        let query = request.uri().query().unwrap_or_default();
        self.report.respond(path, query).await
    }

    fn is_called(&self, host: &str) -> bool {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
        let ours = ["127.0.0.1", "localhost"].contains(&name);
        ours && port.parse() == Ok(self.port)
    }
}
