//! `xrayctl recordings`: what xray-relay has written.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::args::Format;
use crate::failure::Failure;
use crate::output::Console;
use crate::output::recordings::{Firings, Losses, Table};
use crate::recordings::{Recording, Recordings};
use crate::trace_file::Overwrite;
use crate::whole_file::WholeFile;

const EXAMPLES: &str = "\
xray-relay writes what policies with a table [output] record. Root and the group xray-relay may read
the files. Each is a trace or a profile as record, snapshot and profile write it.

Examples:
  xrayctl recordings list --policy checkout-latency
  xrayctl recordings fetch checkout-latency/2026-11-30/142530.123Z-4711.xtrace
  xrayctl recordings losses
  xrayctl recordings firings --policy checkout-latency
  xrayctl recordings rm checkout-latency/2026-11-30/142530.123Z-4711.xtrace";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the recordings, the oldest first
    List(ListArgs),
    /// Show what was not recorded, and why
    Losses(LossesArgs),
    /// Show the moments at which triggers of policies have fired
    Firings(ListArgs),
    /// Copy recordings into the current directory
    Fetch(FetchArgs),
    /// Remove recordings
    Rm(RmArgs),
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The folder of the relay
    #[arg(long, value_name = "PATH", default_value = "/var/lib/xray-relay")]
    folder: PathBuf,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only those of this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Only those of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct LossesArgs {
    /// Show also the time between the begin of a process and the begin of its recordings
    #[arg(long)]
    begins: bool,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, clap::Args)]
struct FetchArgs {
    /// The recordings, as list shows them
    #[arg(required = true, value_name = "RECORDING")]
    names: Vec<String>,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// The recordings, as list shows them
    #[arg(required = true, value_name = "RECORDING")]
    names: Vec<String>,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: Args, console: &mut Console) -> anyhow::Result<()> {
    match args.command {
        Command::List(args) => {
            let mut listed = Recordings::open(&args.place.folder)?.list()?;
            let is_wanted = |it: &Recording| {
                args.policy
                    .as_ref()
                    .is_none_or(|policy| *policy == it.policy)
                    && args.pid.is_none_or(|pid| it.pid() == Some(pid))
            };
            listed.retain(is_wanted);
            let table = Table::new(&listed);
            match args.format.json {
                true => console.json(&table),
                false => console.show(|out, look| table.render(out, look)),
            }
        }
        Command::Losses(LossesArgs { begins, list: args }) => {
            let recordings = Recordings::open(&args.place.folder)?;
            let mut lines = recordings.lines("losses")?;
            if begins {
                lines.extend(recordings.lines("begins")?);
            }
            let losses = Losses::new(lines, args.policy.as_deref(), args.pid);
            match args.format.json {
                true => console.json(&losses),
                false => console.show(|out, look| losses.render(out, look)),
            }
        }
        Command::Firings(args) => {
            let lines = Recordings::open(&args.place.folder)?.lines("firings")?;
            let firings = Firings::new(lines, args.policy.as_deref(), args.pid);
            match args.format.json {
                true => console.json(&firings),
                false => console.show(|out, look| firings.render(out, look)),
            }
        }
        Command::Fetch(args) => fetch(&args, console),
        Command::Rm(args) => {
            let recordings = Recordings::open(&args.place.folder)?;
            args.names
                .iter()
                .try_for_each(|name| recordings.remove(name))
        }
    }
}

fn fetch(args: &FetchArgs, console: &mut Console) -> anyhow::Result<()> {
    let recordings = Recordings::open(&args.place.folder)?;
    for name in &args.names {
        let mut file = recordings.read(name)?;
        let own = name.rsplit('/').next().unwrap_or(name);
        // What of it is there can be read.
        let own = PathBuf::from(own.trim_end_matches(".part"));
        if own.as_os_str().is_empty() {
            return Err(Failure::Usage(format!("{name} is no recording")).into());
        }
        let overwrite = match args.force {
            true => Overwrite::Yes,
            false => Overwrite::No,
        };
        let copied = WholeFile::open(&own, overwrite)?;
        copied
            .write_with(|out| std::io::copy(&mut file, out))
            .with_context(|| format!("cannot copy {name}"))?;
        console.line(&own.display().to_string())?;
    }
    Ok(())
}
