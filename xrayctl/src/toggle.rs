//! Enables and disables functions, for `enable`, `disable` and `record`.

use std::time::Duration;

use anyhow::Context as _;
use tonic::{Response, Status};
use xrayd::{types::Capture, types::Wanted};
use xrayd_proto::v1::{Selection, StatusRequest, ToggleReport, ToggleRequest, ToggleResponse};

use crate::{
    args::Format,
    client::{Daemon, Rpc},
    each_process::EachProcess,
    failure,
    failure::Failure,
    output::{
        Console, refused,
        toggled::{Run, Toggled},
    },
    process::OnlyProcesses,
    progress::Progress,
    selectors,
    selectors::{NoMatch, Pending, Selectors},
    suggest, values,
};

/// The pause between two requests for the progress.
const POLL: Duration = Duration::from_millis(50);

/// What `enable` and `disable` take.
#[derive(Debug, clap::Args)]
pub(crate) struct ToggleArgs {
    #[command(flatten)]
    process: OnlyProcesses,
    #[command(flatten)]
    selectors: Selectors,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: Format,
}

/// A request to enable or disable functions.
#[derive(Debug, Clone)]
pub(crate) struct Switching {
    /// 0 for every attached process.
    pub(crate) pid: u32,
    pub(crate) selection: Selection,
    pub(crate) wanted: Wanted,
    /// 0 for no lease.
    pub(crate) lease: u64,
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
        return Err(nothing_selected().into());
    };
    let mut each = EachProcess::find(&args.process.names(), console)?;
    let mut rpc = daemon.connect().await?;
    let run = match args.dry_run {
        true => Run::Dry,
        false => Run::Real,
    };
    let no_match = pending.map(|pending| args.selectors.no_match(pending));
    let shown: &Console = console;
    let switch = async |pid| {
        let switching = Switching {
            pid,
            selection: selection.clone(),
            wanted,
            lease: 0,
        };
        switch(&mut rpc, switching, run, no_match, shown).await
    };
    let reports = each.run(shown, switch).await?.concat();
    let toggled = Toggled::new(wanted, run, reports);
    if args.format.json {
        console.json(&toggled)?;
    } else {
        console.show(|out, look| toggled.render(out, look))?;
    }
    match toggled.refusal() {
        None => Ok(each.finish()?),
        Some((pid, refusal)) => {
            Err(refused::failure(refusal)).with_context(|| format!("process {pid} is unchanged"))
        }
    }
}

/// Enables or disables functions of one process, or of every attached one. `disable` has no
/// `no_match`: there is nothing to wait for.
async fn switch(
    rpc: &mut Rpc,
    switching: Switching,
    run: Run,
    no_match: Option<NoMatch>,
    console: &Console,
) -> anyhow::Result<Vec<ToggleReport>> {
    let (pid, selection) = (switching.pid, switching.selection.clone());
    let reports = match run {
        Run::Dry => dry_run(rpc, &switching).await?,
        Run::Real => toggle(rpc, switching, console).await?,
    };
    if reports.is_empty() {
        return Err(Failure::NothingMatched("no process is attached".to_owned()).into());
    }
    let matches = reports.iter().any(|report| report.matched > 0);
    let refuses = reports.iter().any(|report| report.refusal.is_some());
    if matches || refuses {
        return Ok(reports);
    }
    match (run, no_match) {
        (Run::Real, Some(NoMatch::Waits)) => console.note(MATCHES_LATER),
        (Run::Dry, Some(NoMatch::Waits)) => console.note(WOULD_MATCH_LATER),
        (_, Some(NoMatch::Fails) | None) => {
            let hint = suggest::functions(rpc, pid, &selection).await;
            return Err(match (run, no_match) {
                (Run::Real, Some(_)) => nothing_matched_yet(&hint),
                (Run::Dry, Some(_)) => nothing_matched(&hint),
                (_, None) => nothing_to_disable(&hint),
            });
        }
    }
    Ok(reports)
}

/// The failure of a command that needs selectors, and has none that include functions.
pub(crate) fn nothing_selected() -> Failure {
    let what = "no functions are selected: give --function, --glob, --regex, --module, --source, \
                --id or --all";
    Failure::Usage(what.to_owned())
}

/// The note for selectors that wait for libraries.
pub(crate) const MATCHES_LATER: &str =
    "no loaded function matches the selectors: waiting for libraries that are loaded later";

/// The same note for a dry run.
const WOULD_MATCH_LATER: &str = "no loaded function matches the selectors: enable would wait for libraries that are loaded later";

/// Fails if the selectors match no function and do not wait for one.
pub(crate) async fn ensure_matches(
    rpc: &mut Rpc,
    switching: &Switching,
    no_match: NoMatch,
    console: &Console,
) -> anyhow::Result<()> {
    let planned = dry_run(rpc, switching).await?;
    if planned.iter().all(|report| report.matched == 0) {
        if no_match == NoMatch::Fails {
            return Err(nothing_matched_of(rpc, switching).await);
        }
        console.note(MATCHES_LATER);
    }
    Ok(())
}

/// The error for a request whose selectors match no function. It suggests similar names.
pub(crate) async fn nothing_matched_of(rpc: &mut Rpc, switching: &Switching) -> anyhow::Error {
    nothing_matched(&suggest::functions(rpc, switching.pid, &switching.selection).await)
}

/// The error for selectors that match no function, with a [`suggest::hint`].
pub(crate) fn nothing_matched(hint: &str) -> anyhow::Error {
    let what = format!(
        "no function matches the selectors{hint}; `xrayctl functions --pid PID` lists all \
         functions, and --pending waits for libraries that are loaded later"
    );
    Failure::NothingMatched(what).into()
}

/// The same error for `disable`, which waits for no library.
fn nothing_to_disable(hint: &str) -> anyhow::Error {
    let what = format!(
        "no function matches the selectors{hint}; `xrayctl functions --pid PID` lists all functions"
    );
    Failure::NothingMatched(what).into()
}

/// The same error for selectors that stay in force.
fn nothing_matched_yet(hint: &str) -> anyhow::Error {
    let what = format!(
        "no loaded function matches the selectors{hint}; matching functions of libraries that are \
         loaded later will be switched on (`xrayctl disable` with the same selectors cancels that)"
    );
    Failure::NothingMatched(what).into()
}

/// The effect that a request would have.
pub(crate) async fn dry_run(
    rpc: &mut Rpc,
    switching: &Switching,
) -> anyhow::Result<Vec<ToggleReport>> {
    call(rpc, switching.clone(), Run::Dry).await
}

/// Enables or disables functions, and shows the progress.
pub(crate) async fn toggle(
    rpc: &mut Rpc,
    switching: Switching,
    console: &Console,
) -> anyhow::Result<Vec<ToggleReport>> {
    if !console.shows_progress() {
        return call(rpc, switching, Run::Real).await;
    }
    let pid = switching.pid;
    let planned = dry_run(rpc, &switching).await?;
    let planned = planned.iter().map(|report| u64::from(report.changed)).sum();
    let before = functions_on(rpc, pid).await;
    let progress = Progress::steps(console, "patching functions", planned);
    let mut watcher = rpc.clone();
    let mut done = std::pin::pin!(call(rpc, switching, Run::Real));
    loop {
        tokio::select! {
            done = &mut done => return done,
            () = tokio::time::sleep(POLL) => {
                let now = functions_on(&mut watcher, pid);
                // A late progress must not delay the answer to the call.
                tokio::select! {
                    done = &mut done => return done,
                    now = now => progress.done(now.abs_diff(before)),
                }
            }
        }
    }
}

/// Ends a lease: its functions return to their earlier state. Prints nothing.
pub(crate) async fn release(
    rpc: &mut Rpc,
    pid: u32,
    lease: u64,
) -> anyhow::Result<Vec<ToggleReport>> {
    let request = ToggleRequest {
        pid,
        lease,
        ..ToggleRequest::default()
    };
    switched(rpc.disable(request).await, Wanted::Off)
}

/// The number of functions that are on. 0 if the status cannot be read, because only the progress
/// needs it.
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

async fn call(rpc: &mut Rpc, switching: Switching, run: Run) -> anyhow::Result<Vec<ToggleReport>> {
    let Switching {
        pid,
        selection,
        wanted,
        lease,
    } = switching;
    let request = |capture| ToggleRequest {
        pid,
        selection: Some(selection),
        dry_run: run == Run::Dry,
        capture: values::wire(capture),
        lease,
    };
    let response = match wanted {
        Wanted::On(capture) => rpc.enable(request(capture)).await,
        Wanted::Off => rpc.disable(request(Capture::NONE)).await,
    };
    switched(response, wanted)
}

fn switched(
    response: Result<Response<ToggleResponse>, Status>,
    wanted: Wanted,
) -> anyhow::Result<Vec<ToggleReport>> {
    let what = match wanted {
        Wanted::On(_) => "cannot switch functions on",
        Wanted::Off => "cannot switch functions off",
    };
    let response = response
        .map_err(|status| failure::from_status(&status))
        .context(what)?;
    Ok(response.into_inner().reports)
}
