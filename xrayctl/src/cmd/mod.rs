//! One file per subcommand: its arguments and its action.

pub(crate) mod account;
pub(crate) mod attach;
pub(crate) mod budget;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod count;
pub(crate) mod detach;
pub(crate) mod diff;
pub(crate) mod disable;
pub(crate) mod doctor;
pub(crate) mod enable;
pub(crate) mod explain;
pub(crate) mod extract;
pub(crate) mod fdr_dump;
pub(crate) mod filter;
pub(crate) mod flame;
pub(crate) mod functions;
pub(crate) mod graph;
pub(crate) mod graph_diff;
pub(crate) mod info;
pub(crate) mod man;
pub(crate) mod mode;
pub(crate) mod profile;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod stack;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod trigger;
pub(crate) mod view;
pub(crate) mod watch;

use anyhow::Context as _;

use crate::args::Format;
use crate::each_process::EachProcess;
use crate::failure::Failure;
use crate::output::per_process::{PerProcess, Setting};
use crate::output::{Console, refused};

/// The reports of a daemon, which has one for each process.
///
/// # Errors
/// No process is attached.
fn ensure_attached<T>(reports: Vec<T>) -> Result<Vec<T>, Failure> {
    match reports.is_empty() {
        false => Ok(reports),
        true => Err(Failure::NothingMatched("no process is attached".to_owned())),
    }
}

/// Shows a setting of processes, and ends a command that sets it or asks for it.
fn show_setting<T: Setting>(
    setting: &PerProcess<T>,
    format: Format,
    each: EachProcess,
    console: &mut Console,
) -> anyhow::Result<()> {
    match format.json {
        true => console.json(setting)?,
        false => console.show(|out, look| setting.render(out, look))?,
    }
    match setting.refusal() {
        None => Ok(each.finish()?),
        Some((pid, refusal)) => {
            Err(refused::failure(refusal)).with_context(|| format!("process {pid} is unchanged"))
        }
    }
}
