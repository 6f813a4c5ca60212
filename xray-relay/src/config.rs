//! The command line.

use std::path::PathBuf;

use tracing::level_filters::LevelFilter;

/// Write what the policies of xrayd record to files
///
/// A policy with a table [output] has files: streams and snapshots of its processes, and profiles
/// for each period. They are in a folder for each policy and day. `xrayctl recordings` lists them.
#[derive(Debug, Clone, clap::Parser)]
#[command(version)]
pub(crate) struct Config {
    /// Connect to the daemon at this socket
    #[arg(
        long,
        env = "XRAYD_SOCKET",
        value_name = "PATH",
        default_value = "/run/xrayd/xrayd.sock"
    )]
    pub(crate) socket: PathBuf,

    /// Write the files to this folder
    #[arg(
        long,
        env = "STATE_DIRECTORY",
        value_name = "PATH",
        default_value = "/var/lib/xray-relay"
    )]
    pub(crate) folder: PathBuf,

    /// Keep at most this many MiB of all policies together; the oldest files go first
    #[arg(long, value_name = "MIB", default_value_t = 10_240)]
    pub(crate) keep_mib: u64,

    /// Leave this many MiB of the disk free; the oldest files go first
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) leave_mib: u64,

    /// Most detailed level of log lines: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LevelFilter,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_manual_page_has_all_options() {
        let page = include_str!("../../docs/man/xray-relay.8");
        for option in Config::command().get_arguments() {
            let name = option.get_long().unwrap().replace('-', r"\-");
            assert!(page.contains(&format!(r"\-\-{name}")), "{name}: {page}");
        }
    }
}
