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
    Mode,
    Filter,
    Budget,
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
            Self::Mode => "mode",
            Self::Filter => "filter",
            Self::Budget => "budget",
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
        }
    }
}

// === impl Call ===

impl Call {
    /// Sets the process. 0 stands for all processes of the caller.
    pub(crate) fn of(mut self, pid: u32) -> Self {
        self.pid = (pid > 0).then_some(pid);
        self
    }

    /// Sets the selection or setting.
    pub(crate) fn with(mut self, what: String) -> Self {
        self.what = what;
        self
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
mod tests {
    use serde_json::Value;

    use super::*;

    /// An audit record in memory.
    fn memory() -> (AuditLog, Arc<Mutex<Vec<String>>>) {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&lines);
        let log = AuditLog::with_writer(move |line: &str| {
            lock(&written).push(line.to_owned());
            Ok(())
        });
        (log.unwrap(), lines)
    }

    fn caller(uid: u32) -> Caller {
        Caller::in_process(uid, 77)
    }

    fn refusal(message: &str) -> Refusal {
        Refusal::new(Reason::Permission, message)
    }

    fn parsed(lines: &Mutex<Vec<String>>) -> Vec<Value> {
        let lines = lock(lines);
        let parse = |line: &String| {
            assert!(!line.contains(is_hazard), "{line:?}");
            serde_json::from_str(line).unwrap()
        };
        lines.iter().map(parse).collect()
    }

    #[test]
    fn a_record_is_one_line_of_json_whatever_is_in_it() {
        let (log, lines) = memory();
        let forged = "\"x\\\n<6>attached uid=0\u{2028}\u{85}\u{1b}[2K\u{202e}é";
        let call = log.call(caller(1000), Operation::Enable);
        let mut call = call.of(42).with(forged.to_owned());
        call.decide::<()>(&Err(refusal(forged)));
        let mut long = log.call(caller(1000), Operation::Status);
        let pids: Vec<_> = (1..=100)
            .map(|pid| (Pid::try_from(pid).unwrap(), Ok(())))
            .collect();
        long.decide_each(&pids);
        drop(
            log.call(caller(0), Operation::Attach)
                .with("é".repeat(LONGEST_TEXT)),
        );
        log.flush();
        let records = parsed(&lines);
        let [first, second, third] = &records[..] else {
            panic!("{records:#?}");
        };
        assert_eq!(first["what"], forged);
        assert_eq!(first["message"], forged);
        for (key, value) in [
            ("operation", "enable"),
            ("decision", "refused"),
            ("reason", "permission"),
        ] {
            assert_eq!(first[key], value);
        }
        assert_eq!(
            (&first["uid"], &first["caller"]),
            (&1000.into(), &77.into())
        );
        assert_eq!(first["pids"], serde_json::json!([42]));
        assert!(
            first["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z')),
            "{first}"
        );
        assert_eq!(
            (&second["decision"], &second["processes"]),
            (&"granted".into(), &100.into())
        );
        assert_eq!(second["pids"].as_array().map(Vec::len), Some(MOST_PIDS));
        assert_eq!(third["decision"], "unfinished");
        assert!(
            third["what"]
                .as_str()
                .is_some_and(|what| what.len() < LONGEST_TEXT + 8)
        );
    }

    #[test]
    fn processes_are_grouped_by_what_was_decided() {
        let (log, lines) = memory();
        let outcome = |pid: u32, outcome| (Pid::try_from(pid).unwrap(), outcome);
        let mut call = log.call(caller(5), Operation::Detach);
        call.decide_each(&[
            outcome(1, Ok(())),
            outcome(2, Err(refusal("no"))),
            outcome(3, Ok(())),
            outcome(4, Err(Refusal::new(Reason::Busy, "later"))),
            outcome(5, Err(refusal("no"))),
        ]);
        // The decision about the whole call adds no record.
        call.decide(&Ok(()));
        drop(call);
        log.flush();
        let found = parsed(&lines)
            .into_iter()
            .map(|record| record["pids"].to_string());
        assert_eq!(found.collect::<Vec<_>>(), ["[1,3]", "[2,5]", "[4]"]);
    }

    #[test]
    fn a_flood_costs_the_flooding_user_alone_and_its_drops_are_recorded() {
        let (log, lines) = memory();
        let flood = 5000;
        for number in 0..flood {
            log.call(caller(1000), Operation::Status).decide(&Ok(()));
            // All users share the queue. The writer keeps up with the records that pass the rates.
            if number % 100 == 0 {
                log.call(caller(1001), Operation::Attach).decide(&Ok(()));
                log.flush();
            }
        }
        log.flush();
        let records = parsed(&lines);
        let of = |uid: u32| {
            let records = records.iter().filter(move |record| record["uid"] == uid);
            let (reported, kept): (Vec<_>, Vec<_>) =
                records.partition(|record| record["dropped"].is_u64());
            let dropped = reported
                .iter()
                .filter_map(|record| record["dropped"].as_u64());
            (kept.len(), dropped.sum::<u64>())
        };
        let (kept, dropped) = of(1000);
        assert_eq!(kept as u64 + dropped, flood);
        // A slow machine refills the bucket meanwhile.
        assert!(kept < 2500 && kept >= USER_RATE.burst as usize, "{kept}");
        assert_eq!(of(1001), (50, 0));
    }

    #[test]
    fn a_sink_that_stands_still_holds_up_nobody() {
        let (open, gate) = mpsc::sync_channel::<()>(0);
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&lines);
        let log = AuditLog::with_writer(move |line: &str| {
            // The call fails once the gate is open for good.
            let _ = gate.recv();
            lock(&written).push(line.to_owned());
            Ok(())
        });
        let log = log.unwrap();
        let users = 20;
        for uid in 1..=users {
            for _ in 0..USER_RATE.burst {
                log.call(caller(uid), Operation::Status).decide(&Ok(()));
            }
        }
        drop(open);
        log.flush();
        // The queue may have been full when the flush was requested.
        let began = Instant::now();
        while parsed(&lines)
            .iter()
            .all(|record| record["dropped"].is_null())
        {
            assert!(began.elapsed() < 300 * TELL_EVERY, "no drop is recorded");
            log.flush();
        }
        let records = parsed(&lines);
        let dropped: u64 = records
            .iter()
            .filter_map(|record| record["dropped"].as_u64())
            .sum();
        let kept = records
            .iter()
            .filter(|record| record["dropped"].is_null())
            .count();
        assert_eq!(kept as u64 + dropped, u64::from(users * USER_RATE.burst));
    }

    #[test]
    fn users_who_left_cost_nothing_and_too_many_share_a_rate() {
        let now = Instant::now();
        let mut rates = Rates::default();
        for uid in 0..2 * MOST_USERS {
            let uid = u32::try_from(uid).unwrap();
            rates.of(uid, now).take(USER_RATE, now);
        }
        assert_eq!(rates.0.len(), MOST_USERS + 1);
        let later = now + Duration::from_secs(600);
        let dropped = rates.take_dropped(later);
        let shared = MOST_USERS as u64 - u64::from(USER_RATE.burst);
        assert_eq!(dropped, [(OTHERS, shared)]);
        assert!(rates.0.is_empty());
    }

    #[test]
    fn a_file_is_private_and_extended_and_nothing_else_is_opened() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        for _ in 0..2 {
            let log = AuditLog::start(&AuditSink::File(path.clone())).unwrap();
            log.call(caller(1), Operation::Mode).decide(&Ok(()));
            log.flush();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for bad in [link, fifo, dir.path().to_owned()] {
            let error = AuditLog::start(&AuditSink::File(bad)).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("cannot write the audit record"),
                "{error}"
            );
        }
    }
}
