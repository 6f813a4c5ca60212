//! The daemon: configuration → build (binds) → run → drain.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use xrayd::{
    app::{self, App},
    config::{Args, Config},
    logs,
};

fn main() -> ExitCode {
    let args = Args::parse();
    logs::init(args.log, args.log_level);
    match args
        .into_config()
        .map_err(Into::into)
        .and_then(|config| run(&config))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: &Config) -> anyhow::Result<()> {
    let runtime = app::runtime().context("cannot start the runtime")?;
    let app = {
        let _context = runtime.enter();
        App::build(config)?
    };
    let ran = runtime.block_on(app.run());
    // What could be detached is, so blocking reads of closed connections may be abandoned, and
    // calls that hang.
    runtime.shutdown_background();
    Ok(ran?)
}
