//! What the controller needs to write the sleds of its target. It owns this, and hands it to
//! the parts that switch sleds. Nothing is decided here.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use shm_ring::{layout::table, profile::Limits};
use xray_trace::model::FunctionId;

use super::{held::Held, shared::Shared, sites::call_site_of, traced::TracedModules};
use crate::{
    collect::{AddUp, Beside, DrainHandle, Switches, bytes_of_threads, small_profiles},
    inject::{
        DispatchMode, Layout, PatchReport, Patcher, RunState, SwitchedSites, TrampolineFilter,
    },
    lock::lock,
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    store::EventStore,
    sys::{Memory, ticks_now},
    target::{Target, Threads, memory_room},
    types::{Capture, PatchSite, Settings, ToggleReport, Wanted},
};

/// Limit on names of matched functions in a report.
const SAMPLE: usize = 5;

/// The target of a controller, and everything that writes its sleds.
#[derive(Debug)]
pub(crate) struct Patching {
    pub(crate) target: Target,
    pub(crate) memory: Arc<Memory>,
    pub(crate) patcher: Patcher,
    pub(crate) traced: TracedModules,
    /// Addresses that trampolines in another neighbourhood need for their data.
    pub(crate) layout: Layout,
    pub(crate) output: Arc<EventStore>,
    pub(crate) shared: Arc<Shared>,
    /// A process that xrayd started and has not let run yet.
    pub(crate) held: Option<Held>,
    /// The sites of switched functions, while calls are added up in the program.
    pub(crate) switched: SwitchedSites,
    /// The ticks from which on the program notes calls; `None` before they were written.
    pub(crate) noted_from: Option<u64>,
    /// True while the session takes over functions that an earlier daemon has left on. They have
    /// been on all the time.
    pub(crate) is_resuming: bool,
    /// True once the process's control group had room for the rings. Set by `has_room_for`.
    pub(crate) has_room_for_rings: bool,
}

/// Writes the limits on profiles into the table. No call is noted.
pub(crate) fn limit_profiles(pid: Pid, memory: &Memory, layout: &Layout) -> Result<()> {
    let limits = match memory_room(pid) {
        Some(_) => small_profiles(layout.geometry),
        None => Limits::most(layout.geometry),
    };
    for (field, most) in limits.words() {
        let address = TargetAddr(layout.table + field);
        let written = memory.write(address, &most.to_le_bytes());
        written.map_err(|error| Refusal::from_io(pid, "write to its table", &error))?;
    }
    let address = TargetAddr(layout.table + table::LONG_CALL);
    let written = memory.write(address, &u64::MAX.to_le_bytes());
    written.map_err(|error| Refusal::from_io(pid, "write to its table", &error))
}

// === impl Patching ===

impl Patching {
    pub(crate) fn patch(&mut self, sites: &[PatchSite], to: Wanted) -> Result<PatchReport> {
        let Self {
            patcher,
            memory,
            target,
            held,
            ..
        } = self;
        let run_state = match held {
            Some(_) => RunState::Halted,
            None => RunState::Running,
        };
        match patcher.switch(memory, target, run_state, sites, to) {
            Err(_) if self.target.has_exited() => Err(self.target.exited()),
            result => result,
        }
    }

    /// Brings the sleds of functions that are on to their wanted state. Returns the longest stop of
    /// the target's threads.
    pub(crate) fn patch_as_wanted(&mut self, ids: &[FunctionId]) -> Result<Duration> {
        let mut stopped = Duration::ZERO;
        for (capture, ids) in self.by_capture(ids) {
            let sites = self.traced.functions.sites(&ids);
            let patched = self.patch(&sites, Wanted::On(capture))?;
            stopped = stopped.max(patched.stopped);
        }
        Ok(stopped)
    }

    /// The same for as many sleds as possible: a module that cannot be written does not stop the
    /// others. While calls are counted, exit sleds stay off. Returns the functions of modules that
    /// could not be written, and the first error.
    pub(super) fn patch_what_can_be(
        &mut self,
        ids: &[FunctionId],
    ) -> (Vec<FunctionId>, Result<()>) {
        let (mut left, mut failed) = (Vec::new(), Ok(()));
        for (capture, ids) in self.by_capture(ids) {
            // Ids of one module follow each other.
            let module = |id: &FunctionId| Some(self.sites(&[*id], Wanted::Off).first()?.module);
            let modules: Vec<Vec<FunctionId>> = ids
                .chunk_by(|one, next| module(one) == module(next))
                .map(<[_]>::to_vec)
                .collect();
            for ids in modules {
                let to = Wanted::On(capture);
                let sites = self.sites(&ids, to);
                if let Err(refusal) = self.patch(&sites, to) {
                    left.extend(ids);
                    failed = failed.and(Err(refusal));
                }
            }
        }
        (left, failed)
    }

    /// The functions among these that are on, by what is recorded of them.
    fn by_capture(&self, ids: &[FunctionId]) -> BTreeMap<Capture, Vec<FunctionId>> {
        let mut captures = BTreeMap::<_, Vec<FunctionId>>::new();
        for &id in ids {
            if let Some(capture) = self.shared.states.recorded(id) {
                captures.entry(capture).or_default().push(id);
            }
        }
        captures
    }

    /// Publishes how much memory is private to the target.
    pub(super) fn note_copies(&mut self) {
        let private = self.patcher.private_pages();
        self.shared
            .copied
            .store(private.copied_bytes(), Ordering::Relaxed);
        self.traced.note_copies(|range| private.copied_in(range));
    }

    /// The settings in force.
    pub(super) fn settings(&self) -> Settings {
        self.shared.settings(self.output.mode())
    }

    /// All functions that are switched on.
    pub(super) fn all_on(&self) -> Vec<FunctionId> {
        let on = |id: &FunctionId| self.shared.states.recorded(*id).is_some();
        let all = self.traced.functions.all();
        all.into_iter().filter(on).collect()
    }

    /// The record of times at which functions were off.
    pub(crate) fn switches(&self) -> Arc<Switches> {
        let drain = lock(&self.shared.drain);
        drain
            .as_ref()
            .map(DrainHandle::switches)
            .unwrap_or_default()
    }

    /// Marks functions that are off now, or that are about to be switched on. The drain follows the
    /// open calls, or the trampolines do.
    pub(crate) fn mark(&mut self, ids: &[FunctionId]) {
        if ids.is_empty() {
            return;
        }
        self.switches().mark(ids);
        if !self.patcher.dispatch_mode().adds_up() || self.is_resuming {
            return;
        }
        let now = ticks_now();
        let sites = self.traced.functions.sites(ids);
        let names: Vec<u32> = sites
            .iter()
            .map(|site| call_site_of(site, FunctionId(0)).name)
            .collect();
        let marked = self.switched.mark(&self.memory, &self.layout, &names, now);
        if let Err(error) = marked {
            let pid = self.target.pid().as_raw();
            tracing::warn!(pid, %error, "cannot mark switched functions in the process");
        }
    }

    /// Has the trampolines count all calls that are open as ended.
    pub(super) fn mark_all_in_program(&self) -> Result<()> {
        let marked = SwitchedSites::mark_all(&self.memory, &self.layout, ticks_now());
        marked.map_err(|error| Refusal::from_io(self.target.pid(), "write to its table", &error))
    }

    /// Prepares the program for calls that are added up in it. Nothing is added up so far. Returns
    /// false if its control group has no room for the sums.
    pub(super) fn begin_profiles(&mut self) -> Result<bool> {
        limit_profiles(self.target.pid(), &self.memory, &self.layout)?;
        self.noted_from = Some(u64::MAX);
        self.switched = SwitchedSites::new();
        let drain = self.shared.drain();
        drain.map_or(Ok(false), |drain| drain.begin_profiles(AddUp::Anew))
    }

    /// Has rings keep the newest events while calls are added up, or drops what they hold.
    pub(super) fn record_beside(&self, records: bool) -> Result<()> {
        if self.output.records_beside.swap(records, Ordering::Relaxed) == records {
            return Ok(());
        }
        self.shared.drain().map_or(Ok(()), |drain| drain.flush())
    }

    /// Has the program note calls that take at least so many ticks; `u64::MAX` for none.
    pub(super) fn note_calls_from(&mut self, ticks: u64) -> Result<()> {
        if self.noted_from == Some(ticks) {
            return Ok(());
        }
        let address = TargetAddr(self.layout.table + table::LONG_CALL);
        let written = self.memory.write(address, &ticks.to_le_bytes());
        written
            .map_err(|error| Refusal::from_io(self.target.pid(), "write to its table", &error))?;
        self.noted_from = Some(ticks);
        Ok(())
    }

    /// Reads what was added up in the program to its end.
    pub(super) fn end_profiles(&self) -> Result<()> {
        let drain = self.shared.drain();
        drain.map_or(Ok(()), |drain| drain.end_profiles())
    }

    /// The sleds to switch for these functions, ordered by address. While calls are counted, only
    /// entry sleds are on.
    pub(crate) fn sites(&self, ids: &[FunctionId], to: Wanted) -> Vec<PatchSite> {
        let mut sites = self.traced.functions.sites(ids);
        if to != Wanted::Off && self.patcher.dispatch_mode() == DispatchMode::Count {
            sites.retain(|site| site.kind.is_entry());
        }
        sites
    }

    /// Checks the room in the process's control group. Pages of text that are written become
    /// private to the process, and its threads write their rings. Both could bring the OOM killer
    /// upon the process. Rings are counted once, since the group's usage contains what they hold
    /// afterwards.
    pub(super) fn has_room_for(&mut self, text: u64) -> Result<()> {
        if text == 0 && self.has_room_for_rings {
            return Ok(());
        }
        let pid = self.target.pid();
        let rings = match self.has_room_for_rings {
            true => 0,
            false => {
                let threads = u32::try_from(Threads::of(pid).len()).unwrap_or(u32::MAX);
                bytes_of_threads(self.layout.geometry, threads, Beside::Counts)
            }
        };
        match memory_room(pid) {
            Some(room) if room.bytes < text.saturating_add(rings) => {
                let message = format!(
                    "process {pid}: {text} bytes of its text would become private, its threads \
                     would write {rings} bytes of rings, and its control group {} has room for {} \
                     bytes",
                    room.group.display(),
                    room.bytes
                );
                Err(Refusal::new(Reason::NoMemory, message))
            }
            _ => {
                self.has_room_for_rings = true;
                Ok(())
            }
        }
    }

    /// The report of a toggle before it is made.
    pub(super) fn report_on(&self, ids: &[FunctionId]) -> ToggleReport {
        let sample = ids.iter().take(SAMPLE);
        ToggleReport {
            matched: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            sample: sample
                .filter_map(|&id| Some(self.traced.functions.name(id)?.1))
                .collect(),
            ..ToggleReport::default()
        }
    }

    /// Writes the choice of calls for the trampolines.
    pub(super) fn write_choice(&self, choice: &TrampolineFilter) -> Result<()> {
        choice.write(&self.memory, &self.layout).map_err(|error| {
            Refusal::from_io(
                self.target.pid(),
                "write the filter of calls to its table",
                &error,
            )
        })
    }

    pub(crate) fn renew_filters(&self) -> Result<()> {
        self.shared
            .drain()
            .map_or(Ok(()), |drain| drain.renew_filters())
    }
}
