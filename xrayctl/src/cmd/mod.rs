//! One file per subcommand: its arguments, and what it does with them.

pub(crate) mod account;
pub(crate) mod attach;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod detach;
pub(crate) mod disable;
pub(crate) mod doctor;
pub(crate) mod enable;
pub(crate) mod explain;
pub(crate) mod extract;
pub(crate) mod fdr_dump;
pub(crate) mod flame;
pub(crate) mod functions;
pub(crate) mod graph;
pub(crate) mod graph_diff;
pub(crate) mod info;
pub(crate) mod man;
pub(crate) mod mode;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod snapshot;
pub(crate) mod stack;
pub(crate) mod status;
pub(crate) mod tree;
pub(crate) mod watch;
