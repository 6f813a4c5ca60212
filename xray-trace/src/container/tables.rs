//! The payloads of all sections but blocks: for each kind, a function that writes it, and beside it
//! the function that reads it. Frames and checksums are the business of `reader` and `writer`.

use super::end::End;
use super::section::{FieldError, FieldReader, Fields};
use crate::addr::FileAddr;
use crate::model::{
    Birth, BuildId, ClockAnchor, DutyWindow, EventType, FilterNote, Function, FunctionId, Lifetime,
    Module, ModuleId, Origin, Overwritten, Process, ProcessId, RecordingWindow, SnapshotWindow,
    SourceLine, Suppression, Thread, ThreadId, Ticks,
};

pub(super) fn put_process(mut out: Fields<'_>, process: &Process) {
    let Process {
        id,
        pid,
        start_time_ticks,
        command,
        executable,
        host,
    } = process;
    out.number(id.0).number(*pid).number(*start_time_ticks);
    out.text(command)
        .text(executable)
        .optional_text(host.as_deref());
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

pub(super) fn put_module(mut out: Fields<'_>, module: &Module) {
    let Module {
        id,
        process,
        path,
        build_id,
        load_bias,
    } = module;
    out.number(id.0).number(process.0).text(path);
    match build_id {
        None => out.number(0_u8),
        Some(BuildId(bytes)) => out.number(1_u8).bytes(bytes),
    };
    out.number(*load_bias);
}

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
    })
}

pub(super) fn put_lifetime(mut out: Fields<'_>, lifetime: &Lifetime) {
    let Lifetime {
        module,
        loaded,
        unloaded,
    } = lifetime;
    out.number(module.0)
        .optional_ticks(*loaded)
        .optional_ticks(*unloaded);
}

pub(super) fn lifetime(mut fields: FieldReader<'_>) -> Result<Lifetime, FieldError> {
    Ok(Lifetime {
        module: ModuleId(fields.number32("module")?),
        loaded: fields.optional_ticks("loaded")?,
        unloaded: fields.optional_ticks("unloaded")?,
    })
}

pub(super) fn put_suppression(mut out: Fields<'_>, suppression: &Suppression) {
    let Suppression {
        function,
        process,
        from,
        until,
        recorded,
        calls,
    } = suppression;
    out.number(function.0)
        .number(process.0)
        .number(from.0)
        .optional_ticks(*until)
        .number(*recorded)
        .number(*calls);
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

pub(super) fn put_duty(mut out: Fields<'_>, window: &DutyWindow) {
    let DutyWindow {
        process,
        from,
        until,
        stands_for,
    } = window;
    out.number(process.0)
        .number(from.0)
        .number(until.0.saturating_sub(from.0))
        .number(*stands_for);
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

pub(super) fn put_filter(mut out: Fields<'_>, note: &FilterNote) {
    let FilterNote {
        process,
        since,
        filter,
    } = note;
    out.number(process.0).optional_ticks(*since).text(filter);
}

pub(super) fn filter(mut fields: FieldReader<'_>) -> Result<FilterNote, FieldError> {
    Ok(FilterNote {
        process: ProcessId(fields.number32("process")?),
        since: fields.optional_ticks("since")?,
        filter: fields.text("filter")?,
    })
}

pub(super) fn put_function(mut out: Fields<'_>, function: &Function) {
    let Function {
        id,
        module,
        xray_id,
        address,
        symbol,
        name,
        source,
        sleds,
    } = function;
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

pub(super) fn put_thread(mut out: Fields<'_>, thread: &Thread) {
    let Thread {
        id,
        process,
        tid,
        name,
    } = thread;
    out.number(id.0).number(process.0).number(*tid).text(name);
}

pub(super) fn thread(mut fields: FieldReader<'_>) -> Result<Thread, FieldError> {
    Ok(Thread {
        id: ThreadId(fields.number32("id")?),
        process: ProcessId(fields.number32("process")?),
        tid: fields.number32("tid")?,
        name: fields.text("name")?,
    })
}

pub(super) fn put_event_type(mut out: Fields<'_>, event_type: &EventType) {
    let EventType {
        process,
        number,
        name,
    } = event_type;
    out.number(process.0).number(*number).text(name);
}

pub(super) fn event_type(mut fields: FieldReader<'_>) -> Result<EventType, FieldError> {
    Ok(EventType {
        process: ProcessId(fields.number32("process")?),
        number: fields.number16("number")?,
        name: fields.text("name")?,
    })
}

pub(super) fn put_anchor(mut out: Fields<'_>, anchor: &ClockAnchor) {
    let ClockAnchor {
        ticks,
        monotonic_ns,
        wall_ns,
    } = anchor;
    out.number(ticks.0).number(*monotonic_ns).number(*wall_ns);
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

pub(super) fn put_overwritten(mut out: Fields<'_>, overwritten: &Overwritten) {
    let Overwritten {
        thread,
        events,
        until,
    } = overwritten;
    out.number(thread.0)
        .optional_number(*events)
        .number(until.0);
}

pub(super) fn overwritten(mut fields: FieldReader<'_>) -> Result<Overwritten, FieldError> {
    Ok(Overwritten {
        thread: ThreadId(fields.number32("thread")?),
        events: fields.optional_number("events")?,
        until: Ticks(fields.number("until")?),
    })
}

pub(super) fn put_snapshot(mut out: Fields<'_>, window: &SnapshotWindow) {
    let SnapshotWindow { since, until } = window;
    out.number(since.0).number(until.0);
}

pub(super) fn snapshot(mut fields: FieldReader<'_>) -> Result<SnapshotWindow, FieldError> {
    Ok(SnapshotWindow {
        since: Ticks(fields.number("since")?),
        until: Ticks(fields.number("until")?),
    })
}

pub(super) fn put_recording(mut out: Fields<'_>, window: &RecordingWindow) {
    let RecordingWindow {
        process,
        since,
        until,
        earlier_exits,
        later_events,
        later_lost,
    } = window;
    out.number(process.0)
        .optional_ticks(*since)
        .optional_ticks(*until)
        .number(*earlier_exits)
        .number(*later_events)
        .number(*later_lost);
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

pub(super) fn put_end(mut out: Fields<'_>, end: &End) {
    let End {
        calls,
        lost,
        blocks,
    } = end;
    out.number(*calls).number(*lost).number(*blocks);
}

pub(super) fn end(mut fields: FieldReader<'_>) -> Result<End, FieldError> {
    Ok(End {
        calls: fields.number("calls")?,
        lost: fields.number("lost")?,
        blocks: fields.number("blocks")?,
    })
}
