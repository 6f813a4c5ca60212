//! `xrayctl off`: switches off what a daemon that is gone has left on, and shows the proof.

use anyhow::Context as _;
use tokio::task::spawn_blocking;
use xrayd::{
    Pid,
    process::{AttachOptions, Registry, RegistryConfig},
    target::{Caller, ProcessState},
};

use crate::args::Format;
use crate::each_process::{EVERY_ATTACHED, EachProcess};
use crate::output::left_off::{LeftOff, LeftOffRow};
use crate::output::{Console, refused};
use crate::process::{SeveralProcesses, one_of};

const EXAMPLES: &str = "\
A daemon that is killed leaves the functions on that were on. The next daemon goes on with them. If
none comes, off switches them off, reads every sled back, and compares the text outside the sleds
with the file. It does the same to processes that were forked from a traced one and not followed. It needs no daemon, and asks none. It refuses a process that a daemon traces, and one
that no xrayd has attached to. It exits with 1 if a sled is still on or the text differs.

Examples:
  xrayctl off 1234
  xrayctl off --all";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = one_of(&["process", "pid", "all"]))]
pub(crate) struct Args {
    #[command(flatten)]
    process: SeveralProcesses,
    /// Every process that you own in which functions were left on; every such process for root
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, console: &mut Console) -> anyhow::Result<()> {
    // Without a name, this is every process. clap has made sure that --all is given then.
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let registry = Registry::new(RegistryConfig::default());
    let off = async |pid| {
        let registry = registry.clone();
        spawn_blocking(move || switch_off(&registry, pid)).await?
    };
    let left_off = LeftOff::from(each.run(console, off).await?.concat());
    if args.format.json {
        console.json(&left_off)?;
    } else {
        console.show(|out, look| left_off.render(out, look))?;
    }
    if let Some((pid, refusal)) = left_off.refusal() {
        return Err(refused::failure(refusal))
            .with_context(|| format!("cannot switch off what was left on in {pid}"));
    }
    match left_off.unproven() {
        None => Ok(each.finish()?),
        Some(pid) => anyhow::bail!(
            "process {pid} may not be as it was: a sled is still on, or its text differs from the file"
        ),
    }
}

/// Switches off one process, or all in which functions were left on.
fn switch_off(registry: &Registry, pid: u32) -> anyhow::Result<Vec<LeftOffRow>> {
    let caller = Caller::this_process();
    let are_all = pid == EVERY_ATTACHED;
    let processes = match pid {
        EVERY_ATTACHED => {
            let mut listed = registry.list_for(caller)?;
            listed.retain(|process| {
                matches!(
                    process.state,
                    ProcessState::LeftOn | ProcessState::Inherited
                )
            });
            listed
                .iter()
                .map(|process| (process.pid, Some(process.start_time)))
                .collect()
        }
        pid => vec![(Pid::try_from(pid)?, None)],
    };
    let rows = processes.into_iter().filter_map(|(pid, start_time)| {
        let options = AttachOptions {
            start_time,
            caller: Some(caller),
            ..AttachOptions::default()
        };
        match registry.switch_off(pid, options) {
            // It has ended, or executed another program, since it was listed.
            Err(refusal) if are_all && refusal.reason.leaves_nothing() => None,
            result => Some(LeftOffRow::new(pid, result)),
        }
    });
    Ok(rows.collect())
}
