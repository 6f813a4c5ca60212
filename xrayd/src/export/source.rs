//! One process of a trace: its description, its functions and its events. Numbers that are unique
//! in the trace are given out in `trace_writer`.

use std::{
    any::Any,
    collections::HashSet,
    io,
    sync::{Arc, OnceLock},
};

use xray_trace::model::{
    ClockAnchor, DutyWindow, FilterNote, Function, FunctionId, Gap, Lifetime, Process, Suppression,
};

use super::TraceWriter;
use crate::{
    control::Control,
    store::{EventStore, NumberedModule, ProfileSums, Snapshot, Source, Tables},
    target::Functions,
    types::Kinship,
};

/// One process of a trace.
#[derive(Debug)]
pub struct TraceSource {
    /// Its description.
    pub(crate) process: Process,
    /// Its functions. The controller adds those of libraries that are loaded later.
    pub(crate) functions: Arc<Functions>,
    /// Its events.
    pub(crate) output: Arc<EventStore>,
    /// The handle of its controller.
    pub(crate) control: Control,
    /// Its origin. Set before the process joins a group that existed before it.
    pub(crate) kinship: OnceLock<Kinship>,
}

// === impl TraceSource ===

impl TraceSource {
    /// Its origin, if it was followed from another process.
    pub(crate) fn kinship(&self) -> Option<Kinship> {
        self.kinship.get().copied()
    }

    /// Describes the process in a trace.
    fn describe<W: io::Write>(
        &self,
        source: Source,
        writer: &mut TraceWriter<W>,
    ) -> io::Result<()> {
        writer.process(source, &self.process, self)?;
        match self.kinship() {
            Some(kinship) => writer.origin(source, kinship.origin()),
            None => Ok(()),
        }
    }

    /// The clock anchors taken so far.
    pub(crate) fn anchors(&self) -> Vec<ClockAnchor> {
        self.output
            .with_retained(|retained| retained.anchors().to_vec())
    }

    /// Writes sums of its calls.
    pub(crate) fn write_sums<W: io::Write>(
        &self,
        source: Source,
        sums: &ProfileSums,
        writer: &mut TraceWriter<W>,
    ) -> io::Result<()> {
        self.describe(source, writer)?;
        for anchor in &self.anchors() {
            writer.anchor(source, anchor)?;
        }
        for (thread, sums) in sums.threads() {
            writer.sums(source, thread, sums, self)?;
        }
        Ok(())
    }

    /// Writes a snapshot of it. The functions in `seen` are described even if none of their events
    /// is left.
    pub(crate) fn write_snapshot<W: io::Write>(
        &self,
        source: Source,
        snapshot: &Snapshot,
        seen: &HashSet<FunctionId>,
        writer: &mut TraceWriter<W>,
    ) -> io::Result<()> {
        self.describe(source, writer)?;
        for thread in &snapshot.threads {
            writer.thread(source, thread)?;
        }
        for event_type in &snapshot.event_types {
            writer.event_type(source, event_type)?;
        }
        for anchor in &snapshot.anchors {
            writer.anchor(source, anchor)?;
        }
        // Also functions whose blocks were all dropped.
        for id in self.functions.all() {
            if self.output.counts.was_seen(id) || seen.contains(&id) {
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
}

impl Tables for TraceSource {
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

    fn suppressions(&self) -> Vec<Suppression> {
        self.control.shared.history.suppressions(self.process.id)
    }

    fn duty(&self) -> Vec<DutyWindow> {
        self.control.shared.history.windows(self.process.id)
    }

    fn gaps(&self) -> Vec<Gap> {
        let process = self.process.id;
        let gaps = self.control.shared.gaps().into_iter();
        gaps.map(|gap| Gap { process, ..gap }).collect()
    }

    fn filters(&self) -> Vec<FilterNote> {
        let notes = self.control.shared.filter_notes().into_iter();
        let note = |(since, filter)| FilterNote {
            process: self.process.id,
            since: Some(since),
            filter,
        };
        notes.map(note).collect()
    }
}
