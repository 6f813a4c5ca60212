//! One target's life, and the registry of all.
//!
//! | file | holds |
//! |---|---|
//! | `registry` | which processes are attached, and who may touch them |
//! | `quotas` | what sessions may take of the daemon |
//! | `attach` | the steps from a pid to a session |
//! | `control` | commands to the thread `ctl-<pid>`, and what it tells |
//! | `controller` | that thread: patching, the watch on the target's life, detach |
//! | `states` | what is on |
//! | `loans` | what of it is for a while only |
//! | `rules` | what is to be on in libraries that come later |
//! | `loading` | libraries that come and go |
//! | `watch` | how it is noticed that libraries come |
//! | `functions` | the functions of a target: names and sleds |
//! | `sites` | what a survey of sleds found, for who wants it |
//! | `counts` | how often each function was entered |
//! | `metering` | the numbers of all sessions, for who reads them again and again |
//! | `mode` | what becomes of events |
//! | `output` | where the drain's blocks go: retained, counted, fed to readers |
//! | `profiles` | sums of calls, and who wants them |
//! | `economy` | what tracing may cost |
//! | `filter` | what of events is kept |
//! | `feed` | one reader of a live stream |
//! | `shot` | what processes did up to one moment |
//! | `trace_writer` | the processes of a family as one trace |
//! | `family` | a process and those that are followed from it |
//! | `follow` | finding them |
//! | `triggers` | what somebody waits for |
//! | `untraced` | a program that was started by us and has no sleds |

mod attach;
mod calls;
mod clock_watch;
mod control;
mod controller;
mod counts;
mod economy;
mod event_types;
mod family;
mod feed;
mod filter;
mod follow;
mod functions;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod loading;
mod loans;
mod metering;
mod mode;
mod output;
mod patterns;
mod profiles;
mod quotas;
mod registry;
mod ring_budget;
mod ring_sizes;
mod rules;
mod shot;
mod sites;
mod states;
mod trace_writer;
mod triggers;
mod untraced;
mod watch;

use std::{
    any::Any,
    collections::HashSet,
    io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use shm_ring::Geometry;
use xray_trace::{
    instr_map::{Candidate, Selection},
    model::{
        Birth, BuildId, Clock, ClockAnchor, ClockFault, DutyWindow, FilterNote, Function,
        FunctionId, Lifetime, ModuleId, Origin, Process, Rest,
    },
};

pub use crate::target::{Caller, Ending};
pub use attach::{AttachOptions, AttachReport, Attached, SkippedSleds};
pub use calls::{CallCounts, ThreadCalls};
pub use controller::DetachReport;
pub use economy::{Duty, Economy, EconomyStatus, Resting};
pub use family::{Family, FamilyStatus};
pub use feed::{Feed, FeedItem, Published, Source};
pub use filter::{CallFilter, Filter, Window};
pub use follow::{Finding, Follow, NotFollowed};
pub use functions::FunctionRow;
pub use loading::{Armed, Since};
pub use loans::LoanId;
pub use mode::Mode;
pub use patterns::{Chosen, Patterns};
pub use quotas::{Quota, QuotaError, QuotaSetting, Quotas, Resource};
pub use registry::{LaunchOptions, Launched, Registry, RegistryConfig};
pub(crate) use shot::{Extent, ThreadState};
pub use shot::{Reach, Shot};
pub use trace_writer::{NumberedModule, Tables, TraceWriter};
pub use triggers::{
    Condition, DeathWanted, EventWanted, Firing, Hit, Hits, MOST_CONDITIONS, MOST_FIRINGS, Trigger,
    Value,
};
pub(crate) use triggers::{Lookout, Marks, Place};

pub use watch::Noticing;

pub use crate::inject::{Switch, Wanted};
pub(crate) use attach::Started;
#[cfg(test)]
pub(crate) use feed::closed_feed;
pub(crate) use metering::{Figures, Latencies, Measured, Metering, Reading, Readings, Standing};
#[cfg(test)]
pub(crate) use metering::{Series, Subject, Totals};
pub use output::ThreadLoss;
pub(crate) use output::{Keeps, Output, Snapshot};
pub(crate) use profiles::Ask;
pub use profiles::ProfileSums;
pub(crate) use ring_budget::RingBudget;
pub use sled_encoders::Capture;

use self::{
    control::{Control, Counting, Wish},
    feed::{FeedInlet, feed},
    functions::{Functions, Indexes},
    metering::Metered,
    patterns::compile,
    quotas::Ticket,
    ring_budget::RingRefusal,
    rules::{Rules, Wishes},
};
use crate::{
    inject::PatchReport,
    pid::Pid,
    refusal::{Refusal, Result},
    target::{Credentials, RefusedModule, let_threads_run},
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
    pub elapsed: Duration,
    /// Sleds that were staged to record something else (in a dry run: that would be).
    pub restaged: u64,
    /// How long every thread stood still at most, because a library was written to that can be unloaded, or sleds were staged anew; zero if none did.
    pub stopped: Duration,
    /// Some of the functions matched.
    pub sample: Vec<String>,
    /// If it was only told: the memory by the paths of modules, those with none left out.
    pub copied_by_module: Vec<(String, u64)>,
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
    /// How it came to be traced, if it was followed from another process.
    pub kinship: Option<Kinship>,
    /// It became another program by `exec`: in [`Phase::Exited`], what was attached to is gone and the process is not.
    pub executed: bool,
    /// What failed, in [`Phase::Failed`].
    pub failure: Option<String>,
    /// How events are kept, as was asked for.
    pub mode: Mode,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Those of them of which arguments or results are recorded, beside those whose sleds record the first argument.
    pub functions_with_values: u32,
    /// Threads that have a ring.
    pub threads: u32,
    /// Events recorded since attach; of those that nobody has read, about so many.
    pub events: u64,
    /// Over the last second or so.
    pub events_per_second: f64,
    /// Events among them that a filter has left out.
    pub filtered: u64,
    /// Calls, and what was said, that a filter has left out in the program itself: no events.
    pub left_out: u64,
    /// What is recorded and kept.
    pub filter: Filter,
    /// What tracing may cost, and what came of that.
    pub economy: EconomyStatus,
    /// When the processor's counter did not keep time, the newest faults. Durations around are
    /// wrong.
    pub clock_faults: Vec<ClockFault>,
    /// Events lost in the target.
    pub lost: u64,
    /// By which threads, those that lost the most first; never more than `lost` in sum.
    pub losses: Vec<ThreadLoss>,
    /// The fullest ring at the last drain, in permille.
    pub ring_use_permille: u32,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// Threads that can have a ring at the same time.
    pub max_threads: u32,
    /// Why threads lose all their events that need a ring: a limit on memory.
    pub rings_refused: Option<String>,
    /// Memory that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// Bytes retained.
    pub retained_bytes: u64,
    /// Events in them.
    pub retained_events: u64,
    /// Events dropped from what was retained, for space.
    pub overwritten_events: u64,
    /// Triggers that are armed in it.
    pub triggers: u32,
    /// When it was attached, in nanoseconds since the Unix epoch.
    pub attached_wall_ns: u64,
    /// Modules with sleds that are loaded.
    pub modules: Vec<ModuleStatus>,
    /// How libraries that come are noticed.
    pub noticing: Noticing,
}

/// State of one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleStatus {
    /// Its path as the process sees it.
    pub path: String,
    /// Its build id, if it has one and is traced.
    pub build_id: Option<BuildId>,
    /// Functions with sleds.
    pub functions: u32,
    /// Functions that are on.
    pub functions_on: u32,
    /// Memory in it that patching made private to the target, in bytes.
    pub copied_bytes: u64,
    /// For a library that was loaded after the attach and in which rules switched anything on: how soon that was.
    pub armed: Option<Armed>,
    /// Why it is not traced.
    pub refusal: Option<Refusal>,
}

/// How a process came to be traced that nobody attached to by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinship {
    /// The process that its family was attached by.
    pub root: Pid,
    /// The process that forked it; of one that became another program, itself.
    pub parent: Pid,
    /// What made it what it is.
    pub by: Birth,
    /// How long it had run at most before its functions were on: what it did in that time is in no trace.
    pub within: Duration,
}

// === impl ToggleReport ===

impl ToggleReport {
    fn add(&mut self, patched: &PatchReport, copied_bytes: u64) {
        self.sleds += patched.sleds;
        self.foreign += patched.foreign;
        self.restaged += patched.restaged;
        self.stopped = self.stopped.max(patched.stopped);
        self.copied_bytes += copied_bytes;
    }
}

// === impl Kinship ===

impl Kinship {
    /// As a trace says it.
    pub fn origin(&self) -> Origin {
        Origin {
            parent: self.parent.as_u32(),
            by: self.by,
            unrecorded_ns: u64::try_from(self.within.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// One attached process.
#[derive(Debug)]
pub struct Session {
    pid: Pid,
    /// Of the process when it was attached.
    credentials: Credentials,
    process: Process,
    command_line: String,
    functions: Arc<Functions>,
    output: Arc<Output>,
    control: Control,
    ring_bytes: u64,
    max_threads: u32,
    ring_refusal: Arc<RingRefusal>,
    attached: ClockAnchor,
    /// Set before it belongs to a family that was there before it.
    kinship: OnceLock<Kinship>,
    /// Its place in the daemon's books, if there are any.
    _metered: Option<Metered>,
    /// What it takes of its payer's quotas. The control thread has it as well: the later end gives
    /// it back.
    ticket: Arc<Ticket>,
}

// === impl Session ===

impl Session {
    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// When it began, as field 22 of `/proc/<pid>/stat` says it: with the pid, this tells it from all others.
    pub(crate) fn start_time(&self) -> u64 {
        self.process.start_time_ticks
    }

    /// Its effective user at attach.
    pub fn uid(&self) -> u32 {
        self.credentials.user
    }

    /// Whose it was at attach, and what it might do.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// What to tell whoever attaches to it again and wants something else than there is.
    pub(super) fn otherwise(&self, options: &AttachOptions) -> impl Iterator<Item = String> {
        let wanted = Geometry::new(options.ring_bytes, options.max_threads);
        let there = Geometry::new(self.ring_bytes, self.max_threads);
        let rings = wanted.ok().zip(there.ok());
        let rings = rings.and_then(|(wanted, there)| attach::other_rings(wanted, there));
        let mode = (options.mode != self.mode()).then(|| {
            let (is, other) = (self.mode(), options.mode);
            format!("it stays in mode {is}; `xrayctl mode {other}` changes that")
        });
        rings.into_iter().chain(mode)
    }

    /// The process as a trace describes it.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// The path of one of them.
    pub(crate) fn module_path(&self, id: ModuleId) -> String {
        self.functions.path(id)
    }

    /// How it came to be traced, if it was followed from another process.
    pub fn kinship(&self) -> Option<Kinship> {
        self.kinship.get().copied()
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
        // If the process has ended, what is known is shown.
        let _ = self.control.look();
        let rows = match selection {
            Some(selection) => {
                let compiled = compile(selection)?;
                self.functions.matching(&self.functions.loaded(), &compiled)
            }
            None => self.functions.living(),
        };
        let row = |id: FunctionId| {
            let (recorded, calls) = (self.control.recorded(id), self.output.calls(id));
            let row = self.functions.row(id, recorded, calls)?;
            Some(FunctionRow {
                rests: recorded.is_some() && self.control.ledger().rests_now(id),
                ..row
            })
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    /// Switches the functions that a selection matches.
    ///
    /// # Errors
    /// A selection that cannot be understood, a process that ended, or memory that cannot be written.
    pub fn toggle<'a>(
        &self,
        selection: impl Into<Chosen<'a>>,
        to: impl Into<Wanted>,
        run: Run,
    ) -> Result<ToggleReport> {
        self.toggle_for(None, selection.into(), to.into(), run)
    }

    /// The same, on for a while: until [`Self::take_back`].
    ///
    /// # Errors
    /// As [`Self::toggle`].
    pub fn lend<'a>(
        &self,
        selection: impl Into<Chosen<'a>>,
        to: LoanId,
        capture: Capture,
        run: Run,
    ) -> Result<ToggleReport> {
        self.toggle_for(Some(to), selection.into(), Wanted::On(capture), run)
    }

    /// What is recorded from now on may be on that loan.
    fn begin_loan(&self, loan: Option<LoanId>, run: Run) {
        if let (Some(loan), Run::Real) = (loan, run) {
            self.output.begin_loan(loan);
        }
    }

    /// What is recorded from now on is not on that loan any more.
    fn stop_loan(&self, loan: LoanId) {
        self.output.stop_loan(loan);
    }

    /// Puts back what was lent, and ends the feeds that are for the loan. They have what happened
    /// up to now.
    ///
    /// # Errors
    /// A process that ended, or memory that cannot be written.
    pub fn take_back(&self, from: LoanId) -> Result<ToggleReport> {
        self.stop_loan(from);
        let report = self.control.take_back(from);
        if self.output.is_fed(from) {
            // A thread may still be in a trampoline with an event of the loan.
            let_threads_run(self.pid());
            self.control.flush();
            self.output.end_loan(from);
        }
        report
    }

    fn toggle_for(
        &self,
        loan: Option<LoanId>,
        selection: Chosen<'_>,
        to: Wanted,
        run: Run,
    ) -> Result<ToggleReport> {
        let patterns = self.compiled(selection)?;
        let compiled = patterns.matcher();
        let modules = self.functions.loaded();
        self.begin_loan(loan, run);
        self.control.toggle(Wish {
            ids: self.functions.matching(&modules, &compiled),
            of: Indexes::of(&modules),
            patterns,
            later: Some(compiled),
            to,
            loan,
            run,
        })
    }

    /// Compiled for the user who attached, unless that was done for another.
    fn compiled(&self, selection: Chosen<'_>) -> Result<Arc<Patterns>> {
        selection.compiled(self.ticket.accounts(), self.ticket.payer())
    }

    /// The same, where ids are those of another process: they mean what is loaded in both.
    fn toggle_as(
        &self,
        other: &Self,
        loan: Option<LoanId>,
        patterns: &Arc<Patterns>,
        to: Wanted,
        run: Run,
    ) -> Result<ToggleReport> {
        let compiled = patterns.matcher();
        let modules = self.functions.loaded();
        self.begin_loan(loan, run);
        let matching = modules.iter().flat_map(|loaded| {
            let first = other.functions.first_of_same(loaded);
            let needs_source = compiled.needs_source();
            self.functions
                .matching_in(loaded, needs_source, |candidate| {
                    let id = first.map(|first| first + (candidate.id - loaded.first()));
                    // Which is the id of none.
                    let id = id.unwrap_or(u32::MAX - 1);
                    compiled.matches(&Candidate { id, ..*candidate })
                })
        });
        self.control.toggle(Wish {
            ids: matching.collect(),
            of: Indexes::of(&modules),
            patterns: Arc::clone(patterns),
            later: patterns.lasting_matcher(),
            to,
            loan,
            run,
        })
    }

    /// Begins to record what `rules` name; of what is loaded in `parent`, too, what is on there.
    fn begin_as(&self, rules: Rules, parent: Option<&Self>) -> Result<()> {
        let modules = self.functions.loaded();
        let mut wishes = Wishes::default();
        for loaded in &modules {
            let like =
                parent.and_then(|parent| Some((parent, parent.functions.first_of_same(loaded)?)));
            match like {
                Some((parent, first)) => {
                    for (like, id) in (first..).zip(loaded.functions()) {
                        let like = FunctionId(like);
                        if let Some(capture) = parent.control.recorded(like) {
                            wishes.on.entry(capture).or_default().push(id);
                        }
                        if let Some(loan) = parent.control.loan(like) {
                            wishes.loans.insert(id, loan);
                        }
                    }
                }
                None => {
                    let Wishes { on, loans } = rules.wishes_in(&self.functions, loaded);
                    for (capture, its) in on {
                        wishes.on.entry(capture).or_default().extend(its);
                    }
                    wishes.loans.extend(loans);
                }
            }
        }
        self.control.begin(rules, wishes, Indexes::of(&modules))
    }

    /// How many functions there have been so far.
    pub(crate) fn functions_known(&self) -> usize {
        self.functions.ids()
    }

    /// State and counters.
    pub fn status(&self) -> Status {
        // Before the sum, which is never less then.
        let losses = self.output.losses();
        let counters = self.output.counters();
        Status {
            pid: self.pid,
            uid: self.uid(),
            command: self.command_line.clone(),
            phase: self.control.phase(),
            kinship: self.kinship(),
            executed: self.control.executed().is_some(),
            failure: self.output.failure().map(str::to_owned),
            mode: self.output.mode(),
            functions: u32::try_from(self.functions.len()).unwrap_or(u32::MAX),
            functions_on: self.control.functions_on(),
            functions_with_values: self.control.functions_with_values(),
            threads: counters.threads,
            events: counters.events,
            events_per_second: counters.events_per_second,
            filtered: counters.filtered,
            left_out: counters.left_out,
            filter: self.control.filter(),
            economy: self.economy_status(),
            clock_faults: self.output.clock_faults(),
            lost: counters.lost,
            losses,
            ring_use_permille: counters.ring_use_permille,
            ring_bytes: self.ring_bytes,
            max_threads: self.max_threads,
            rings_refused: self.ring_refusal.get(),
            copied_bytes: self.control.copied_bytes(),
            retained_bytes: counters.retained_bytes,
            retained_events: counters.retained_events,
            overwritten_events: counters.overwritten_events,
            triggers: u32::try_from(self.output.triggers.count()).unwrap_or(u32::MAX),
            attached_wall_ns: self.attached.wall_ns,
            modules: self.module_statuses(),
            noticing: self.control.noticing(),
        }
    }

    fn economy_status(&self) -> EconomyStatus {
        let ledger = self.control.ledger();
        ledger.status(|id| self.functions.name(id).map(|(_, name)| name))
    }

    /// What tracing may cost.
    pub fn economy(&self) -> Economy {
        self.control.ledger().economy()
    }

    /// From now on it may cost so much; says how much it was before.
    ///
    /// # Errors
    /// A value out of range, a mode or a filter that hides what functions cost, a process that has ended, or memory that cannot be written.
    pub fn set_economy(&self, economy: Economy) -> Result<Economy> {
        economy.check()?;
        economy.suits(self.mode(), &self.filter())?;
        self.control.economize(economy)
    }

    fn module_statuses(&self) -> Vec<ModuleStatus> {
        let modules = self.functions.loaded();
        let traced = modules.iter().map(|loaded| {
            let on = loaded
                .functions()
                .filter(|&id| self.control.recorded(id).is_some());
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            ModuleStatus {
                path: loaded.module.path.clone(),
                build_id: loaded.module.object.build_id().cloned(),
                functions: count(loaded.functions().count()),
                functions_on: count(on.count()),
                copied_bytes: loaded.copied(),
                armed: loaded.armed(),
                refusal: None,
            }
        });
        let refused = self.control.refused().into_iter();
        let refused = refused.map(|RefusedModule { path, refusal, .. }| ModuleStatus {
            path,
            build_id: None,
            functions: 0,
            functions_on: 0,
            copied_bytes: 0,
            armed: None,
            refusal: Some(refusal),
        });
        traced.chain(refused).collect()
    }

    /// A live feed of everything from now on, or until the loan is over that it is for. The threads
    /// seen so far come first.
    pub fn subscribe(self: &Arc<Self>, loan: Option<LoanId>) -> Feed {
        let (inlet, feed) = feed(1, loan);
        self.feed_to(&inlet, Source::default());
        feed
    }

    /// Feeds everything from now on to a feed of several processes.
    fn feed_to(self: &Arc<Self>, inlet: &FeedInlet, source: Source) {
        let mut sender = inlet.sender(source);
        sender.send(FeedItem::Process(Arc::clone(self)));
        if let Some(kinship) = self.kinship() {
            sender.send(FeedItem::Origin(kinship.origin()));
        }
        let _coming = self.output.expect_reader();
        if self.output.mode() == Mode::Flight {
            // What rings hold was recorded before.
            self.control.flush();
        }
        self.output.subscribe(sender);
    }

    /// How events are kept.
    pub fn mode(&self) -> Mode {
        self.output.mode()
    }

    /// From now on events are kept so; says how they were. What was recorded in flight is retained from then on; what was retained before a flight
    /// goes, and counts as overwritten.
    ///
    /// # Errors
    /// The process has ended.
    pub fn set_mode(&self, mode: Mode) -> Result<Mode> {
        self.control.look()?;
        self.economy().suits(mode, &self.filter())?;
        let before = self.output.mode();
        // Nothing is recorded before it is counted, nor counted once it is recorded.
        self.control.count(match mode {
            Mode::Count => Counting::On,
            _ => Counting::Off,
        })?;
        self.output.set_mode(mode);
        self.control.flush();
        Ok(before)
    }

    /// Which events are kept.
    pub fn filter(&self) -> Filter {
        self.control.filter()
    }

    /// From now on these events are kept, in every mode, and by everybody who reads along; the others are counted as filtered. What was recorded
    /// before is kept as it was then, but for what rings hold in flight. Says what was kept before.
    ///
    /// # Errors
    /// A pattern that cannot be understood, a window without an end behind its begin, or a process that has ended.
    pub fn set_filter(&self, filter: &Filter) -> Result<Filter> {
        self.control.look()?;
        self.economy().suits(self.mode(), filter)?;
        let take = |bytes: usize| {
            let ticket = &self.ticket;
            let wanted = [(Resource::Patterns, bytes as u64)];
            ticket.accounts().take(ticket.payer(), &wanted)
        };
        self.control
            .set_filter(filter, self.attached, &self.functions, take)
    }

    /// Everything that rings hold or that is retained, as an `.xtrace` file; of the `last` so long, if that is given.
    ///
    /// # Errors
    /// What writing to `out` says.
    pub fn write_snapshot(
        &self,
        last: Option<Duration>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let reach = last.map_or(Reach::All, Reach::Last);
        Shot::take(vec![self], reach).write(out)
    }

    /// Has sums of calls made from now on, for as long as what is returned lives.
    pub fn begin_profile(self: &Arc<Self>) -> Profiling {
        let number = self.output.profiles.number();
        // What rings hold was recorded before.
        let _coming = self.output.expect_reader();
        self.control.profile(Ask::Begin(number));
        Profiling {
            session: Arc::clone(self),
            number,
        }
    }

    /// The sums of calls that are kept in [`Mode::Profile`]; `None` in another mode.
    pub fn kept_profile(&self) -> Option<ProfileSums> {
        self.control.profile(Ask::Kept)
    }

    /// A function's name, and the file that it is in.
    pub(crate) fn name_of(&self, id: FunctionId) -> Option<(String, String)> {
        let function = self.functions.describe(id)?;
        Some((function.name, self.functions.path(function.module)))
    }

    /// How often functions were called since the mode became [`Mode::Count`]; `None` in another mode.
    pub fn call_counts(&self) -> Option<CallCounts> {
        if self.output.mode() != Mode::Count {
            return None;
        }
        self.control.flush();
        Some(self.output.calls.get())
    }

    fn write_sums_into<W: io::Write>(
        &self,
        source: Source,
        sums: &ProfileSums,
        writer: &mut TraceWriter<W>,
    ) -> io::Result<()> {
        writer.process(source, &self.process, self)?;
        if let Some(kinship) = self.kinship() {
            writer.origin(source, kinship.origin())?;
        }
        for anchor in &self.output.anchors() {
            writer.anchor(source, anchor)?;
        }
        for (thread, sums) in sums.threads() {
            writer.sums(source, thread, sums, self)?;
        }
        Ok(())
    }

    /// Writes what was taken of it; functions that `seen` names are described, whether any event of them is left or not.
    fn write_into<W: io::Write>(
        &self,
        source: Source,
        snapshot: &Snapshot,
        seen: &HashSet<FunctionId>,
        writer: &mut TraceWriter<W>,
    ) -> io::Result<()> {
        writer.process(source, &self.process, self)?;
        if let Some(kinship) = self.kinship() {
            writer.origin(source, kinship.origin())?;
        }
        for thread in &snapshot.threads {
            writer.thread(source, thread)?;
        }
        for event_type in &snapshot.event_types {
            writer.event_type(source, event_type)?;
        }
        for anchor in &snapshot.anchors {
            writer.anchor(source, anchor)?;
        }
        // Also those of which no block is left.
        for id in self.functions.all() {
            if self.output.was_seen(id) || seen.contains(&id) {
                writer.function(source, id, self)?;
            }
        }
        for block in &snapshot.blocks {
            writer.block(source, block, self)?;
        }
        for &(thread, events) in &snapshot.lost {
            writer.lost(source, thread, events)?;
        }
        for overwritten in &snapshot.overwritten {
            writer.overwritten(source, overwritten)?;
        }
        Ok(())
    }

    /// Switches everything off, drains, proves it, and lets the process go. Ends the feeds.
    ///
    /// # Errors
    /// Memory that cannot be read or written. The session is over nevertheless.
    pub fn detach(&self) -> Result<DetachReport> {
        self.control.detach()
    }

    /// The clock of its events.
    fn clock(&self) -> Clock {
        Clock::new(self.output.anchors())
    }

    /// How the process has ended, if it has; also `None` of one that became another program.
    pub fn ending(&self) -> Option<Ending> {
        self.control.ending()
    }

    /// Whether anything may still come.
    pub fn is_living(&self) -> bool {
        matches!(self.control.phase(), Phase::Tracing | Phase::Detaching)
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

impl Tables for Session {
    fn function(&self, id: FunctionId) -> Option<Function> {
        self.functions.describe(id)
    }

    fn modules(&self) -> Vec<NumberedModule> {
        let modules = self.functions.modules();
        let numbered = modules.iter().map(|loaded| NumberedModule {
            module: loaded.describe(self.process.id),
            first: FunctionId(loaded.first()),
            functions: u32::try_from(loaded.functions().count()).unwrap_or(u32::MAX),
            file: Arc::clone(&loaded.module.object) as Arc<dyn Any + Send + Sync>,
        });
        numbered.collect()
    }

    fn lifetimes(&self) -> Vec<Lifetime> {
        let modules = self.functions.modules();
        let lifetimes = modules.iter().flat_map(|loaded| loaded.lifetimes());
        lifetimes.collect()
    }

    fn rests(&self) -> Vec<Rest> {
        self.control.ledger().rests(self.process.id)
    }

    fn duty(&self) -> Vec<DutyWindow> {
        self.control.ledger().windows(self.process.id)
    }

    fn filters(&self) -> Vec<FilterNote> {
        let notes = self.control.filter_notes().into_iter();
        let note = |(since, filter)| FilterNote {
            process: self.process.id,
            since: Some(since),
            filter,
        };
        notes.map(note).collect()
    }
}

/// Sums of calls that are being made of a process.
#[derive(Debug)]
pub struct Profiling {
    session: Arc<Session>,
    number: u64,
}

// === impl Profiling ===

impl Profiling {
    /// The process.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The sums of what has happened since they were begun.
    pub fn finish(self) -> ProfileSums {
        let ask = Ask::End(self.number);
        self.session.control.profile(ask).unwrap_or_default()
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        // After `finish` there are none.
        self.session.output.profiles.answer(Ask::End(self.number));
    }
}

/// Sums of calls of some processes, as one `.xtrace` file.
///
/// # Errors
/// What writing to `out` says.
pub fn write_profile(
    profiles: &[(Arc<Session>, ProfileSums)],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut writer = TraceWriter::new(out)?;
    for (source, (session, sums)) in (0..).map(Source).zip(profiles) {
        session.write_sums_into(source, sums, &mut writer)?;
        if let Some(since) = sums.since() {
            writer.begins(source, since);
        }
        writer.ended(source, session.as_ref())?;
    }
    writer.no_sums()?;
    writer.end()
}
