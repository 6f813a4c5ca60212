//! Requests a daemon's metrics with only a socket, and parses the answer.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, wait_until};

use crate::scene::Daemon;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names are in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// The samples of a page in the text format, by the text before the value.
#[derive(Debug)]
pub(crate) struct Samples(BTreeMap<String, f64>);

/// The address of a daemon's metrics in its log.
pub(crate) fn metrics_of(daemon: &Daemon) -> Result<SocketAddr> {
    let log = wait_until(DEADLINE, "the log tells where metrics are", || {
        let log = daemon.log();
        Ok(log.contains("serving metrics").then_some(log))
    })?;
    let (_, address) = log.rsplit_once("address=").context("no address")?;
    let address = address.split_whitespace().next().context("no address")?;
    address.parse().with_context(|| address.to_owned())
}

/// Sends a request as it is, and reads the answer to its end.
pub(crate) fn send(address: SocketAddr, request: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| line.split_once(": "));
    Ok(Answer {
        status: status.context("no status")?.parse()?,
        headers: headers
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    })
}

/// A page in the format that `accept` selects.
pub(crate) fn page(address: SocketAddr, accept: &str) -> Result<Answer> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n");
    let answer = send(address, &request)?;
    ensure!(answer.status == 200, "{answer:?}");
    let length = answer.headers.get("content-length").context("no length")?;
    ensure!(*length == answer.body.len().to_string(), "{answer:?}");
    Ok(answer)
}

/// The current samples.
pub(crate) fn samples(address: SocketAddr) -> Result<Samples> {
    let body = page(address, "*/*")?.body;
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (sample, value) = line.rsplit_once(' ').context("no value")?;
        Ok((sample.to_owned(), value.parse()?))
    });
    Ok(Samples(samples.collect::<Result<_>>()?))
}

// === impl Samples ===

impl Samples {
    pub(crate) fn get(&self, sample: &str) -> Option<f64> {
        self.0.get(sample).copied()
    }

    /// Checks that a sample has exactly this value.
    pub(crate) fn says(&self, sample: &str, expected: u64) -> Result<()> {
        let found = self.get(sample);
        #[expect(clippy::cast_precision_loss, reason = "tests do not count that far")]
        let equal = found == Some(expected as f64);
        ensure!(equal, "{sample} is {found:?}, not {expected}: {self:#?}");
        Ok(())
    }

    /// The samples that begin with this text, and their values.
    pub(crate) fn of<'a>(&'a self, start: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let all = self
            .0
            .iter()
            .map(|(sample, value)| (sample.as_str(), *value));
        all.filter(move |(sample, _)| sample.starts_with(start))
    }
}
