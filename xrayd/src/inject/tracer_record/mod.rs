//! The tracer's record in the table: it names the xrayd that uses the memory in a target.
//!
//! The lock of [`crate::sys::Claim`] belongs to one mount of procfs, so a daemon on the host and a
//! recorder in a container can hold one each. The table is the same memory for both. The record in
//! it names the tracer, and the tracer renews a counter beside it while it lives:
//!
//! ```text
//! boot | pid namespace | pid | start time | random number | checksum      counter
//! ```
//!
//! Memory of another process has no compare-and-exchange. A tracer takes the record in three steps:
//!
//! 1. It looks. A record is free if it is empty or torn, or if its tracer is gone. A tracer is gone
//!    if it is of another boot; if it is of this pid namespace and has no process; or if its record
//!    was not renewed for [`STALE`]. The last is not enough where the process can be seen to live.
//! 2. It writes its own record. If more than [`SETTLE`] has passed since the look, it takes the
//!    record away again, and starts over after a pause. The scheduler prefers its thread from the
//!    look to the write, so that this is rare where many threads wait for a processor.
//! 3. It waits for [`SETTLE`] and reads. The record is its own, or another tracer's. Then that
//!    tracer has the table.
//!
//! Of two tracers that both saw a free record, the later one writes within [`SETTLE`] of its look,
//! and the look was before the earlier one's write. So the earlier one reads the later one's record
//! in step 3. Two writes at the same moment can mix. The checksum shows that, and both start over.
//! A tracer whose record a slow one has overwritten finds an empty one, and writes its own again.
//!
//! The record is in the target's memory. A target that forges it keeps tracers away from itself, or
//! ends its own session.

#[cfg(test)]
mod tests;

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{errno::Errno, sys::signal::kill, unistd};
use procfs::process::Process;
use shm_ring::layout::table;
use xray_trace::model::Ticks;

use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::{Memory, PriorityBoost},
};

/// Time between two renewals of the counter.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(5);
/// A record whose counter was not renewed for this time may be a dead tracer's.
const STALE: Duration = Duration::from_secs(12);
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// Longer than the time from a look at the record to the write that follows it, unless the tracer
/// is interrupted.
const SETTLE: Duration = Duration::from_millis(5);
/// Tries to take a record, and the time for them: the target may change the record at will.
const TRIES: usize = 10;
const LONGEST_TAKE: Duration = Duration::from_secs(50);

const WORDS: usize = 6;
const BYTES: usize = WORDS * 8;
/// Bytes of the record with the counter.
const RECORD_BYTES: usize = BYTES + 8;
#[expect(clippy::cast_possible_truncation, reason = "within a page")]
const RECORD_AT: usize = table::TRACER as usize;
#[expect(clippy::cast_possible_truncation, reason = "within a page")]
const LIVE_AT: usize = table::LIVE as usize;
#[expect(clippy::cast_possible_truncation, reason = "within a page")]
const CLOSED_AT: usize = table::CLOSED_AT as usize;
const _: () = assert!(table::TRACER_COUNTER == table::TRACER + BYTES as u64);

/// A tracer, as its record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tracer {
    /// The beginning of the kernel's boot id.
    boot: u64,
    /// Inode of the pid namespace to which `pid` belongs.
    namespace: u64,
    pid: u64,
    /// Field 22 of `/proc/<pid>/stat`.
    start: u64,
    /// Distinguishes sessions of one tracer.
    random: u64,
}

/// The record and the counter that are in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// `None` if the record is empty or torn.
    tracer: Option<Tracer>,
    counter: u64,
}

/// The state of another tracer, as one tracer can see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// The tracer is gone, or it is an ended session of this process.
    Gone,
    /// The tracer's process can be seen to live.
    Lives,
    /// The tracer's process cannot be seen from here.
    Hidden,
}

/// Whether a session still has its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimState {
    /// The session has its table.
    Held,
    /// The same, but trampolines have closed recording, or the program has written to the table.
    /// The time is what stands there.
    Closed(Ticks),
    /// The address space is gone, as after an `exec` (P49).
    Gone,
    /// The table is another tracer's, or another tracer has closed it. The text describes the
    /// event.
    Lost(String),
}

/// The right to use a table. Dropping it empties the record, unless the record is another tracer's
/// by then.
#[derive(Debug)]
pub(crate) struct TableClaim {
    pub(super) memory: Arc<Memory>,
    pub(super) table: TargetAddr,
    tracer: Tracer,
    counter: u64,
    renewed: Instant,
}

// === impl Tracer ===

impl Tracer {
    fn this() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = digits.get(..16).unwrap_or_default();
        let stat = Process::myself()
            .and_then(|process| process.stat())
            .map_err(io::Error::other)?;
        let mut random = [0u8; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(Self {
            boot: u64::from_str_radix(boot, 16).map_err(io::Error::other)?,
            namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
            pid: u64::from(std::process::id()),
            start: stat.starttime,
            random: u64::from_le_bytes(random),
        })
    }

    fn words(&self) -> [u64; WORDS] {
        let Self {
            boot,
            namespace,
            pid,
            start,
            random,
        } = *self;
        let check = checksum([boot, namespace, pid, start, random]);
        [boot, namespace, pid, start, random, check]
    }

    fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0u8; BYTES];
        for (piece, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words()) {
            *piece = word.to_le_bytes();
        }
        bytes
    }

    /// The state of `other`, as `self` can see it.
    fn life_of(&self, other: &Self) -> Life {
        if other.boot != self.boot {
            return Life::Gone;
        }
        if other.namespace != self.namespace {
            return Life::Hidden;
        }
        if (other.pid, other.start) == (self.pid, self.start) {
            // This process holds its lock on the target for the session that looks, so its other
            // sessions are over.
            return Life::Gone;
        }
        let Some(pid) = i32::try_from(other.pid).ok().filter(|pid| *pid > 0) else {
            return Life::Gone;
        };
        // A mount of procfs can hide processes of other users.
        if kill(unistd::Pid::from_raw(pid), None) == Err(Errno::ESRCH) {
            return Life::Gone;
        }
        match Process::new(pid).and_then(|process| process.stat()) {
            Ok(stat) if matches!(stat.state, 'Z' | 'X') => Life::Gone,
            Ok(stat) if stat.starttime == other.start => Life::Lives,
            // Another process has the pid, or the tracer is in another time namespace.
            _ => Life::Hidden,
        }
    }

    fn describe(&self) -> String {
        format!("process {} of pid namespace {}", self.pid, self.namespace)
    }
}

/// A check that distinguishes a whole record from a mixture of two.
fn checksum(words: [u64; WORDS - 1]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    words.into_iter().fold(FACTOR, |sum, word| {
        (sum ^ word).wrapping_mul(FACTOR).rotate_left(29)
    })
}

// === impl Seen ===

impl Seen {
    fn read(memory: &Memory, table: TargetAddr) -> io::Result<Self> {
        let mut bytes = [0u8; RECORD_BYTES];
        memory.read(TargetAddr(table.0 + table::TRACER), &mut bytes)?;
        Ok(Self::understand(&bytes))
    }

    /// Decodes a record and its counter.
    fn understand(bytes: &[u8]) -> Self {
        let mut words = [0u64; WORDS + 1];
        for (word, piece) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*piece);
        }
        let [boot, namespace, pid, start, random, check, counter] = words;
        let is_whole = check == checksum([boot, namespace, pid, start, random]);
        let tracer = is_whole.then_some(Tracer {
            boot,
            namespace,
            pid,
            start,
            random,
        });
        Self { tracer, counter }
    }
}

// === impl TableClaim ===

impl TableClaim {
    /// Takes a table that was just mapped, before anything names its place.
    pub(super) fn of_new(memory: &Arc<Memory>, table: TargetAddr, pid: Pid) -> Result<Self> {
        let tracer = Tracer::this().map_err(|error| Refusal::from_io(pid, LOOK, &error))?;
        let claim = Self::new(memory, table, tracer);
        claim
            .write_record(&tracer.bytes())
            .map_err(|error| Refusal::from_io(pid, "write to the table", &error))?;
        Ok(claim)
    }

    /// Takes a table that was there before.
    ///
    /// # Errors
    /// Another tracer has it.
    pub(super) fn take(memory: &Arc<Memory>, table: TargetAddr, pid: Pid) -> Result<Self> {
        let tracer = Tracer::this().map_err(|error| Refusal::from_io(pid, LOOK, &error))?;
        Self::take_as(tracer, memory, table, pid)
    }

    fn take_as(tracer: Tracer, memory: &Arc<Memory>, table: TargetAddr, pid: Pid) -> Result<Self> {
        let failed = |error: io::Error| Refusal::from_io(pid, "write to the table", &error);
        // The claim is dropped if another tracer gets the table. Then it leaves that tracer's
        // record alone.
        let claim = Self::new(memory, table, tracer);
        let mut stale = None;
        let mut slow = 0;
        let since = Instant::now();
        for _ in 0..TRIES {
            if since.elapsed() > LONGEST_TAKE {
                break;
            }
            let urgent = PriorityBoost::begin();
            let looked = Instant::now();
            let seen = Seen::read(memory, table).map_err(failed)?;
            if let Some(other) = seen.tracer
                && stale != Some(seen)
                && tracer.life_of(&other) != Life::Gone
            {
                drop(urgent);
                claim.wait_until_stale(seen, &other, pid)?;
                stale = Some(seen);
                continue;
            }
            claim.write_record(&tracer.bytes()).map_err(failed)?;
            let took = looked.elapsed();
            drop(urgent);
            if took > SETTLE {
                slow += 1;
                claim.withdraw();
                thread::sleep(2 * RENEW_EVERY);
                continue;
            }
            thread::sleep(SETTLE);
            if Seen::read(memory, table).map_err(failed)?.tracer == Some(tracer) {
                return Ok(claim);
            }
        }
        let message = match slow {
            0 => format!("another xrayd attaches to process {pid} at the same time"),
            _ => format!(
                "process {pid} could not be claimed within {} s: {slow} times this machine was too \
                 busy to read and write a page of its memory within {} ms",
                since.elapsed().as_secs(),
                SETTLE.as_millis()
            ),
        };
        Err(Refusal::new(Reason::Busy, message))
    }

    /// The tracer that a table's record names, in words, unless that tracer is gone.
    pub(super) fn living_tracer(memory: &Memory, table: TargetAddr) -> Option<String> {
        let other = Seen::read(memory, table).ok()?.tracer?;
        let this = Tracer::this().ok()?;
        (this.life_of(&other) != Life::Gone).then(|| other.describe())
    }

    fn new(memory: &Arc<Memory>, table: TargetAddr, tracer: Tracer) -> Self {
        Self {
            memory: Arc::clone(memory),
            table,
            tracer,
            counter: 0,
            renewed: Instant::now(),
        }
    }

    /// Watches another tracer's record until it is stale.
    ///
    /// # Errors
    /// The record is renewed, or its tracer can be seen to live.
    fn wait_until_stale(&self, seen: Seen, other: &Tracer, pid: Pid) -> Result<()> {
        let since = Instant::now();
        let busy = || {
            let message = format!(
                "process {pid} is traced by another xrayd: {}",
                other.describe()
            );
            Refusal::new(Reason::Busy, message)
        };
        loop {
            let life = self.tracer.life_of(other);
            let now = Seen::read(&self.memory, self.table)
                .map_err(|error| Refusal::from_io(pid, "read the table", &error))?;
            if life == Life::Gone {
                return Ok(());
            }
            if life == Life::Lives || now != seen {
                return Err(busy());
            }
            if since.elapsed() > STALE {
                return Ok(());
            }
            thread::sleep(WATCH_EVERY);
        }
    }

    /// Renews the counter where that is due. Returns whether the table is still this session's.
    pub(crate) fn tend(&mut self) -> ClaimState {
        let mut header = [0u8; RECORD_AT + RECORD_BYTES];
        if self.memory.read(self.table, &mut header).is_err() {
            return ClaimState::Gone;
        }
        let is_live = header[LIVE_AT..LIVE_AT + 8] != [0; 8];
        let closed_at = <[u8; 8]>::try_from(&header[CLOSED_AT..CLOSED_AT + 8]);
        let closed_at = closed_at.map_or(0, u64::from_le_bytes);
        match Seen::understand(&header[RECORD_AT..]).tracer {
            Some(other) if other != self.tracer => ClaimState::Lost(format!(
                "another xrayd, {}, traces the process now",
                other.describe()
            )),
            // Two threads that close recording while it is opened can leave one of the two words.
            Some(_) if !is_live || closed_at != 0 => ClaimState::Closed(Ticks(closed_at)),
            // That tracer is gone by now.
            _ if !is_live => ClaimState::Lost(
                "another xrayd has traced the process and detached from it".to_owned(),
            ),
            Some(_) => {
                if self.renewed.elapsed() >= RENEW_EVERY {
                    self.renewed = Instant::now();
                    self.counter = self.counter.wrapping_add(1);
                    let at = TargetAddr(self.table.0 + table::TRACER_COUNTER);
                    self.written(self.memory.write(at, &self.counter.to_le_bytes()));
                }
                ClaimState::Held
            }
            None => {
                self.written(self.write_record(&self.tracer.bytes()));
                ClaimState::Held
            }
        }
    }

    fn written(&self, result: io::Result<()>) {
        if let Err(error) = result {
            tracing::debug!(%error, table = self.table.0, "cannot renew the record in the table");
        }
    }

    fn write_record(&self, bytes: &[u8; BYTES]) -> io::Result<()> {
        let at = TargetAddr(self.table.0 + table::TRACER);
        self.memory.write(at, bytes)
    }

    /// Empties the record if it is this tracer's.
    fn withdraw(&self) {
        let seen = Seen::read(&self.memory, self.table);
        if seen.is_ok_and(|seen| seen.tracer == Some(self.tracer)) {
            self.written(self.write_record(&[0; BYTES]));
        }
    }
}

impl Drop for TableClaim {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// The step that fails where a tracer cannot name itself.
const LOOK: &str = "read the identity of this tracer";
