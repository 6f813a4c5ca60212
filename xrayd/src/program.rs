//! The daemon as a program: configuration → check → build (binds) → run → drain.

use std::{
    env,
    io::{self, Write as _},
    mem::ManuallyDrop,
    process::ExitCode,
};

use crate::{
    app::{self, App},
    config::Config,
    config_file::{self, ConfigFileError},
    logs::{self, LogFormat},
    shutdown::Signals,
    sys::return_large_allocations,
};
use anyhow::Context as _;
use tracing::level_filters::LevelFilter;

/// Runs the daemon until a signal ends it.
pub fn main() -> ExitCode {
    let configured = match config_file::read(env::args_os()) {
        Ok(configured) => configured,
        // Help and the version are no errors, and go to the standard output.
        Err(ConfigFileError::Arguments(error)) => error.exit(),
        Err(error) => {
            logs::init(LogFormat::Auto, LevelFilter::INFO);
            if let ConfigFileError::Mistakes { path, mistakes } = &error {
                for mistake in mistakes {
                    tracing::error!("{}: {mistake}", path.display());
                }
            }
            tracing::error!("{:#}", anyhow::Error::from(error));
            return ExitCode::from(2);
        }
    };
    let config = &configured.config;
    if config.print_config {
        return match config.check() {
            Ok(()) => print(&configured.as_file()),
            Err(error) => {
                logs::init(config.log, config.log_level);
                tracing::error!("{:#}", anyhow::Error::from(error));
                ExitCode::FAILURE
            }
        };
    }
    // Before the first further thread.
    let held = Signals::hold();
    logs::init(config.log, config.log_level);
    let run = || {
        held.context("cannot hold signals")?;
        if let Some(file) = configured.file() {
            tracing::info!(file = %file.display(), "read the configuration");
        }
        if let Some((file, error)) = &configured.unreadable {
            tracing::warn!(file = %file.display(), %error, "the defaults hold: cannot read");
        }
        run(config)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints to the standard output. A reader that has enough is no error.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            logs::init(LogFormat::Auto, LevelFilter::INFO);
            tracing::error!(%error, "cannot print the configuration");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
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
