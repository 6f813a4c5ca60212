//! Listens on the loopback interface.
//!
//! Every user of the machine can connect there, and every page that a browser shows can have it connect. So all that is served lies
//! behind a random word, and a request is heard only if it is addressed to this server by a name that no stranger's server has: else
//! a page could come under a name that leads here later (DNS rebinding).

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

/// Connections at a time; a browser opens six.
const CONNECTIONS: usize = 32;

/// The longest head of a request.
const HEAD: usize = 16 << 10;

/// How long a request's head may take, and how long a connection may stay without one.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server that listens.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    secret: Secret,
}

/// What is needed to answer a request.
#[derive(Clone)]
pub(super) struct Answering {
    report: Report,
    secret: Secret,
    port: u16,
}

// === impl Server ===

impl Server {
    /// Listens on that port, or on any if it is 0.
    pub(crate) async fn bind(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            secret: Secret::new()?,
        })
    }

    /// Where the report is.
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
                // No descriptor is free, perhaps, and none will be at once.
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
        // How it ends is the browser's affair.
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
