//! Switching functions, which `enable`, `disable` and `record` share.

use std::time::Duration;

use anyhow::Context as _;
use xrayd::session::{Capture, Wanted};
use xrayd_proto::v1::{Selection, StatusRequest, ToggleReport, ToggleRequest};

use crate::args::Format;
use crate::client::{Daemon, Rpc};
use crate::failure::{self, Failure};
use crate::output::toggled::{Run, Toggled};
use crate::output::{Console, refused};
use crate::progress::Progress;
use crate::selectors::{self, Pending, Selectors};
use crate::values;

/// How often progress is asked for.
const POLL: Duration = Duration::from_millis(50);

/// What `enable` and `disable` take.
#[derive(Debug, clap::Args)]
pub(crate) struct ToggleArgs {
    /// Only this process; without this, every attached process
    #[arg(long, value_parser = crate::parse::pid)]
    pid: Option<u32>,
    #[command(flatten)]
    selectors: Selectors,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

/// Runs `enable` or `disable`; `pending` is for `enable`.
pub(crate) async fn run(
    args: ToggleArgs,
    pending: Option<Pending>,
    wanted: Wanted,
    daemon: &Daemon,
    console: &mut Console,
) -> anyhow::Result<()> {
    let Some(selection) = args.selectors.selection()?.map(selectors::wire) else {
        let what = "no selector says which functions: give --function, --glob, --regex, --module, \
                    --source, --id or --all";
        return Err(Failure::Usage(what.to_owned()).into());
    };
    let mut rpc = daemon.connect().await?;
    let pid = args.pid.unwrap_or(0);
    let (run, reports) = if args.dry_run {
        (Run::Dry, dry_run(&mut rpc, pid, &selection, wanted).await?)
    } else {
        (
            Run::Real,
            toggle(&mut rpc, pid, selection, wanted, console).await?,
        )
    };
    if reports.is_empty() {
        return Err(Failure::NothingMatched("no process is attached".to_owned()).into());
    }
    let toggled = Toggled::new(wanted, run, reports);
    if toggled.matched() == 0 && toggled.refusal().is_none() {
        match (run, pending) {
            (Run::Real, Some(pending)) if args.selectors.may_wait(pending) => {
                console.note(MATCHES_LATER);
            }
            (Run::Real, Some(_)) => return Err(nothing_matched_yet()),
            (Run::Real, None) | (Run::Dry, _) => return Err(nothing_matched()),
        }
    }
    if args.format.json {
        console.json(&toggled)?;
    } else {
        console.show(|out, look| toggled.render(out, look))?;
    }
    match toggled.refusal() {
        None => Ok(()),
        Some((pid, refusal)) => {
            Err(refused::failure(refusal)).with_context(|| format!("nothing was done to {pid}"))
        }
    }
}

/// What is told where waiting was asked for.
pub(crate) const MATCHES_LATER: &str = "the selectors name no function that is loaded now: waiting for libraries that are loaded later";

/// No function is what the selectors name.
pub(crate) fn nothing_matched() -> anyhow::Error {
    let what = "the selectors name no function; `xrayctl functions --pid PID` lists what there is, and with --pending what is loaded later \
                is waited for";
    Failure::NothingMatched(what.to_owned()).into()
}

/// The same, where the selectors stay in force.
fn nothing_matched_yet() -> anyhow::Error {
    let what = "the selectors name no function that is loaded now; what they name in libraries that are loaded later is switched on \
                then (`xrayctl disable` with the same selectors takes that back)";
    Failure::NothingMatched(what.to_owned()).into()
}

/// What switching would do.
pub(crate) async fn dry_run(
    rpc: &mut Rpc,
    pid: u32,
    selection: &Selection,
    wanted: Wanted,
) -> anyhow::Result<Vec<ToggleReport>> {
    call(rpc, pid, selection.clone(), wanted, Run::Dry).await
}

/// Switches functions, and shows how far it is.
pub(crate) async fn toggle(
    rpc: &mut Rpc,
    pid: u32,
    selection: Selection,
    wanted: Wanted,
    console: &Console,
) -> anyhow::Result<Vec<ToggleReport>> {
    if !console.shows_progress() {
        return call(rpc, pid, selection, wanted, Run::Real).await;
    }
    let planned = dry_run(rpc, pid, &selection, wanted).await?;
    let planned = planned.iter().map(|report| u64::from(report.changed)).sum();
    let before = functions_on(rpc, pid).await;
    let progress = Progress::steps(console, "patching functions", planned);
    let mut watcher = rpc.clone();
    let mut done = std::pin::pin!(call(rpc, pid, selection, wanted, Run::Real));
    loop {
        tokio::select! {
            done = &mut done => return done,
            () = tokio::time::sleep(POLL) => {
                let now = functions_on(&mut watcher, pid);
                // The answer to the call itself must not wait for a progress that is late.
                tokio::select! {
                    done = &mut done => return done,
                    now = now => progress.done(now.abs_diff(before)),
                }
            }
        }
    }
}

/// Switches functions off again, without a word.
pub(crate) async fn switch_off(
    rpc: &mut Rpc,
    pid: u32,
    selection: Selection,
) -> anyhow::Result<Vec<ToggleReport>> {
    call(rpc, pid, selection, Wanted::Off, Run::Real).await
}

/// Functions that are on; 0 where that cannot be had, as progress is all it is for.
async fn functions_on(rpc: &mut Rpc, pid: u32) -> u64 {
    match rpc.get_status(StatusRequest { pid }).await {
        Ok(response) => response
            .into_inner()
            .processes
            .iter()
            .map(|row| u64::from(row.functions_on))
            .sum(),
        Err(_) => 0,
    }
}

async fn call(
    rpc: &mut Rpc,
    pid: u32,
    selection: Selection,
    wanted: Wanted,
    run: Run,
) -> anyhow::Result<Vec<ToggleReport>> {
    let request = |capture| ToggleRequest {
        pid,
        selection: Some(selection),
        dry_run: run == Run::Dry,
        capture: values::wire(capture),
    };
    let (response, what) = match wanted {
        Wanted::On(capture) => (
            rpc.enable(request(capture)).await,
            "cannot switch functions on",
        ),
        Wanted::Off => (
            rpc.disable(request(Capture::NONE)).await,
            "cannot switch functions off",
        ),
    };
    let response = response
        .map_err(|status| failure::from_status(&status))
        .context(what)?;
    Ok(response.into_inner().reports)
}
