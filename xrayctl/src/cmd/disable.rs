//! `xrayctl disable`: switches functions off.

use xrayd::types::Wanted;

use crate::{client::Daemon, output::Console, toggle, toggle::ToggleArgs};

const EXAMPLES: &str = "\
Without --pid, disable switches functions of every attached process off.

Selectors add up: a function is selected if one of them matches it, and no --except option does.

Examples:
  xrayctl disable --all
  xrayctl disable --pid 1234 --glob 'ns::*' --except-regex 'get|set'
  xrayctl disable --module libfoo.so --dry-run";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    toggle: ToggleArgs,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    toggle::run(args.toggle, None, Wanted::Off, daemon, console).await
}
