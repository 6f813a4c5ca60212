//! Sessions of processes that have ended, from what an earlier daemon has retained of them.

use std::sync::{Arc, OnceLock};

use super::{
    attach::Attached,
    attach_report::AttachReport,
    registry::Registry,
    session::Session,
    session_record::{SessionKeeper, SessionRecord},
    session_table::Reservation,
};
use crate::{
    control::{Control, Shared},
    export::{OpenSegments, ProcessTables, SegmentArchive, TraceSource, damage_before},
    refusal::{Refusal, Result},
    store::EventStore,
    sys::now_anchor,
};

impl Registry {
    /// Makes the session of a process that has ended, or that runs another program. It has the
    /// events that an earlier daemon has retained. `None` if there are none, or if another process
    /// with that pid is attached.
    ///
    /// # Errors
    /// A quota would be exceeded, or the clock cannot be read.
    pub(super) fn bring_back(&self, record: &SessionRecord) -> Result<Option<Attached>> {
        let Some(kept) = self.kept() else {
            return Ok(None);
        };
        let pid = record.pid;
        let its = (pid, record.start_time, record.session);
        let segments = kept
            .segments
            .take_found(|name| (name.pid, name.start_time, name.session) == its);
        let opened = OpenSegments::open(pid, record.start_time, segments);
        let Some(process) = opened.process().cloned() else {
            return Ok(None);
        };
        let now = now_anchor().map_err(|error| Refusal::from_io(pid, "read the clock", &error))?;
        let functions = Arc::new(opened.functions(pid));
        let earlier = opened.read(&process, &functions, now.ticks);
        if earlier.events.blocks.is_empty() {
            return Ok(None);
        }
        let Reservation::Free(reserved) = self.table().reserve(pid)? else {
            return Ok(None);
        };
        let ticket = Arc::new(self.ticket(&record.options())?);
        let shared = Arc::new(Shared::of_ended(functions.ids()));
        for gap in earlier.gaps {
            shared.add_gap(gap);
        }
        let output = EventStore::new(process.id, functions.ids(), self.config().retain_bytes);
        let output = Arc::new(output);
        output.set_mode(record.choices.settings.mode);
        let anchors = earlier.events.anchors.first();
        let attached = anchors.copied().unwrap_or(now);
        let tables = Arc::new(ProcessTables {
            process,
            functions,
            shared: Arc::clone(&shared),
            earlier: earlier.choices,
        });
        let archive = SegmentArchive::new(
            Arc::clone(&kept.segments),
            Arc::clone(&tables),
            (record.session, earlier.next),
            earlier.segments,
        );
        output.archive_in(Box::new(archive));
        output.adopt(earlier.events);
        if output.drop_damaged() > 0 {
            shared.add_gap(damage_before(tables.process.id, now.ticks));
        }
        output.close();
        let events = output.counters().retained_events;
        let (control, _) = Control::new(pid, shared, Arc::clone(&output));
        let keeper = SessionKeeper::of_ended(kept.clone(), record.clone());
        let session = Arc::new(Session {
            pid,
            credentials: record.credentials,
            command_line: tables.process.command.clone(),
            source: TraceSource {
                tables,
                output,
                control,
                kinship: OnceLock::new(),
            },
            ring_bytes: record.ring_bytes,
            max_threads: record.max_threads,
            ring_refusal: Arc::default(),
            attached,
            keeper: Some(Arc::new(keeper)),
            _metered: None,
            ticket,
        });
        reserved.keep(&session);
        let report = AttachReport {
            notes: vec![format!(
                "the process has ended; {events} events of it are retained"
            )],
            ..AttachReport::default()
        };
        Ok(Some(Attached { session, report }))
    }
}
