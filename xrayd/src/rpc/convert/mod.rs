//! Conversion between messages of the contract and types of the engine. Outside of `rpc`,
//! only `state` uses the messages. Nothing is decided here.
//!
//! | file | converts |
//! |---|---|
//! | `inward` | requests |
//! | `processes` | processes that can be traced, and checks of a process |
//! | `status` | traced processes and their groups |
//! | `settings` | settings and their effect |
//! | `functions` | functions |
//! | `reports` | reports on changes |

mod functions;
mod inward;
mod processes;
mod reports;
mod settings;
mod status;

use std::time::Duration;

use xrayd_proto::v1;

use crate::refusal::Refusal;

pub(crate) use functions::capture;
pub(super) use functions::function;
pub(super) use inward::{attach_options, matching, toggle};
pub(crate) use inward::{selection, settings_update, stream_begin, wait_ticks, wanted};
pub(super) use processes::{preflight, process};
pub(super) use reports::{
    attach_report, detach_refused, detach_report, mistake, settings_report, toggle_refused,
    toggle_report,
};
pub(super) use settings::mode as mode_of;
pub(crate) use settings::settings;
pub(crate) use status::kinship;
pub(super) use status::{group, retained, status};

pub(crate) fn refusal(refusal: Refusal) -> v1::Refusal {
    let Refusal { reason, message } = refusal;
    v1::Refusal {
        reason: reason.id().to_owned(),
        message,
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
