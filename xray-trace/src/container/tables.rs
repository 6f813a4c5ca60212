//! The payloads of all sections but blocks: for each kind, the code that writes it, and beside it
//! the function that reads it. Frames and checksums are the business of `reader` and `writer`.

use super::end::End;
use super::section::{FieldError, FieldReader, Fields, SectionKind};
use crate::addr::FileAddr;
use crate::event_format::Tracepoint;
use crate::model::{
    Birth, BuildId, ClockAnchor, DutyWindow, EventType, FilterNote, Function, FunctionId, Gap,
    GapCause, Lifetime, Module, ModuleId, Origin, Overwritten, Process, ProcessId, RecordingWindow,
    SnapshotWindow, SourceLine, Suppression, Thread, ThreadId, ThreadWait, Ticks,
};

/// An entry of a table of a trace. It takes one section.
pub trait TableEntry {
    /// The kind of the section.
    const KIND: SectionKind;

    /// Appends the fields of the section.
    fn put(&self, out: Fields<'_>);
}

impl TableEntry for Process {
    const KIND: SectionKind = SectionKind::PROCESS;

    fn put(&self, mut out: Fields<'_>) {
        let Process {
            id,
            pid,
            start_time_ticks,
            command,
            executable,
            host,
        } = self;
        out.number(id.0).number(*pid).number(*start_time_ticks);
        out.text(command)
            .text(executable)
            .optional_text(host.as_deref());
    }
}

pub(super) fn process(mut fields: FieldReader<'_>) -> Result<Process, FieldError> {
    Ok(Process {
        id: ProcessId(fields.number32("id")?),
        pid: fields.number32("pid")?,
        start_time_ticks: fields.number("start time")?,
        command: fields.text("command")?,
        executable: fields.text("executable")?,
        host: fields.optional_text("host")?,
    })
}

pub(super) fn put_origin(mut out: Fields<'_>, process: ProcessId, origin: Origin) {
    let Origin {
        parent,
        by,
        unrecorded_ns,
    } = origin;
    let by: u8 = match by {
        Birth::Fork => 0,
        Birth::Exec => 1,
    };
    out.number(process.0)
        .number(parent)
        .number(by)
        .number(unrecorded_ns);
}

pub(super) fn origin(mut fields: FieldReader<'_>) -> Result<(ProcessId, Origin), FieldError> {
    let process = ProcessId(fields.number32("process")?);
    let origin = Origin {
        parent: fields.number32("parent")?,
        by: match fields.present("exec")? {
            false => Birth::Fork,
            true => Birth::Exec,
        },
        unrecorded_ns: fields.number("unrecorded time")?,
    };
    Ok((process, origin))
}

impl TableEntry for Module {
    const KIND: SectionKind = SectionKind::MODULE;

    fn put(&self, mut out: Fields<'_>) {
        let Module {
            id,
            process,
            path,
            build_id,
            load_bias,
            event_formats,
        } = self;
        out.number(id.0).number(process.0).text(path);
        match build_id {
            None => out.number(0_u8),
            Some(BuildId(bytes)) => out.number(1_u8).bytes(bytes),
        };
        out.number(*load_bias);
        if !event_formats.is_empty() {
            out.number(event_formats.len() as u64);
            for text in event_formats {
                out.text(text);
            }
        }
    }
}

/// The most descriptions of events that are kept of a module.
const MOST_EVENT_FORMATS: u64 = 256;

pub(super) fn module(mut fields: FieldReader<'_>) -> Result<Module, FieldError> {
    Ok(Module {
        id: ModuleId(fields.number32("id")?),
        process: ProcessId(fields.number32("process")?),
        path: fields.text("path")?,
        build_id: match fields.present("build id")? {
            false => None,
            true => Some(BuildId(fields.bytes("build id")?.to_vec())),
        },
        load_bias: fields.number("load bias")?,
        event_formats: match fields.is_empty() {
            true => Vec::new(),
            false => {
                let count = fields.number("event formats")?.min(MOST_EVENT_FORMATS);
                let texts = (0..count).map(|_| fields.text("event format"));
                let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
                texts.into_iter().filter(|text| !text.is_empty()).collect()
            }
        },
    })
}

impl TableEntry for Lifetime {
    const KIND: SectionKind = SectionKind::LIFETIME;

    fn put(&self, mut out: Fields<'_>) {
        let Lifetime {
            module,
            loaded,
            unloaded,
        } = self;
        out.number(module.0)
            .optional_ticks(*loaded)
            .optional_ticks(*unloaded);
    }
}

pub(super) fn lifetime(mut fields: FieldReader<'_>) -> Result<Lifetime, FieldError> {
    Ok(Lifetime {
        module: ModuleId(fields.number32("module")?),
        loaded: fields.optional_ticks("loaded")?,
        unloaded: fields.optional_ticks("unloaded")?,
    })
}

impl TableEntry for Suppression {
    const KIND: SectionKind = SectionKind::SUPPRESSION;

    fn put(&self, mut out: Fields<'_>) {
        let Suppression {
            function,
            process,
            from,
            until,
            recorded,
            calls,
        } = self;
        out.number(function.0)
            .number(process.0)
            .number(from.0)
            .optional_ticks(*until)
            .number(*recorded)
            .number(*calls);
    }
}

pub(super) fn suppression(mut fields: FieldReader<'_>) -> Result<Suppression, FieldError> {
    Ok(Suppression {
        function: FunctionId(fields.number32("function")?),
        process: ProcessId(fields.number32("process")?),
        from: Ticks(fields.number("from")?),
        until: fields.optional_ticks("until")?,
        recorded: fields.number("recorded")?,
        calls: fields.number("calls")?,
    })
}

impl TableEntry for DutyWindow {
    const KIND: SectionKind = SectionKind::DUTY;

    fn put(&self, mut out: Fields<'_>) {
        let DutyWindow {
            process,
            from,
            until,
            stands_for,
        } = self;
        out.number(process.0)
            .number(from.0)
            .number(until.0.saturating_sub(from.0))
            .number(*stands_for);
    }
}

pub(super) fn duty(mut fields: FieldReader<'_>) -> Result<DutyWindow, FieldError> {
    let process = ProcessId(fields.number32("process")?);
    let from = Ticks(fields.number("from")?);
    Ok(DutyWindow {
        process,
        from,
        until: Ticks(from.0.saturating_add(fields.number("length")?)),
        stands_for: fields.number("stands for")?,
    })
}

impl TableEntry for FilterNote {
    const KIND: SectionKind = SectionKind::FILTER;

    fn put(&self, mut out: Fields<'_>) {
        let FilterNote {
            process,
            since,
            filter,
        } = self;
        out.number(process.0).optional_ticks(*since).text(filter);
    }
}

pub(super) fn filter(mut fields: FieldReader<'_>) -> Result<FilterNote, FieldError> {
    Ok(FilterNote {
        process: ProcessId(fields.number32("process")?),
        since: fields.optional_ticks("since")?,
        filter: fields.text("filter")?,
    })
}

impl TableEntry for Gap {
    const KIND: SectionKind = SectionKind::GAP;

    fn put(&self, mut out: Fields<'_>) {
        let Gap {
            process,
            from,
            until,
            cause,
        } = self;
        let cause = match cause {
            GapCause::Unknown => 0_u8,
            GapCause::NoDaemon => 1,
            GapCause::UnreadRings => 2,
            GapCause::DamagedEvents => 3,
        };
        out.number(process.0)
            .optional_ticks(*from)
            .number(until.0)
            .number(cause);
    }
}

pub(super) fn gap(mut fields: FieldReader<'_>) -> Result<Gap, FieldError> {
    Ok(Gap {
        process: ProcessId(fields.number32("process")?),
        from: fields.optional_ticks("from")?,
        until: Ticks(fields.number("until")?),
        cause: match fields.number("cause")? {
            1 => GapCause::NoDaemon,
            2 => GapCause::UnreadRings,
            3 => GapCause::DamagedEvents,
            _ => GapCause::Unknown,
        },
    })
}

impl TableEntry for ThreadWait {
    const KIND: SectionKind = SectionKind::WAIT;

    fn put(&self, mut out: Fields<'_>) {
        let ThreadWait {
            thread,
            from,
            until,
            waited,
        } = self;
        out.number(thread.0)
            .number(from.0)
            .number(until.0.saturating_sub(from.0))
            .number(*waited);
    }
}

pub(super) fn wait(mut fields: FieldReader<'_>) -> Result<ThreadWait, FieldError> {
    let thread = ThreadId(fields.number32("thread")?);
    let from = Ticks(fields.number("from")?);
    let length = fields.number("length")?;
    Ok(ThreadWait {
        thread,
        from,
        until: Ticks(from.0.saturating_add(length)),
        // The waits follow each other.
        waited: fields.number("waited")?.min(length),
    })
}

impl TableEntry for Function {
    const KIND: SectionKind = SectionKind::FUNCTION;

    fn put(&self, mut out: Fields<'_>) {
        let Function {
            id,
            module,
            xray_id,
            address,
            symbol,
            name,
            source,
            sleds,
        } = self;
        out.number(id.0)
            .number(module.0)
            .number(*xray_id)
            .number(address.0);
        out.optional_text(symbol.as_deref()).text(name);
        match source {
            None => out.number(0_u8),
            Some(SourceLine { file, line }) => out.number(1_u8).text(file).number(*line),
        };
        out.number(*sleds);
    }
}

pub(super) fn function(mut fields: FieldReader<'_>) -> Result<Function, FieldError> {
    Ok(Function {
        id: FunctionId(fields.number32("id")?),
        module: ModuleId(fields.number32("module")?),
        xray_id: fields.number32("xray id")?,
        address: FileAddr(fields.number("address")?),
        symbol: fields.optional_text("symbol")?,
        name: fields.text("name")?,
        source: match fields.present("source")? {
            false => None,
            true => Some(SourceLine {
                file: fields.text("source file")?,
                line: fields.number32("source line")?,
            }),
        },
        sleds: fields.number32("sleds")?,
    })
}

impl TableEntry for Thread {
    const KIND: SectionKind = SectionKind::THREAD;

    fn put(&self, mut out: Fields<'_>) {
        let Thread {
            id,
            process,
            tid,
            name,
        } = self;
        out.number(id.0).number(process.0).number(*tid).text(name);
    }
}

pub(super) fn thread(mut fields: FieldReader<'_>) -> Result<Thread, FieldError> {
    Ok(Thread {
        id: ThreadId(fields.number32("id")?),
        process: ProcessId(fields.number32("process")?),
        tid: fields.number32("tid")?,
        name: fields.text("name")?,
    })
}

impl TableEntry for EventType {
    const KIND: SectionKind = SectionKind::EVENT_TYPE;

    fn put(&self, mut out: Fields<'_>) {
        let EventType {
            process,
            number,
            name,
        } = self;
        out.number(process.0).number(*number).text(name);
    }
}

pub(super) fn event_type(mut fields: FieldReader<'_>) -> Result<EventType, FieldError> {
    Ok(EventType {
        process: ProcessId(fields.number32("process")?),
        number: fields.number16("number")?,
        name: fields.text("name")?,
    })
}

pub(super) fn put_tracepoint(mut out: Fields<'_>, number: u16, tracepoint: &Tracepoint) {
    out.number(number)
        .text(&tracepoint.name)
        .text(tracepoint.description());
}

pub(super) fn tracepoint(mut fields: FieldReader<'_>) -> Result<(u16, Tracepoint), FieldError> {
    let number = fields.number16("number")?;
    let name = fields.text("name")?;
    Ok((number, Tracepoint::new(name, fields.text("fields")?)))
}

impl TableEntry for ClockAnchor {
    const KIND: SectionKind = SectionKind::ANCHOR;

    fn put(&self, mut out: Fields<'_>) {
        let ClockAnchor {
            ticks,
            monotonic_ns,
            wall_ns,
        } = self;
        out.number(ticks.0).number(*monotonic_ns).number(*wall_ns);
    }
}

pub(super) fn anchor(mut fields: FieldReader<'_>) -> Result<ClockAnchor, FieldError> {
    Ok(ClockAnchor {
        ticks: Ticks(fields.number("ticks")?),
        monotonic_ns: fields.number("monotonic time")?,
        wall_ns: fields.number("wall time")?,
    })
}

pub(super) fn put_lost(mut out: Fields<'_>, thread: ThreadId, events: u64) {
    out.number(thread.0).number(events);
}

pub(super) fn lost(mut fields: FieldReader<'_>) -> Result<(ThreadId, u64), FieldError> {
    Ok((
        ThreadId(fields.number32("thread")?),
        fields.number("events")?,
    ))
}

impl TableEntry for Overwritten {
    const KIND: SectionKind = SectionKind::OVERWRITTEN;

    fn put(&self, mut out: Fields<'_>) {
        let Overwritten {
            thread,
            events,
            until,
        } = self;
        out.number(thread.0)
            .optional_number(*events)
            .number(until.0);
    }
}

pub(super) fn overwritten(mut fields: FieldReader<'_>) -> Result<Overwritten, FieldError> {
    Ok(Overwritten {
        thread: ThreadId(fields.number32("thread")?),
        events: fields.optional_number("events")?,
        until: Ticks(fields.number("until")?),
    })
}

impl TableEntry for SnapshotWindow {
    const KIND: SectionKind = SectionKind::SNAPSHOT;

    fn put(&self, mut out: Fields<'_>) {
        let SnapshotWindow { since, until } = self;
        out.number(since.0).number(until.0);
    }
}

pub(super) fn snapshot(mut fields: FieldReader<'_>) -> Result<SnapshotWindow, FieldError> {
    Ok(SnapshotWindow {
        since: Ticks(fields.number("since")?),
        until: Ticks(fields.number("until")?),
    })
}

impl TableEntry for RecordingWindow {
    const KIND: SectionKind = SectionKind::RECORDING;

    fn put(&self, mut out: Fields<'_>) {
        let RecordingWindow {
            process,
            since,
            until,
            earlier_exits,
            later_events,
            later_lost,
        } = self;
        out.number(process.0)
            .optional_ticks(*since)
            .optional_ticks(*until)
            .number(*earlier_exits)
            .number(*later_events)
            .number(*later_lost);
    }
}

pub(super) fn recording(mut fields: FieldReader<'_>) -> Result<RecordingWindow, FieldError> {
    Ok(RecordingWindow {
        process: ProcessId(fields.number32("process")?),
        since: fields.optional_ticks("since")?,
        until: fields.optional_ticks("until")?,
        earlier_exits: fields.number("earlier exits")?,
        later_events: fields.number("later events")?,
        later_lost: fields.number("later losses")?,
    })
}

impl TableEntry for End {
    const KIND: SectionKind = SectionKind::END;

    fn put(&self, mut out: Fields<'_>) {
        let End {
            calls,
            lost,
            blocks,
        } = self;
        out.number(*calls).number(*lost).number(*blocks);
    }
}

pub(super) fn end(mut fields: FieldReader<'_>) -> Result<End, FieldError> {
    Ok(End {
        calls: fields.number("calls")?,
        lost: fields.number("lost")?,
        blocks: fields.number("blocks")?,
    })
}
