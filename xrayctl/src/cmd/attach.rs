//! `xrayctl attach`: puts trampolines and rings into a process. Enables no function.

use anyhow::{Context as _, bail};
use xrayd::{
    process::{AttachOptions, Follow},
    target::Sleds,
    types::Mode,
};
use xrayd_proto::v1::{self, AttachRequest, AttachResponse};

use crate::{
    args::Format,
    client::{Daemon, Rpc},
    failure,
    limits::Limits,
    output::{Console, attached::Attached},
    parse,
    process::{OneProcess, one_of},
    signals::Signals,
};

const EXAMPLES: &str = "\
Examples:
  xrayctl attach 1234
  xrayctl attach 1234 --ring-size 4MiB --max-threads 64
  xrayctl attach 1234 --mode stream
  xrayctl attach 1234 --follow fork
  xrayctl attach 1234 --max-overhead 2%
  xrayctl attach 1234 && xrayctl enable --pid 1234 --glob 'ns::*'";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: OneProcess,
    #[command(flatten)]
    memory: Memory,
    /// How events are kept: flight (rings keep the newest), stream (the daemon reads all), profile
    /// (the daemon adds up calls) or count (the program counts calls); see `xrayctl mode --help`
    #[arg(long, value_name = "MODE", default_value = "flight", value_parser = parse::mode)]
    mode: Mode,
    #[command(flatten)]
    limits: Limits,
    /// Also trace processes that come from the process: the processes that it forks (fork), the
    /// program that it becomes (exec), everything (all), or nothing (none, the default)
    #[arg(long, value_name = "WHAT", default_value = "none", hide_default_value = true, value_parser = parse::follow)]
    follow: Follow,
    /// Attach even if no loaded module has sleds: libraries that are loaded later may have them
    #[arg(long)]
    pending: bool,
    #[command(flatten)]
    format: Format,
}

/// How much memory the target gives to tracing.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Memory {
    /// Size of each thread's ring: a power of two from 64KiB to 1GiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse::ring_size)]
    pub(crate) ring_size: u64,
    /// Largest number of threads that are traced at the same time, from 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_threads: u32,
}

// === impl Memory ===

impl Memory {
    /// The request to attach to a process.
    pub(crate) fn request(
        self,
        pid: u32,
        follow: Follow,
        sleds: Sleds,
        mode: Mode,
    ) -> AttachRequest {
        let Self {
            ring_size,
            max_threads,
        } = self;
        AttachRequest {
            pid,
            ring_bytes: ring_size,
            max_threads,
            start_time: 0,
            follow: match follow {
                Follow::None => v1::Follow::Unspecified,
                Follow::Fork => v1::Follow::Fork,
                Follow::Exec => v1::Follow::Exec,
                Follow::All => v1::Follow::All,
            }
            .into(),
            await_sleds: sleds == Sleds::Awaited,
            mode: super::mode::wire(mode).into(),
            budget: None,
        }
    }

    /// The same options for the engine in this process.
    pub(crate) fn options(self, follow: Follow, sleds: Sleds) -> AttachOptions {
        let Self {
            ring_size,
            max_threads,
        } = self;
        AttachOptions {
            ring_bytes: ring_size,
            max_threads,
            follow,
            sleds,
            ..AttachOptions::default()
        }
    }
}

/// The requirement for sleds. `waits` is true if libraries may bring them later.
pub(crate) fn sleds(waits: bool) -> Sleds {
    if waits { Sleds::Awaited } else { Sleds::Needed }
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let pid = args.process.find()?;
    let mut rpc = daemon.connect().await?;
    let request = AttachRequest {
        budget: args.limits.wire(),
        ..args
            .memory
            .request(pid, args.follow, sleds(args.pending), args.mode)
    };
    let attached = Attached::from(attach(&mut rpc, request).await?);
    if args.format.json {
        console.json(&attached)
    } else {
        console.show(|out, look| attached.render(out, look))
    }
}

/// Attaches, or ends at the first signal. The daemon undoes an attach whose client is gone.
async fn attach(rpc: &mut Rpc, request: AttachRequest) -> anyhow::Result<AttachResponse> {
    let pid = request.pid;
    let mut signals = Signals::hold()?;
    tokio::select! {
        response = rpc.attach(request) => Ok(response
            .map_err(|status| failure::from_status(&status))
            .with_context(|| format!("cannot attach to {pid}"))?
            .into_inner()),
        () = signals.next() => bail!(
            "interrupted: the daemon undoes this attach, unless process {pid} was attached before"
        ),
    }
}
