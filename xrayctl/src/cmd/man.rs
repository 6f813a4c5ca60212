//! `xrayctl man`: the manual pages of xrayctl and of the daemon, generated from the same
//! declarations as the help.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::args::Cli;
use crate::manual;
use crate::output::Console;

const EXAMPLES: &str = "\
The pages of xrayctl belong to section 1 of the manual. xrayd.8, the page of the daemon, belongs to
section 8. The pages of its configuration file and of a policy, xrayd.toml.5 and xrayd-policy.5,
belong to section 5.

Examples:
  xrayctl man ~/.local/share/man/man1";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory, which is created if it does not exist
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let cannot = || format!("cannot write manual pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(cannot)?;
    // `help` repeats the other pages, so it gets no page.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.dir).with_context(cannot)?;
    let daemon_page = manual::daemon_page().with_context(cannot)?;
    std::fs::write(args.dir.join("xrayd.8"), daemon_page).with_context(cannot)?;
    let file_page = manual::file_page().with_context(cannot)?;
    std::fs::write(args.dir.join("xrayd.toml.5"), file_page).with_context(cannot)?;
    let access_page = manual::access_page();
    std::fs::write(args.dir.join("xrayd-access.5"), access_page).with_context(cannot)?;
    let relay_page = manual::relay_page();
    std::fs::write(args.dir.join("xray-relay.8"), relay_page).with_context(cannot)?;
    let policy_page = manual::policy_page();
    std::fs::write(args.dir.join("xrayd-policy.5"), policy_page).with_context(cannot)?;
    console.line(&format!("wrote the manual pages to {}", args.dir.display()))
}
