//! Conversion between messages of the contract and types of the engine. No code outside of `rpc`
//! uses the messages.

mod inward;
mod outward;

pub(super) use inward::{
    Toggle, attach_options, matching, selection, settings_update, toggle, wanted,
};
pub(super) use outward::{
    attach_report, detach_refused, detach_report, function, group, preflight, process, refusal,
    retained, settings_report, status, toggle_refused, toggle_report,
};
