//! Parquet, for DuckDB, pandas and the like: a directory of two tables.
//!
//! `events.parquet` has a row for each event, with the columns of our CSV. `functions.parquet` has
//! a row for each function of the trace. A row group has each name once (dictionary encoding), and
//! times as differences. The sink holds one row group in memory. If the data of events is
//! described, `events.parquet` has one more column, the fields in JSON.

use std::io;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::events::{EachEvent, each_event, word};
use super::fields::{self, Integers};
use super::kernel_ids::KernelIds;
use super::per_function::PerFunction;
use super::unpack_thread::Bytes;
use super::{EventFolderSink, Folder, FolderSink, Report};
use crate::event_format::EventOptions;
use crate::model::{CallKind, DataKind, Event, EventBody, ThreadId, Trace, Values};

/// Parquet.
#[derive(Debug, Clone, Copy)]
pub struct Parquet;

/// Rows and bytes of user events after which a row group is written.
const GROUP_ROWS: usize = 1 << 16;
const GROUP_DATA: usize = 1 << 24;

const EVENTS: &str = "message events {
    required int64 time_ns (INTEGER(64, false));
    required int64 pid (INTEGER(64, false));
    required binary process (STRING);
    required int64 tid (INTEGER(64, false));
    required binary thread (STRING);
    required binary event (STRING);
    optional int64 function_id (INTEGER(64, false));
    optional binary function (STRING);
    optional binary module (STRING);
    optional group arguments (LIST) {
        repeated group list { required int64 element (INTEGER(64, false)); }
    }
    optional int64 result (INTEGER(64, false));
    optional int64 event_type (INTEGER(64, false));
    optional binary event_type_name (STRING);
    optional binary data;
    optional int64 size (INTEGER(64, false));
    optional int64 processor (INTEGER(64, false));
    optional int64 lost (INTEGER(64, false));
    optional int64 unwound (INTEGER(64, false));
";

/// The last column if the data of events is described.
const FIELDS: &str = "    optional binary fields (JSON);
";

const FUNCTIONS: &str = "message functions {
    required int64 function_id (INTEGER(64, false));
    required int64 xray_id (INTEGER(64, false));
    required binary name (STRING);
    optional binary symbol (STRING);
    optional binary module (STRING);
    optional binary build_id (STRING);
    required int64 address (INTEGER(64, false));
    optional binary file (STRING);
    optional int64 line (INTEGER(64, false));
    required int64 sleds (INTEGER(64, false));
}";

type Writer<'a> = SerializedFileWriter<&'a mut (dyn io::Write + Send)>;

/// Rows that are not written yet, column by column.
#[derive(Default)]
struct Rows {
    time_ns: Vec<i64>,
    pid: Vec<i64>,
    process: Vec<ByteArray>,
    tid: Vec<i64>,
    thread: Vec<ByteArray>,
    event: Vec<ByteArray>,
    function_id: Vec<Option<i64>>,
    function: Vec<Option<ByteArray>>,
    module: Vec<Option<ByteArray>>,
    arguments: Vec<Values>,
    result: Vec<Option<i64>>,
    event_type: Vec<Option<i64>>,
    event_type_name: Vec<Option<ByteArray>>,
    data: Vec<Option<ByteArray>>,
    size: Vec<Option<i64>>,
    processor: Vec<Option<i64>>,
    lost: Vec<Option<i64>>,
    unwound: Vec<Option<i64>>,
    /// Written only if the data of events is described.
    fields: Vec<Option<ByteArray>>,
    /// Bytes in `data` and `fields`, which are not written yet.
    data_len: usize,
}

struct Output<'a> {
    trace: &'a Trace,
    options: &'a EventOptions,
    writer: Writer<'a>,
    rows: Rows,
    /// The name and the module of each function.
    functions: PerFunction<(ByteArray, Option<ByteArray>)>,
    /// The current thread.
    id: ThreadId,
    kernel: KernelIds,
    process: ByteArray,
    thread: ByteArray,
}

// === impl Parquet ===

impl FolderSink for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["parquet"]
    }

    fn about(&self) -> &'static str {
        "tables of events and functions, for DuckDB and pandas; a directory"
    }

    fn write(&self, trace: &Trace, folder: &mut dyn Folder) -> io::Result<Report> {
        EventFolderSink::write(self, trace, &EventOptions::default(), folder)
    }

    fn of_events(&self) -> Option<&dyn EventFolderSink> {
        Some(self)
    }
}

impl EventFolderSink for Parquet {
    fn write(
        &self,
        trace: &Trace,
        options: &EventOptions,
        folder: &mut dyn Folder,
    ) -> io::Result<Report> {
        let fields = if !fields::are_described(options, trace) {
            ""
        } else {
            FIELDS
        };
        let schema = format!("{EVENTS}{fields}}}");
        folder.begin("functions.parquet")?;
        functions(trace, writer(FUNCTIONS, folder)?).map_err(failed)?;
        folder.begin("events.parquet")?;
        let functions = PerFunction::new(trace, |function| {
            let module = trace.module(function.module);
            let module = module.map(|module| text(&module.path));
            (text(&function.name), module)
        });
        let mut output = Output {
            trace,
            options,
            writer: writer(&schema, folder)?,
            rows: Rows::default(),
            functions,
            id: ThreadId(0),
            kernel: KernelIds { pid: 0, tid: 0 },
            process: ByteArray::default(),
            thread: ByteArray::default(),
        };
        let report = each_event(trace, &options.filter, &mut output)?;
        output.group().map_err(failed)?;
        output.writer.close().map_err(failed)?;
        Ok(report)
    }
}

fn writer<'a>(schema: &str, folder: &'a mut dyn Folder) -> io::Result<Writer<'a>> {
    let schema = parse_message_type(schema).map_err(failed)?;
    let times = ColumnPath::from("time_ns");
    let properties = WriterProperties::builder()
        .set_created_by("xrayctl".to_owned())
        .set_compression(Compression::UNCOMPRESSED)
        .set_column_dictionary_enabled(times.clone(), false)
        .set_column_encoding(times, Encoding::DELTA_BINARY_PACKED)
        .build();
    let (schema, properties) = (Arc::new(schema), Arc::new(properties));
    SerializedFileWriter::new(folder.current(), schema, properties).map_err(failed)
}

fn functions(trace: &Trace, mut writer: Writer<'_>) -> Result<(), ParquetError> {
    for chunk in trace.functions().chunks(GROUP_ROWS) {
        let module = |at: usize| chunk.get(at).and_then(|known| trace.module(known.module));
        let modules = (0..chunk.len()).map(module).collect::<Vec<_>>();
        let sources = chunk.iter().map(|known| known.source.as_ref());
        let sources = sources.collect::<Vec<_>>();
        let mut group = writer.next_row_group()?;
        let number = |numbers: Vec<u64>| numbers.into_iter().map(bits).collect::<Vec<_>>();
        let each = |of: fn(&crate::model::Function) -> u64| number(chunk.iter().map(of).collect());
        required::<Int64Type>(&mut group, &each(|known| known.id.0.into()))?;
        required::<Int64Type>(&mut group, &each(|known| known.xray_id.into()))?;
        let names = chunk.iter().map(|known| text(&known.name));
        required::<ByteArrayType>(&mut group, &names.collect::<Vec<_>>())?;
        let symbols = chunk.iter().map(|known| known.symbol.as_deref().map(text));
        optional::<ByteArrayType>(&mut group, &symbols.collect::<Vec<_>>())?;
        let paths = modules
            .iter()
            .map(|module| module.map(|known| text(&known.path)));
        optional::<ByteArrayType>(&mut group, &paths.collect::<Vec<_>>())?;
        let builds = modules.iter().map(|module| {
            let build_id = module.and_then(|known| known.build_id.as_ref());
            build_id.map(|build_id| text(&build_id.to_string()))
        });
        optional::<ByteArrayType>(&mut group, &builds.collect::<Vec<_>>())?;
        required::<Int64Type>(&mut group, &each(|known| known.address.0))?;
        let files = sources
            .iter()
            .map(|source| source.map(|known| text(&known.file)));
        optional::<ByteArrayType>(&mut group, &files.collect::<Vec<_>>())?;
        let lines = sources
            .iter()
            .map(|source| source.map(|known| i64::from(known.line)));
        optional::<Int64Type>(&mut group, &lines.collect::<Vec<_>>())?;
        required::<Int64Type>(&mut group, &each(|known| known.sleds.into()))?;
        group.close()?;
    }
    writer.close().map(drop)
}

type Group<'a, 'w> = SerializedRowGroupWriter<'a, &'w mut (dyn io::Write + Send)>;

fn required<T: DataType>(group: &mut Group<'_, '_>, values: &[T::T]) -> Result<(), ParquetError> {
    column::<T>(group, |column| column.write_batch(values, None, None))
}

/// Writes values that may be missing: the present values, and for each row whether it has one.
fn optional<T: DataType>(
    group: &mut Group<'_, '_>,
    values: &[Option<T::T>],
) -> Result<(), ParquetError> {
    let there = values.iter().map(|value| i16::from(value.is_some()));
    let there = there.collect::<Vec<_>>();
    let values = values.iter().flatten().cloned().collect::<Vec<_>>();
    column::<T>(group, |column| {
        column.write_batch(&values, Some(&there), None)
    })
}

/// Writes lists of numbers; an empty list is null.
fn lists(group: &mut Group<'_, '_>, lists: &[Values]) -> Result<(), ParquetError> {
    let (mut numbers, mut there, mut goes_on) = (Vec::new(), Vec::new(), Vec::new());
    for list in lists {
        if list.is_empty() {
            there.push(0);
            goes_on.push(0);
        }
        for (index, number) in list.as_slice().iter().enumerate() {
            numbers.push(bits(*number));
            // The list is neither null nor empty.
            there.push(2);
            goes_on.push(i16::from(index > 0));
        }
    }
    column::<Int64Type>(group, |column| {
        column.write_batch(&numbers, Some(&there), Some(&goes_on))
    })
}

fn column<T: DataType>(
    group: &mut Group<'_, '_>,
    write: impl FnOnce(&mut ColumnWriterImpl<'_, T>) -> Result<usize, ParquetError>,
) -> Result<(), ParquetError> {
    let next = group.next_column()?;
    let mut column = next.ok_or_else(|| ParquetError::General("too many columns".to_owned()))?;
    write(column.typed::<T>())?;
    column.close()
}

fn text(text: &str) -> ByteArray {
    ByteArray::from(text)
}

/// Parquet stores unsigned numbers in the bits of signed ones.
fn bits(number: u64) -> i64 {
    number.cast_signed()
}

/// The error of the file where there is one. The writer wraps it, and its message would appear
/// twice.
fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(inner) => io::Error::other(inner),
        },
        error => io::Error::other(error),
    }
}

// === impl Output ===

impl EachEvent for Output<'_> {
    fn thread(&mut self, thread: ThreadId) -> io::Result<()> {
        let known = self.trace.thread(thread);
        let process = known.and_then(|known| self.trace.process(known.process));
        self.id = thread;
        self.kernel = KernelIds::of(self.trace, thread);
        self.process = text(process.map_or("", |process| &process.command));
        self.thread = text(known.map_or("", |known| &known.name));
        Ok(())
    }

    fn event(&mut self, event: &Event, bytes: &Bytes) -> io::Result<()> {
        let (mut arguments, mut result) = (Values::NONE, None);
        let (mut event_type, mut event_type_name) = (None, None);
        let mut function = None;
        let (mut user_data, mut size, mut user_fields) = (None, None, None);
        let (mut processor, mut lost, mut unwound) = (None, None, None);
        match event.body {
            EventBody::Call {
                function: called,
                kind,
                values,
            } => {
                function = Some(called);
                match kind {
                    CallKind::Enter => arguments = values,
                    CallKind::Exit | CallKind::TailExit => result = values.first().map(bits),
                }
            }
            EventBody::Data { kind, data } => {
                function = data.function();
                if let DataKind::Typed(number) = kind {
                    event_type = Some(number.into());
                }
                event_type_name = self.trace.type_of(self.id, kind).name().map(text);
                let bytes = bytes.get(data);
                let of = (self.id, kind);
                let decoded = fields::decoded(self.options, self.trace, of, bytes);
                if !fields::replace_data(kind, decoded.as_ref()) {
                    user_data = Some(ByteArray::from(bytes.to_vec()));
                }
                user_fields = decoded
                    .map(|decoded| ByteArray::from(fields::json(&decoded, Integers::Numbers)));
                size = data.is_cut().then(|| bits(data.size()));
            }
            EventBody::Cpu { cpu } => processor = Some(cpu.into()),
            EventBody::Lost { events } => lost = Some(bits(events)),
            EventBody::Unwound { calls } => unwound = Some(bits(calls)),
            EventBody::UnmatchedExit => {}
        }
        let known = function.and_then(|function| self.functions.get(function));
        let (name, module) = known.map_or((None, None), |known| {
            (Some(known.0.clone()), known.1.clone())
        });
        let function_id = function.map(|function| function.0.into());
        let ns = self.trace.clock().monotonic_ns(event.ticks);
        let rows = &mut self.rows;
        rows.time_ns.push(bits(ns));
        rows.pid.push(self.kernel.pid.into());
        rows.process.push(self.process.clone());
        rows.tid.push(self.kernel.tid.into());
        rows.thread.push(self.thread.clone());
        rows.event.push(ByteArray::from(word(&event.body)));
        rows.function_id.push(function_id);
        rows.function.push(name);
        rows.module.push(module);
        rows.arguments.push(arguments);
        rows.result.push(result);
        rows.event_type.push(event_type);
        rows.event_type_name.push(event_type_name);
        let of_user = [&user_data, &user_fields].into_iter().flatten();
        rows.data_len += of_user.map(ByteArray::len).sum::<usize>();
        rows.data.push(user_data);
        rows.size.push(size);
        rows.processor.push(processor);
        rows.lost.push(lost);
        rows.unwound.push(unwound);
        rows.fields.push(user_fields);
        if rows.time_ns.len() >= GROUP_ROWS || rows.data_len >= GROUP_DATA {
            self.group().map_err(failed)?;
        }
        Ok(())
    }
}

impl Output<'_> {
    /// Writes the rows in memory as a row group.
    fn group(&mut self) -> Result<(), ParquetError> {
        let Rows {
            time_ns,
            pid,
            process,
            tid,
            thread,
            event,
            function_id,
            function,
            module,
            arguments,
            result,
            event_type,
            event_type_name,
            data,
            size,
            processor,
            lost,
            unwound,
            fields,
            data_len: _,
        } = std::mem::take(&mut self.rows);
        if time_ns.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        required::<Int64Type>(&mut group, &time_ns)?;
        required::<Int64Type>(&mut group, &pid)?;
        required::<ByteArrayType>(&mut group, &process)?;
        required::<Int64Type>(&mut group, &tid)?;
        required::<ByteArrayType>(&mut group, &thread)?;
        required::<ByteArrayType>(&mut group, &event)?;
        optional::<Int64Type>(&mut group, &function_id)?;
        optional::<ByteArrayType>(&mut group, &function)?;
        optional::<ByteArrayType>(&mut group, &module)?;
        lists(&mut group, &arguments)?;
        optional::<Int64Type>(&mut group, &result)?;
        optional::<Int64Type>(&mut group, &event_type)?;
        optional::<ByteArrayType>(&mut group, &event_type_name)?;
        optional::<ByteArrayType>(&mut group, &data)?;
        optional::<Int64Type>(&mut group, &size)?;
        optional::<Int64Type>(&mut group, &processor)?;
        optional::<Int64Type>(&mut group, &lost)?;
        optional::<Int64Type>(&mut group, &unwound)?;
        if fields::are_described(self.options, self.trace) {
            optional::<ByteArrayType>(&mut group, &fields)?;
        }
        group.close().map(drop)
    }
}
