//! The audit record: one JSON line for each decision about a call, grants and refusals, reads
//! included.
//!
//! ```text
//!  rpc: Call ─► rate of the user ─► queue ─► thread "xrayd-audit" ─► log (target `audit`) or file
//!                     │               │
//!                     └── dropped, counted by user, recorded once a second
//! ```
//!
//! A caller never waits for the record. One user's flood costs that user's records only.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime as _, SystemTime},
};

use crate::{
    Pid,
    lock::lock,
    logs::AUDIT_TARGET,
    rate::{Bucket, Rate},
    refusal::{Reason, Refusal},
    target::Caller,
    text::is_hazard,
};

/// The rate of records of one user.
const USER_RATE: Rate = Rate {
    burst: 200,
    per_second: 20,
};

/// Users that have a rate of their own. Further users share the rate of [`OTHERS`].
const MOST_USERS: usize = 4096;
/// The key of the shared rate. It is the kernel's "no user", so no user has this id.
const OTHERS: u32 = u32::MAX;

/// Limit on records that wait for the writing thread.
const QUEUED: usize = 1024;

/// Interval of the records that report drops.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Longest wait at the end of the daemon for queued records.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// Limit on processes that a record names.
const MOST_PIDS: usize = 64;
/// Limit on each text in a record before it is escaped, in bytes.
const LONGEST_TEXT: usize = 512;

/// The destination of the audit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditSink {
    /// Log lines with the target `audit`.
    Log,
    /// A file. The daemon appends to it, or creates it with mode 0600.
    File(PathBuf),
    /// No audit record.
    Off,
}

/// The file of the audit record cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the audit record to {}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// A handle to the audit record. Clones share it.
#[derive(Debug, Clone)]
pub struct AuditLog(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    queue: SyncSender<Message>,
    rates: Arc<Mutex<Rates>>,
}

/// Rates by user. Users that made no records for a while have none.
#[derive(Debug, Default)]
struct Rates(HashMap<u32, Bucket>);

#[derive(Debug)]
enum Message {
    Line(String),
    /// Answered when all lines before it are written.
    Flush(SyncSender<()>),
}

/// The operation that a caller requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Connect,
    ListProcesses,
    Preflight,
    Attach,
    Detach,
    ListFunctions,
    Enable,
    Disable,
    /// A preview of enabling or disabling.
    DryRun,
    UpdateSettings,
    Status,
    StreamEvents,
    StreamTrace,
    Snapshot,
    Counts,
    Profile,
    Trigger,
    /// A trigger that has fired enables or disables functions.
    TriggerSwitch,
    /// A trigger that has fired sends a snapshot.
    TriggerSnapshot,
    /// The daemon undoes a client's changes because the client is gone.
    Undo,
    Restart,
    ListPolicies,
    ApplyPolicy,
    RemovePolicy,
    ReloadPolicies,
    GetAccess,
    ReloadAccess,
    CheckAccess,
}

/// A call whose decision is recorded. A call that is dropped without a decision is recorded as
/// unfinished.
#[derive(Debug)]
#[must_use]
pub(crate) struct Call {
    log: AuditLog,
    caller: Caller,
    operation: Operation,
    /// The process that the request names. `None` for all processes of the caller.
    pid: Option<u32>,
    /// The requested selection or setting. Empty without one.
    what: String,
    /// The line of the rule of access that has allowed it. 0: none was needed.
    rule: Arc<AtomicUsize>,
    is_decided: bool,
}

/// A decision, or the lack of one.
#[derive(Debug, Clone, Copy)]
enum Decision<'a> {
    Granted,
    Refused(&'a Refusal),
    /// The client disconnected, or the call panicked.
    Unfinished,
}

// === impl AuditSink ===

impl FromStr for AuditSink {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "log" => Self::Log,
            "off" => Self::Off,
            path => Self::File(path.into()),
        })
    }
}

// === impl AuditLog ===

impl AuditLog {
    /// No record, for sessions in a user's own process.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Opens the sink and starts the writing thread.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub(crate) fn start(sink: &AuditSink) -> Result<Self, AuditError> {
        let (path, mut file) = match sink {
            AuditSink::Off => return Ok(Self::off()),
            AuditSink::Log => (Path::new("the log"), None),
            AuditSink::File(path) => (path.as_path(), Some(open(path)?)),
        };
        let write = move |line: &str| match &mut file {
            Some(file) => append(file, line),
            None => {
                tracing::info!(target: AUDIT_TARGET, "{line}");
                Ok(())
            }
        };
        Self::with_writer(write).map_err(|source| AuditError {
            path: path.to_owned(),
            source,
        })
    }

    fn with_writer(write: impl FnMut(&str) -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        let (queue, messages) = mpsc::sync_channel(QUEUED);
        let rates = Arc::<Mutex<Rates>>::default();
        let of_thread = Arc::clone(&rates);
        thread::Builder::new()
            .name("xrayd-audit".to_owned())
            .spawn(move || run(&messages, &of_thread, write))?;
        Ok(Self(Some(Arc::new(Shared { queue, rates }))))
    }

    /// Waits until all records so far are written, for [`FLUSH_TIME`] at most.
    pub(crate) fn flush(&self) {
        let Some(shared) = &self.0 else { return };
        let (done, written) = mpsc::sync_channel(1);
        if shared.queue.try_send(Message::Flush(done)).is_ok() {
            // The sink may be stuck. The daemon ends without its records then.
            let _ = written.recv_timeout(FLUSH_TIME);
        }
    }

    /// Begins a call.
    pub(crate) fn call(&self, caller: Caller, operation: Operation) -> Call {
        Call {
            log: self.clone(),
            caller,
            operation,
            pid: None,
            what: String::new(),
            rule: Arc::default(),
            is_decided: false,
        }
    }

    fn record(&self, call: &Call, pids: &[u32], decision: Decision<'_>) {
        let Some(Shared { queue, rates }) = self.0.as_deref() else {
            return;
        };
        let uid = call.caller.uid;
        let now = Instant::now();
        if !lock(rates).of(uid, now).take(USER_RATE, now) {
            return;
        }
        match queue.try_send(Message::Line(line(call, pids, decision))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                lock(rates).of(uid, now).drop_one();
            }
        }
    }
}

/// Opens a file for appending lines.
fn open(path: &Path) -> Result<File, AuditError> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // A link or a FIFO at this path is not the file that the administrator named.
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
        .open(path)
        .and_then(|file| match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("not a regular file")),
        });
    opened.map_err(|source| AuditError {
        path: path.to_owned(),
        source,
    })
}

/// Appends a whole line in one write, because other processes may append to the file, too.
fn append(file: &mut File, line: &str) -> io::Result<()> {
    file.write_all(format!("{line}\n").as_bytes())
}

/// Writes lines until all handles are gone.
fn run(
    messages: &Receiver<Message>,
    rates: &Mutex<Rates>,
    mut write: impl FnMut(&str) -> io::Result<()>,
) {
    let mut is_failing = false;
    let mut put = |line: &str| {
        let written = write(line);
        if let Err(error) = &written
            && !is_failing
        {
            tracing::error!(%error, "cannot write the audit record");
        }
        is_failing = written.is_err();
    };
    let mut reported = Instant::now();
    loop {
        let left = TELL_EVERY.saturating_sub(reported.elapsed());
        let done = match messages.recv_timeout(left) {
            Ok(Message::Line(line)) => {
                put(&line);
                None
            }
            Ok(Message::Flush(done)) => Some(done),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if done.is_some() || reported.elapsed() >= TELL_EVERY {
            reported = Instant::now();
            // Written without the lock, because callers wait for it.
            let dropped = lock(rates).take_dropped(reported);
            for (uid, dropped) in dropped {
                put(&dropped_line(uid, dropped));
            }
        }
        if let Some(done) = done {
            // The receiver may have given up.
            let _ = done.try_send(());
        }
    }
}

// === impl Rates ===

impl Rates {
    fn of(&mut self, uid: u32, now: Instant) -> &mut Bucket {
        let is_one_more = !self.0.contains_key(&uid) && self.0.len() >= MOST_USERS;
        let key = if is_one_more { OTHERS } else { uid };
        let bucket = || Bucket::full(USER_RATE, now);
        self.0.entry(key).or_insert_with(bucket)
    }

    /// Records that were dropped since the last call, by user.
    fn take_dropped(&mut self, now: Instant) -> Vec<(u32, u64)> {
        let mut dropped = Vec::new();
        self.0.retain(|&uid, bucket| {
            let count = bucket.take_dropped();
            if count > 0 {
                dropped.push((uid, count));
            }
            !bucket.is_fresh(USER_RATE, now)
        });
        dropped
    }
}

// === impl Operation ===

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ListProcesses => "list-processes",
            Self::Preflight => "preflight",
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::ListFunctions => "list-functions",
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::DryRun => "dry-run",
            Self::UpdateSettings => "update-settings",
            Self::Status => "status",
            Self::StreamEvents => "stream-events",
            Self::StreamTrace => "stream-trace",
            Self::Snapshot => "snapshot",
            Self::Counts => "counts",
            Self::Profile => "profile",
            Self::Trigger => "trigger",
            Self::TriggerSwitch => "trigger-switch",
            Self::TriggerSnapshot => "trigger-snapshot",
            Self::Undo => "undo",
            Self::Restart => "restart",
            Self::ListPolicies => "list-policies",
            Self::ApplyPolicy => "apply-policy",
            Self::RemovePolicy => "remove-policy",
            Self::GetAccess => "get-access",
            Self::ReloadAccess => "reload-access",
            Self::CheckAccess => "check-access",
            Self::ReloadPolicies => "reload-policies",
        }
    }
}

// === impl Call ===

impl Call {
    /// The place for the line of the rule of access that allows the call.
    pub(crate) fn with_rule(mut self, rule: Arc<AtomicUsize>) -> Self {
        self.rule = rule;
        self
    }

    /// Sets the process. 0 stands for all processes of the caller.
    pub(crate) fn of(mut self, pid: u32) -> Self {
        self.pid = (pid > 0).then_some(pid);
        self
    }

    /// Sets the selection or setting.
    pub(crate) fn with(mut self, what: String) -> Self {
        self.note(what);
        self
    }

    /// Sets the selection or setting, once it is known.
    pub(crate) fn note(&mut self, what: String) {
        self.what = what;
    }

    pub(crate) fn caller(&self) -> Caller {
        self.caller
    }

    /// Records the decision about the call as a whole, unless decisions about its processes were
    /// recorded.
    pub(crate) fn decide<T>(&mut self, result: &Result<T, Refusal>) {
        if !self.is_decided {
            let pid = self.pid;
            let decision = match result {
                Ok(_) => Decision::Granted,
                Err(refusal) => Decision::Refused(refusal),
            };
            self.record(pid.as_slice(), decision);
        }
    }

    /// Records the decisions about its processes. Processes with the same decision share a record.
    pub(crate) fn decide_each<T>(&mut self, outcomes: &[(Pid, Result<T, Refusal>)]) {
        let mut granted = Vec::new();
        let mut refused: Vec<(&Refusal, Vec<u32>)> = Vec::new();
        for (pid, outcome) in outcomes {
            let pid = pid.as_u32();
            let Err(refusal) = outcome else {
                granted.push(pid);
                continue;
            };
            let same = |(other, _): &&mut (&Refusal, Vec<u32>)| other.reason == refusal.reason;
            match refused.iter_mut().find(same) {
                Some((_, pids)) => pids.push(pid),
                None => refused.push((refusal, vec![pid])),
            }
        }
        if !granted.is_empty() {
            self.record(&granted, Decision::Granted);
        }
        for (refusal, pids) in refused {
            self.record(&pids, Decision::Refused(refusal));
        }
    }

    fn record(&mut self, pids: &[u32], decision: Decision<'_>) {
        self.is_decided = true;
        self.log.record(self, pids, decision);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_decided {
            let pid = self.pid;
            self.record(pid.as_slice(), Decision::Unfinished);
        }
    }
}

/// The record as a line of JSON, without the newline.
fn line(call: &Call, pids: &[u32], decision: Decision<'_>) -> String {
    let Caller { uid, pid, .. } = call.caller;
    let mut line = begin(uid);
    // Writing to a `String` does not fail.
    let _ = write!(
        line,
        r#","caller":{pid},"operation":"{}""#,
        call.operation.name()
    );
    let named = &pids[..pids.len().min(MOST_PIDS)];
    let _ = write!(line, r#","pids":{named:?}"#);
    if named.len() < pids.len() {
        let _ = write!(line, r#","processes":{}"#, pids.len());
    }
    if !call.what.is_empty() {
        line.push_str(r#","what":"#);
        push_text(&mut line, &call.what);
    }
    let (decision, refusal) = match decision {
        Decision::Granted => ("granted", None),
        Decision::Refused(refusal) => ("refused", Some(refusal)),
        Decision::Unfinished => ("unfinished", None),
    };
    let _ = write!(line, r#","decision":"{decision}""#);
    if let rule @ 1.. = call.rule.load(Ordering::Relaxed) {
        let _ = write!(line, r#","rule":{rule}"#);
    }
    if let Some(Refusal { reason, message }) = refusal {
        let _ = write!(line, r#","reason":"{}","message":"#, Reason::id(*reason));
        push_text(&mut line, message);
    }
    line.push('}');
    line
}

fn dropped_line(uid: u32, dropped: u64) -> String {
    let mut line = begin(uid);
    let _ = write!(line, r#","operation":"record","dropped":{dropped}}}"#);
    line
}

fn begin(uid: u32) -> String {
    let mut line = String::from(r#"{"time":""#);
    // The call fails if the clock is set to a time before 1970. The record has no time then.
    let _ = SystemTime.format_time(&mut Writer::new(&mut line));
    let _ = write!(line, r#"","uid":{uid}"#);
    line
}

/// A JSON string of the first [`LONGEST_TEXT`] bytes of the text. Hazards are escaped, too.
fn push_text(line: &mut String, text: &str) {
    line.push('"');
    for (at, c) in text.char_indices() {
        if at + c.len_utf8() > LONGEST_TEXT {
            line.push('…');
            break;
        }
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            // All hazards are in the basic multilingual plane.
            c if is_hazard(c) => {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests;
