//! `xrayctl completions`: the script with which a shell completes our command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::output::Console;

const EXAMPLES: &str = "\
Examples:
  xrayctl completions bash > ~/.local/share/bash-completion/completions/xrayctl
  xrayctl completions zsh > ~/.zfunc/_xrayctl
  xrayctl completions fish > ~/.config/fish/completions/xrayctl.fish";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    // The generator panics if it cannot write, and a reader may go away. So the script goes to
    // memory first.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "xrayctl", &mut script);
    console.show(|out, _| out.write_all(&script))
}
