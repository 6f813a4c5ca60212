//! `xrayctl policy`: tracing policies.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xrayd::Pid;
use xrayd::policies::{PolicySpec, ProcessFacts};
use xrayd_proto::v1::{ListProcessesRequest, ListProcessesResponse, ProcessInfo};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure::{self, Failure};
use crate::output::Console;
use crate::output::checked_policy::{CheckedPolicy, MatchedProcess, Mistake};
use crate::output::processes::ProcessRow;

/// The longest policy, in bytes.
const MOST_BYTES: u64 = 1 << 20;

const EXAMPLES: &str = "\
A policy is a file of TOML. check shows all of its mistakes with their lines and columns, or the
processes with sleds that it matches now. It changes nothing. It exits with 2 if the file has a
mistake. xrayd-policy(5) describes the file.

Examples:
  xrayctl policy check checkout.toml
  xrayctl policy check - --json < checkout.toml";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what is wrong with a policy, or which processes it matches now
    #[command(after_help = EXAMPLES)]
    Check(CheckArgs),
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// The policy; - for the standard input
    file: PathBuf,
    #[command(flatten)]
    format: Format,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    match args.command {
        Command::Check(args) => check(&args, daemon, console).await,
    }
}

async fn check(args: &CheckArgs, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    // Why the processes are not known.
    let mut unseen = None;
    let checked = match PolicySpec::parse(&text) {
        Err(mistakes) => {
            let mistakes = mistakes
                .into_iter()
                .map(|mistake| Mistake::of(mistake, &text));
            CheckedPolicy::wrong(&args.file, mistakes.collect())
        }
        Ok(policy) => {
            let processes = matched(&policy, daemon).await;
            let (processes, error) = match processes {
                Ok(processes) => (Some(processes), None),
                Err(error) => (None, Some(error)),
            };
            unseen = error;
            CheckedPolicy::right(&args.file, &policy, processes)
        }
    };
    if args.format.json {
        console.json(&checked)?;
    } else {
        console.show(|out, look| checked.render(out, look))?;
    }
    match checked.mistakes() {
        0 => unseen.map_or(Ok(()), Err),
        1 => Err(Failure::Usage("the policy has a mistake".to_owned()).into()),
        many => Err(Failure::Usage(format!("the policy has {many} mistakes")).into()),
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin()
            .take(MOST_BYTES + 1)
            .read_to_string(&mut text),
        _ => std::fs::File::open(file)
            .and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text)),
    };
    read.with_context(|| format!("cannot read {}", file.display()))?;
    anyhow::ensure!(
        text.len() as u64 <= MOST_BYTES,
        "{} has more than 1 MiB",
        file.display()
    );
    Ok(text)
}

/// The processes with sleds that a policy matches, the oldest ones first.
async fn matched(policy: &PolicySpec, daemon: &Daemon) -> anyhow::Result<Vec<MatchedProcess>> {
    let mut rpc = daemon.connect_or_embed().await?;
    let response = rpc.list_processes(ListProcessesRequest {}).await;
    let ListProcessesResponse { processes } = response
        .map_err(|status| failure::from_status(&status))?
        .into_inner();
    let facts: HashMap<u32, ProcessFacts> = tokio::task::block_in_place(|| {
        let pids = processes.iter().filter_map(|process| {
            let facts = ProcessFacts::of(Pid::try_from(process.pid).ok()?)?;
            Some((process.pid, facts))
        });
        pids.collect()
    });
    let is_matched = |process: &ProcessInfo| {
        let facts = facts.get(&process.pid);
        facts.is_some_and(|facts| policy.matching.matches(facts))
    };
    let mut matched: Vec<ProcessInfo> = processes.into_iter().filter(is_matched).collect();
    matched.sort_by_key(|process| (process.start_time, process.pid));
    let most = usize::try_from(policy.matching.max_processes).unwrap_or(usize::MAX);
    let matched = matched.into_iter().enumerate();
    let matched = matched.map(|(at, process)| MatchedProcess {
        is_within: at < most,
        process: ProcessRow::from(process),
    });
    Ok(matched.collect())
}
