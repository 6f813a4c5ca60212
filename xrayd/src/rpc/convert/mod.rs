//! Conversion between messages of the contract and types of the engine. No code outside of `rpc`
//! uses the messages.

mod inward;
mod outward;

pub(super) use inward::{
    Toggle, attach_options, economy, filter, matching, mode, selection, toggle, wanted,
};
pub(super) use outward::{
    attach_report, detach_refused, detach_report, economy_report, family, filter_report, function,
    mode_report, preflight, process, refusal, retained, status, toggle_refused, toggle_report,
};
