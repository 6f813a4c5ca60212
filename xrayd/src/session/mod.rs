//! One target's life, and the registry of all.
//!
//! | file | holds |
//! |---|---|
//! | `registry` | which processes are attached, and who may touch them |
//! | `attach` | the steps from a pid to a session |
//! | `control` | commands to the thread `ctl-<pid>`, and what it tells |
//! | `controller` | that thread: patching, the watch on the target's life, detach |
//! | `functions` | the functions of a target: names, sleds, what is on |
//! | `output` | where the drain's blocks go: retained, counted, fed to readers |
//! | `feed` | one reader of the live stream |

mod attach;
mod control;
mod controller;
mod feed;
mod functions;
mod output;
mod registry;

use std::{io, sync::Arc, time::Instant};

use xray_trace::{
    container::{End, Writer},
    instr_map::{CompiledSelection, Selection},
    model::{ClockAnchor, Function, FunctionId, Module, Process},
};

pub use attach::{AttachOptions, AttachReport, Attached, SkippedSleds};
pub use controller::DetachReport;
pub use feed::{Feed, FeedItem, Published};
pub use functions::FunctionRow;
pub use registry::{Caller, LaunchOptions, Launched, Registry, RegistryConfig};

pub use crate::inject::Switch;
pub(crate) use attach::Started;
pub(crate) use output::Output;

use self::{control::Control, functions::Functions};
use crate::{
    pid::Pid,
    refusal::{Reason, Refusal, Result},
};

/// Whether a change is made or only told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Made.
    Real,
    /// Told.
    Dry,
}

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Attached.
    Tracing,
    /// On the way out.
    Detaching,
    /// Its events cannot be read any more, because of a bug: everything is off, what was recorded is retained.
    Failed,
    /// The process has ended; what was recorded is retained.
    Exited,
}

/// What a toggle did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToggleReport {
    /// Functions that the selection matched.
    pub matched: u32,
    /// Functions whose state changed.
    pub changed: u32,
    /// Sleds switched.
    pub sleds: u64,
    /// Sleds left alone because their bytes are not what they should be.
    pub foreign: u64,
    /// Memory that became private to the target, in bytes.
    pub copied_bytes: u64,
    /// How long the patching took.
    pub elapsed: std::time::Duration,
    /// Some of the functions matched.
    pub sample: Vec<String>,
}

/// State and counters of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The process.
    pub pid: Pid,
    /// Its effective user.
    pub uid: u32,
    /// Its command line.
    pub command: String,
    /// Where the session is in its life.
    pub phase: Phase,
    /// What failed, in [`Phase::Failed`].
    pub failure: Option<String>,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Threads that have a ring.
    pub threads: u32,
    /// Events drained since attach.
    pub events: u64,
    /// Over the last second or so.
    pub events_per_second: f64,
    /// Events lost in the target.
    pub lost: u64,
    /// The fullest ring at the last drain, in permille.
    pub ring_use_permille: u32,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// Threads that can have a ring at the same time.
    pub max_threads: u32,
    /// Memory that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// Bytes retained.
    pub retained_bytes: u64,
    /// Events in them.
    pub retained_events: u64,
    /// Events dropped from what was retained, for space.
    pub evicted_events: u64,
    /// When it was attached, in nanoseconds since the Unix epoch.
    pub attached_wall_ns: u64,
}

/// One attached process.
#[derive(Debug)]
pub struct Session {
    pid: Pid,
    uid: u32,
    process: Process,
    command_line: String,
    modules: Vec<Module>,
    functions: Functions,
    output: Arc<Output>,
    control: Control,
    ring_bytes: u64,
    max_threads: u32,
    attached: ClockAnchor,
}

// === impl Session ===

impl Session {
    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Its effective user at attach.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The process as a trace describes it.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Its modules with sleds as a trace describes them.
    pub fn modules(&self) -> Vec<Module> {
        self.modules.clone()
    }

    /// A function as a trace describes it.
    pub fn function(&self, id: FunctionId) -> Option<Function> {
        self.functions.describe(id)
    }

    /// The clock anchors taken so far.
    pub fn anchors(&self) -> Vec<ClockAnchor> {
        self.output.anchors()
    }

    /// The functions that a selection matches, by id; all without one.
    ///
    /// # Errors
    /// A selection that cannot be understood.
    pub fn functions(&self, selection: Option<&Selection>) -> Result<Vec<FunctionRow>> {
        let rows = match selection {
            Some(selection) => {
                let compiled = compile(selection)?;
                self.functions.matching(&compiled)
            }
            None => self.functions.all(),
        };
        let row = |id: FunctionId| {
            let (enabled, calls) = (self.control.is_on(id), self.output.calls(id));
            self.functions.row(id, enabled, calls)
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    /// Switches the functions that a selection matches.
    ///
    /// # Errors
    /// A selection that cannot be understood, a process that ended, or memory that cannot be written.
    pub fn toggle(&self, selection: &Selection, to: Switch, run: Run) -> Result<ToggleReport> {
        let compiled = compile(selection)?;
        let matched = self.functions.matching(&compiled);
        let sample = matched
            .iter()
            .take(5)
            .filter_map(|&id| Some(self.functions.describe(id)?.name));
        let mut report = ToggleReport {
            matched: u32::try_from(matched.len()).unwrap_or(u32::MAX),
            sample: sample.collect(),
            ..ToggleReport::default()
        };
        if matched.is_empty() {
            return Ok(report);
        }
        self.control
            .toggle(matched, &self.functions, to, run, &mut report)?;
        Ok(report)
    }

    /// State and counters.
    pub fn status(&self) -> Status {
        let counters = self.output.counters();
        Status {
            pid: self.pid,
            uid: self.uid,
            command: self.command_line.clone(),
            phase: self.control.phase(),
            failure: self.output.failure().map(str::to_owned),
            functions: u32::try_from(self.functions.len()).unwrap_or(u32::MAX),
            functions_on: self.control.functions_on(),
            threads: counters.threads,
            events: counters.events,
            events_per_second: counters.events_per_second,
            lost: counters.lost,
            ring_use_permille: counters.ring_use_permille,
            ring_bytes: self.ring_bytes,
            max_threads: self.max_threads,
            copied_bytes: self.control.copied_bytes(),
            retained_bytes: counters.retained_bytes,
            retained_events: counters.retained_events,
            evicted_events: counters.evicted_events,
            attached_wall_ns: self.attached.wall_ns,
        }
    }

    /// A live feed of everything from now on. The threads seen so far come first.
    pub fn subscribe(&self) -> Feed {
        self.output.subscribe()
    }

    /// Everything retained, as an `.xtrace` file.
    ///
    /// # Errors
    /// What writing to `out` says.
    pub fn write_retained(&self, out: &mut dyn io::Write) -> io::Result<()> {
        self.control.flush();
        let snapshot = self.output.snapshot();
        let mut writer = Writer::new(out)?;
        writer.process(&self.process)?;
        for module in &self.modules {
            writer.module(module)?;
        }
        for thread in &snapshot.threads {
            writer.thread(thread)?;
        }
        for anchor in &snapshot.anchors {
            writer.anchor(anchor)?;
        }
        for id in self.functions.all() {
            if self.output.was_seen(id)
                && let Some(function) = self.functions.describe(id)
            {
                writer.function(&function)?;
            }
        }
        let mut end = End::default();
        for block in &snapshot.blocks {
            writer.block(block)?;
            end.calls += u64::from(block.calls);
            end.lost = end.lost.saturating_add(block.lost);
            end.blocks += 1;
        }
        for &(thread, events) in &snapshot.evicted {
            writer.lost(thread, events)?;
            end.lost = end.lost.saturating_add(events);
        }
        writer.end(&end)?;
        writer.flush()
    }

    /// Switches everything off, drains, proves it, and lets the process go. Ends the feeds.
    ///
    /// # Errors
    /// Memory that cannot be read or written. The session is over nevertheless.
    pub fn detach(&self) -> Result<DetachReport> {
        self.control.detach()
    }

    /// When the process ended or the session failed, unless that was after a detach.
    pub(crate) fn ended(&self) -> Option<Instant> {
        self.control.ended()
    }

    /// Bytes of events retained.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.output.counters().retained_bytes
    }

    /// Why nothing can be done with it but to fetch what it retains and to detach, if it has failed.
    pub(crate) fn failure(&self) -> Option<Refusal> {
        self.output.failure().map(|_| self.control.failed())
    }

    /// True once the process has ended.
    pub fn has_exited(&self) -> bool {
        self.control.phase() == Phase::Exited
    }
}

fn compile(selection: &Selection) -> Result<CompiledSelection> {
    CompiledSelection::new(selection)
        .map_err(|error| Refusal::new(Reason::Selection, error.to_string()))
}
