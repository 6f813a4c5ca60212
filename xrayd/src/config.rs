//! The configuration of the daemon: its arguments and its environment.
//!
//! Nothing is opened or changed here.

use std::{convert::Infallible, path::PathBuf, str::FromStr};

use clap::Parser;
use tracing::level_filters::LevelFilter;

use xray_trace::instr_map::{CompiledSelection, Rule, Selection, SelectionError};

use crate::{
    audit::AuditSink,
    logs::LogFormat,
    metrics::MetricsAddress,
    quotas::{QuotaSetting, Quotas},
    size::ByteSize,
    socket::{self, SocketError},
};

/// Daemon that traces functions of running programs
///
/// Serves xrayd.v1 (gRPC) on a unix socket. Attaches to running programs that were compiled with
/// XRay sleds, switches their functions on and off, and retains and streams their events.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(name = "xrayd", version)]
pub struct Config {
    /// Read this file first [default: /etc/xrayd/xrayd.toml for root, else
    /// $XDG_CONFIG_HOME/xrayd/xrayd.toml or ~/.config/xrayd/xrayd.toml, if it is there]
    ///
    /// Its keys are the options of this command without the dashes. The command line wins over the
    /// environment, and both over the file. The file must belong to root or to the daemon's user,
    /// and no other user may write to it. See xrayd.toml(5).
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,

    /// Print the configuration as a file, with the origin of each value, and exit
    #[arg(long)]
    pub print_config: bool,

    /// Listen on this socket [default: /run/xrayd/xrayd.sock for root, else
    /// $XDG_RUNTIME_DIR/xrayd.sock]
    ///
    /// A socket that the service manager passes takes precedence.
    #[arg(long, env = "XRAYD_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Keep what a later daemon needs in this folder: PATH, or off [default: $STATE_DIRECTORY, else
    /// /var/lib/xrayd for root, else $XDG_STATE_HOME/xrayd or ~/.local/state/xrayd]
    ///
    /// A daemon that starts goes on with the sessions of a daemon that was killed: the same
    /// functions are on, with the same settings, and the events in the rings are read. The folder
    /// must belong to the daemon's user, and no other user may write to it. A default folder that
    /// cannot be used is a warning.
    #[arg(long, env = "XRAYD_STATE_DIR", value_name = "WHERE")]
    pub state_dir: Option<PathSetting>,

    /// Carry out the tracing policies in this folder: PATH, or off [default: /etc/xrayd/policies.d
    /// for root, else $XDG_CONFIG_HOME/xrayd/policies.d or ~/.config/xrayd/policies.d]
    ///
    /// Each file whose name ends in .toml is a policy, as xrayd-policy(5) describes. They are read
    /// at the start and at `xrayctl policy reload`. A file with mistakes changes nothing. The
    /// folder and the files must belong to root or to the daemon's user, and no other user may
    /// write to them.
    #[arg(long, env = "XRAYD_POLICIES_DIR", value_name = "WHERE")]
    pub policies_dir: Option<PathSetting>,

    /// Give users rights by the rules of access in this file: PATH, or off [default:
    /// /etc/xrayd/access.toml for root, else $XDG_CONFIG_HOME/xrayd/access.toml or
    /// ~/.config/xrayd/access.toml]
    ///
    /// xrayd-access(5) describes it. It is read at the start and at `xrayctl access reload`. A file
    /// with mistakes changes nothing. The file must belong to root or to the daemon's user, and no
    /// other user may write to it.
    #[arg(long, env = "XRAYD_ACCESS_FILE", value_name = "WHERE")]
    pub access_file: Option<PathSetting>,

    /// Write retained events to files of the folder of --state-dir, so that they outlive the daemon
    ///
    /// Without it they are in memory. systemd keeps that for the daemon that it starts next, and so
    /// does a daemon that executes its program anew. Without systemd, they need these files to
    /// outlive a daemon that is killed. The files take as much as --retain and --retain-exited
    /// allow.
    #[arg(
        long,
        env = "XRAYD_RETAIN_IN_FILES",
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        default_value = "false",
        action = clap::ArgAction::Set,
        value_parser = clap::builder::BoolishValueParser::new(),
        hide_default_value = true
    )]
    pub retain_in_files: bool,

    /// Retain up to this size of events of each process, in packed bytes; the oldest are dropped
    /// first
    ///
    /// If the daemon's control group limits its memory, all processes share a third of what is free
    /// there when the daemon starts, with 1 MiB for each process at least.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub retain: ByteSize,

    /// Retain up to this size of events of ended processes, in packed bytes for each user; the
    /// oldest processes are dropped first
    ///
    /// The latest process is always retained. At most 64 are retained.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub retain_exited: ByteSize,

    /// Limit a resource that sessions take: NAME=PER_USER/TOTAL, such as mapped=16TiB/64TiB
    ///
    /// Can be given several times. The defaults are sessions=1000/2000, threads=2500/5000 (of
    /// sessions), mapped=16TiB/64TiB (bytes of rings), retained=2GiB/8GiB (bytes of events of
    /// living processes) and patterns=64MiB/256MiB (bytes of compiled patterns, of requests and of
    /// rules for libraries that are loaded later). Root has no quota.
    #[arg(long, value_name = "QUOTA")]
    pub quota: Vec<QuotaSetting>,

    /// Serve metrics over HTTP, at /metrics of this address: ADDRESS:PORT, a port of 127.0.0.1, or
    /// unix:PATH
    ///
    /// Off by default. The metrics endpoint is unauthenticated: every client that can connect sees
    /// names of programs and functions. A unix socket has mode 0660. On a loopback address, a
    /// request's Host must be localhost or a loopback address. A TCP socket that the service
    /// manager passes takes precedence.
    #[arg(long, env = "XRAYD_METRICS", value_name = "ADDR")]
    pub metrics: Option<MetricsAddress>,

    /// Keep a histogram of call durations for each function whose name matches, such as 'api::*'
    ///
    /// Can be given several times. The daemon measures a function while it is on. It reads the
    /// rings of processes that have such functions all the time.
    #[arg(long, value_name = "GLOB")]
    pub metrics_functions: Vec<String>,

    /// Keep at most this number of histograms, in all processes together; further functions are
    /// counted and left out
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub metrics_max_functions: u32,

    /// Record each decision about a call as a line of JSON: log, off, or a file to append to
    ///
    /// A record has time, caller, operation, processes, selection and decision. In the log, the
    /// lines have the target `audit`. The rate of each user's records is limited. Records beyond
    /// the limit are dropped and counted.
    #[arg(long, env = "XRAYD_AUDIT", value_name = "WHERE", default_value = "log")]
    pub audit: AuditSink,

    /// Format of log lines
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Auto)]
    pub log: LogFormat,

    /// Most detailed level of log lines: off, error, warn, info, debug or trace; does not apply to
    /// audit records
    #[arg(
        long,
        env = "XRAYD_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub log_level: LevelFilter,
}

/// The value of an option that names a folder or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathSetting {
    /// None is used.
    Off,
    /// The one at this path.
    At(PathBuf),
}

/// Least size of retained events. Less cannot hold a block of events.
const LEAST_RETAINED: ByteSize = ByteSize::new(1 << 20);

/// The reason why the daemon does not start with these arguments.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No socket was named, and there is no default one.
    #[error("there is no socket to listen on")]
    Socket(#[from] SocketError),
    /// `--retain` is too small to hold a block of events.
    #[error("--retain {retain} is too small: the minimum is {LEAST_RETAINED}")]
    Retain {
        /// The value of `--retain`.
        retain: ByteSize,
    },
    /// A pattern is invalid.
    #[error("--metrics-functions is invalid")]
    MetricsFunctions(#[from] SelectionError),
}

// === impl Config ===

impl Config {
    /// Checks the values against the daemon's limits. A missing default socket shows only at
    /// [`Self::socket_path`], because a socket may be inherited.
    ///
    /// # Errors
    ///
    /// A size that is too small, or an invalid pattern.
    pub fn check(&self) -> Result<(), ConfigError> {
        let retain = self.retain;
        if retain < LEAST_RETAINED {
            return Err(ConfigError::Retain { retain });
        }
        self.measured_functions().map(drop)
    }

    /// The functions that get a histogram of call durations. `None` if no option names any.
    ///
    /// # Errors
    ///
    /// An invalid pattern.
    pub fn measured_functions(&self) -> Result<Option<CompiledSelection>, ConfigError> {
        if self.metrics_functions.is_empty() {
            return Ok(None);
        }
        let globs = self.metrics_functions.iter().cloned();
        let selection = Selection {
            include: globs.map(Rule::Glob).collect(),
            exclude: Vec::new(),
        };
        Ok(Some(CompiledSelection::new(&selection)?))
    }

    /// Limits on the daemon's resources that sessions may take.
    pub fn quotas(&self) -> Quotas {
        let quota = self.quota.iter().copied();
        quota.fold(Quotas::DAEMON, Quotas::with)
    }

    /// The path of the socket: the configured one, else the user's default.
    ///
    /// # Errors
    ///
    /// No socket was named, and this user has no runtime directory.
    pub fn socket_path(&self) -> Result<PathBuf, ConfigError> {
        match &self.socket {
            Some(path) => Ok(path.clone()),
            None => Ok(socket::default_path()?),
        }
    }
}

// === impl PathSetting ===

impl FromStr for PathSetting {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "off" => Self::Off,
            path => Self::At(path.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use xray_trace::instr_map::Candidate;

    use super::*;

    fn config(args: &[&str]) -> Result<Config, String> {
        let args = std::iter::once("xrayd").chain(args.iter().copied());
        let config = Config::try_parse_from(args).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn the_argument_parser_is_consistent() {
        Config::command().debug_assert();
    }

    #[test]
    fn arguments_become_a_configuration() {
        let args = [
            "--socket",
            "/tmp/x.sock",
            "--state-dir",
            "/tmp/state",
            "--retain",
            "1GiB",
            "--retain-in-files",
            "--retain-exited",
            "3GiB",
            "--metrics",
            "9464",
            "--metrics-functions",
            "api::*",
            "--metrics-functions",
            "*parse*",
            "--metrics-max-functions",
            "7",
            "--log",
            "journal",
            "--log-level",
            "debug",
        ];
        let config = config(&args).unwrap();
        assert_eq!(config.socket_path().unwrap(), PathBuf::from("/tmp/x.sock"));
        let folder = PathSetting::At("/tmp/state".into());
        assert_eq!(config.state_dir, Some(folder));
        assert_eq!(config.retain, ByteSize::new(1 << 30));
        assert!(config.retain_in_files);
        assert_eq!(config.retain_exited, ByteSize::new(3 << 30));
        let metrics = config.metrics.as_ref().unwrap();
        assert_eq!(metrics.to_string(), "127.0.0.1:9464");
        assert_eq!(config.metrics_functions, ["api::*", "*parse*"]);
        let measured = config.measured_functions().unwrap().unwrap();
        let is_measured = ["api::x", "apix", "http::parse_head"].map(|name| {
            measured.matches(&Candidate {
                id: 1,
                module: "service",
                name,
                ..Candidate::default()
            })
        });
        assert_eq!(is_measured, [true, false, true]);
        assert_eq!(config.metrics_max_functions, 7);
        assert_eq!(config.log, LogFormat::Journal);
        assert_eq!(config.log_level, LevelFilter::DEBUG);
    }

    #[test]
    fn metrics_are_off_by_default() {
        let config = config(&["--socket", "/x"]).unwrap();
        assert_eq!(config.metrics, None);
        assert!(config.measured_functions().unwrap().is_none());
        assert_eq!(config.metrics_max_functions, 100);
    }

    #[test]
    fn the_state_can_be_switched_off() {
        let config = config(&["--state-dir", "off"]).unwrap();
        assert_eq!(config.state_dir, Some(PathSetting::Off));
    }

    #[test]
    fn the_default_keeps_256_mib() {
        assert_eq!(
            config(&["--socket", "/x"]).unwrap().retain,
            ByteSize::new(256 << 20)
        );
    }

    #[test]
    fn bad_values_are_refused_by_name() {
        let cases: [(&[&str], &str); 8] = [
            (&["--retain", "lots"], "lots"),
            (
                &["--retain", "4KiB"],
                "--retain 4KiB is too small: the minimum is 1MiB",
            ),
            (&["--log-level", "loud"], "loud"),
            (&["--log", "xml"], "xml"),
            (
                &["--metrics", "localhost:9464"],
                "neither a port nor an address with a port, such as 127.0.0.1:9464",
            ),
            (
                &["--metrics-functions", "a[b"],
                "--metrics-functions is invalid",
            ),
            (&["--metrics-max-functions", "0"], "0 is not in 1..=1000"),
            (&["--metrics-max-functions", "1001"], "1001 is not in"),
        ];
        for (args, expected) in cases {
            let error = config(args).unwrap_err();
            assert!(error.contains(expected), "{args:?}: {error}");
        }
    }
}
