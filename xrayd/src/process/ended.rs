//! Sessions of processes that have ended, from what an earlier daemon has retained of them.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use xray_trace::model::Ticks;

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
    refusal::{Reason, Refusal, Result},
    store::EventStore,
    sys::{now_anchor, ticks_in},
};

impl Registry {
    /// Makes the session of a process that has ended, or that runs another program. It has the
    /// events that an earlier daemon has retained. `None` if there are none, or if another process
    /// with that pid is attached.
    ///
    /// # Errors
    /// The pid is busy, a quota would be exceeded, or the clock or a segment cannot be read now.
    pub(super) fn bring_back(&self, record: &SessionRecord) -> Result<Option<Attached>> {
        let Some(kept) = self.kept() else {
            return Ok(None);
        };
        let pid = record.pid;
        let now = now_anchor().map_err(|error| Refusal::from_io(pid, "read the clock", &error))?;
        let reserved = match self.table().reserve(pid)? {
            Reservation::Free(reserved) => Some(reserved),
            // The process has executed another program since, and that one is traced.
            Reservation::Running(other) if other.start_time() == record.start_time => None,
            Reservation::Running(_) => return Ok(None),
        };
        let ticket = Arc::new(self.ticket(&record.options())?);
        // The segments are taken last: a refusal before leaves them to the next daemon.
        let its = (pid, record.start_time, record.session);
        let segments = kept
            .segments
            .take_found(|name| (name.pid, name.start_time, name.session) == its);
        let opened = OpenSegments::open(pid, record.start_time, segments);
        if opened.is_left {
            opened.leave();
            let message =
                format!("process {pid} has ended, and its retained events cannot be read");
            return Err(Refusal::new(Reason::Io, message));
        }
        let Some(process) = opened.process().cloned() else {
            return Ok(None);
        };
        let functions = Arc::new(opened.functions(pid));
        let earlier = opened.read(&process, &functions, now.ticks);
        let blocks = earlier.events.blocks.iter();
        let Some(last) = blocks.map(|(archived, _)| archived.block.last).max() else {
            return Ok(None);
        };
        let ended = instant_at(last, now.ticks);
        let shared = Arc::new(Shared::of_ended(functions.ids(), ended));
        for gap in earlier.gaps {
            shared.add_gap(gap);
        }
        let output = EventStore::new(process.id, functions.ids(), self.config().retain_bytes);
        let output = Arc::new(output);
        output.identify(record.session);
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
            // Its record has none.
            facts: None,
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
            by_policy: record.by_policy,
            keeper: Some(Arc::new(keeper)),
            _metered: None,
            ticket,
        });
        if let Some(reserved) = reserved {
            reserved.keep(&session);
        }
        let report = AttachReport {
            notes: vec![format!(
                "its program has ended; {events} events of it are retained"
            )],
            ..AttachReport::default()
        };
        Ok(Some(Attached { session, report }))
    }
}

/// The time of a reading of the counter, which shows `now` at present. The order of the sessions by
/// age needs it.
fn instant_at(ticks: Ticks, now: Ticks) -> Instant {
    let per_millisecond = ticks_in(Duration::from_millis(1)).unwrap_or(1).max(1);
    let ago = now.0.saturating_sub(ticks.0) / per_millisecond;
    let at = Instant::now().checked_sub(Duration::from_millis(ago));
    at.unwrap_or_else(Instant::now)
}
