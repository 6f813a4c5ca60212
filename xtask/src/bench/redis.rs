//! Redis under `redis-benchmark`, every function with sleds: off, all traced by us, and by LLVM's modes.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use integration::{DEADLINE, Program, build_program, wait_until};
use nix::sys::signal::Signal;

use super::daemon::{Daemon, Guard};
use super::drain::bytes_row;
use super::samples::Samples;
use super::table::{Row, Table};
use super::{Bench, Effort};

/// The commands that are measured, as `redis-benchmark` names them.
const COMMANDS: [&str; 2] = ["SET", "GET"];

/// How a server is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    Ours,
    Flight,
    Basic,
}

/// Both builds.
#[derive(Debug)]
struct Redis {
    /// Sleds, and nothing that would switch them.
    plain: PathBuf,
    /// The same with LLVM's runtime.
    llvm: PathBuf,
    benchmark: PathBuf,
    version: String,
}

struct Variant {
    mode: Mode,
    server: Server,
    /// Of each command in each round: so many that every variant takes about as long.
    requests: u64,
    /// Requests a second, by command.
    rates: [Samples; 2],
}

/// A server that ends with its guard.
struct Server {
    child: Guard,
    port: u16,
}

pub(super) fn run(bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
    let redis = Redis::build()?;
    let (rounds, scale) = match bench.effort {
        Effort::Full => (5, 1),
        Effort::Quick => (2, 5),
    };
    let dir = bench.scratch("redis")?;
    let mut variants = Vec::new();
    for (mode, requests) in [
        (Mode::Off, 1_000_000),
        (Mode::Ours, 400_000),
        (Mode::Flight, 200_000),
        (Mode::Basic, 20_000),
    ] {
        variants.push(Variant {
            mode,
            server: Server::start(&redis, mode, &dir)?,
            requests: requests / scale,
            rates: Default::default(),
        });
    }
    let daemon = Daemon::start()?;
    let file = dir.join("redis.xtrace");
    let (mut events, mut lost, mut bytes, mut requests) = (0, 0, 0, 0);
    for round in 0..=rounds {
        for variant in &mut variants {
            let recording = match variant.mode {
                Mode::Ours => Some(daemon.record(variant.server.child.pid().as_raw(), &file)?),
                Mode::Off | Mode::Flight | Mode::Basic => None,
            };
            let rates = load(&redis, &variant.server, variant.requests)?;
            if let Some(recording) = recording {
                let recorded = recording.finish()?;
                if round > 0 {
                    events += recorded.events;
                    lost += recorded.lost;
                    bytes += recorded.bytes;
                    requests += 2 * variant.requests;
                }
            }
            // The first round warms everything up.
            if round > 0 {
                for (samples, rate) in variant.rates.iter_mut().zip(rates) {
                    samples.push(rate);
                }
            }
        }
    }
    let mut rows = rows(&variants)?;
    for variant in &mut variants {
        variant.server.stop()?;
    }
    let basic = variants.iter().find(|variant| variant.mode == Mode::Basic);
    let basic = basic.map_or(0, |basic| basic.requests * 2 * (rounds + 1));
    let by_basic = check_logs(&dir, basic)? as f64 / basic as f64;
    let passed = (events + lost) as f64;
    let share = 100.0 * lost as f64 / passed;
    let each = passed / requests as f64;
    rows.push(Row::new(
        "events of xrayd, all rounds",
        format!("{events} recorded, {lost} lost ({share:.1} %)"),
        format!("{each:.0} a request; {by_basic:.0} in basic mode's log"),
    ));
    let each = bytes as f64 / events as f64;
    rows.push(bytes_row("bytes per event on disk", each, events, lost));
    table.note(format!(
        "{}, all its libraries included, by clang-19 -O2 with a sled in every function; `redis-benchmark -t set,get -P 16 -c 50`, \
         one server for each row, all on one machine, rounds interleaved, medians.",
        redis.version
    ));
    Ok(rows)
}

fn rows(variants: &[Variant]) -> Result<Vec<Row>> {
    let off = variants.iter().find(|variant| variant.mode == Mode::Off);
    let off = off.context("a variant is missing")?;
    let mut rows = Vec::new();
    for variant in variants {
        for (index, command) in COMMANDS.iter().enumerate() {
            let rate = variant.rates[index].median();
            let name = match variant.mode {
                Mode::Off => "sleds off",
                Mode::Ours => "everything traced by xrayd, recorded to a file",
                Mode::Flight => "LLVM XRay, FDR mode",
                Mode::Basic => "LLVM XRay, basic mode",
            };
            let share = 100.0 * rate / off.rates[index].median();
            let ratio = match variant.mode {
                Mode::Off => String::new(),
                Mode::Ours | Mode::Flight | Mode::Basic => format!("{share:.1} % of off"),
            };
            rows.push(Row::new(
                format!("{command}, {name}"),
                format!("{:.0} k requests/s", rate / 1e3),
                ratio,
            ));
        }
    }
    Ok(rows)
}

/// Requests a second of both commands.
fn load(redis: &Redis, server: &Server, requests: u64) -> Result<[f64; 2]> {
    let output = Command::new("timeout")
        .args(["--kill-after=5", "180"])
        .arg(&redis.benchmark)
        .args([
            "-p",
            &server.port.to_string(),
            "-t",
            "set,get",
            "-P",
            "16",
            "-c",
            "50",
            "--csv",
        ])
        .args(["-n", &requests.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot start redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
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
        *rate =
            number.with_context(|| format!("redis-benchmark says nothing of {command}: {text}"))?;
    }
    Ok(rates)
}

/// What LLVM's modes wrote shows that they did record. Gives the number of events in basic mode's log.
fn check_logs(dir: &Path, requests: u64) -> Result<u64> {
    let [mut flight, mut basic] = [0, 0];
    for (mode, bytes) in [(Mode::Flight, &mut flight), (Mode::Basic, &mut basic)] {
        for entry in fs::read_dir(mode.dir(dir)).context("cannot list the logs")? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("xray-log.") {
                *bytes += entry.metadata()?.len();
            }
        }
    }
    // The flight recorder keeps 100 buffers of 16 KiB.
    ensure!(
        flight > 1 << 20,
        "FDR mode recorded next to nothing: a log of {flight} bytes"
    );
    let events = basic / 32;
    ensure!(
        events > requests,
        "basic mode recorded next to nothing: {events} events"
    );
    Ok(events)
}

// === impl Redis ===

impl Redis {
    fn build() -> Result<Self> {
        let [plain, llvm] = [Program::Redis, Program::RedisLlvm].map(build_program);
        let (plain, llvm) = (plain?, llvm?);
        Ok(Self {
            llvm: llvm.dir.join("redis-server"),
            benchmark: plain.dir.join("redis-benchmark"),
            plain: plain.dir.join("redis-server"),
            version: plain.version,
        })
    }
}

// === impl Mode ===

impl Mode {
    fn dir(self, below: &Path) -> std::path::PathBuf {
        below.join(format!("{self:?}").to_lowercase())
    }
}

// === impl Server ===

impl Server {
    fn start(redis: &Redis, mode: Mode, dir: &Path) -> Result<Self> {
        let dir = mode.dir(dir);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Free a moment ago; if somebody takes it meanwhile, the server says so and ends.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = port.context("no free port")?.port();
        let mut command = Command::new(match mode {
            Mode::Off | Mode::Ours => &redis.plain,
            Mode::Flight | Mode::Basic => &redis.llvm,
        });
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--logfile", "redis.log"])
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("complaints")).context("cannot create a file")?);
        match mode {
            Mode::Off | Mode::Ours => {}
            Mode::Flight => {
                command.env("BENCH_FLIGHT", "1");
            }
            Mode::Basic => {
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
                bail!(
                    "redis-server ended: {status}; see {}",
                    dir.join("redis.log").display()
                );
            }
            Ok(TcpStream::connect(("127.0.0.1", port)).ok().map(drop))
        })?;
        Ok(server)
    }

    fn stop(&mut self) -> Result<()> {
        self.child
            .end(Signal::SIGTERM, Duration::from_secs(30))
            .map(drop)
    }
}
