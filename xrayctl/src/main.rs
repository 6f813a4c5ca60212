//! `xrayctl`: the command line of xrayd.
//!
//! Arguments become options, options become an action ([`cmd`]), and [`output`] renders the result.
//! All access to the engine is gRPC ([`client`]), to a daemon or to the engine in this process. The
//! error chain is printed here and nowhere else.
//!
//! Under the name of LLVM's tool, the program is that tool ([`llvm_xray`]).

#![forbid(unsafe_code)]

mod args;
mod attachment;
mod candidates;
mod client;
mod cmd;
mod condition;
#[cfg(test)]
mod documents;
mod each_process;
mod failure;
mod gathering;
mod input;
mod inputs;
mod limits;
mod llvm_xray;
mod log;
mod manual;
mod output;
mod output_folder;
mod page;
mod private;
mod process;
mod progress;
mod recording;
mod recordings;
mod run_times;
mod selectors;
mod setting;
mod signals;
mod suggest;
mod target;
mod toggle;
mod top;
mod trace_file;
mod trace_output;
mod user_events;
mod values;
mod view;
mod whole_file;
mod write_behind;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};
use crate::client::Daemon;
use crate::output::Console;
pub(crate) use xrayd::parse;

fn main() -> ExitCode {
    let args = std::env::args_os().collect::<Vec<_>>();
    if let Some(call) = llvm_xray::Call::new(&args) {
        return call.run();
    }
    let cli = match Cli::try_parse_from(args::spelled(args.into_iter())) {
        Ok(cli) => cli,
        Err(error) => {
            let error = args::with_meant_command(error);
            // A reader of the help text that has gone away is no failure.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match failure::exit_code(&error) {
            None => ExitCode::SUCCESS,
            Some(code) => {
                // Without standard error, only the exit code is left.
                let _ = writeln!(std::io::stderr(), "xrayctl: {error:#}");
                ExitCode::from(code)
            }
        },
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if cli.tool.is_some() {
        let what = "--as must be the first argument, before any other";
        return Err(failure::Failure::Usage(what.to_owned()).into());
    }
    let names = cli.global.names();
    let mut console = Console::new(cli.global.color, names);
    let console = &mut console;
    let daemon = Daemon::new(cli.global.socket);
    match cli.command {
        Command::Ps(args) => online(cmd::ps::run(args, &daemon, console)),
        Command::Doctor(args) => online(cmd::doctor::run(args, &daemon, console)),
        Command::Attach(args) => online(cmd::attach::run(args, &daemon, console)),
        Command::Functions(args) => online(cmd::functions::run(args, &daemon, console)),
        Command::Enable(args) => online(cmd::enable::run(args, &daemon, console)),
        Command::Disable(args) => online(cmd::disable::run(args, &daemon, console)),
        Command::Status(args) => online(cmd::status::run(args, &daemon, console)),
        Command::Record(args) => online(cmd::record::run(args, &daemon, console)),
        Command::Snapshot(args) => online(cmd::snapshot::run(args, &daemon, console)),
        Command::Mode(args) => online(cmd::mode::run(args, &daemon, console)),
        Command::Watch(args) => online(cmd::watch::run(args, &daemon, console)),
        Command::Budget(args) => online(cmd::budget::run(args, &daemon, console)),
        Command::Filter(args) => online(cmd::filter::run(args, &daemon, console)),
        Command::Count(args) => online(cmd::count::run(args, &daemon, console)),
        Command::Profile(args) => online(cmd::profile::run(args, &daemon, console)),
        Command::Trigger(args) => online(cmd::trigger::run(args, &daemon, console)),
        Command::Top(args) => online(cmd::top::run(args, &daemon, console)),
        Command::Report(args) => cmd::report::run(&args, console),
        Command::Extract(args) => cmd::extract::run(&args, console),
        Command::Info(args) => cmd::info::run(&args, console),
        Command::Account(args) => cmd::account::run(&args, console),
        Command::Diff(args) => cmd::diff::run(&args, console),
        Command::Stack(args) => cmd::stack::run(&args, console),
        Command::Tree(args) => cmd::tree::run(&args, console),
        Command::Graph(args) => cmd::graph::run(&args, console),
        Command::GraphDiff(args) => cmd::graph_diff::run(&args, console),
        Command::Flame(args) => cmd::flame::run(&args, console),
        Command::View(args) => online(cmd::view::run(args, console)),
        Command::Convert(args) => cmd::convert::run(&args, console),
        Command::FdrDump(args) => cmd::fdr_dump::run(&args, console),
        Command::Detach(args) => online(cmd::detach::run(args, &daemon, console)),
        Command::Off(args) => online(cmd::off::run(args, console)),
        Command::Policy(args) => online(cmd::policy::run(args, &daemon, console)),
        Command::Recordings(args) => cmd::recordings::run(args, console),
        Command::Access(args) => online(cmd::access::run(args, &daemon, console)),
        Command::Daemon(args) => online(cmd::daemon::run(args, &daemon, console)),
        Command::Explain(args) => cmd::explain::run(&args, console),
        Command::Completions(args) => online(cmd::completions::run(args, &daemon, console)),
        Command::Man(args) => cmd::man::run(&args, console),
    }
}

/// Runs a command that uses the engine.
fn online(action: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(action)
}
