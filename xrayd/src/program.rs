//! The daemon as a program: configuration → check → build (binds) → run → drain.

use std::{mem::ManuallyDrop, process::ExitCode};

use anyhow::Context as _;
use clap::Parser as _;

use crate::{
    app::{self, App},
    config::Config,
    logs,
    shutdown::Signals,
    sys::return_large_allocations,
};

/// Runs the daemon until a signal ends it.
pub fn main() -> ExitCode {
    let config = Config::parse();
    // Before the first further thread.
    let held = Signals::hold();
    logs::init(config.log, config.log_level);
    let run = || {
        held.context("cannot hold signals")?;
        run(&config)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: &Config) -> anyhow::Result<()> {
    config.check()?;
    app::raise_descriptor_limit();
    return_large_allocations();
    // It is never dropped. The end of the daemon waits for no thread of the runtime: blocking reads
    // of closed connections may be abandoned, and calls that hang. It detaches none either: glibc
    // (2.36) may crash if it detaches a thread that ends just then.
    let runtime = ManuallyDrop::new(app::runtime().context("cannot start the runtime")?);
    let app = {
        let _context = runtime.enter();
        App::build(config)?
    };
    match runtime.block_on(app.run())? {
        Some(restart) => Err(restart.execute()).context("cannot execute the daemon anew"),
        None => Ok(()),
    }
}
