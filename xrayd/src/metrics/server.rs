//! A small HTTP server: `GET /metrics`, and nothing else.
//!
//! Whoever can connect may ask, and nobody can keep others from asking: a connection is for one request and lives for a few seconds, and where there
//! are too many the oldest goes. The page is made by one at a time, and the same one is given to all who ask within a moment.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Bytes},
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, VARY},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::{AbortHandle, JoinSet},
};

use super::{exposition::Format, families::page, negotiation::format_for, own_use::OwnUse};
use crate::{session::Metering, shutdown::Stopping};

/// Connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// How long one may live, and how long its request may take to come.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Bytes of a request's head, and its lines.
const MOST_REQUEST_BYTES: usize = 16 << 10;
const MOST_HEADERS: usize = 64;
/// A page is given to everybody who asks within so long.
const FRESH: Duration = Duration::from_millis(100);
/// How long to wait after accepting failed, as it does while the daemon is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers under way may take when the daemon stops.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// A page and when it was made, by format.
type Latest = [Option<(Instant, Bytes)>; 2];

/// The pages made last.
#[derive(Debug)]
struct Pages {
    metering: Arc<Metering>,
    /// Locked while one is made.
    latest: Arc<Mutex<Latest>>,
}

/// Answers whoever connects, until the daemon stops.
pub(crate) async fn serve(listener: TcpListener, metering: Arc<Metering>, stopping: Stopping) {
    let pages = Arc::new(Pages {
        metering,
        latest: Arc::default(),
    });
    let mut connections = JoinSet::new();
    // The oldest first.
    let mut places: VecDeque<AbortHandle> = VecDeque::new();
    let stop = stopping.clone().wait();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        places.retain(|place| !place.is_finished());
        if places.len() >= MOST_CONNECTIONS
            && let Some(oldest) = places.pop_front()
        {
            tracing::debug!("too many connections for metrics, cut the oldest off");
            oldest.abort();
        }
        let answering = answer(stream, Arc::clone(&pages), stopping.clone());
        places.push_back(connections.spawn(answering));
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Those that do not end by then are cut off.
    let _ = tokio::time::timeout(DRAIN_TIME, ended).await;
}

/// One connection.
async fn answer(stream: TcpStream, pages: Arc<Pages>, stopping: Stopping) {
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
        Err(_) => tracing::debug!("a connection for metrics took too long"),
    }
}

// === impl Pages ===

impl Pages {
    /// To HEAD it is the same; hyper leaves the body out.
    async fn respond(&self, request: &Request<impl Body>) -> Response<Full<Bytes>> {
        if request.uri().path() != "/metrics" {
            return told(
                StatusCode::NOT_FOUND,
                "not found: metrics are at /metrics\n",
            );
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut response = told(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD only\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        let accept = request.headers().get_all(ACCEPT).iter();
        let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
        let format = format_for(&accept.join(","));
        let Some(page) = self.page(format).await else {
            let text = "a bug in xrayd: see its log\n";
            return told(StatusCode::INTERNAL_SERVER_ERROR, text);
        };
        let mut response = Response::new(Full::new(page));
        let kind = HeaderValue::from_static(format.content_type());
        response.headers_mut().insert(CONTENT_TYPE, kind);
        let vary = HeaderValue::from_static("Accept");
        response.headers_mut().insert(VARY, vary);
        response
    }

    /// A page that is fresh; `None` if making it panicked, which was logged.
    async fn page(&self, format: Format) -> Option<Bytes> {
        // Held until the page is made, also if whoever asked for it is cut off: pages are made one after the other.
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((made, page)) = &latest[format as usize]
            && made.elapsed() < FRESH
        {
            return Some(page.clone());
        }
        let metering = Arc::clone(&self.metering);
        let made = Instant::now();
        let making = tokio::task::spawn_blocking(move || {
            let own = OwnUse::now().inspect_err(|error| {
                tracing::debug!(%error, "what the daemon uses cannot be read");
            });
            let page = Bytes::from(page(&metering.read(), own.ok(), format));
            latest[format as usize] = Some((made, page.clone()));
            page
        });
        making.await.ok()
    }
}

fn told(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
