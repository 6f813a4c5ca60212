//! The output of commands. Nothing here fetches anything: rows go in, text or JSON comes out.
//!
//! Each listing has one row type. It is rendered as a line of a table and serialised as JSON
//! (`docs/xrayctl.md`).

pub(crate) mod access;
pub(crate) mod account;
pub(crate) mod attached;
pub(crate) mod budget_set;
pub(crate) mod call_table;
pub(crate) mod call_tree;
pub(crate) mod checked_policy;
pub(crate) mod checks;
mod console;
pub(crate) mod counted;
pub(crate) mod detached;
pub(crate) mod diff_tree;
pub(crate) mod dot;
pub(crate) mod event_data;
pub(crate) mod excluded;
pub(crate) mod filter_set;
pub(crate) mod folded_lines;
pub(crate) mod function_diff;
pub(crate) mod functions;
#[cfg(test)]
pub(crate) mod golden;
pub(crate) mod gradient;
pub(crate) mod group_status;
pub(crate) mod health;
pub(crate) mod instr_map;
pub(crate) mod left_off;
pub(crate) mod mode_set;
pub(crate) mod moment;
mod names;
pub(crate) mod numbers;
pub(crate) mod open_calls;
pub(crate) mod per_process;
pub(crate) mod policies;
pub(crate) mod processes;
pub(crate) mod profile_info;
pub(crate) mod recorded;
pub(crate) mod recordings;
pub(crate) mod refused;
pub(crate) mod remedies;
pub(crate) mod restarted;
pub(crate) mod slowest_calls;
pub(crate) mod stacks;
pub(crate) mod status;
pub(crate) mod streamed;
mod table;
pub(crate) mod text;
pub(crate) mod toggled;
pub(crate) mod trace_info;
pub(crate) mod trace_summary;
pub(crate) mod triggered;
pub(crate) mod units;
pub(crate) mod unmatched_exits;
pub(crate) mod unrecorded;
pub(crate) mod watched;

pub(crate) use console::{ColourChoice, Console, Look, Tone, closed};
pub(crate) use names::Names;
pub(crate) use table::{Cell, Column, Table};
