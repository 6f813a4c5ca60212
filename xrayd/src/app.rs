//! The daemon as a whole: [`App::build`] binds, [`App::run`] serves until a signal and then takes everything down in
//! order.
//!
//! Going down: no new connection, no more metrics → every process detached, which ends the live streams → connections closed, those
//! that do not end by themselves cut off → whatever attached meanwhile detached as well → the socket removed. A second signal
//! changes nothing: half a detach helps nobody.

use std::{io, net, os::unix::net::UnixStream, path::PathBuf, sync::Arc, time::Duration};

use tokio::{net::UnixListener, runtime::Runtime, time::Instant};
use xray_trace::instr_map::{CompiledSelection, Selection};

use crate::{
    audit::{AuditError, AuditLog},
    config::{Config, ConfigError},
    metrics, notify,
    notify::InheritError,
    process::{Registry, RegistryConfig},
    refusal::{Reason, Refusal},
    rpc, shutdown,
    shutdown::Signals,
    socket::{BoundSocket, SocketError},
    store::Metering,
};

/// How long connections may take to end by themselves when the daemon stops.
const DRAIN_TIME: Duration = Duration::from_secs(3);

/// How long an attach or a detach that is under way is waited for when the daemon stops, and how often it is looked at.
const BUSY_TIME: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// How often the service manager is told what goes on.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// How long a thread for requests waits for the next one.
const IDLE_THREADS_END_AFTER: Duration = Duration::from_secs(1);

/// A daemon that listens and does not answer yet.
#[derive(Debug)]
pub struct App {
    socket: BoundSocket,
    /// Where metrics are asked for, if they are told.
    metrics: Option<Metrics>,
    registry: Registry,
    audit: AuditLog,
    /// Listened to before the socket is bound: who sees the socket can rely on a clean end.
    signals: Signals,
}

/// Metrics that are not answered yet.
#[derive(Debug)]
struct Metrics {
    listener: metrics::Listener,
    metering: Arc<Metering>,
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration cannot be met.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The service manager passed something else.
    #[error("cannot use what the service manager passed")]
    Inherit(#[from] InheritError),
    /// Metrics cannot be served where they should be.
    #[error(transparent)]
    Metrics(#[from] metrics::BindError),
    /// Metrics need a clock.
    #[error("cannot read the clock")]
    Clock(#[source] io::Error),
    /// The audit record cannot be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The signals cannot be heard.
    #[error("cannot listen to signals")]
    Signals(#[source] io::Error),
}

/// Why the daemon ended otherwise than by a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The socket cannot be polled.
    #[error("cannot {step}")]
    Setup {
        /// What was tried.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The server ended by itself.
    #[error("the server ended")]
    Server(#[source] rpc::ServeError),
}

// === impl App ===

impl App {
    /// Listens to signals, and binds the socket or takes the one that the service manager passed. Within the context of
    /// a runtime.
    ///
    /// # Errors
    ///
    /// No place to listen, or another daemon is there; metrics cannot be served.
    pub fn build(config: &Config) -> Result<Self, BuildError> {
        let signals = Signals::listen().map_err(BuildError::Signals)?;
        let audit = AuditLog::start(&config.audit)?;
        let inherited = notify::inherited()?;
        // Before the socket: who sees that can rely on a daemon that has started.
        let metrics = Metrics::build(inherited.metrics, config).map_err(|error| {
            match running_at(config).filter(|_| inherited.clients.is_none()) {
                // A daemon that was started twice has its port already, but that is not what is wrong.
                Some(path) => BuildError::Socket(SocketError::Running { path }),
                None => error,
            }
        })?;
        let socket = match inherited.clients {
            Some(listener) => {
                tracing::info!("listening at the socket of the service manager");
                BoundSocket::inherited(listener)
            }
            None => {
                let path = config.socket_path()?;
                let socket = BoundSocket::bind(&path, config.access)?;
                tracing::info!(socket = %path.display(), "listening");
                socket
            }
        };
        let registry_config = RegistryConfig {
            retain_bytes: config.retain.bytes(),
            retain_exited_bytes: config.retain_exited.bytes(),
            quotas: config.quotas,
        };
        let metering = metrics.as_ref();
        let metering = metering.map(|metrics| Arc::clone(&metrics.metering));
        let registry = Registry::with_metering(registry_config, metering);
        Ok(Self {
            socket,
            metrics,
            registry,
            audit,
            signals,
        })
    }

    /// Serves until SIGTERM or SIGINT, then detaches from every process and removes the socket.
    ///
    /// # Errors
    ///
    /// The runtime refuses the socket, or the server ends by itself. Processes are detached then as well.
    pub async fn run(self) -> Result<(), RunError> {
        let Self {
            socket,
            metrics,
            registry,
            audit,
            mut signals,
        } = self;
        let setup = |step| move |source| RunError::Setup { step, source };
        let (listener, file) = socket.into_parts();
        let listener = UnixListener::from_std(listener).map_err(setup("poll the socket"))?;

        let (stop, stopping) = shutdown::channel();
        let scraped = match metrics {
            Some(Metrics { listener, metering }) => {
                let server = metrics::Server::try_from(listener);
                let server = server.map_err(setup("poll the socket for metrics"))?;
                let serving = metrics::serve(server, metering, stopping.clone());
                Some(tokio::spawn(serving))
            }
            None => None,
        };
        let mut server = tokio::spawn(rpc::serve(
            listener,
            registry.clone(),
            audit.clone(),
            stopping,
        ));
        notify::ready();

        let mut status = tokio::time::interval(STATUS_INTERVAL);
        let ended = loop {
            tokio::select! {
                signal = signals.next() => {
                    tracing::info!(signal, "stopping");
                    break None;
                }
                ended = &mut server => break Some(ended),
                _ = status.tick() => notify::status(&status_line(&registry)),
            }
        };

        notify::stopping();
        stop.stop();
        detach_all(&registry).await;
        let result = match ended {
            Some(ended) => served(ended),
            None => match tokio::time::timeout(DRAIN_TIME, &mut server).await {
                Ok(ended) => served(ended),
                Err(_) => {
                    tracing::warn!("cutting connections off that did not end");
                    server.abort();
                    Ok(())
                }
            },
        };
        if let Some(scraped) = scraped {
            // It ends soon by itself. A panic was logged where it happened.
            let _ = scraped.await;
        }
        // An attach that was under way when the first round began.
        detach_all(&registry).await;
        if let Some(file) = file {
            let path = file.path().to_owned();
            if let Err(error) = file.remove() {
                tracing::warn!(socket = %path.display(), %error, "the socket was not removed");
            }
        }
        let _ = tokio::task::spawn_blocking(move || audit.flush()).await;
        tracing::info!("stopped");
        result.map_err(RunError::Server)
    }
}

// === impl Metrics ===

impl Metrics {
    /// Listens where it is said, or at the socket that was passed; `None` if metrics are not wanted.
    fn build(
        inherited: Option<net::TcpListener>,
        config: &Config,
    ) -> Result<Option<Self>, BuildError> {
        let listener = match (inherited, &config.metrics) {
            (Some(listener), _) => metrics::Listener::Tcp(listener),
            (None, Some(address)) => metrics::bind(address)?,
            (None, None) => {
                if config.metrics_functions.is_some() {
                    tracing::warn!("--metrics-functions says nothing without --metrics");
                }
                return Ok(None);
            }
        };
        let compile = |selection: &Selection| CompiledSelection::new(selection);
        let functions = config.metrics_functions.as_ref().map(compile);
        let functions = functions.transpose().map_err(ConfigError::from)?;
        let metering = Metering::new(functions, config.metrics_max_functions);
        let metering = Arc::new(metering.map_err(BuildError::Clock)?);
        listener.announce();
        Ok(Some(Self { listener, metering }))
    }
}

/// A runtime of the daemon's size: it moves bytes, the work is done by the sessions' own threads.
///
/// # Errors
///
/// What the system says.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(rpc::BLOCKING_THREADS)
        // A daemon that does nothing keeps no threads for requests.
        .thread_keep_alive(IDLE_THREADS_END_AFTER)
        .thread_name("xrayd-rpc")
        .enable_all()
        .build()
}

fn served(
    ended: Result<Result<(), rpc::ServeError>, tokio::task::JoinError>,
) -> Result<(), rpc::ServeError> {
    // A panic was logged where it happened; what is left to do is the same.
    ended.unwrap_or_else(|_| Err(rpc::ServeError::Panicked))
}

/// Where another daemon answers, if that is where this one should.
fn running_at(config: &Config) -> Option<PathBuf> {
    let path = config.socket_path().ok()?;
    UnixStream::connect(&path).is_ok().then_some(path)
}

/// Detaches from every process; those that are being attached to or detached from are waited for, for a while.
async fn detach_all(registry: &Registry) {
    let deadline = Instant::now() + BUSY_TIME;
    loop {
        let registry = registry.clone();
        let done = tokio::task::spawn_blocking(move || registry.detach_all()).await;
        let late = Instant::now() >= deadline;
        let mut busy = false;
        // A panic was logged where it happened.
        for (pid, outcome) in done.unwrap_or_default() {
            match outcome {
                Ok(_) => tracing::info!(%pid, "detached"),
                Err(refusal) if refusal.reason == Reason::Busy && !late => busy = true,
                Err(Refusal { reason, message }) => {
                    tracing::error!(%pid, %reason, message, "not detached");
                }
            }
        }
        if !busy {
            return;
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    }
}

fn status_line(registry: &Registry) -> String {
    match registry.sessions().len() {
        0 => "no process traced".to_owned(),
        1 => "1 process traced".to_owned(),
        sessions => format!("{sessions} processes traced"),
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        quotas::{Quotas, Resource},
        rpc::BLOCKING_THREADS,
        size::ByteSize,
    };

    const SERVICE: &str = include_str!("../../systemd/xrayd.service");

    fn set(name: &str) -> &'static str {
        let mut lines = SERVICE.lines().filter_map(|line| line.split_once('='));
        lines.find(|(setting, _)| *setting == name).unwrap().1
    }

    /// Users at the totals of their quotas take neither all memory nor all threads of the unit.
    #[test]
    fn the_limits_of_the_unit_fit_the_quotas() {
        let total = |resource| Quotas::DAEMON.of(resource).total;
        let tasks: u64 = set("TasksMax").parse().unwrap();
        assert!(tasks > total(Resource::Threads) + BLOCKING_THREADS as u64 + 20);
        let memory: ByteSize = format!("{}iB", set("MemoryMax")).parse().unwrap();
        // The ring copies of all snapshots together, see `collect/ring_copies.rs`.
        let copies = 4 << 30;
        let taken = total(Resource::Retained) + total(Resource::Patterns) + copies;
        assert!(memory.bytes() > taken, "{memory}");
        let weight: u64 = set("CPUWeight").parse().unwrap();
        assert!((1..=100).contains(&weight));
    }
}
