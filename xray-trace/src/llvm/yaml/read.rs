//! Reads a trace from YAML, one record at a time. `source` supplies the characters.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;

use saphyr_parser::{BufferedInput, Event, Parser, ScanError, Span};

use super::source::{End, Source};
use super::{Kind, Record, TraceHeader};
use crate::llvm::{Error, Mode, SkippedList};

/// The most characters of a part of a trace, such as the data of an event.
pub const MAX_ITEM_LEN: usize = 16 << 20;

/// The same in [`Mode::Salvage`]. After a part without an end, the reader goes back to the next
/// line.
const MAX_SALVAGED_LEN: usize = 64 << 10;

/// The most arguments of a record. Without a limit a hostile file could make reading endless.
const MAX_ARGS: usize = 1 << 16;

/// Reads the records of a trace.
pub struct Reader<R: Read> {
    source: Source<R>,
    parser: Parser<'static, BufferedInput<Source<R>>>,
    header: TraceHeader,
    mode: Mode,
    place: FilePart,
    /// The number of open lists and mappings.
    depth: usize,
    /// True after the parser has failed. It cannot continue.
    broken: bool,
    /// True for a new parser: the characters that it has read are kept already.
    restarted: bool,
    skipped: SkippedList,
}

/// The part of the file that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilePart {
    InRecords,
    AtEnd,
}

/// An event of the YAML parser, with its place.
type Piece = (Event<'static>, Span);

/// The fields of a record, as far as they have been read.
#[derive(Default)]
struct Fields {
    record_type: Option<u16>,
    function_id: Option<i32>,
    function: Option<String>,
    args: Option<Vec<u64>>,
    cpu: Option<u16>,
    thread: Option<u32>,
    process: Option<u32>,
    kind: Option<Kind>,
    tsc: Option<u64>,
    data: Option<String>,
}

// === impl Reader ===

impl<R: Read> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("header", &self.header)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl<R: Read + 'static> Reader<R> {
    /// Reads the header of a trace.
    ///
    /// # Errors
    ///
    /// If the text is not YAML, or no trace. The header must come before the records.
    pub fn new(input: R, mode: Mode) -> Result<Self, Error> {
        let source = Source::new(input);
        let mut reader = Self {
            parser: Parser::new_from_iter(source.clone()),
            source,
            header: TraceHeader {
                version: 0,
                log: 0,
                constant_tsc: false,
                nonstop_tsc: false,
                cycle_frequency: 0,
            },
            mode,
            place: FilePart::AtEnd,
            depth: 0,
            broken: false,
            restarted: false,
            skipped: SkippedList::default(),
        };
        reader.expect(|event| *event == Event::StreamStart, "text")?;
        let (event, span) = reader.piece()?;
        match event {
            Event::StreamEnd => return Err(Error::Empty),
            Event::DocumentStart(_) => {}
            _ => return Err(wrong(&span, "expected a document")),
        }
        reader.expect(is_mapping, "a trace")?;
        reader.expect_key("header")?;
        reader.header = reader.read_header()?;
        reader.expect_key("records")?;
        let (event, span) = reader.piece()?;
        reader.place = match event {
            Event::SequenceStart(0, _) => FilePart::InRecords,
            Event::Scalar(text, ..) if matches!(&*text, "" | "~" | "null") => FilePart::AtEnd,
            _ => return Err(wrong(&span, "expected a list of records")),
        };
        Ok(reader)
    }

    /// The header of the trace.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The parts that were skipped so far; always empty in [`Mode::Strict`]. Offsets are those of
    /// the parser, which is several characters ahead.
    pub fn skipped(&self) -> &SkippedList {
        &self.skipped
    }

    fn step(&mut self) -> Result<Option<Record<'static>>, Error> {
        while self.place == FilePart::InRecords {
            let (from, depth) = (self.source.offset(), self.depth);
            match self.record() {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) => self.place = FilePart::AtEnd,
                Err(error) if self.mode == Mode::Salvage && error.is_damage() => {
                    self.go_on(depth)?;
                    self.skipped.push(from, self.source.offset(), error);
                }
                Err(error) => {
                    self.place = FilePart::AtEnd;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Continues with the next record.
    fn go_on(&mut self, depth: usize) -> Result<(), Error> {
        while !self.broken && self.depth > depth {
            // An error breaks the parser.
            match self.piece() {
                Err(error) if !error.is_damage() => return Err(error),
                _ => {}
            }
        }
        if !self.broken {
            return Ok(());
        }
        if !self.source.skip_to_item()? {
            self.place = FilePart::AtEnd;
            return Ok(());
        }
        self.parser = Parser::new_from_iter(self.source.clone());
        self.source.allow(self.limit());
        // The parser reads beyond the pieces that it returns, so its characters are kept from here
        // on.
        self.source.keep();
        self.restarted = true;
        self.broken = false;
        // The rest is a list by itself, with three pieces before its first item. If other pieces
        // come, reading the next record fails.
        for _ in 0..3 {
            match self.parser.peek() {
                Some(Ok((
                    Event::StreamStart | Event::DocumentStart(_) | Event::SequenceStart(0, _),
                    _,
                ))) => self.parser.next_event(),
                _ => break,
            };
        }
        self.depth = 1;
        Ok(())
    }

    fn read_header(&mut self) -> Result<TraceHeader, Error> {
        self.expect(is_mapping, "the fields of the header")?;
        let (mut version, mut log, mut constant, mut nonstop, mut frequency) =
            (None, None, None, None, None);
        let end = loop {
            let (name, span) = match self.piece()? {
                (Event::MappingEnd, span) => break span,
                (Event::Scalar(name, _, 0, _), span) => (name, span),
                (_, span) => return Err(wrong(&span, "expected a field")),
            };
            let value = self.scalar()?;
            match &*name {
                "version" => set(&mut version, &name, &value, unsigned)?,
                "type" => set(&mut log, &name, &value, unsigned)?,
                "constant-tsc" => set(&mut constant, &name, &value, boolean)?,
                "nonstop-tsc" => set(&mut nonstop, &name, &value, boolean)?,
                "cycle-frequency" => set(&mut frequency, &name, &value, unsigned)?,
                _ => return Err(unknown(&span, "the header", &name)),
            }
        };
        Ok(TraceHeader {
            version: required(version, "version", &end)?,
            log: required(log, "type", &end)?,
            constant_tsc: required(constant, "constant-tsc", &end)?,
            nonstop_tsc: required(nonstop, "nonstop-tsc", &end)?,
            cycle_frequency: required(frequency, "cycle-frequency", &end)?,
        })
    }

    /// The next record; `None` after the last one.
    fn record(&mut self) -> Result<Option<Record<'static>>, Error> {
        if self.mode == Mode::Salvage && !std::mem::take(&mut self.restarted) {
            self.source.keep();
        }
        match self.piece()? {
            (event, _) if is_mapping(&event) => {}
            (Event::SequenceEnd, _) => return Ok(None),
            (_, span) => return Err(wrong(&span, "expected a record")),
        }
        let mut fields = Fields::default();
        loop {
            let (name, span) = match self.piece()? {
                (Event::MappingEnd, span) => return fields.finish(&span).map(Some),
                (Event::Scalar(name, _, 0, _), span) => (name, span),
                (_, span) => return Err(wrong(&span, "expected a field")),
            };
            if &*name == "args" {
                if fields.args.is_some() {
                    return Err(wrong(&span, "the field args occurs twice"));
                }
                fields.args = Some(self.args()?);
            } else {
                let value = self.scalar()?;
                fields.set(&name, &span, &value)?;
            }
        }
    }

    fn args(&mut self) -> Result<Vec<u64>, Error> {
        self.expect(
            |event| matches!(event, Event::SequenceStart(0, _)),
            "a list of arguments",
        )?;
        let mut args = Vec::new();
        loop {
            let (event, span) = self.piece()?;
            match event {
                Event::SequenceEnd => return Ok(args),
                Event::Scalar(text, _, 0, _) if args.len() < MAX_ARGS => {
                    args.push(unsigned(&text).ok_or_else(|| bad_value(&span, "args", &text))?);
                }
                _ => return Err(wrong(&span, "expected a number")),
            }
        }
    }

    fn scalar(&mut self) -> Result<(String, Span), Error> {
        match self.piece()? {
            (Event::Scalar(text, _, 0, _), span) => Ok((text.into_owned(), span)),
            (_, span) => Err(wrong(&span, "expected a value")),
        }
    }

    fn expect_key(&mut self, key: &str) -> Result<(), Error> {
        let (event, span) = self.piece()?;
        if matches!(&event, Event::Scalar(text, ..) if text == key) {
            return Ok(());
        }
        Err(wrong(&span, format!("expected the field {key}")))
    }

    fn expect(&mut self, wanted: impl FnOnce(&Event<'_>) -> bool, what: &str) -> Result<(), Error> {
        let (event, span) = self.piece()?;
        if wanted(&event) {
            return Ok(());
        }
        Err(wrong(&span, format!("expected {what}")))
    }

    fn piece(&mut self) -> Result<Piece, Error> {
        let piece = self.parse();
        match &piece {
            Ok((Event::MappingStart(..) | Event::SequenceStart(..), _)) => self.depth += 1,
            Ok((Event::MappingEnd | Event::SequenceEnd, _)) => {
                self.depth = self.depth.saturating_sub(1);
            }
            Ok((Event::StreamEnd, _)) | Err(_) => self.broken = true,
            Ok(_) => {}
        }
        piece
    }

    fn limit(&self) -> usize {
        match self.mode {
            Mode::Strict => MAX_ITEM_LEN,
            Mode::Salvage => MAX_SALVAGED_LEN,
        }
    }

    fn parse(&mut self) -> Result<Piece, Error> {
        let offset = self.source.offset();
        self.source.allow(self.limit());
        let piece = self.parser.next_event();
        match self.source.take_end() {
            End::No => {}
            End::Failed(error) => return Err(error.into()),
            End::TooLong => {
                return Err(Error::TooLong {
                    what: "a piece of YAML",
                    offset,
                    len: self.source.offset().saturating_sub(offset),
                    limit: self.limit() as u64,
                });
            }
            End::NotUtf8(offset) => {
                let what = format!("the byte at offset {offset} is not UTF-8");
                return Err(match piece {
                    Some(Ok((_, span))) => wrong(&span, what),
                    Some(Err(error)) => Error::from(&error).with_reason(what),
                    None => wrong(&Span::default(), what),
                });
            }
        }
        match piece {
            Some(Ok(piece)) => Ok(piece),
            Some(Err(error)) => Err(Error::from(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }
}

/// Yields the records in order. The iterator ends after the first error in [`Mode::Strict`].
impl<R: Read + 'static> Iterator for Reader<R> {
    type Item = Result<Record<'static>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

fn is_mapping(event: &Event<'_>) -> bool {
    matches!(event, Event::MappingStart(0, _))
}

// === impl Fields ===

impl Fields {
    fn set(&mut self, name: &str, span: &Span, value: &(String, Span)) -> Result<(), Error> {
        let text = |text: &str| Some(text.to_owned());
        match name {
            "type" => set(&mut self.record_type, name, value, unsigned),
            "func-id" => set(&mut self.function_id, name, value, signed),
            "function" => set(&mut self.function, name, value, text),
            "cpu" => set(&mut self.cpu, name, value, unsigned),
            "thread" => set(&mut self.thread, name, value, unsigned),
            "process" => set(&mut self.process, name, value, unsigned),
            "kind" => set(&mut self.kind, name, value, |text| {
                Kind::ALL.into_iter().find(|kind| kind.name() == text)
            }),
            "tsc" => set(&mut self.tsc, name, value, unsigned),
            "data" => set(&mut self.data, name, value, text),
            _ => Err(unknown(span, "a record", name)),
        }
    }

    fn finish(self, end: &Span) -> Result<Record<'static>, Error> {
        let Self {
            record_type,
            function_id,
            function,
            args,
            cpu,
            thread,
            process,
            kind,
            tsc,
            data,
        } = self;
        Ok(Record {
            record_type: required(record_type, "type", end)?,
            function_id: function_id.unwrap_or_default(),
            function: Cow::Owned(function.unwrap_or_default()),
            args: Cow::Owned(args.unwrap_or_default()),
            cpu: required(cpu, "cpu", end)?,
            thread: thread.unwrap_or_default(),
            process: process.unwrap_or_default(),
            kind: required(kind, "kind", end)?,
            tsc: required(tsc, "tsc", end)?,
            data: Cow::Owned(data.unwrap_or_default().into_bytes()),
        })
    }
}

fn set<T>(
    field: &mut Option<T>,
    name: &str,
    (text, span): &(String, Span),
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<(), Error> {
    if field.is_some() {
        return Err(wrong(span, format!("the field {name} occurs twice")));
    }
    *field = Some(parse(text).ok_or_else(|| bad_value(span, name, text))?);
    Ok(())
}

fn required<T>(field: Option<T>, name: &str, end: &Span) -> Result<T, Error> {
    field.ok_or_else(|| wrong(end, format!("the field {name} is missing")))
}

/// A number in any of LLVM's notations.
fn unsigned<T: TryFrom<u64>>(text: &str) -> Option<T> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', b'b' | b'B', ..] => (&text[2..], 2),
        [b'0', b'o', ..] => (&text[2..], 8),
        [b'0', b'0'..=b'9', ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // `from_str_radix` would accept a sign.
    let digits = digits.strip_prefix('+').map_or(digits, |_| "");
    T::try_from(u64::from_str_radix(digits, radix).ok()?).ok()
}

fn signed(text: &str) -> Option<i32> {
    let Some(digits) = text.strip_prefix('-') else {
        return unsigned(text);
    };
    let magnitude = unsigned::<u32>(digits)?;
    i32::try_from(-i64::from(magnitude)).ok()
}

/// A truth value in any of LLVM's notations.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Some(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Some(false)
        }
        _ => None,
    }
}

fn wrong(span: &Span, why: impl Into<String>) -> Error {
    Error::Yaml {
        line: span.start.line().max(1),
        column: span.start.col() + 1,
        why: why.into(),
    }
}

fn unknown(span: &Span, whose: &str, name: &str) -> Error {
    wrong(
        span,
        format!("{whose} has the unknown field {}", excerpt(name)),
    )
}

fn bad_value(span: &Span, name: &str, text: &str) -> Error {
    wrong(
        span,
        format!("the field {name} has the invalid value {}", excerpt(text)),
    )
}

/// A text in quotes, cut if it is long.
fn excerpt(text: &str) -> String {
    const LONGEST: usize = 40;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

// === impl Error ===

impl Error {
    fn with_reason(self, reason: String) -> Self {
        match self {
            Self::Yaml { line, column, .. } => Self::Yaml {
                line,
                column,
                why: reason,
            },
            other => other,
        }
    }
}

impl From<&ScanError> for Error {
    fn from(error: &ScanError) -> Self {
        Self::Yaml {
            line: error.marker().line().max(1),
            column: error.marker().col() + 1,
            why: format!("not YAML: {}", error.info()),
        }
    }
}
