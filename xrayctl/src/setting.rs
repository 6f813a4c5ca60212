//! The answer of a command that sets something in processes, or asks for it.

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
pub(crate) fn ensure_attached<T>(reports: Vec<T>) -> Result<Vec<T>, Failure> {
    match reports.is_empty() {
        false => Ok(reports),
        true => Err(Failure::NothingMatched("no process is attached".to_owned())),
    }
}

/// Shows a setting of processes, and ends a command that sets it or asks for it.
pub(crate) fn show_setting<T: Setting>(
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
