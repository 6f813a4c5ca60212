//! `xrayctl policy`: tracing policies.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use xrayd::{Pid, parse};
use xrayd::{policies::PolicySpec, target::ProcessFacts};
use xrayd_proto::v1::{
    ApplyPolicyRequest, ApplyPolicyResponse, ListPoliciesRequest, ListProcessesRequest,
    ListProcessesResponse, PolicyStatus, ProcessInfo, ReloadPoliciesRequest, RemovePolicyRequest,
};

use crate::args::Format;
use crate::client::Daemon;
use crate::failure::{self, Failure};
use crate::output::Console;
use crate::output::checked_policy::{CheckedPolicy, MatchedProcess, Mistake};
use crate::output::policies::Policies;
use crate::output::processes::ProcessRow;
use crate::output::text::{printable, quoted};

/// The longest policy, in bytes.
const MOST_BYTES: u64 = 1 << 20;

const EXAMPLES: &str = "\
A daemon carries out the policies in its folder (xrayd --policies-dir), and those that are applied.
Only root and the daemon's user may see and change them. xrayd-policy(5) describes policies.

Examples:
  xrayctl policy check checkout.toml
  xrayctl policy apply checkout.toml --for 24h
  xrayctl policy status
  xrayctl policy remove checkout-latency";

const CHECK_EXAMPLES: &str = "\
A policy is a file of TOML. check shows all of its mistakes with their lines and columns, or the
processes with sleds that it matches now. It changes nothing. It exits with 2 if the file has a
mistake. xrayd-policy(5) describes the file.

Examples:
  xrayctl policy check checkout.toml
  xrayctl policy check - --json < checkout.toml";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show what is wrong with a policy, or which processes it matches now
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// List the policies
    List(ListArgs),
    /// Show the text of a policy that is in force
    Show(NameArgs),
    /// Show the processes of each policy, and what is wrong
    Status(StatusArgs),
    /// Put a policy in force, until it expires or is removed
    Apply(ApplyArgs),
    /// End a policy that was applied
    Remove(NameArgs),
    /// Have the daemon read its folder of policies again
    Reload,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct NameArgs {
    /// The name of the policy
    name: String,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// The name of a policy; without it, all policies
    name: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ApplyArgs {
    /// The policy; - for the standard input
    file: PathBuf,
    /// End it after this time, like 24h; without this, at the moment in its text
    #[arg(long = "for", value_name = "TIME", value_parser = parse::positive_duration)]
    lasts: Option<Duration>,
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
        Command::List(args) => {
            let policies = Policies::new(policies(daemon, "").await?);
            match args.format.json {
                true => console.json(&policies),
                false => console.show(|out, look| policies.render_table(out, look)),
            }
        }
        Command::Status(args) => {
            let mut all = policies(daemon, "").await?;
            if let Some(name) = &args.name {
                all.retain(|policy| policy.name == *name);
                if all.is_empty() {
                    return Err(unknown(name));
                }
            }
            let policies = Policies::new(all);
            match args.format.json {
                true => console.json(&policies),
                false => console.show(|out, look| policies.render_each(out, look)),
            }
        }
        Command::Show(args) => {
            let policy = policies(daemon, &args.name).await?.pop();
            let policy = policy.ok_or_else(|| unknown(&args.name))?;
            console.show(|out, _| out.write_all(policy.text.as_bytes()))
        }
        Command::Apply(args) => apply(&args, daemon, console).await,
        Command::Remove(NameArgs { name }) => {
            let mut rpc = daemon.connect().await?;
            let removed = rpc.remove_policy(RemovePolicyRequest { name }).await;
            removed.map_err(|status| failure::from_status(&status))?;
            Ok(())
        }
        Command::Reload => {
            let mut rpc = daemon.connect().await?;
            let reloaded = rpc.reload_policies(ReloadPoliciesRequest {}).await;
            reloaded.map_err(|status| failure::from_status(&status))?;
            let policies = Policies::new(policies(daemon, "").await?);
            console.show(|out, look| policies.render_table(out, look))
        }
    }
}

/// The policies of the daemon, or the one of this name.
async fn policies(daemon: &Daemon, name: &str) -> anyhow::Result<Vec<PolicyStatus>> {
    let mut rpc = daemon.connect().await?;
    let name = name.to_owned();
    let listed = rpc.list_policies(ListPoliciesRequest { name }).await;
    let listed = listed.map_err(|status| failure::from_status(&status))?;
    Ok(listed.into_inner().policies)
}

fn unknown(name: &str) -> anyhow::Error {
    Failure::NothingMatched(format!("there is no policy {}", quoted(name))).into()
}

async fn apply(args: &ApplyArgs, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    // A part of a second is a second.
    let lasts = args.lasts.map(|lasts| lasts.as_secs_f64().ceil());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number of seconds, of 584 years at most"
    )]
    let lasts_s = lasts.map_or(0, |lasts| lasts as u64);
    let mut rpc = daemon.connect().await?;
    let request = ApplyPolicyRequest {
        text: text.clone(),
        lasts_s,
    };
    let applied = rpc.apply_policy(request).await;
    let applied = applied.map_err(|status| failure::from_status(&status))?;
    let ApplyPolicyResponse { name, mistakes } = applied.into_inner();
    if mistakes.is_empty() {
        let name = printable(&name);
        return console.show(|out, _| writeln!(out, "the policy {name} is in force"));
    }
    let count = mistakes.len();
    let told = mistakes.into_iter();
    let told = told.map(|mistake| Mistake::told(mistake, &text));
    let checked = CheckedPolicy::wrong(&args.file, told.collect());
    console.show(|out, look| checked.render(out, look))?;
    Err(has_mistakes(count))
}

fn has_mistakes(count: usize) -> anyhow::Error {
    let what = match count {
        1 => "the policy has a mistake".to_owned(),
        many => format!("the policy has {many} mistakes"),
    };
    Failure::Usage(what).into()
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
        count => Err(has_mistakes(count)),
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
    let needs_build_id = policy.matching.condition.needs_build_id();
    let facts: HashMap<u32, ProcessFacts> = tokio::task::block_in_place(|| {
        let pids = processes.iter().filter_map(|process| {
            let facts = ProcessFacts::of(Pid::try_from(process.pid).ok()?, needs_build_id)?;
            Some((process.pid, facts))
        });
        pids.collect()
    });
    let is_matched = |process: &ProcessInfo| {
        let facts = facts.get(&process.pid);
        facts.is_some_and(|facts| policy.matching.condition.matches(facts))
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
