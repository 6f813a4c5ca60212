//! Servers side by side, each traced in its own way. Starting and loading one is in `server.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::daemon::{Daemon, cpu, number};
use super::super::samples::Samples;
use super::server::{Redis, Server};

/// The time under load after which a budget has settled.
const SETTLING: Duration = Duration::from_secs(5);

/// The tracing of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Off,
    /// Another server that is off. The difference between the two is chance.
    OffAgain,
    Ours(Ours),
    Llvm(Llvm),
}

/// The modes of xrayd, with every function switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    /// Mode `flight` with at most 2 % of the time.
    Budget,
    /// The same in mode `profile`.
    ProfileBudget,
    /// Mode `flight` for 5 ms of each second.
    Duty,
    Flight,
    /// Streamed into a file.
    Recorded,
    /// The same, and its threads wait for xrayd.
    Lossless,
    /// Streamed into the daemon's memory.
    Retained,
    Profile,
    Count,
}

/// The modes of LLVM's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Llvm {
    Flight,
    Profiling,
    Basic,
}

/// Whether the figures of a load count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    WarmUp,
    Measured,
}

/// A server, and its results.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) mode: Mode,
    /// The directory in which it works and LLVM's runtime writes its log.
    dir: PathBuf,
    /// `None` from its end on, or after a failure.
    server: Option<Server>,
    /// Requests of each command in each load. With so many a sample takes a second or two.
    requests: u64,
    /// Requests a second, by command. Each load that counts adds one.
    pub(super) rates: [Samples; 2],
    /// The events that xrayd recorded in those loads.
    pub(super) tally: Tally,
    /// The same server without tracing, each time just before. Measured only where a percent
    /// counts: servers of one program differ by more than that.
    pub(super) untraced: Untraced,
    /// Requests of all loads, those for warming up as well, since all are in LLVM's log. With a
    /// budget, requests since it was attached.
    pub(super) all_requests: u64,
    /// Size of LLVM's log; set at the end.
    pub(super) log_bytes: u64,
    /// The daemon's status of it after the latest load, if it stays attached.
    pub(super) status: Value,
    /// The reason why it is of no use any more. The others go on.
    pub(super) failure: Option<String>,
}

/// A server compared with itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Untraced {
    /// Requests a second with tracing, as a share of those before; by command.
    pub(super) shares: [Samples; 2],
    pub(super) requests: u64,
    /// Processor time of the server.
    pub(super) cpu: Duration,
}

/// Sums over loads.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Events, or calls if those were counted.
    pub(super) events: u64,
    pub(super) lost: u64,
    /// Bytes of files.
    pub(super) bytes: u64,
    pub(super) requests: u64,
    /// Processor time of the server.
    pub(super) cpu: Duration,
}

// === impl Mode ===

impl Mode {
    /// All modes. Those that are compared most closely come first.
    pub(super) const ALL: [Self; 14] = [
        Self::Off,
        Self::OffAgain,
        Self::Ours(Ours::Budget),
        Self::Ours(Ours::ProfileBudget),
        Self::Ours(Ours::Duty),
        Self::Ours(Ours::Flight),
        Self::Ours(Ours::Recorded),
        Self::Ours(Ours::Lossless),
        Self::Ours(Ours::Retained),
        Self::Ours(Ours::Profile),
        Self::Ours(Ours::Count),
        Self::Llvm(Llvm::Flight),
        Self::Llvm(Llvm::Profiling),
        Self::Llvm(Llvm::Basic),
    ];

    /// The number of its loads in a round. Where a percent counts, more samples give more
    /// certainty.
    pub(super) fn turns(self) -> u32 {
        match self {
            Self::Off | Self::OffAgain | Self::Ours(Ours::Duty) => 3,
            // Each is a pair.
            Self::Ours(Ours::Budget | Ours::ProfileBudget) => 2,
            Self::Ours(_) | Self::Llvm(_) => 1,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Off => "sleds off",
            Self::OffAgain => "sleds off, another server",
            Self::Ours(Ours::Budget) => "xrayd in flight, --max-overhead 2%",
            Self::Ours(Ours::ProfileBudget) => "added up by xrayd, --max-overhead 2%",
            Self::Ours(Ours::Duty) => "xrayd in flight, --duty 5ms/1s",
            Self::Ours(Ours::Flight) => "everything traced by xrayd, in flight",
            Self::Ours(Ours::Recorded) => "everything traced by xrayd, recorded to a file",
            Self::Ours(Ours::Lossless) => {
                "everything traced by xrayd, recorded to a file, --lossless"
            }
            Self::Ours(Ours::Retained) => "everything traced by xrayd, retained by the daemon",
            Self::Ours(Ours::Profile) => "everything added up by xrayd (mode profile)",
            Self::Ours(Ours::Count) => "everything counted by xrayd (mode count)",
            Self::Llvm(Llvm::Flight) => "LLVM XRay, FDR mode",
            Self::Llvm(Llvm::Profiling) => "LLVM XRay, profiling mode",
            Self::Llvm(Llvm::Basic) => "LLVM XRay, basic mode",
        }
    }

    fn requests(self) -> u64 {
        match self {
            Self::Off
            | Self::OffAgain
            | Self::Ours(Ours::Budget | Ours::ProfileBudget | Ours::Duty) => 2_000_000,
            Self::Ours(Ours::Count) => 1_000_000,
            Self::Ours(_) => 400_000,
            Self::Llvm(Llvm::Flight) => 200_000,
            Self::Llvm(Llvm::Profiling) => 100_000,
            Self::Llvm(Llvm::Basic) => 20_000,
        }
    }
}

// === impl Ours ===

impl Ours {
    /// Options of `xrayctl attach`.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Budget => &["--mode", "flight", "--max-overhead", "2%"],
            Self::ProfileBudget => &["--mode", "profile", "--max-overhead", "2%"],
            Self::Duty => &["--mode", "flight", "--duty", "5ms/1s"],
            Self::Flight => &["--mode", "flight"],
            Self::Recorded | Self::Lossless | Self::Retained => &["--mode", "stream"],
            Self::Profile => &["--mode", "profile"],
            Self::Count => &["--mode", "count"],
        }
    }
}

// === impl Llvm ===

impl Llvm {
    /// The smallest log that proves a recording.
    fn least_log(self, requests: u64) -> u64 {
        match self {
            // The flight recorder keeps 100 buffers of 16 KiB.
            Self::Flight => 1 << 20,
            // Thousands of stacks.
            Self::Profiling => 100 << 10,
            // Each request takes many events of 32 bytes.
            Self::Basic => requests * 32,
        }
    }
}

// === impl Variant ===

impl Variant {
    /// Starts a server, and attaches if the tracing stays from one load to the next.
    pub(super) fn start(mode: Mode, redis: &Redis, daemon: &Daemon, below: &Path) -> Self {
        let dir: String = format!("{mode:?}").to_lowercase();
        let dir = below.join(dir.replace(['(', ')'], "-"));
        let mut variant = Self {
            mode,
            dir,
            server: None,
            requests: mode.requests(),
            rates: Default::default(),
            tally: Tally::default(),
            untraced: Untraced::default(),
            all_requests: 0,
            log_bytes: 0,
            status: Value::Null,
            failure: None,
        };
        if let Err(error) = variant.begin(redis, daemon) {
            variant.fail(&error);
        }
        variant
    }

    fn begin(&mut self, redis: &Redis, daemon: &Daemon) -> Result<()> {
        let server = self
            .server
            .insert(Server::start(redis, self.mode, &self.dir)?);
        if self.mode == Mode::Ours(Ours::Duty) {
            self.all_requests +=
                attach_and_settle(Ours::Duty, self.requests, server, redis, daemon)?;
        }
        Ok(())
    }

    /// Loads the server. After a failure it is not loaded again.
    pub(super) fn load(&mut self, redis: &Redis, daemon: &Daemon, file: &Path, round: Round) {
        let Some(mut server) = self.server.take() else {
            return;
        };
        let untraced = match self.mode {
            Mode::Ours(ours @ (Ours::Budget | Ours::ProfileBudget)) => self
                .load_untraced(ours, &mut server, redis, daemon)
                .map(Some),
            _ => Ok(None),
        };
        let untraced = match untraced {
            Ok(untraced) => untraced,
            Err(error) => return self.fail(&error),
        };
        let before = cpu(server.pid());
        let done = self.try_load(&mut server, redis, daemon, file);
        let taken = before.and_then(|before| Ok(cpu(server.pid())?.saturating_sub(before)));
        match done.and_then(|(rates, tally)| {
            Ok((
                rates,
                Tally {
                    cpu: taken?,
                    ..tally
                },
            ))
        }) {
            Ok((rates, tally)) => {
                self.server = Some(server);
                self.all_requests += 2 * self.requests;
                if round == Round::Measured {
                    for (samples, rate) in self.rates.iter_mut().zip(rates) {
                        samples.push(rate);
                    }
                    self.tally.add(&tally);
                    if let Some((before, cpu)) = untraced {
                        self.untraced.add(rates, before, tally.requests, cpu);
                    }
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Loads it untraced, then attaches. Returns its requests a second, and processor time.
    fn load_untraced(
        &mut self,
        ours: Ours,
        server: &mut Server,
        redis: &Redis,
        daemon: &Daemon,
    ) -> Result<([f64; 2], Duration)> {
        if self.all_requests > 0 {
            daemon.detach(server.pid())?;
        }
        let before = cpu(server.pid())?;
        let rates = redis.load(server, self.requests)?;
        let taken = cpu(server.pid())?.saturating_sub(before);
        // The estimate of unrecorded calls covers one session.
        self.all_requests = attach_and_settle(ours, self.requests, server, redis, daemon)?;
        Ok((rates, taken))
    }

    fn try_load(
        &mut self,
        server: &mut Server,
        redis: &Redis,
        daemon: &Daemon,
        file: &Path,
    ) -> Result<([f64; 2], Tally)> {
        let pid = server.pid();
        let mut tally = Tally {
            requests: 2 * self.requests,
            ..Tally::default()
        };
        let rates = match self.mode {
            Mode::Off | Mode::OffAgain | Mode::Llvm(_) => redis.load(server, self.requests)?,
            Mode::Ours(ours @ (Ours::Recorded | Ours::Lossless)) => {
                let lossless = (ours == Ours::Lossless).then_some("--lossless");
                let recording = daemon.record(pid, file, lossless)?;
                let rates = redis.load(server, self.requests)?;
                let recorded = recording.finish()?;
                (tally.events, tally.lost) = (recorded.events, recorded.lost);
                tally.bytes = recorded.bytes;
                rates
            }
            Mode::Ours(ours @ (Ours::Flight | Ours::Retained | Ours::Profile | Ours::Count)) => {
                daemon.attach_with(pid, ours.options())?;
                daemon.toggle(pid, "enable")?;
                let rates = redis.load(server, self.requests)?;
                let report = daemon.detach(pid)?;
                tally.events = number(&report, "events")?;
                tally.lost = number(&report, "lost")?;
                rates
            }
            Mode::Ours(Ours::Budget | Ours::ProfileBudget | Ours::Duty) => {
                let (events, lost) = daemon.counters(pid)?;
                let rates = redis.load(server, self.requests)?;
                self.status = daemon.status(pid)?;
                tally.events = number(&self.status, "events")?.saturating_sub(events);
                tally.lost = number(&self.status, "lost")?.saturating_sub(lost);
                rates
            }
        };
        Ok((rates, tally))
    }

    /// Ends the server. It must end as an untraced one does, and LLVM's log must prove a recording.
    pub(super) fn end(&mut self, daemon: &Daemon) {
        if let Some(server) = self.server.take()
            && let Err(error) = self.try_end(server, daemon)
        {
            self.fail(&error);
        }
    }

    fn try_end(&mut self, mut server: Server, daemon: &Daemon) -> Result<()> {
        if let Mode::Ours(Ours::Budget | Ours::ProfileBudget | Ours::Duty) = self.mode {
            daemon.detach(server.pid())?;
        }
        let status = server.stop().context("at its end")?;
        ensure!(status.success(), "redis-server ended with {status}");
        if let Mode::Llvm(llvm) = self.mode {
            self.log_bytes = log_bytes(&self.dir)?;
            ensure!(
                self.log_bytes > llvm.least_log(self.all_requests),
                "it recorded next to nothing: a log of {} bytes",
                self.log_bytes
            );
        }
        Ok(())
    }

    fn fail(&mut self, error: &anyhow::Error) {
        let [set, get] = self.rates.each_ref().map(|rates| rates.median() / 1e3);
        let before = match set.is_nan() {
            true => String::new(),
            false => format!("; until then {set:.0} and {get:.0} k requests/s"),
        };
        self.failure = Some(format!("{error:#}{before}"));
        self.server = None;
    }
}

/// Attaches with every function switched on, and loads the server until that has settled. Returns
/// the number of requests.
fn attach_and_settle(
    ours: Ours,
    requests: u64,
    server: &mut Server,
    redis: &Redis,
    daemon: &Daemon,
) -> Result<u64> {
    daemon.attach_with(server.pid(), ours.options())?;
    daemon.toggle(server.pid(), "enable")?;
    let begun = Instant::now();
    let mut asked = 0;
    while begun.elapsed() < SETTLING {
        redis.load(server, requests)?;
        asked += 2 * requests;
    }
    Ok(asked)
}

/// Bytes of the logs of LLVM's runtime in a directory.
fn log_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).context("cannot list the logs")? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("xray-log.") {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

// === impl Untraced ===

impl Untraced {
    fn add(&mut self, traced: [f64; 2], before: [f64; 2], requests: u64, cpu: Duration) {
        let rates = traced.iter().zip(before);
        for (samples, (traced, before)) in self.shares.iter_mut().zip(rates) {
            samples.push(100.0 * traced / before);
        }
        self.requests += requests;
        self.cpu += cpu;
    }
}

// === impl Tally ===

impl Tally {
    fn add(&mut self, other: &Self) {
        let Self {
            events,
            lost,
            bytes,
            requests,
            cpu,
        } = other;
        self.events += events;
        self.lost += lost;
        self.bytes += bytes;
        self.requests += requests;
        self.cpu += *cpu;
    }
}
