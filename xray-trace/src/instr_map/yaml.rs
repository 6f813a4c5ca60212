//! Reads the instrumentation map in YAML, as `write_yaml` and LLVM write it, or in any equivalent
//! YAML.
//!
//! The parser emits events, and an entry is built from its events. Only the entries are kept.

use saphyr_parser::{Event, Parser, ScanError, Span, StrInput};

use super::write_yaml::{KINDS, UNKNOWN, nameless};
use super::{FileAddr, InstrMap, MapFunction, Sled, SledKind, names};

/// The reason why a text is no instrumentation map, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct YamlError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The problem at this place.
    pub problem: YamlProblem,
}

/// Problems of a map in YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum YamlProblem {
    /// The text is not YAML.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// Another element is in the place of this one.
    #[error("expected {0}")]
    Expected(&'static str),
    /// An entry has an unknown field.
    #[error("an entry has the unknown field '{0}'")]
    UnknownField(String),
    /// An entry has a field twice.
    #[error("the field '{0}' occurs twice")]
    Twice(&'static str),
    /// An entry lacks a field.
    #[error("the field '{0}' is missing")]
    Missing(&'static str),
    /// A field has an impossible value.
    #[error("'{value}' is not a valid {what}")]
    Value {
        /// The value, cut if it is long.
        value: String,
        /// The kind of value that the field needs.
        what: &'static str,
    },
}

/// The fields of an entry, as far as they have been read.
#[derive(Default)]
struct Fields {
    id: Option<u32>,
    address: Option<u64>,
    function: Option<u64>,
    kind: Option<SledKind>,
    always_instrument: Option<bool>,
    name: Option<String>,
    version: Option<u8>,
}

struct Entry {
    id: u32,
    sled: Sled,
    name: String,
}

/// The events of the parser, one at a time.
struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
}

pub(super) fn read(text: &str) -> Result<InstrMap, YamlError> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text)),
    };
    let mut sleds = Vec::new();
    let mut functions: Vec<MapFunction> = Vec::new();
    let mut budget = text.len().saturating_mul(16).saturating_add(1 << 20);
    reader.expect(|event| matches!(event, Event::StreamStart), "text")?;
    reader.expect(
        |event| matches!(event, Event::DocumentStart(_)),
        "a document",
    )?;
    reader.expect(
        |event| matches!(event, Event::SequenceStart(..)),
        "a list of sleds",
    )?;
    while let Some(Entry { id, sled, name }) = reader.entry()? {
        let end = sleds.len() + 1;
        match functions.last_mut() {
            Some(last) if last.id == id && last.address == sled.function => last.sleds.end = end,
            _ => {
                let mut function = MapFunction::unnamed(id, sled.function, sleds.len()..end);
                if name.is_empty() || name == nameless(sled.function) {
                    function.name = sled.function.to_string().as_str().into();
                } else {
                    let demangled = names::demangle(&name, &mut budget);
                    function.name = demangled.as_ref().unwrap_or(&name).as_str().into();
                    function.symbol = Some(name.as_str().into());
                }
                functions.push(function);
            }
        }
        sleds.push(sled);
    }
    reader.expect(
        |event| matches!(event, Event::DocumentEnd),
        "the end of the document",
    )?;
    reader.expect(
        |event| matches!(event, Event::StreamEnd),
        "the end of the text",
    )?;
    Ok(InstrMap::new(sleds, functions, Vec::new()))
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(error.into()),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn expect(
        &mut self,
        wanted: impl FnOnce(&Event<'_>) -> bool,
        what: &'static str,
    ) -> Result<(), YamlError> {
        let (event, span) = self.next()?;
        if wanted(&event) {
            return Ok(());
        }
        Err(YamlError::at(&span, YamlProblem::Expected(what)))
    }

    /// The next entry; `None` after the last one.
    fn entry(&mut self) -> Result<Option<Entry>, YamlError> {
        let (event, start) = self.next()?;
        match event {
            Event::MappingStart(..) => {}
            Event::SequenceEnd => return Ok(None),
            _ => return Err(YamlError::at(&start, YamlProblem::Expected("an entry"))),
        }
        let mut fields = Fields::default();
        loop {
            let (event, span) = self.next()?;
            let name = match event {
                Event::Scalar(name, ..) => name,
                Event::MappingEnd => break,
                _ => return Err(YamlError::at(&span, YamlProblem::Expected("a field"))),
            };
            let (event, value_span) = self.next()?;
            let Event::Scalar(value, ..) = event else {
                return Err(YamlError::at(&value_span, YamlProblem::Expected("a value")));
            };
            fields.set(&name, &value).map_err(|problem| {
                let value_is_wrong = matches!(problem, YamlProblem::Value { .. });
                YamlError::at(if value_is_wrong { &value_span } else { &span }, problem)
            })?;
        }
        let entry = fields.finish();
        entry
            .map(Some)
            .map_err(|problem| YamlError::at(&start, problem))
    }
}

// === impl Fields ===

impl Fields {
    fn set(&mut self, name: &str, value: &str) -> Result<(), YamlProblem> {
        match name {
            "id" => set(&mut self.id, "id", function_id(value), value),
            "address" => set(&mut self.address, "address", number(value), value),
            "function" => set(&mut self.function, "function", number(value), value),
            "kind" => set(&mut self.kind, "kind", kind(value), value),
            "always-instrument" => set(
                &mut self.always_instrument,
                "always-instrument",
                boolean(value),
                value,
            ),
            "function-name" => set(
                &mut self.name,
                "function-name",
                Some(value.to_owned()),
                value,
            ),
            "version" => set(
                &mut self.version,
                "version",
                number(value).and_then(|it| it.try_into().ok()),
                value,
            ),
            other => Err(YamlProblem::UnknownField(excerpt(other))),
        }
    }

    fn finish(self) -> Result<Entry, YamlProblem> {
        let missing = YamlProblem::Missing;
        Ok(Entry {
            id: self.id.ok_or(missing("id"))?,
            sled: Sled {
                address: FileAddr(self.address.ok_or(missing("address"))?),
                function: FileAddr(self.function.ok_or(missing("function"))?),
                kind: self.kind.ok_or(missing("kind"))?,
                always_instrument: self.always_instrument.ok_or(missing("always-instrument"))?,
                version: self.version.unwrap_or(0),
            },
            name: self.name.unwrap_or_default(),
        })
    }
}

fn set<T>(
    field: &mut Option<T>,
    name: &'static str,
    parsed: Option<T>,
    value: &str,
) -> Result<(), YamlProblem> {
    let parsed = parsed.ok_or_else(|| YamlProblem::Value {
        value: excerpt(value),
        what: name,
    })?;
    match field.replace(parsed) {
        Some(_) => Err(YamlProblem::Twice(name)),
        None => Ok(()),
    }
}

/// A part of a text that suffices to recognise it.
fn excerpt(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// A function id: LLVM's ids are positive 32-bit numbers.
fn function_id(text: &str) -> Option<u32> {
    let id = u32::try_from(number(text)?).ok()?;
    (id <= i32::MAX.unsigned_abs()).then_some(id)
}

/// A number with a prefix for its base, as LLVM reads it.
fn number(text: &str) -> Option<u64> {
    let (digits, base) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', b'b' | b'B', ..] => (&text[2..], 2),
        [b'0', b'o', ..] => (&text[2..], 8),
        [b'0', b'0'..=b'9', ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // `from_str_radix` would accept a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain.then(|| u64::from_str_radix(digits, base).ok())?
}

fn boolean(text: &str) -> Option<bool> {
    let is = |words: [&str; 3]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(["true", "yes", "on"]) {
        Some(true)
    } else if is(["false", "no", "off"]) {
        Some(false)
    } else {
        None
    }
}

fn kind(text: &str) -> Option<SledKind> {
    if let Some(number) = text.strip_prefix(UNKNOWN) {
        return Some(SledKind::from(number.parse::<u8>().ok()?));
    }
    KINDS
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, kind)| *kind)
}

// === impl YamlError ===

impl YamlError {
    fn at(span: &Span, problem: YamlProblem) -> Self {
        Self {
            line: span.start.line(),
            column: span.start.col() + 1,
            problem,
        }
    }
}

impl From<ScanError> for YamlError {
    fn from(error: ScanError) -> Self {
        let marker = error.marker();
        Self {
            line: marker.line(),
            column: marker.col() + 1,
            problem: YamlProblem::Syntax(excerpt_of_error(error.info())),
        }
    }
}

fn excerpt_of_error(text: &str) -> String {
    text.chars().take(200).collect()
}
