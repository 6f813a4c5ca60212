//! The answer of a command that sets something in processes, or asks for it.

use anyhow::Context as _;
use xrayd_proto::v1::{SettingsReport, UpdateSettingsRequest};

use crate::args::Format;
use crate::client::Rpc;
use crate::each_process::EachProcess;
use crate::failure::{self, Failure};
use crate::output::per_process::{PerProcess, Setting};
use crate::output::{Console, refused};

/// Sets a setting in a process, or asks for it. The reports are of all processes that `pid` stands
/// for.
///
/// # Errors
/// The daemon refuses, or no process is attached.
pub(crate) async fn update_setting<T: Setting>(
    rpc: &mut Rpc,
    pid: u32,
    wanted: Option<T>,
) -> anyhow::Result<Vec<SettingsReport>> {
    let what = match wanted {
        Some(_) => format!("cannot change the {}", T::KEY),
        None => format!("cannot show the {}", T::KEY),
    };
    let settings = wanted.map(Setting::into_settings);
    let request = UpdateSettingsRequest { pid, settings };
    let response = rpc.update_settings(request).await;
    let response = response.map_err(|status| failure::from_status(&status));
    let reports = response.context(what)?.into_inner().reports;
    match reports.is_empty() {
        false => Ok(reports),
        true => Err(Failure::NothingMatched("no process is attached".to_owned()).into()),
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
