//! Redis, its libraries and Lua included.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail, ensure};
use integration::{Built, DEADLINE, Program, Target, build_program, wait_until};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::client::{converse, ensure_same, free_port};
use super::storm::{Work, trace};
use crate::scene::send;

/// The sides of the work: clients that compare answers, each in a database of its own; Redis' own
/// benchmark; and a client that saves all data, for which the server forks.
const CLIENTS: usize = 3;
const BENCHMARK: usize = CLIENTS;
const SAVER: usize = CLIENTS + 1;

struct Redis {
    target: Mutex<Target>,
    pid: i32,
    port: u16,
    program: PathBuf,
    benchmark: PathBuf,
    dir: TempDir,
    /// The answers to the script in an untraced run.
    expected: Vec<u8>,
}

#[test]
#[ignore = "long to build; `cargo xtask soak` runs it"]
fn redis_works_on_under_every_kind_of_tracing() -> Result<()> {
    let mut redis = Redis::start()?;
    trace(&redis)?;
    let target = redis
        .target
        .get_mut()
        .unwrap_or_else(PoisonError::into_inner);
    send(target.pid().cast_unsigned(), Signal::SIGTERM)?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

/// The commands of a client, and their number.
fn script(client: usize) -> (String, u64) {
    let mut text = format!("SELECT {client}\r\nFLUSHDB\r\n");
    let mut ask = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line)
            .expect("writing to a string does not fail");
        text.push_str("\r\n");
    };
    for i in 0..120 {
        let r = (i * 7919 + 13) % 1009;
        ask(format_args!("SET key:{r} value-{i}"));
        ask(format_args!("INCRBY count {r}"));
        ask(format_args!("LPUSH list {r} {i}"));
        ask(format_args!("HSET hash field-{r} {i} other-{i} {r}"));
        ask(format_args!("ZADD scores {r} member-{i}"));
        ask(format_args!("SETBIT bits {r} 1"));
        ask(format_args!("PFADD guess {r}"));
        ask(format_args!("APPEND long {r}-"));
        ask(format_args!("XADD stream {}-1 at {r}", i + 1));
        ask(format_args!("GETRANGE long {} -1", i * 2));
        ask(format_args!("LRANGE list 0 {}", i % 20));
        ask(format_args!(
            "ZRANGEBYSCORE scores {} ({} WITHSCORES",
            r / 2,
            r
        ));
        ask(format_args!("EXPIRE key:{r} 100000"));
        ask(format_args!("NOSUCHCOMMAND {i}"));
        ask(format_args!(
            "GEOADD places {}.5 {}.25 place-{i}",
            r % 170,
            r % 80
        ));
    }
    for line in [
        "SORT list LIMIT 0 40 DESC",
        "PFCOUNT guess",
        "BITCOUNT bits",
        "XRANGE stream - + COUNT 20",
        "GEODIST places place-3 place-70 km",
        "HSTRLEN hash field-13",
        "LPOS list 7",
        "OBJECT ENCODING scores",
        "DUMP count",
        // Lua leaves the calls of an error by `longjmp`.
        "EVAL 'local s = 0 for i = 1, 2000 do s = s + i % 7 end return {s, redis.call(\"get\", KEYS[1])}' 1 count",
        "EVAL 'local ok, why = pcall(function() error({code = 7}) end) return {tostring(ok), why.code}' 0",
        "EVAL 'return redis.call(\"lpush\", KEYS[1], 1)' 1 count",
        "EVAL 'return cjson.encode({1, 2, {a = string.rep(\"x\", 50)}})' 0",
        "MULTI",
        "INCR count",
        "LPUSH count 1",
        "EXEC",
        "QUIT",
    ] {
        ask(format_args!("{line}"));
    }
    let commands = text.lines().count() as u64;
    (text, commands)
}

// === impl Redis ===

impl Redis {
    fn start() -> Result<Self> {
        let Built { dir: built, .. } = build_program(Program::Redis)?;
        let program = built.join("redis-server");
        let dir = tempfile::tempdir()?;
        let port = free_port()?;
        let mut command = Command::new(&program);
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--logfile", "redis.log"])
            .current_dir(dir.path())
            .stderr(File::create(dir.path().join("complaints"))?);
        let mut target = Target::spawn_unready(command)?;
        wait_until(DEADLINE, "Redis answers", || {
            target.still_running()?;
            Ok(TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })?;
        let expected = converse(port, script(0).0.as_bytes())?;
        ensure!(
            expected.len() > 10_000,
            "{}",
            String::from_utf8_lossy(&expected)
        );
        Ok(Self {
            pid: target.pid(),
            target: Mutex::new(target),
            port,
            program,
            benchmark: built.join("redis-benchmark"),
            dir,
            expected,
        })
    }

    fn measured(&self) -> Result<()> {
        let output = Command::new("timeout")
            .args(["--kill-after=5", "180"])
            .arg(&self.benchmark)
            .args(["-p", &self.port.to_string(), "--dbnum", "9", "-n", "5000"])
            .args(["-t", "set,get,lpush,lrange_100,zadd,spop,mset"])
            .args(["-P", "16", "-c", "20", "--csv"])
            .stdin(Stdio::null())
            .output()
            .context("cannot start redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        // A heading, seven commands, and the preparation for `lrange_100`.
        ensure!(
            output.status.success() && text.lines().count() == 9,
            "{}: {text}{complaints}",
            output.status
        );
        Ok(())
    }

    /// A child writes the data of that moment.
    fn saved(&self) -> Result<()> {
        let answer = converse(self.port, b"BGSAVE\r\nQUIT\r\n")?;
        ensure_same(&answer, b"+Background saving started\r\n+OK\r\n")?;
        wait_until(DEADLINE, "everything is saved", || {
            let answer = converse(self.port, b"INFO persistence\r\nQUIT\r\n")?;
            let answer = String::from_utf8_lossy(&answer);
            if answer.contains("rdb_bgsave_in_progress:1") {
                return Ok(None);
            }
            ensure!(answer.contains("rdb_last_bgsave_status:ok"), "{answer}");
            Ok(Some(()))
        })
    }
}

impl Work for Redis {
    fn program(&self) -> &Path {
        &self.program
    }

    fn pids(&self) -> Vec<i32> {
        vec![self.pid]
    }

    fn sides(&self) -> usize {
        SAVER + 1
    }

    fn work(&self, side: usize) -> Result<()> {
        match side {
            BENCHMARK => self.measured(),
            SAVER => self.saved(),
            client => ensure_same(
                &converse(self.port, script(client).0.as_bytes())?,
                &self.expected,
            ),
        }
    }

    fn counted(&self) -> (&'static [&'static str], Option<u64>) {
        (&["--function", "processCommand"], Some(script(0).1))
    }

    fn healthy(&self) -> Result<()> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.still_running()?;
        let complaints = fs::read_to_string(self.dir.path().join("complaints"))?;
        let log = fs::read_to_string(self.dir.path().join("redis.log"))?;
        let bad = ["BUG REPORT", "crashed", "terminated by signal", "MISCONF"];
        if !complaints.is_empty() || bad.iter().any(|word| log.contains(word)) {
            bail!("Redis complains: {complaints}{log}");
        }
        Ok(())
    }
}
