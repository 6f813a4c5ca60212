//! nginx: a master process and workers.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Program, Target, build_program, wait_until};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::client::{converse, ensure_same, free_port};
use super::storm::{Work, trace};
use crate::scene::send;

const WORKERS: usize = 4;

/// The master process. Dropping it ends the workers, too, which would outlive it otherwise.
struct Master(Target);

struct Nginx {
    master: Mutex<Master>,
    /// The master, then its workers.
    pids: Vec<i32>,
    port: u16,
    program: PathBuf,
    dir: TempDir,
    questions: String,
    /// The answers of an untraced run.
    expected: Vec<u8>,
    /// Requests that are logged for each piece of work.
    requests: u64,
}

#[test]
#[ignore = "long to build; `cargo xtask soak` runs it"]
fn nginx_works_on_under_every_kind_of_tracing() -> Result<()> {
    let mut nginx = Nginx::start()?;
    trace(&nginx)?;
    let Master(target) = nginx
        .master
        .get_mut()
        .unwrap_or_else(PoisonError::into_inner);
    send(target.pid().cast_unsigned(), Signal::SIGQUIT)?;
    ensure!(target.wait(DEADLINE)?.success());
    Ok(())
}

/// Serves files, pages made of other pages, and all of it again through the server itself.
fn configuration(port: u16) -> String {
    format!(
        "daemon off;
worker_processes {WORKERS};
pid nginx.pid;
error_log error.log notice;
events {{ worker_connections 256; }}
http {{
  access_log access.log;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  types {{ text/html html shtml; text/plain txt; }}
  keepalive_requests 100000;
  server_tokens off;
  aio threads;
  server {{
    listen 127.0.0.1:{port};
    root html;
    location / {{ ssi on; sub_filter 'colour' 'color'; sub_filter_once off; sub_filter_types text/plain; }}
    location /raw/ {{ alias html/; sendfile on; }}
    location /through/ {{ proxy_pass http://127.0.0.1:{port}/; proxy_buffers 4 4k; }}
    location /list/ {{ alias html/few/; autoindex on; }}
    location /closed/ {{ deny all; }}
  }}
}}
"
    )
}

/// The answers without the times of the clock, and with whole bodies. The pieces of a chunked body
/// depend on the time, too.
fn timeless(mut answers: &[u8]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while !answers.is_empty() {
        let head = until(&mut answers, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(head);
        let mut length = 0;
        let mut chunked = false;
        for line in head.lines() {
            match line.split_once(": ") {
                Some(("Date", _)) => continue,
                Some(("Content-Length", value)) => length = value.parse()?,
                Some(("Transfer-Encoding", "chunked")) => chunked = true,
                Some(_) | None => {}
            }
            all.extend_from_slice(line.as_bytes());
            all.push(b'\n');
        }
        all.extend_from_slice(taken(&mut answers, length)?);
        while chunked {
            let size = String::from_utf8_lossy(until(&mut answers, b"\r\n")?).into_owned();
            let size = usize::from_str_radix(&size, 16).context("not a size")?;
            all.extend_from_slice(taken(&mut answers, size)?);
            taken(&mut answers, 2)?;
            chunked = size > 0;
        }
    }
    Ok(all)
}

/// Takes the bytes before `end`, and `end` itself, from the front.
fn until<'bytes>(bytes: &mut &'bytes [u8], end: &[u8]) -> Result<&'bytes [u8]> {
    let mut windows = bytes.windows(end.len());
    let at = windows.position(|window| window == end);
    let found = taken(bytes, at.context("cut short")?)?;
    taken(bytes, end.len())?;
    Ok(found)
}

/// Takes this many bytes from the front.
fn taken<'bytes>(bytes: &mut &'bytes [u8], count: usize) -> Result<&'bytes [u8]> {
    let (first, rest) = bytes.split_at_checked(count).context("cut short")?;
    *bytes = rest;
    Ok(first)
}

/// The workers, as the kernel lists the children.
fn children(pid: i32) -> Result<Vec<i32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let mut pids = Vec::new();
    for word in text.split_whitespace() {
        pids.push(word.parse()?);
    }
    Ok(pids)
}

// === impl Master ===

impl Drop for Master {
    fn drop(&mut self) {
        if self.0.still_running().is_err() {
            return;
        }
        let pid = self.0.pid();
        // A stopped master starts no new workers. Errors here cannot be reported.
        let _ = send(pid.cast_unsigned(), Signal::SIGSTOP);
        let workers = children(pid).unwrap_or_default();
        let _ = send(pid.cast_unsigned(), Signal::SIGKILL);
        for worker in workers {
            let _ = send(worker.cast_unsigned(), Signal::SIGKILL);
        }
    }
}

// === impl Nginx ===

impl Nginx {
    fn start() -> Result<Self> {
        let program = build_program(Program::Nginx)?.dir.join("nginx");
        let dir = tempfile::tempdir()?;
        let port = free_port()?;
        fs::write(dir.path().join("nginx.conf"), configuration(port))?;
        fill(&dir.path().join("html"))?;
        let mut command = Command::new(&program);
        command
            .arg("-p")
            .arg(dir.path())
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stderr(File::create(dir.path().join("complaints"))?);
        let mut master = Master(Target::spawn_unready(command)?);
        let pid = master.0.pid();
        let workers = wait_until(DEADLINE, "nginx answers", || {
            master.0.still_running()?;
            let answers = TcpStream::connect(("127.0.0.1", port)).is_ok();
            let workers = children(pid)?;
            Ok((answers && workers.len() == WORKERS).then_some(workers))
        })?;
        let (questions, requests) = questions();
        let expected = timeless(&converse(port, questions.as_bytes())?)?;
        ensure!(expected.len() > 1 << 20, "{} bytes", expected.len());
        Ok(Self {
            master: Mutex::new(master),
            pids: [vec![pid], workers].concat(),
            port,
            program,
            dir,
            questions,
            expected,
            requests,
        })
    }
}

/// The files that are served.
fn fill(html: &Path) -> Result<()> {
    fs::create_dir_all(html.join("few"))?;
    let mut line = String::new();
    for number in 0..20_000 {
        writeln!(
            line,
            "{number}: the colour of {:x}",
            number * 2_654_435_761_u64
        )?;
    }
    fs::write(html.join("large.txt"), &line)?;
    fs::write(html.join("small.txt"), &line[..600])?;
    fs::write(
        html.join("page.shtml"),
        "<!--#include virtual=\"/small.txt\" -->|<!--#include virtual=\"/through/few/a.html\" -->|\
         <!--#set var=\"v\" value=\"colour\" --><!--#if expr=\"$v = colour\" --><!--#echo var=\"v\" --><!--#endif -->\n",
    )?;
    for name in ["a", "b", "c"] {
        fs::write(
            html.join(format!("few/{name}.html")),
            format!("<p>colour {name}</p>\n"),
        )?;
    }
    // Directory listings and headers contain times.
    Command::new("find")
        .arg(html)
        .args(["-exec", "touch", "-d", "2024-01-02 03:04:05 UTC", "{}", "+"])
        .status()
        .context("cannot start find")?;
    Ok(())
}

/// Requests on one connection, one after the other, and the number that the server gets because of
/// them, its own to itself included.
fn questions() -> (String, u64) {
    let mut text = String::new();
    let mut requests = 0;
    let asked = [
        ("GET /small.txt", "", 1),
        ("GET /raw/large.txt", "Range: bytes=1000-99999\r\n", 1),
        ("GET /raw/large.txt", "", 1),
        ("GET /large.txt", "", 1),
        ("GET /page.shtml", "", 2),
        ("GET /through/large.txt", "", 2),
        ("GET /through/page.shtml", "", 3),
        ("GET /through/through/few/b.html", "", 3),
        ("GET /list/", "", 1),
        ("GET /few", "", 1),
        ("GET /nothing", "", 1),
        ("GET /closed/", "", 1),
        // The server skips the empty line behind the body.
        ("PUT /small.txt", "Content-Length: 3\r\n\r\nabc", 1),
        (
            "GET /raw/few/c.html",
            "If-Modified-Since: Tue, 02 Jan 2024 03:04:05 GMT\r\n",
            1,
        ),
    ];
    for _ in 0..3 {
        for (what, rest, each) in asked {
            write!(text, "{what} HTTP/1.1\r\nHost: here\r\n{rest}\r\n").expect("a string");
            requests += each;
        }
    }
    text.push_str("GET /small.txt HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    requests += 1;
    (text, requests)
}

impl Work for Nginx {
    fn program(&self) -> &Path {
        &self.program
    }

    fn pids(&self) -> Vec<i32> {
        self.pids.clone()
    }

    fn sides(&self) -> usize {
        4
    }

    fn work(&self, _: usize) -> Result<()> {
        let found = converse(self.port, self.questions.as_bytes())?;
        ensure_same(&timeless(&found)?, &self.expected)
    }

    fn counted(&self) -> (&'static [&'static str], Option<u64>) {
        (&["--function", "ngx_http_log_handler"], Some(self.requests))
    }

    fn healthy(&self) -> Result<()> {
        let mut master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
        let Master(target) = &mut *master;
        target.still_running()?;
        ensure!(
            children(target.pid())? == self.pids[1..],
            "workers have come and gone"
        );
        let complaints = fs::read_to_string(self.dir.path().join("complaints"))?;
        let log = fs::read_to_string(self.dir.path().join("error.log"))?;
        let bad = ["[alert]", "[crit]", "[emerg]", "exited"];
        ensure!(
            complaints.is_empty() && !bad.iter().any(|word| log.contains(word)),
            "nginx complains: {complaints}{log}"
        );
        Ok(())
    }
}
