//! Conversion between messages of the contract and types of the engine. No code outside of `rpc`
//! uses the messages. Nothing is decided here.
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

pub(super) use functions::function;
pub(super) use inward::{attach_options, matching, selection, settings_update, toggle, wanted};
pub(super) use processes::{preflight, process};
pub(super) use reports::{
    attach_report, detach_refused, detach_report, settings_report, toggle_refused, toggle_report,
};
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
