//! The server of `xrayctl view`. A browser, or any other program, sends it the input.
//!
//! `xrayctl` has no library, so the target compiles the files that it needs.
#![no_main]

#[path = "../../xrayctl/src/view/respond.rs"]
mod respond;
#[path = "../../xrayctl/src/view/secret.rs"]
mod secret;
#[expect(dead_code, reason = "the target needs no listener")]
#[path = "../../xrayctl/src/view/server.rs"]
mod server;

use std::fs::File;
use std::io;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};
use xray_trace::analysis::Filter;
use xray_trace::sink::Page;
use xray_trace::source::{Options, open};

use respond::Report;
use secret::Secret;
use server::Answering;

/// The port of the server, as in a `Host` header.
const PORT: u16 = 8080;
/// The placeholder for the server's random word in inputs, which cannot contain the word itself.
const WORD: &[u8] = b"SECRET";
/// Size of each direction's buffer, in bytes.
const ROOM: usize = 1 << 20;

struct Scene {
    runtime: Runtime,
    answering: Answering,
    word: Vec<u8>,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| Scene::new().expect("a small trace"));

// === impl Scene ===

impl Scene {
    fn new() -> io::Result<Self> {
        let folder = env!("CARGO_MANIFEST_DIR");
        let file = File::open(format!("{folder}/seeds/traces/group"))?;
        let trace = open(file, &Options::default()).map_err(io::Error::other)?;
        let trace = trace.trace;
        let page = Page::of_trace(&trace, &Filter::default(), "group", "demo");
        let secret = Secret::new()?;
        let word = secret.word().as_bytes().to_vec();
        let report = Report::new(Some(trace), page)?;
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            answering: Answering::new(report, secret, PORT),
            word,
        })
    }

    /// The answer to these bytes over a connection of their own.
    async fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        let (server, mut client) = tokio::io::duplex(ROOM);
        let asking = async {
            // The server may have ended the connection before it has read everything.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        tokio::join!(self.answering.connection(server), asking).1
    }

    /// The input with the random word in the place of each placeholder, and whether it has any.
    fn with_word(&self, input: &[u8]) -> (Vec<u8>, bool) {
        let (mut bytes, mut rest, mut has_word) = (Vec::new(), input, false);
        while let Some(at) = rest.windows(WORD.len()).position(|it| it == WORD) {
            bytes.extend_from_slice(&rest[..at]);
            bytes.extend_from_slice(&self.word);
            rest = &rest[at + WORD.len()..];
            has_word = true;
        }
        bytes.extend_from_slice(rest);
        (bytes, has_word)
    }
}

fuzz_target!(|input: &[u8]| {
    let scene = &*SCENE;
    let (bytes, has_word) = scene.with_word(input);
    let answer = scene.runtime.block_on(scene.ask(&bytes));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
    let is_served = answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200");
    assert!(has_word || !is_served, "served without the word");
});
