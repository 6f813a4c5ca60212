//! Conversion between messages of the contract and types of the engine. No code outside of `rpc`
//! uses the messages.

mod inward;
mod outward;

pub(super) use inward::{
    Toggle, attach_options, budget, filter, matching, mode, selection, toggle, wanted,
};
pub(super) use outward::{
    attach_report, budget_report, detach_refused, detach_report, filter_report, function, group,
    mode_report, preflight, process, refusal, retained, status, toggle_refused, toggle_report,
};
