//! `xrayctl enable`: switches functions on.

use xrayd::types::Wanted;

use crate::{
    client::Daemon, output::Console, selectors::Pending, toggle, toggle::ToggleArgs, values::Values,
};

const EXAMPLES: &str = "\
Without --pid, enable switches functions of every attached process on.

Selectors add up: a function is selected if one of them matches it, and no --except option does.

A function that is on already records the values of --args and --retval from then on, or no values
without these options. Changing the values stops the process for a moment.

Examples:
  xrayctl enable --all
  xrayctl enable --pid 1234 --glob 'ns::*' --except-regex 'get|set'
  xrayctl enable --module libfoo.so --dry-run
  xrayctl enable --glob 'plugin_*' --pending
  xrayctl enable --function read_block --args 3 --retval";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    toggle: ToggleArgs,
    #[command(flatten)]
    pending: Pending,
    #[command(flatten)]
    values: Values,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    let wanted = Wanted::On(args.values.capture());
    toggle::run(args.toggle, Some(args.pending), wanted, daemon, console).await
}
