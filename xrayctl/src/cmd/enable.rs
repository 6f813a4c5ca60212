//! `xrayctl enable`: switches functions on.

use crate::client::Daemon;
use crate::output::Console;
use crate::output::toggled::Switch;
use crate::selectors::Pending;
use crate::toggle::{self, ToggleArgs};

const EXAMPLES: &str = "\
Without --pid, every attached process is meant.

Examples:
  xrayctl enable --all
  xrayctl enable --pid 1234 --glob 'ns::*' --except-regex 'get|set'
  xrayctl enable --module libfoo.so --dry-run
  xrayctl enable --glob 'plugin_*' --pending";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    toggle: ToggleArgs,
    #[command(flatten)]
    pending: Pending,
}

pub(crate) async fn run(args: Args, daemon: &Daemon, console: &mut Console) -> anyhow::Result<()> {
    toggle::run(args.toggle, Some(args.pending), Switch::On, daemon, console).await
}
