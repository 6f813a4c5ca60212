//! A service on tokio: a target program of the end-to-end tests, which knows nothing of tracing.
//!
//! It prints "ready PORT" and answers on that port of 127.0.0.1: each line, a number, gets a line
//! that depends on the number alone; what is none ends the conversation. A question goes through a
//! task of its own, a thread for what blocks, timers, and an actor with a channel, as in real
//! services. SIGTERM ends it.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

/// What the ledger is asked: a key, and where the answer goes.
type Question = (u64, oneshot::Sender<u64>);

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "multi_thread", worker_threads = 3)]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let mut out = io::stdout();
    writeln!(out, "ready {port}")?;
    out.flush()?;
    let (ledger, questions) = mpsc::channel(16);
    let keeper = tokio::spawn(keep_ledger(questions));
    let mut clients = JoinSet::new();
    let mut end = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                clients.spawn(converse(accepted?.0, ledger.clone()));
            }
            Some(ended) = clients.join_next() => ended??,
            _ = end.recv() => break,
        }
    }
    clients.shutdown().await;
    drop(ledger);
    let kept = keeper.await?;
    writeln!(out, "kept {kept}")?;
    out.flush()
}

/// Answers one client, line by line, until it goes away.
async fn converse(stream: TcpStream, ledger: mpsc::Sender<Question>) -> io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        let asked = ledger.clone();
        let answer = tokio::spawn(async move { reply(&line, &asked).await }).await?;
        let Some(answer) = answer else {
            return to.write_all(b"good bye\n").await;
        };
        to.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// One answer, from four places at once.
async fn reply(line: &str, ledger: &mpsc::Sender<Question>) -> Option<String> {
    let number = parsed(line)?;
    let words = spawn_blocking(move || sorted_words(number));
    let (sum, steps, words, late) = tokio::join!(
        looked_up(number, ledger),
        climb(number % 97),
        words,
        after_a_while(number)
    );
    let words = words.unwrap_or_else(|_| "lost".to_owned());
    let sum = sum.unwrap_or(0);
    Some(format!("{number} {sum} {steps} {words} {late}\n"))
}

/// Exactly one call for each line.
#[inline(never)]
fn parsed(line: &str) -> Option<u64> {
    line.trim().parse().ok()
}

/// Recursion through boxed futures.
fn climb(left: u64) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>> {
    Box::pin(async move {
        if left == 0 {
            return 0;
        }
        tokio::task::yield_now().await;
        1 + climb(left - 1).await
    })
}

async fn looked_up(number: u64, ledger: &mpsc::Sender<Question>) -> Option<u64> {
    let (to, answer) = oneshot::channel();
    ledger.send((number % 1009, to)).await.ok()?;
    timeout(PATIENCE, answer).await.ok()?.ok()
}

async fn after_a_while(number: u64) -> u64 {
    sleep(Duration::from_micros(number % 7 * 100)).await;
    number.rotate_left(7) ^ 0x5bd1
}

#[inline(never)]
fn sorted_words(number: u64) -> String {
    let mut seed = number;
    let mut words: Vec<String> = (0..20)
        .map(|_| {
            seed = mixed(seed);
            format!("{:04x}", seed & 0xffff)
        })
        .collect();
    words.sort_unstable();
    words.join(",")
}

/// One step of a generator.
#[inline(never)]
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (value ^ (value >> 27))
        .wrapping_mul(0x94d0_49bb_1331_11eb)
        .wrapping_add(0x9e37_79b9)
}

/// Owns the ledger; gives how many different keys it was asked for.
async fn keep_ledger(mut questions: mpsc::Receiver<Question>) -> usize {
    let mut ledger = BTreeMap::new();
    while let Some((key, answer)) = questions.recv().await {
        let value = *ledger.entry(key).or_insert_with(|| mixed(key));
        // Whoever asked may have gone.
        let _gone = answer.send(value);
    }
    ledger.len()
}
