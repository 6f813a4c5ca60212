//! The answers: the page, more detailed parts of its timeline, and the trace in Perfetto's format.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
};
use hyper::{Response, StatusCode};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use xray_trace::model::Trace;
use xray_trace::sink::{Page, Perfetto, Sink as _, Standing};

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Parts of the timeline that are computed at the same time.
const WINDOWS: usize = 2;

/// Pieces of a converted trace that wait for the browser.
const PIECES: usize = 4;
const PIECE: usize = 1 << 18;

/// A trace, its report, and the page of the report.
#[derive(Debug, Clone)]
pub(crate) struct Report(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` if the file has only sums of calls.
    trace: Option<Trace>,
    page: Page,
    html: Bytes,
    windows: Semaphore,
    /// One conversion at a time.
    conversions: Arc<Semaphore>,
}

/// Sends written bytes in pieces.
struct Pieces {
    pending: Vec<u8>,
    sender: mpsc::Sender<io::Result<Frame<Bytes>>>,
}

// === impl Report ===

impl Report {
    pub(crate) fn new(trace: Option<Trace>, page: Page) -> io::Result<Self> {
        let mut html = Vec::new();
        page.write(Standing::Served, &mut html)?;
        Ok(Self(Arc::new(Inner {
            trace,
            page,
            html: html.into(),
            windows: Semaphore::new(WINDOWS),
            conversions: Arc::new(Semaphore::new(1)),
        })))
    }

    /// Answers a request. `path` is the part behind the secret.
    pub(super) async fn respond(&self, path: &str, query: &str) -> Response<Body> {
        match path {
            "/" => whole("text/html; charset=utf-8", self.0.html.clone()),
            "/window" => self.window(query).await,
            "/trace.pftrace" => self.perfetto(),
            _ => failure(StatusCode::NOT_FOUND),
        }
    }

    /// A part of the timeline.
    async fn window(&self, query: &str) -> Response<Body> {
        let (Some(since), Some(until)) = (number(query, "since"), number(query, "until")) else {
            return failure(StatusCode::BAD_REQUEST);
        };
        if self.0.trace.is_none() {
            return failure(StatusCode::NOT_FOUND);
        }
        // The semaphore is never closed.
        let Ok(_permit) = self.0.windows.acquire().await else {
            return failure(StatusCode::SERVICE_UNAVAILABLE);
        };
        let report = self.clone();
        let made = spawn_blocking(move || match &report.0.trace {
            Some(trace) => report.0.page.window(trace, since, until),
            None => Vec::new(),
        });
        match made.await {
            Ok(document) => whole("application/octet-stream", document.into()),
            Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// The whole trace, converted while it is sent.
    fn perfetto(&self) -> Response<Body> {
        if self.0.trace.is_none() {
            return failure(StatusCode::NOT_FOUND);
        }
        let Ok(permit) = self.0.conversions.clone().try_acquire_owned() else {
            return failure(StatusCode::SERVICE_UNAVAILABLE);
        };
        let (sender, pieces) = mpsc::channel(PIECES);
        let report = self.clone();
        spawn_blocking(move || {
            let _permit = permit;
            let mut output = Pieces {
                pending: Vec::with_capacity(PIECE),
                sender,
            };
            if let Some(trace) = &report.0.trace {
                let written = Perfetto.write(trace, &mut output);
                if let Err(error) = written.and_then(|_| output.flush()) {
                    // A browser that has gone away needs no error.
                    let _ = output.sender.blocking_send(Err(error));
                }
            }
        });
        let body = StreamBody::new(ReceiverStream::new(pieces));
        answer("application/octet-stream", body.boxed_unsync())
    }
}

// === impl Pieces ===

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.pending, Vec::with_capacity(PIECE));
        let sent = self.sender.blocking_send(Ok(Frame::data(piece.into())));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A decimal number of a query.
fn number(query: &str, name: &str) -> Option<u64> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    value.parse().ok()
}

/// An answer with only a status.
pub(super) fn failure(status: StatusCode) -> Response<Body> {
    let text = status.canonical_reason().unwrap_or("failed").to_owned();
    let mut response = whole("text/plain; charset=utf-8", text.into());
    *response.status_mut() = status;
    response
}

fn whole(kind: &'static str, bytes: Bytes) -> Response<Body> {
    let body = Full::new(bytes).map_err(|never: Infallible| match never {});
    answer(kind, body.boxed_unsync())
}

fn answer(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let mut say = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    say(CONTENT_TYPE, kind);
    say(CACHE_CONTROL, "no-store");
    // The page itself has its other restrictions.
    say(CONTENT_SECURITY_POLICY, "frame-ancestors 'none'");
    say(HeaderName::from_static("x-content-type-options"), "nosniff");
    say(HeaderName::from_static("referrer-policy"), "no-referrer");
    say(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_query_are_whole_and_fit() {
        let query = "since=12&until=18446744073709551615&x=-1&y=1e3&z";
        assert_eq!(number(query, "since"), Some(12));
        assert_eq!(number(query, "until"), Some(u64::MAX));
        for name in ["x", "y", "z", "nothing", ""] {
            assert_eq!(number(query, name), None, "{name}");
        }
        assert_eq!(number("since=18446744073709551616", "since"), None);
    }
}
