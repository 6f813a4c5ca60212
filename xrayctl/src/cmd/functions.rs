//! `xrayctl functions`: the functions that can be enabled, and their state.

use anyhow::Context as _;
use xrayd_proto::v1::{FunctionBatch, FunctionInfo, ListFunctionsRequest, Selection};

use crate::args::Format;
use crate::client::{Daemon, Rpc};
use crate::failure::{self, Failure};
use crate::output::Console;
use crate::output::functions::Functions;
use crate::parse;
use crate::process::{self, ProcessName};
use crate::selectors;
use crate::suggest;

const EXAMPLES: &str = "\
A PROCESS alone is the pid of a running process, @FILE or unit:NAME. Any other single word is a
PATTERN. With --pid, or before a PATTERN, PROCESS can also be the name of a program.

Examples:
  xrayctl functions 1234
  xrayctl functions 1234 parse
  xrayctl functions --pid server
  xrayctl functions 'ns::*' --json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "xrayctl functions [OPTIONS] [PROCESS] [PATTERN]")]
pub(crate) struct Args {
    /// Only functions of this process, attached or not; without this, of every attached process
    #[arg(value_name = "PROCESS", value_parser = parse::pattern)]
    first: Option<String>,
    /// A part of the name, or a glob over the whole name if it has wildcards
    #[arg(value_name = "PATTERN", value_parser = parse::pattern, conflicts_with = "pid")]
    second: Option<String>,
    /// The process, as for PROCESS, or the name of its program
    #[arg(short, long, value_name = "PROCESS", value_parser = process::parse)]
    pid: Option<ProcessName>,
    #[command(flatten)]
    format: Format,
}

impl Args {
    /// The process and the pattern, each if it is given.
    fn wanted(&self) -> anyhow::Result<(Option<u32>, Option<&str>)> {
        let first = self.first.as_deref();
        if let Some(process) = &self.pid {
            return Ok((Some(process.find()?), first));
        }
        let Some(first) = first else {
            return Ok((None, None));
        };
        let second = self.second.as_deref();
        let names_process =
            second.is_some() || first.starts_with('@') || first.starts_with("unit:");
        if names_process {
            let process = process::parse(first).map_err(Failure::Usage)?;
            return Ok((Some(process.find()?), second));
        }
        Ok(match process::running(first) {
            Some(pid) => (Some(pid), None),
            None => (None, Some(first)),
        })
    }
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let (pid, pattern) = args.wanted()?;
    let selection = pattern.map(selectors::pattern).transpose()?;
    let selection = selection.map(selectors::wire);
    let mut rpc = match pid {
        // Reading a process does not change it, so no daemon is needed.
        Some(_) => daemon.connect_or_embed().await?,
        None => daemon.connect().await?,
    };
    let functions = list(&mut rpc, pid.unwrap_or(0), selection.clone()).await?;
    if functions.is_empty() {
        let what = match (pattern, pid) {
            (Some(pattern), _) => {
                let selection = selection.unwrap_or_default();
                let hint = suggest::functions(&mut rpc, pid.unwrap_or(0), &selection).await;
                format!("no function matches {pattern:?}{hint}")
            }
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
