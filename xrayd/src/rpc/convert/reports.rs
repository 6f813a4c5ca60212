//! Reports on changes: attach and detach, settings, functions that were switched.

use xrayd_proto::v1;

use super::{nanoseconds, refusal, settings::settings};
use crate::{
    Pid,
    process::{AttachReport, SkippedSleds},
    refusal::Refusal,
    toml_file::Mistake,
    types::{DetachReport, Settings, ToggleReport},
};

pub(crate) fn attach_report(report: AttachReport) -> v1::AttachReport {
    let AttachReport {
        already,
        adopted,
        stopped,
        skipped,
        refused_modules,
        left_on: _,
        notes,
    } = report;
    let (stopped_tid, stopped_ns) =
        stopped.map_or((0, 0), |(tid, time)| (tid.as_u32(), nanoseconds(time)));
    v1::AttachReport {
        adopted,
        stopped_ns,
        stopped_tid,
        skipped: skipped
            .into_iter()
            .map(|SkippedSleds { reason, sleds }| v1::SkippedSleds { reason, sleds })
            .collect(),
        refused_modules: refused_modules
            .into_iter()
            .map(|(path, why)| v1::RefusedModule {
                path,
                refusal: Some(refusal(why)),
            })
            .collect(),
        notes,
        already,
    }
}

pub(crate) fn detach_report(pid: Pid, report: DetachReport) -> v1::DetachReport {
    v1::DetachReport {
        pid: pid.as_u32(),
        ..report.into()
    }
}

impl From<DetachReport> for v1::DetachReport {
    /// The report without its process.
    fn from(report: DetachReport) -> Self {
        let DetachReport {
            sleds_off,
            sleds_on,
            text_bytes_compared,
            text_bytes_different,
            exited,
            events,
            lost,
        } = report;
        Self {
            pid: 0,
            sleds_off,
            text_bytes_compared,
            text_bytes_different,
            exited,
            events,
            lost,
            refusal: None,
            sleds_on,
            inherited: false,
        }
    }
}

pub(crate) fn detach_refused(pid: Pid, why: Refusal) -> v1::DetachReport {
    v1::DetachReport {
        pid: pid.as_u32(),
        refusal: Some(refusal(why)),
        ..v1::DetachReport::default()
    }
}

/// The report of a process whose settings were changed: the previous ones, or the refusal.
pub(crate) fn settings_report(pid: Pid, before: Result<Settings, Refusal>) -> v1::SettingsReport {
    let (before, refusal) = match before {
        Ok(before) => (Some(settings(before)), None),
        Err(refused) => (None, Some(refusal(refused))),
    };
    v1::SettingsReport {
        pid: pid.as_u32(),
        before,
        refusal,
    }
}

pub(crate) fn toggle_report(pid: Pid, report: ToggleReport) -> v1::ToggleReport {
    let ToggleReport {
        matched,
        changed,
        sleds,
        foreign,
        copied_bytes,
        elapsed,
        stopped,
        restaged,
        sample,
        copied_by_module,
    } = report;
    let modules = copied_by_module.into_iter();
    let modules = modules.map(|(path, copied_bytes)| v1::ModuleCopies { path, copied_bytes });
    v1::ToggleReport {
        pid: pid.as_u32(),
        matched,
        changed,
        sleds,
        foreign,
        copied_bytes,
        elapsed_ns: nanoseconds(elapsed),
        stopped_ns: nanoseconds(stopped),
        restaged,
        sample,
        refusal: None,
        modules: modules.collect(),
    }
}

pub(crate) fn toggle_refused(pid: Pid, why: Refusal) -> v1::ToggleReport {
    v1::ToggleReport {
        pid: pid.as_u32(),
        refusal: Some(refusal(why)),
        ..v1::ToggleReport::default()
    }
}

/// A mistake of a file.
pub(in crate::rpc) fn mistake(mistake: Mistake) -> v1::PolicyMistake {
    let Mistake { line, column, what } = mistake;
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    v1::PolicyMistake {
        line: number(line),
        column: number(column),
        what,
    }
}
