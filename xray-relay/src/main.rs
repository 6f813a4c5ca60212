//! `xray-relay` writes what the policies of xrayd record to files. It has no rights of its own: it
//! is a client of the daemon, with the right `recordings`.
//!
//! ```text
//!  xrayd ── ListPolicies, each second ──► supervisor ── a recorder for each policy and process
//!    └───── StreamTrace, FetchProfile, FetchTrace ──────────► recorder ──► file
//!                                                                │
//!                                              losses, counters ◄┘   retention removes old files
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `config` | the command line |
//! | `daemon` | connections to xrayd |
//! | `supervisor` | which recorders there are |
//! | `recorder/` | a recorder for each mode, and one for a trigger |
//! | `store` | folders and files of recordings |
//! | `retention` | which files are removed |
//! | `losses` | what is in no file, and why |
//! | `firings` | the moments of triggers |
//! | `line_file` | the files with a line for each of these |
//! | `counters` | numbers for metrics, in a file |
//! | `utc` | times as names of files have them |

mod config;
mod counters;
mod daemon;
mod firings;
mod line_file;
mod losses;
mod mark;
mod recorder;
mod retention;
mod store;
mod supervisor;
mod utc;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use config::Config;
use counters::Counters;
use daemon::Daemon;
use store::Store;
use supervisor::Supervisor;

fn main() -> ExitCode {
    let config = Config::parse();
    tracing_subscriber::fmt()
        .with_max_level(config.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> anyhow::Result<()> {
    let counters = Arc::new(Counters::default());
    let store = Store::open(
        &config.folder,
        config.leave_mib.saturating_mul(1 << 20),
        Arc::clone(&counters),
    )
    .with_context(|| format!("cannot use the folder {}", config.folder.display()))?;
    // Files are written by the threads of the runtime: one that waits for a disk leaves another.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async move {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let daemon = Daemon::new(&config.socket);
        let supervisor = Supervisor::new(daemon, store, &config);
        tracing::info!(
            socket = %config.socket.display(),
            folder = %config.folder.display(),
            "recording what policies record"
        );
        supervisor
            .run(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            })
            .await;
        tracing::info!("stopped");
        Ok(())
    })
}
