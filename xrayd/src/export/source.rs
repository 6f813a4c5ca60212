//! One process of a trace: its description, its functions and its events. Numbers that are unique
//! in the trace are given out in `trace_writer`.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, OnceLock},
};

use xray_trace::model::{ClockAnchor, FunctionId};

use super::{ProcessTables, TraceWriter};
use crate::{
    control::Control,
    store::{EventStore, ProfileSums, Snapshot, Source},
    types::Kinship,
};

/// One process of a trace.
#[derive(Debug)]
pub struct TraceSource {
    /// Its description and its functions.
    pub(crate) tables: Arc<ProcessTables>,
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
        writer.process(source, &self.tables.process, &*self.tables)?;
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
            writer.sums(source, thread, sums, &*self.tables)?;
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
        for id in self.tables.functions.all() {
            if self.output.counts.was_seen(id) || seen.contains(&id) {
                writer.function(source, id, &*self.tables)?;
            }
        }
        for block in &snapshot.blocks {
            writer.block(source, block, &*self.tables)?;
        }
        for wait in &snapshot.waits {
            writer.wait(source, wait)?;
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
