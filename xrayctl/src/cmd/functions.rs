//! `xrayctl functions`: the functions that can be enabled, and their state.

use anyhow::Context as _;
use xrayd_proto::v1::{FunctionBatch, FunctionInfo, ListFunctionsRequest, Selection};

use crate::args::Format;
use crate::client::{Daemon, Rpc};
use crate::failure::{self, Failure};
use crate::output::Console;
use crate::output::functions::Functions;
use crate::selectors;

const EXAMPLES: &str = "\
Examples:
  xrayctl functions --pid 1234
  xrayctl functions parse
  xrayctl functions 'ns::*' --json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A part of the name, or a glob over the whole name if it has wildcards
    pattern: Option<String>,
    /// Only this process, attached or not; without this, every attached process
    #[arg(long, value_parser = crate::parse::pid)]
    pid: Option<u32>,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let selection = args
        .pattern
        .as_deref()
        .map(selectors::pattern)
        .transpose()?;
    let selection = selection.map(selectors::wire);
    let mut rpc = match args.pid {
        // Reading a process does not change it, so no daemon is needed.
        Some(_) => daemon.connect_or_embed().await?,
        None => daemon.connect().await?,
    };
    let functions = list(&mut rpc, args.pid.unwrap_or(0), selection).await?;
    if functions.is_empty() {
        let what = match (&args.pattern, args.pid) {
            (Some(pattern), _) => format!("no function matches {pattern:?}"),
            (None, Some(pid)) => format!("process {pid} has no functions with sleds"),
            (None, None) => "no process is attached".to_owned(),
        };
        return Err(Failure::NothingMatched(what).into());
    }
    let listing = Functions { functions };
    if args.format.json {
        console.json(&listing)
    } else {
        console.show(|out, look| listing.render(out, look))
    }
}

/// The functions of a process, or of every attached one for pid 0.
pub(crate) async fn list(
    rpc: &mut Rpc,
    pid: u32,
    selection: Option<Selection>,
) -> anyhow::Result<Vec<FunctionInfo>> {
    let failed = |status: tonic::Status| failure::from_status(&status);
    let response = rpc
        .list_functions(ListFunctionsRequest { pid, selection })
        .await;
    let mut batches = response
        .map_err(failed)
        .context("cannot list functions")?
        .into_inner();
    let mut listed = Vec::new();
    while let Some(FunctionBatch { functions }) = batches.message().await.map_err(failed)? {
        listed.extend(functions);
    }
    Ok(listed)
}
