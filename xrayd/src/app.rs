//! The daemon as a whole: [`App::build`] binds, [`App::run`] serves until a signal and then shuts
//! down in order.
//!
//! The order of the shutdown:
//!
//! 1. The daemon accepts no more connections, and serves no more metrics.
//! 2. It detaches from every process, which ends the live streams. Or, if another daemon comes, it
//!    leaves them as they are.
//! 3. It waits for the connections to end, and aborts those that do not end by themselves.
//! 4. It detaches from the processes that were attached meanwhile, or leaves them.
//! 5. It removes the socket.
//! 6. For a restart, it executes its program anew ([`Restart`]).
//!
//! A second signal changes nothing, because half a detach is of no use.

use std::{
    collections::BTreeMap,
    env,
    ffi::{CString, NulError, OsStr, OsString},
    io, net,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStringExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{Uid, execve},
};
use tokio::{
    net::UnixListener,
    runtime::Runtime,
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    access::{AccessKeeper, AccessRules, default_path as default_access_file},
    audit::{AuditError, AuditLog},
    config::{Config, ConfigError, PathSetting},
    config_file, export, metrics, notify,
    notify::InheritError,
    pid::Pid,
    policies::{Policies, PolicyKeeper, default_folder as default_policies_folder},
    process::{KeptForNext, Registry, RegistryConfig, SessionRecord},
    refusal::{Reason, Refusal},
    rpc,
    segments::{SegmentFolder, SegmentName, SegmentStore, bytes_of_files, refuse_files},
    shutdown,
    shutdown::{Signals, StopKind},
    socket::{Access, BoundSocket, SocketError},
    state::{self, FolderError, StateFolder},
    store::Metering,
    target::{Threads, memory_room},
};

/// Retained events of living processes take up to one of so many parts of the memory that is free
/// in the daemon's control group. Events of ended processes of a user may take another part.
const PARTS_OF_MEMORY: u64 = 3;

/// Time for connections to end by themselves when the daemon stops.
const DRAIN_TIME: Duration = Duration::from_secs(3);

/// The same when the daemon leaves its processes to the next one: their rings fill meanwhile.
const SHORT_DRAIN_TIME: Duration = Duration::from_millis(300);

/// Longest wait at shutdown for the daemon's detaches, and for an attach or a detach that is under
/// way. A process may use a file system that does not answer.
const DETACH_TIME: Duration = Duration::from_secs(30);
/// The same for processes whose attach ended after that.
const LATE_DETACH_TIME: Duration = Duration::from_secs(10);
/// Pauses between two looks at processes whose attach or detach is under way. Each is twice the one
/// before, between these bounds.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait at shutdown for attaches of policies that are under way.
const POLICIES_TIME: Duration = Duration::from_secs(5);

/// Longest wait for the sessions of an earlier daemon before the first call is served.
const RECOVERY_TIME: Duration = Duration::from_secs(20);

/// Interval of the status lines for the service manager.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Idle time after which a thread for requests ends.
const IDLE_THREADS_END_AFTER: Duration = Duration::from_secs(1);

/// A daemon that listens and does not answer yet.
#[derive(Debug)]
pub struct App {
    socket: BoundSocket,
    /// The metrics endpoint, if metrics are enabled.
    metrics: Option<Metrics>,
    registry: Registry,
    policies: Policies,
    access: AccessRules,
    /// What outlives the daemon. `None`: nothing.
    state: Option<Arc<StateFolder>>,
    restart: Restart,
    audit: AuditLog,
    /// Registered before the socket is bound. So a client that sees the socket can rely on a clean
    /// end.
    signals: Signals,
}

/// How the daemon's program is executed anew.
#[derive(Debug)]
pub struct Restart {
    /// The path of the program at the start. It may be a new program by now.
    program: io::Result<PathBuf>,
    /// The sockets of the service manager.
    sockets: Vec<OwnedFd>,
    /// The retained events. `None`: they do not outlive the daemon.
    segments: Option<Arc<SegmentStore>>,
}

/// A metrics endpoint that listens and does not answer yet.
#[derive(Debug)]
struct Metrics {
    listener: metrics::Listener,
    metering: Arc<Metering>,
}

/// The reason why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration cannot be met.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket cannot be bound.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The service manager passed an unusable descriptor.
    #[error("cannot use the sockets that the service manager passed")]
    Inherit(#[from] InheritError),
    /// The metrics endpoint cannot be bound.
    #[error(transparent)]
    Metrics(#[from] metrics::BindError),
    /// The clock cannot be read, and metrics need it.
    #[error("cannot read the clock")]
    Clock(#[source] io::Error),
    /// The sink of the audit record cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The configured folder of the state cannot be used.
    #[error(transparent)]
    State(#[from] FolderError),
    /// Signals cannot be read.
    #[error("cannot read signals")]
    Signals(#[source] io::Error),
}

/// The reason why the daemon ended, other than a signal.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A socket cannot be polled.
    #[error("cannot {step}")]
    Setup {
        /// The step that failed.
        step: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The server ended by itself.
    #[error("the server ended")]
    Server(#[source] rpc::ServeError),
}

// === impl App ===

impl App {
    /// Begins to read the signals that end the daemon, and binds the socket or takes the one that
    /// the service manager passed. Works within the context of a runtime only.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound, another daemon is running, or metrics cannot be served.
    pub fn build(config: &Config) -> Result<Self, BuildError> {
        let signals = Signals::listen().map_err(BuildError::Signals)?;
        let audit = AuditLog::start(&config.audit)?;
        let inherited = notify::inherited()?;
        // Metrics come before the socket, so a client that sees the socket can rely on a started
        // daemon.
        let metrics = Metrics::build(inherited.metrics, config).map_err(|error| {
            match running_at(config).filter(|_| inherited.clients.is_none()) {
                // The first daemon has this port already. The true cause is the second start.
                Some(path) => BuildError::Socket(SocketError::Running { path }),
                None => error,
            }
        })?;
        let socket = match inherited.clients {
            Some(listener) => {
                tracing::info!("listening on the socket of the service manager");
                BoundSocket::inherited(listener)
            }
            None => {
                let path = config.socket_path()?;
                let socket = BoundSocket::bind(&path, access_of(Uid::effective()))?;
                tracing::info!(socket = %path.display(), "listening");
                socket
            }
        };
        // After the socket: a second daemon of this user is told of the first one by its socket.
        let state = state_folder(config)?;
        let room = memory_room(Pid::this());
        let registry_config = RegistryConfig {
            retain_bytes: config.retain.bytes(),
            retain_exited_bytes: config.retain_exited.bytes(),
            retain_together_bytes: match (&state, &room) {
                (Some(_), _) if config.retain_in_files => u64::MAX,
                (_, Some(room)) => {
                    let kept = bytes_of_files(&inherited.files);
                    let bytes = room.bytes.saturating_add(kept) / PARTS_OF_MEMORY;
                    tracing::info!(
                        bytes,
                        group = %room.group.display(),
                        "the control group limits retained events"
                    );
                    bytes
                }
                (_, None) => u64::MAX,
            },
            quotas: config.quotas(),
        };
        let metering = metrics.as_ref();
        let metering = metering.map(|metrics| Arc::clone(&metrics.metering));
        let kept = match state.clone() {
            Some(state) => Some(KeptForNext {
                segments: match config.retain_in_files {
                    true => {
                        refuse_files(&inherited.files);
                        SegmentStore::in_folder(Arc::clone(&state) as Arc<dyn SegmentFolder>)
                    }
                    false => {
                        state.remove_segments();
                        SegmentStore::in_memory(inherited.files, room.map(|room| room.bytes))
                    }
                },
                records: state,
            }),
            None => {
                refuse_files(&inherited.files);
                None
            }
        };
        let segments = kept.as_ref().map(|kept| Arc::clone(&kept.segments));
        let registry = Registry::of_daemon(registry_config, metering, kept);
        let keeper = state.clone().map(|state| state as Arc<dyn PolicyKeeper>);
        let folder = path_or(config.policies_dir.as_ref(), default_policies_folder);
        let policies = Policies::new(registry.clone(), folder, keeper);
        let keeper = state.clone().map(|state| state as Arc<dyn AccessKeeper>);
        let file = path_or(config.access_file.as_ref(), default_access_file);
        let access = AccessRules::new(file, keeper);
        Ok(Self {
            socket,
            metrics,
            registry,
            policies,
            access,
            state,
            restart: Restart {
                program: env::current_exe(),
                sockets: inherited.sockets,
                segments,
            },
            audit,
            signals,
        })
    }

    /// Serves until SIGTERM or SIGINT, then detaches from every process and removes the socket.
    /// After SIGUSR1 it leaves the processes as they are for the next daemon. After SIGHUP it does
    /// so, and returns how to execute the daemon anew.
    ///
    /// # Errors
    ///
    /// The runtime refuses the socket, or the server ends by itself. The daemon detaches from all
    /// processes in these cases, too.
    pub async fn run(self) -> Result<Option<Restart>, RunError> {
        let Self {
            socket,
            metrics,
            registry,
            policies,
            access,
            state,
            restart,
            audit,
            mut signals,
        } = self;
        let setup = |step| move |source| RunError::Setup { step, source };
        let (listener, file) = socket.into_parts();
        let listener = UnixListener::from_std(listener).map_err(setup("poll the socket"))?;

        let has_state = state.is_some();
        if let (Some(state), Some(segments)) = (state.clone(), restart.segments.clone()) {
            // Before the first call is served, so that it sees the sessions.
            recover(&registry, state, segments, policies.clone()).await;
        } else {
            begin(&policies);
        }
        let (stop, stopping) = shutdown::channel();
        let scraped = match metrics {
            Some(Metrics { listener, metering }) => {
                let server = metrics::Server::try_from(listener);
                let server = server.map_err(setup("poll the socket for metrics"))?;
                let serving = metrics::serve(server, metering, policies.clone(), stopping.clone());
                Some(tokio::spawn(serving))
            }
            None => None,
        };
        let restarting = Arc::new(Notify::new());
        let mut server = tokio::spawn(rpc::serve(
            listener,
            registry.clone(),
            audit.clone(),
            stopping,
            has_state.then(|| Arc::clone(&restarting)),
            (policies.clone(), access),
        ));
        notify::ready();

        let watchdog = notify::watchdog();
        let beat = watchdog.map_or(STATUS_INTERVAL, |time| STATUS_INTERVAL.min(time / 3));
        let mut status = tokio::time::interval(beat);
        let ended = loop {
            tokio::select! {
                kind = signals.next() => {
                    if kind == StopKind::Restart && let Err(why) = config_file::check_again().await {
                        tracing::error!(why, "does not restart: it would not start again");
                        continue;
                    }
                    tracing::info!(?kind, "stopping");
                    break Err(kind);
                }
                () = restarting.notified() => {
                    tracing::info!("restarting, as a client requested");
                    break Err(StopKind::Restart);
                }
                ended = &mut server => break Ok(ended),
                _ = status.tick() => {
                    notify::status(&status_line(&registry));
                    // The runtime lives, or this would not run. Workers that hang are replaced.
                    let waits = registry.longest_wait();
                    match waits < watchdog.unwrap_or(Duration::MAX) {
                        true => notify::alive(),
                        false => tracing::error!(?waits, "sessions wait for workers"),
                    }
                }
            }
        };

        let kind = match ended {
            Err(kind) if has_state => kind,
            // The next daemon would not know the processes.
            Err(StopKind::Detach | StopKind::Leave) | Ok(_) => StopKind::Detach,
            Err(StopKind::Restart) => StopKind::Restart,
        };
        match kind {
            StopKind::Restart => notify::restarting(),
            StopKind::Detach | StopKind::Leave => notify::stopping(),
        }
        stop.stop();
        // Otherwise they would attach again.
        let stopped = tokio::task::spawn_blocking(move || policies.stop(POLICIES_TIME));
        let _ = stopped.await;
        let leaves = has_state && kind != StopKind::Detach;
        if let (true, Some(segments)) = (leaves, &restart.segments) {
            segments.leave();
        }
        let end_all = async |time| match leaves {
            true => leave_all(&registry, time).await,
            false => detach_all(&registry, time).await,
        };
        end_all(DETACH_TIME).await;
        let drain_time = match leaves {
            true => SHORT_DRAIN_TIME,
            false => DRAIN_TIME,
        };
        let result = match ended {
            Ok(ended) => served(ended),
            Err(_) => match tokio::time::timeout(drain_time, &mut server).await {
                Ok(ended) => served(ended),
                Err(_) => {
                    tracing::warn!("closing connections that did not end in time");
                    server.abort();
                    Ok(())
                }
            },
        };
        if let Some(scraped) = scraped {
            // It ends soon by itself. The panic hook has logged a panic.
            let _ = scraped.await;
        }
        // Those whose attach was under way during the first round.
        end_all(LATE_DETACH_TIME).await;
        if let Some(file) = file {
            let path = file.path().to_owned();
            if let Err(error) = file.remove() {
                tracing::warn!(socket = %path.display(), %error, "cannot remove the socket");
            }
        }
        let segments = restart.segments.clone();
        let flushed = tokio::task::spawn_blocking(move || {
            if let Some(segments) = segments {
                segments.flush(DRAIN_TIME / 2);
            }
            audit.flush();
        });
        let _ = timeout_at(Instant::now() + DRAIN_TIME, flushed).await;
        tracing::info!("stopped");
        result.map_err(RunError::Server)?;
        Ok((kind == StopKind::Restart).then_some(restart))
    }
}

// === impl Restart ===

/// Executes a program in the place of this one. Signals stay held, and those that wait are there
/// for the program to read. Returns only after an error.
fn execute(
    program: &Path,
    arguments: impl Iterator<Item = OsString>,
    variables: impl Iterator<Item = OsString>,
) -> io::Error {
    let text = |text: OsString| CString::new(text.into_vec());
    let all = || -> Result<_, NulError> {
        let program = text(program.as_os_str().to_owned())?;
        let arguments = arguments.map(text).collect::<Result<Vec<_>, _>>()?;
        let variables = variables.map(text).collect::<Result<Vec<_>, _>>()?;
        Ok((program, arguments, variables))
    };
    match all() {
        Err(error) => error.into(),
        Ok((program, arguments, variables)) => match execve(&program, &arguments, &variables) {
            Err(error) => error.into(),
            Ok(never) => match never {},
        },
    }
}

impl Restart {
    /// Executes the daemon's program anew, with the same arguments. Returns only after an error.
    #[must_use]
    pub fn execute(self) -> io::Error {
        let Self {
            program,
            sockets,
            segments,
        } = self;
        let program = match program {
            Ok(program) => program,
            Err(error) => return error,
        };
        let files = segments.map(|segments| segments.files_in_memory());
        let files = files.unwrap_or_default();
        let sockets = sockets.iter().map(AsFd::as_fd);
        let files = files.iter().map(|file| file.as_fd());
        let passed = match notify::pass_on(sockets.chain(files)) {
            Ok(passed) => passed,
            Err(error) => return error,
        };
        let arguments = [program.clone().into_os_string()];
        let arguments = arguments.into_iter().chain(env::args_os().skip(1));
        let is_passed_on = |name: &OsStr| {
            let mut others = notify::OF_MANAGER.iter().chain([&notify::DESCRIPTORS]);
            others.all(|other| name != OsStr::new(other))
        };
        let variables = env::vars_os().filter(|(name, _)| is_passed_on(name));
        let variables =
            variables.map(|(name, value)| [name, "=".into(), value].join(OsStr::new("")));
        let descriptors = OsString::from(format!("{}={passed}", notify::DESCRIPTORS));
        execute(&program, arguments, variables.chain([descriptors]))
    }
}

// === impl Metrics ===

impl Metrics {
    /// Binds the configured address, or takes the socket that was passed. `None` if metrics are
    /// off.
    fn build(
        inherited: Option<net::TcpListener>,
        config: &Config,
    ) -> Result<Option<Self>, BuildError> {
        let listener = match (inherited, &config.metrics) {
            (Some(listener), _) => metrics::Listener::Tcp(listener),
            (None, Some(address)) => metrics::bind(address)?,
            (None, None) => {
                if !config.metrics_functions.is_empty() {
                    tracing::warn!("--metrics-functions has no effect without --metrics");
                }
                return Ok(None);
            }
        };
        let metering = Metering::new(config.measured_functions()?, config.metrics_max_functions);
        let metering = Arc::new(metering.map_err(BuildError::Clock)?);
        listener.announce();
        Ok(Some(Self { listener, metering }))
    }
}

/// The daemon's runtime. Two workers suffice, since the work is done by the sessions' own threads.
///
/// # Errors
///
/// The error of the system.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(rpc::BLOCKING_THREADS)
        // An idle daemon keeps no threads for requests.
        .thread_keep_alive(IDLE_THREADS_END_AFTER)
        .thread_name("xrayd-rpc")
        .enable_all()
        .build()
}

fn served(
    ended: Result<Result<(), rpc::ServeError>, tokio::task::JoinError>,
) -> Result<(), rpc::ServeError> {
    // The panic hook has logged the panic. The shutdown goes on as usual.
    ended.unwrap_or_else(|_| Err(rpc::ServeError::Panicked))
}

/// The users who may connect to the socket of this user's daemon.
fn access_of(user: Uid) -> Access {
    match user.is_root() {
        true => Access::Everybody,
        false => Access::Owner,
    }
}

/// Lets the daemon have as many descriptors as the system allows. A session takes six, and a
/// user's programs begin with 1,024 as a rule. The daemon starts no programs that would inherit it.
pub fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}

/// The configured folder of the state, or the default one if that can be used.
fn state_folder(config: &Config) -> Result<Option<Arc<StateFolder>>, FolderError> {
    match &config.state_dir {
        Some(PathSetting::Off) => Ok(None),
        Some(PathSetting::At(path)) => StateFolder::open(path).map(Some),
        None => {
            let opened = state::default_folder().map(|path| StateFolder::open(&path));
            Ok(opened.and_then(|opened| {
                opened
                    .inspect_err(|error| {
                        tracing::warn!(
                            %error,
                            "sessions do not outlive this daemon: see --state-dir"
                        );
                    })
                    .ok()
            }))
        }
    }
}

/// The configured path, or the default one.
fn path_or(
    setting: Option<&PathSetting>,
    default: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    match setting {
        Some(PathSetting::Off) => None,
        Some(PathSetting::At(path)) => Some(path.clone()),
        None => default(),
    }
}

/// Puts the policies of the folder in force, beside the daemon's start.
fn begin(policies: &Policies) {
    let policies = policies.clone();
    let thread = std::thread::Builder::new().name("load-policies".to_owned());
    if let Err(error) = thread.spawn(move || load(&policies)) {
        tracing::error!(%error, "cannot start the thread that loads policies");
    }
}

fn load(policies: &Policies) {
    // What is wrong with the folder is logged where it is found.
    if let Err(refusal) = policies.begin() {
        tracing::debug!(%refusal, "policies were not loaded");
    }
}

/// Goes on with the sessions of a daemon that has ended. Waits for [`RECOVERY_TIME`] at most:
/// processes whose files do not answer are attached to later.
/// The policies begin after that, because their processes are among the sessions.
async fn recover(
    registry: &Registry,
    state: Arc<StateFolder>,
    segments: Arc<SegmentStore>,
    policies: Policies,
) {
    let registry = registry.clone();
    let of_thread = policies.clone();
    let (done, is_done) = oneshot::channel();
    let recover = move || {
        let started = std::time::Instant::now();
        let records = state.records().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot list the records of sessions");
            Vec::new()
        });
        if !records.is_empty() {
            let (mut going_on, mut others) = (0, 0);
            for (pid, outcome) in registry.recover(&records) {
                match outcome {
                    Ok(report) => {
                        going_on += 1;
                        for note in report.notes {
                            tracing::info!(%pid, note, "a session goes on");
                        }
                    }
                    Err(Refusal { reason, message }) => {
                        others += 1;
                        tracing::warn!(%pid, %reason, message, "a session does not go on");
                    }
                }
            }
            tracing::info!(
                going_on,
                others,
                within_ms = started.elapsed().as_millis(),
                "went on with the sessions of an earlier daemon"
            );
        }
        // A record of a process that is gone was removed.
        match state.records() {
            Ok(records) => drop_orphans(&segments, &records),
            Err(error) => tracing::error!(%error, "cannot list the records of sessions"),
        }
        // The receiver may have stopped waiting.
        let _ = done.send(());
        load(&policies);
    };
    let thread = std::thread::Builder::new().name("recover".to_owned());
    if let Err(error) = thread.spawn(recover) {
        tracing::error!(%error, "cannot start the thread that goes on with sessions");
        return begin(&of_thread);
    }
    if tokio::time::timeout(RECOVERY_TIME, is_done).await.is_err() {
        tracing::warn!("some sessions of an earlier daemon are still to go on");
    }
}

/// Drops the segments of sessions that do not go on. Segments of a process that has no record and
/// lives stay for the next daemon.
fn drop_orphans(segments: &SegmentStore, records: &[SessionRecord]) {
    let is_orphan = |name: &SegmentName| {
        let its = (name.pid, name.start_time);
        let records = records.iter();
        let mut records = records.filter(|record| (record.pid, record.start_time) == its);
        match records.next() {
            Some(first) => {
                first.session != name.session
                    && !records.any(|record| record.session == name.session)
            }
            None => !Threads::is_process(name.pid, name.start_time),
        }
    };
    let orphans = segments.take_found(is_orphan);
    let mut dropped = BTreeMap::<Pid, u64>::new();
    for orphan in &orphans {
        *dropped.entry(orphan.name.pid).or_default() += export::events_of(orphan).unwrap_or(0);
    }
    for (pid, events) in dropped {
        tracing::warn!(
            %pid, events,
            "dropped the retained events of a session that has ended since an earlier daemon"
        );
    }
}

/// The path of this daemon's socket, if another daemon answers there.
fn running_at(config: &Config) -> Option<PathBuf> {
    let path = config.socket_path().ok()?;
    UnixStream::connect(&path).is_ok().then_some(path)
}

/// Leaves every process as it is, for the next daemon. Waits up to `time`.
async fn leave_all(registry: &Registry, time: Duration) {
    let deadline = Instant::now() + time;
    let registry = registry.clone();
    let left = tokio::task::spawn_blocking(move || registry.leave_all(deadline.into_std()));
    // The panic hook has logged a panic.
    let left = timeout_at(deadline + DRAIN_TIME, left).await;
    for (pid, outcome) in left.ok().and_then(Result::ok).unwrap_or_default() {
        match outcome {
            Ok(()) => tracing::info!(%pid, "left to the next daemon"),
            Err(refusal) if refusal.reason == Reason::TargetExited => {}
            Err(Refusal { reason, message }) => {
                tracing::warn!(%pid, %reason, message, "cannot end the session of a process");
            }
        }
    }
}

/// Detaches from every process. Waits up to `time` for processes whose attach or detach is under
/// way, or whose detach hangs.
async fn detach_all(registry: &Registry, time: Duration) {
    let deadline = Instant::now() + time;
    let mut pause = BUSY_PAUSE;
    loop {
        let registry = registry.clone();
        let (done, is_done) = oneshot::channel();
        // Not on a thread for requests: calls that hang may have them all.
        let detach = move || {
            // The receiver waits beyond the deadline.
            let _ = done.send(registry.detach_all(deadline.into_std()));
        };
        let thread = std::thread::Builder::new().name("detach-all".to_owned());
        let started = thread.spawn(detach);
        let done = timeout_at(deadline + DRAIN_TIME, is_done).await;
        let late = Instant::now() >= deadline;
        let mut busy = started.is_err() && !late;
        if let Err(error) = started {
            tracing::error!(%error, "cannot start a thread that detaches");
        }
        // The panic hook has logged a panic.
        let done = done.ok().and_then(Result::ok).unwrap_or_default();
        for (pid, outcome) in done {
            match outcome {
                Ok(_) => tracing::info!(%pid, "detached"),
                Err(refusal) if refusal.reason == Reason::Busy && !late => busy = true,
                Err(Refusal { reason, message }) => {
                    tracing::error!(%pid, %reason, message, "cannot detach");
                }
            }
        }
        if !busy {
            return;
        }
        tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
        pause = (2 * pause).min(LONGEST_BUSY_PAUSE);
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
    use super::*;
    use crate::{
        policies::MOST_ATTACHES,
        process::{MOST_IN_A_CALL, MOST_IN_A_GROUP},
        quotas::{Quotas, Resource},
        rpc::BLOCKING_THREADS,
        segments::MOST_SEGMENTS,
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
        // A detach that hangs keeps a thread, and a call several, see `process/parallel.rs`.
        let detaches = total(Resource::Sessions);
        let calls =
            BLOCKING_THREADS * (1 + MOST_IN_A_GROUP) + MOST_IN_A_CALL * (1 + MOST_IN_A_GROUP);
        // The thread of the policies, and its attaches.
        let policies = 1 + MOST_ATTACHES * (1 + MOST_IN_A_GROUP);
        assert!(tasks > total(Resource::Threads) + detaches + (calls + policies) as u64 + 20);
        let memory: ByteSize = format!("{}iB", set("MemoryMax")).parse().unwrap();
        // One descriptor for each segment, beside those of sessions.
        let kept: usize = set("FileDescriptorStoreMax").parse().unwrap();
        assert_eq!(kept, MOST_SEGMENTS);
        let files: u64 = set("LimitNOFILE").parse().unwrap();
        assert!(files > 6 * total(Resource::Sessions) + 2 * kept as u64);
        // All ring copies of snapshots together, see `collect/ring_copies.rs`.
        let copies = 4 << 30;
        let taken = total(Resource::Retained) + total(Resource::Patterns) + copies;
        assert!(memory.bytes() > taken, "{memory}");
        let stop = set("TimeoutStopSec").strip_suffix('s').unwrap();
        let stop = Duration::from_secs(stop.parse().unwrap());
        assert!(stop > DETACH_TIME + LATE_DETACH_TIME + 4 * DRAIN_TIME);
        let weight: u64 = set("CPUWeight").parse().unwrap();
        assert!((1..=100).contains(&weight));
    }
}
