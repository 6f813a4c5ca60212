//! A Redis server, and its load. Tracing it is in `variants.rs`.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Program, build_program, wait_until};
use nix::sys::signal::Signal;

use super::super::daemon::Guard;
use super::variants::{Llvm, Mode};

/// The commands that are measured, as `redis-benchmark` names them.
pub(super) const COMMANDS: [&str; 2] = ["SET", "GET"];

/// The time limit of requests, in seconds: a server that hangs is given up.
const LIMIT: &str = "90";
/// The exit code of `timeout` after that time.
const OUT_OF_TIME: Option<i32> = Some(124);

/// The longest time that a server may take to end: in LLVM's modes it writes its log.
const ENDING: Duration = Duration::from_secs(30);

/// Both builds.
#[derive(Debug)]
pub(super) struct Redis {
    /// The build with sleds and no runtime that would switch them.
    plain: PathBuf,
    /// The same with LLVM's runtime.
    llvm: PathBuf,
    benchmark: PathBuf,
    pub(super) version: String,
}

/// A server that ends with its guard.
#[derive(Debug)]
pub(super) struct Server {
    child: Guard,
    port: u16,
}

// === impl Redis ===

impl Redis {
    pub(super) fn build() -> Result<Self> {
        let [plain, llvm] = [Program::Redis, Program::RedisLlvm].map(build_program);
        let (plain, llvm) = (plain?, llvm?);
        Ok(Self {
            llvm: llvm.dir.join("redis-server"),
            benchmark: plain.dir.join("redis-benchmark"),
            plain: plain.dir.join("redis-server"),
            version: plain.version,
        })
    }

    /// Requests a second of both commands, for `requests` requests of each.
    pub(super) fn load(&self, server: &mut Server, requests: u64) -> Result<[f64; 2]> {
        let output = Command::new("timeout")
            .args(["--kill-after=5", LIMIT])
            .arg(&self.benchmark)
            .args(["-p", &server.port.to_string()])
            .args(["-t", "set,get", "-P", "16", "-c", "50", "--csv"])
            .args(["-n", &requests.to_string()])
            .stdin(Stdio::null())
            .output()
            .context("cannot start redis-benchmark")?;
        if let Some(status) = server.child.ended()? {
            bail!("redis-server ended under load: {status}");
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.code() != OUT_OF_TIME,
            "redis-server did not answer {requests} requests of each command within {LIMIT} s"
        );
        ensure!(
            output.status.success(),
            "redis-benchmark: {}: {text}",
            output.status
        );
        let mut rates = [0.0; 2];
        for (rate, command) in rates.iter_mut().zip(COMMANDS) {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("\"{command}\",\"")));
            let number = line.and_then(|line| line.split('"').next()?.parse().ok());
            *rate = number
                .with_context(|| format!("redis-benchmark says nothing of {command}: {text}"))?;
        }
        Ok(rates)
    }
}

// === impl Server ===

impl Server {
    /// Starts a server that works in `dir`, and waits until it answers.
    pub(super) fn start(redis: &Redis, mode: Mode, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // The port was free a moment ago. If another process takes it meanwhile, the server reports
        // that and ends.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = port.context("no free port")?.port();
        let mut command = Command::new(match mode {
            Mode::Off | Mode::OffAgain | Mode::Ours(_) => &redis.plain,
            Mode::Llvm(_) => &redis.llvm,
        });
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--logfile", "redis.log"])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("complaints")).context("cannot create a file")?);
        match mode {
            Mode::Off | Mode::OffAgain | Mode::Ours(_) => {}
            Mode::Llvm(Llvm::Flight) => {
                command.env("BENCH_XRAY", "xray-fdr");
            }
            // `XRAY_OPTIONS` alone would patch its sleds, without a handler. In its default memory
            // the mode adds up some 2,000 calls, and then nothing more.
            Mode::Llvm(Llvm::Profiling) => {
                command.env("BENCH_XRAY", "xray-profiling").env(
                    "XRAY_PROFILING_OPTIONS",
                    "per_thread_allocator_max=67108864 global_allocator_max=268435456 stack_allocator_max=67108864",
                );
            }
            Mode::Llvm(Llvm::Basic) => {
                command
                    .env("XRAY_OPTIONS", "patch_premain=true xray_mode=xray-basic")
                    .env(
                        "XRAY_BASIC_OPTIONS",
                        "func_duration_threshold_us=0 max_stack_depth=1024",
                    );
            }
        }
        let child = Guard::new(command.spawn().context("cannot start redis-server")?);
        let mut server = Self { child, port };
        wait_until(DEADLINE, "Redis answers", || {
            if let Some(status) = server.child.ended()? {
                let log = fs::read_to_string(dir.join("redis.log")).unwrap_or_default();
                let complaints = fs::read_to_string(dir.join("complaints")).unwrap_or_default();
                bail!("redis-server ended as it began: {status}: {complaints}{log}");
            }
            Ok(TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })?;
        Ok(server)
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.pid().as_raw()
    }

    pub(super) fn stop(&mut self) -> Result<ExitStatus> {
        self.child.end(Signal::SIGTERM, ENDING)
    }
}
