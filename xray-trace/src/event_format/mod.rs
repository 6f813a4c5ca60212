//! The fields in the data of custom and typed events, as a user describes them.
//!
//! A program passes bytes to `__xray_customevent` and `__xray_typedevent`, typically a packed
//! struct. A description such as `order:u64,price:f64,symbol:str16` gives them names and kinds.
//! Fields follow each other without gaps, in little-endian byte order, as x86-64 and AArch64 write
//! them.
//!
//! | kind | bytes | value |
//! |---|---|---|
//! | `u8`, `u16`, `u32`, `u64` | 1, 2, 4, 8 | an unsigned integer |
//! | `i8`, `i16`, `i32`, `i64` | 1, 2, 4, 8 | a signed integer |
//! | `f32`, `f64` | 4, 8 | a floating point number |
//! | `strN`, `str` | N, or the rest | text up to the first zero byte |
//! | `bytesN`, `bytes` | N, or the rest | bytes |
//! | `lenstr`, `lenbytes` | 2, and as many as these give | text or bytes behind their length |
//! | `padN` | N | nothing: the field is skipped, and has no name |
//!
//! [`EventFormats`] are the descriptions by types of events. An [`EventFilter`] selects events by
//! their types and by the values of their fields. A trace describes the events of kernel
//! [`Tracepoint`]s itself.

mod condition;
mod formats;
mod type_of_event;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

pub use condition::{
    ByteCount, ConditionError, EventCondition, EventFilter, EventOptions, FieldComparison, Literal,
    Relation,
};
pub use formats::{
    DescribedEvents, DescribedEventsError, EventFormats, EventsOf, EventsOfError,
    MOST_FORMATS_OF_MODULES, names_of,
};
pub use type_of_event::{Tracepoint, TypeOfEvent};

/// The most fields of a description.
pub const MOST_FIELDS: usize = 64;

/// The most bytes of a field. xrayd records no more data of an event.
pub const MOST_FIELD_BYTES: usize = 4096;

/// The recorded data of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedData<'a> {
    /// The recorded bytes.
    pub bytes: &'a [u8],
    /// True if the program passed more bytes than these.
    pub is_cut: bool,
}

/// A description of the data of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFormat {
    fields: Vec<Field>,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    /// `None` for a field that is skipped.
    name: Option<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// So many bytes.
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    /// So many bytes, or the rest.
    Text(Option<usize>),
    Bytes(Option<usize>),
    /// A length in 2 bytes, and so many bytes.
    CountedText,
    CountedBytes,
    Skipped(usize),
}

/// The value of a field. Texts and bytes borrow from the data of the event.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A floating point number, perhaps infinite or not a number. An `f32` becomes the `f64` with
    /// the same shortest decimal digits.
    Float(f64),
    /// The bytes of a text before its first zero byte. They need not be UTF-8.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
}

/// The fields of one event.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedFields<'a> {
    /// Names and values, in the order of the description. They end before the first field that is
    /// not whole.
    pub fields: Vec<(&'a str, FieldValue<'a>)>,
    /// True if the data ends before the last field does.
    pub is_cut: bool,
    /// The bytes behind the last field.
    pub rest: &'a [u8],
}

/// Reasons why a description cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventFormatError {
    /// A part is no field.
    #[error("'{0}' is not NAME:KIND, such as 'price:f64', or padN")]
    NoField(String),
    /// A kind is unknown.
    #[error(
        "'{0}' is not a kind of field: u8 to u64, i8 to i64, f32, f64, str, strN, lenstr, bytes, \
         bytesN, lenbytes; N is 1 to {MOST_FIELD_BYTES}"
    )]
    NoKind(String),
    /// Two fields have one name.
    #[error("two fields have the name '{0}'")]
    SameName(String),
    /// A field follows on a field that takes the rest.
    #[error("nothing can follow on '{0}', which takes the rest of the data")]
    AfterTheRest(String),
    /// There are too many fields.
    #[error("there are more than {MOST_FIELDS} fields")]
    TooMany,
}

// === impl RecordedData ===

impl<'a> RecordedData<'a> {
    /// The first bytes of data of this size.
    #[must_use]
    pub const fn of_size(bytes: &'a [u8], size: u64) -> Self {
        Self {
            bytes,
            is_cut: size > bytes.len() as u64,
        }
    }

    /// Data that was recorded as a whole.
    #[must_use]
    pub const fn whole(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            is_cut: false,
        }
    }
}

// === impl EventFormat ===

impl EventFormat {
    /// The fields of an event with this data. `data` may be shorter than the description: xrayd
    /// records only the first bytes of long data.
    pub fn decode<'a>(&'a self, data: &'a [u8]) -> DecodedFields<'a> {
        let mut rest = data;
        let mut fields = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let Some((bytes, after)) = field.kind.split(rest) else {
                return DecodedFields {
                    fields,
                    is_cut: true,
                    rest: &[],
                };
            };
            rest = after;
            if let Some(name) = &field.name {
                fields.push((name.as_str(), field.kind.value(bytes)));
            }
        }
        DecodedFields {
            fields,
            is_cut: false,
            rest,
        }
    }

    /// The names of the fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.fields.iter().filter_map(|field| field.name.as_deref())
    }

    /// The kind of the field with this name.
    fn kind(&self, name: &str) -> Option<Kind> {
        let mut fields = self.fields.iter();
        let field = fields.find(|field| field.name.as_deref() == Some(name))?;
        Some(field.kind)
    }

    /// The value of the field with this name; `None` if the recorded data ends before the field
    /// does.
    fn value<'a>(&self, name: &str, data: RecordedData<'a>) -> Option<FieldValue<'a>> {
        let mut rest = data.bytes;
        for field in &self.fields {
            let (bytes, after) = field.kind.split(rest)?;
            if field.name.as_deref() == Some(name) {
                let is_whole = match field.kind {
                    Kind::Bytes(None) => !data.is_cut,
                    Kind::Text(None) => !data.is_cut || bytes.contains(&0),
                    _ => true,
                };
                return is_whole.then(|| field.kind.value(bytes));
            }
            rest = after;
        }
        None
    }
}

impl FromStr for EventFormat {
    type Err = EventFormatError;

    fn from_str(text: &str) -> Result<Self, EventFormatError> {
        let mut fields: Vec<Field> = Vec::new();
        for part in text.split(',').map(str::trim) {
            if fields.len() == MOST_FIELDS {
                return Err(EventFormatError::TooMany);
            }
            let field = Field::parse(part)?;
            if let Some(name) = &field.name
                && fields.iter().any(|other| other.name.as_ref() == Some(name))
            {
                return Err(EventFormatError::SameName(name.clone()));
            }
            if let Some(last) = fields.last()
                && last.kind.takes_the_rest()
            {
                let name = last.name.clone().unwrap_or_default();
                return Err(EventFormatError::AfterTheRest(name));
            }
            fields.push(field);
        }
        Ok(Self { fields })
    }
}

impl fmt::Display for EventFormat {
    /// The description as [`Self::from_str`] reads it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Field { name, kind }) in self.fields.iter().enumerate() {
            if index > 0 {
                out.write_str(",")?;
            }
            match name {
                Some(name) => write!(out, "{name}:{kind}")?,
                None => write!(out, "{kind}")?,
            }
        }
        Ok(())
    }
}

// === impl Field ===

impl Field {
    fn parse(text: &str) -> Result<Self, EventFormatError> {
        let no_field = || EventFormatError::NoField(text.to_owned());
        let Some((name, kind)) = text.split_once(':') else {
            let skipped = text.strip_prefix("pad").and_then(length);
            return Ok(Self {
                name: None,
                kind: Kind::Skipped(skipped.ok_or_else(no_field)?),
            });
        };
        let mut letters = name.chars();
        let is_name = letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !is_name {
            return Err(no_field());
        }
        let no_kind = || EventFormatError::NoKind(kind.to_owned());
        Ok(Self {
            name: Some(name.to_owned()),
            kind: Kind::parse(kind).ok_or_else(no_kind)?,
        })
    }
}

// === impl Kind ===

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "u8" => Self::Unsigned(1),
            "u16" => Self::Unsigned(2),
            "u32" => Self::Unsigned(4),
            "u64" => Self::Unsigned(8),
            "i8" => Self::Signed(1),
            "i16" => Self::Signed(2),
            "i32" => Self::Signed(4),
            "i64" => Self::Signed(8),
            "f32" => Self::Float(4),
            "f64" => Self::Float(8),
            "str" => Self::Text(None),
            "bytes" => Self::Bytes(None),
            "lenstr" => Self::CountedText,
            "lenbytes" => Self::CountedBytes,
            _ => match (text.strip_prefix("str"), text.strip_prefix("bytes")) {
                (Some(number), _) => Self::Text(Some(length(number)?)),
                (_, Some(number)) => Self::Bytes(Some(length(number)?)),
                (None, None) => return None,
            },
        })
    }

    fn takes_the_rest(self) -> bool {
        matches!(self, Self::Text(None) | Self::Bytes(None))
    }

    /// The bytes of the value at the begin of `data`, and the data behind it; `None` if the field
    /// is not whole.
    fn split(self, data: &[u8]) -> Option<(&[u8], &[u8])> {
        match self {
            Self::Unsigned(length)
            | Self::Signed(length)
            | Self::Float(length)
            | Self::Skipped(length)
            | Self::Text(Some(length))
            | Self::Bytes(Some(length)) => data.split_at_checked(length),
            Self::Text(None) | Self::Bytes(None) => Some((data, &[])),
            Self::CountedText | Self::CountedBytes => {
                let (length, rest) = data.split_first_chunk()?;
                rest.split_at_checked(u16::from_le_bytes(*length).into())
            }
        }
    }

    /// The value in the bytes that [`Self::split`] returns.
    fn value(self, bytes: &[u8]) -> FieldValue<'_> {
        match self {
            Self::Unsigned(_) => FieldValue::Unsigned(unsigned(bytes)),
            Self::Signed(length) => {
                // The sign is brought to the top, and back down.
                let unused = 64 - 8 * length;
                FieldValue::Signed((unsigned(bytes) << unused).cast_signed() >> unused)
            }
            Self::Float(4) => {
                let mut word = [0; 4];
                word.copy_from_slice(bytes);
                let single = f32::from_le_bytes(word);
                FieldValue::Float(format!("{single:?}").parse().unwrap_or(single.into()))
            }
            Self::Float(_) => FieldValue::Float(f64::from_bits(unsigned(bytes))),
            Self::Text(_) | Self::CountedText => {
                let end = bytes.iter().position(|byte| *byte == 0);
                FieldValue::Text(&bytes[..end.unwrap_or(bytes.len())])
            }
            Self::Bytes(_) | Self::CountedBytes | Self::Skipped(_) => FieldValue::Bytes(bytes),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(length) => write!(out, "u{}", 8 * length),
            Self::Signed(length) => write!(out, "i{}", 8 * length),
            Self::Float(length) => write!(out, "f{}", 8 * length),
            Self::Text(Some(length)) => write!(out, "str{length}"),
            Self::Text(None) => out.write_str("str"),
            Self::Bytes(Some(length)) => write!(out, "bytes{length}"),
            Self::Bytes(None) => out.write_str("bytes"),
            Self::CountedText => out.write_str("lenstr"),
            Self::CountedBytes => out.write_str("lenbytes"),
            Self::Skipped(length) => write!(out, "pad{length}"),
        }
    }
}

/// The integer in 8 bytes at most.
fn unsigned(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The length that follows on the name of a kind.
fn length(digits: &str) -> Option<usize> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_number)?;
    (1..=MOST_FIELD_BYTES).contains(&number).then_some(number)
}

// === impl FieldValue ===

impl fmt::Display for FieldValue<'_> {
    /// Texts as they are, with bytes that are not UTF-8 escaped. Bytes in hexadecimal digits.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(out, "{value}"),
            Self::Signed(value) => write!(out, "{value}"),
            Self::Float(value) => write!(out, "{value:?}"),
            Self::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => out.write_str(text),
                Err(_) => write!(out, "{}", bytes.escape_ascii()),
            },
            Self::Bytes(bytes) => {
                out.write_str("0x")?;
                bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
            }
        }
    }
}

impl Serialize for FieldValue<'_> {
    /// Numbers as numbers; all else, and numbers that JSON does not have, as [`Self`] is displayed.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unsigned(value) => serializer.serialize_u64(*value),
            Self::Signed(value) => serializer.serialize_i64(*value),
            Self::Float(value) if value.is_finite() => serializer.serialize_f64(*value),
            Self::Float(_) | Self::Text(_) | Self::Bytes(_) => serializer.collect_str(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(text: &str) -> EventFormat {
        text.parse().unwrap()
    }

    /// The fields as text, and what is left.
    fn decoded(text: &str, data: &[u8]) -> String {
        let format = format(text);
        let DecodedFields {
            fields,
            is_cut,
            rest,
        } = format.decode(data);
        let fields = fields.iter().map(|(name, value)| format!("{name}={value}"));
        let mut line = fields.collect::<Vec<_>>().join(" ");
        if is_cut {
            line.push_str(" cut");
        }
        if !rest.is_empty() {
            line.push_str(&format!(" + {}", rest.len()));
        }
        line
    }

    #[test]
    fn each_kind_is_read_in_little_endian_order() {
        for (text, data, expected) in [
            ("a:u8", &[0xfe][..], "a=254"),
            ("a:i8", &[0xfe], "a=-2"),
            ("a:u16", &[1, 2], "a=513"),
            ("a:i16", &[0xff, 0xff], "a=-1"),
            ("a:u32", &[1, 0, 0, 0x80], "a=2147483649"),
            ("a:i32", &[1, 0, 0, 0x80], "a=-2147483647"),
            ("a:u64", &[0xff; 8], "a=18446744073709551615"),
            ("a:i64", &[0xff; 8], "a=-1"),
            ("a:f32", &0.1f32.to_le_bytes(), "a=0.1"),
            ("a:f32", &f32::NEG_INFINITY.to_le_bytes(), "a=-inf"),
            ("a:f64", &1e300f64.to_le_bytes(), "a=1e300"),
            ("a:f64", &(-0.25f64).to_le_bytes(), "a=-0.25"),
            ("a:f64", &f64::NAN.to_le_bytes(), "a=NaN"),
            ("a:str4", b"ab\0c", "a=ab"),
            ("a:str4", b"abcd", "a=abcd"),
            ("a:str", b"abc\0\0", "a=abc"),
            ("a:str", b"", "a="),
            ("a:str2", &[0xff, b'x'], "a=\\xffx"),
            ("a:bytes2", &[0, 0xab], "a=0x00ab"),
            ("a:bytes", &[1, 2, 3], "a=0x010203"),
            ("pad3,a:u8,b:str", b"xyz\x07rest", "a=7 b=rest"),
            ("a:lenstr,b:u8", b"\x03\0ab\0\x07", "a=ab b=7"),
            ("a:lenstr", b"\0\0", "a="),
            ("a:lenbytes,b:u8", b"\x02\0\0\xab\x07", "a=0x00ab b=7"),
            ("a:u8,b:lenstr", b"\x07\x03\0ab", "a=7 cut"),
            ("a:u8,b:lenbytes", b"\x07\x03", "a=7 cut"),
        ] {
            assert_eq!(decoded(text, data), expected, "{text}");
        }
    }

    #[test]
    fn data_may_be_shorter_and_longer_than_its_description() {
        const FORMAT: &str = "order:u64, price:f64, symbol:str4";
        let mut data = 7u64.to_le_bytes().to_vec();
        assert_eq!(decoded(FORMAT, &data[..7]), " cut");
        assert_eq!(decoded(FORMAT, &data), "order=7 cut");
        data.extend(0.5f64.to_le_bytes());
        data.extend(b"AB\0\0");
        assert_eq!(decoded(FORMAT, &data), "order=7 price=0.5 symbol=AB");
        data.extend([0; 3]);
        assert_eq!(decoded(FORMAT, &data), "order=7 price=0.5 symbol=AB + 3");
    }

    #[test]
    fn a_description_is_displayed_as_it_is_read() {
        for text in [
            "a:u8,b:u16,c:u32,d:u64",
            "a:i8,pad3,b:i16,c:i32,d:i64,e:f32,f:f64,pad1",
            "a:str4,b:bytes16,c:str",
            "_1:bytes",
            "a:lenstr,b:lenbytes,c:u8",
        ] {
            assert_eq!(format(text).to_string(), text);
        }
        assert_eq!(format(" a:u8 , b:str ").to_string(), "a:u8,b:str");
    }

    #[test]
    fn a_bad_description_is_refused_with_its_part() {
        for (text, part) in [
            ("", "'' is not NAME:KIND"),
            ("a", "'a' is not NAME:KIND"),
            ("a:u64,", "'' is not NAME:KIND"),
            ("1a:u64", "'1a:u64' is not NAME:KIND"),
            ("a b:u64", "'a b:u64' is not NAME:KIND"),
            ("pad", "'pad' is not NAME:KIND"),
            ("pad0", "'pad0' is not NAME:KIND"),
            ("a:u128", "'u128' is not a kind"),
            ("a:str0", "'str0' is not a kind"),
            ("a:str+4", "'str+4' is not a kind"),
            ("a:bytes4097", "'bytes4097' is not a kind"),
            ("a:u8,a:u8", "two fields have the name 'a'"),
            ("a:str,b:u8", "nothing can follow on 'a'"),
            (&["pad1"; 65].join(","), "more than 64 fields"),
        ] {
            let refused = text.parse::<EventFormat>().unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn values_are_numbers_and_texts_in_json() {
        let json = |value: FieldValue<'_>| serde_json::to_string(&value).unwrap();
        assert_eq!(json(FieldValue::Unsigned(u64::MAX)), "18446744073709551615");
        assert_eq!(json(FieldValue::Signed(-3)), "-3");
        assert_eq!(json(FieldValue::Float(0.5)), "0.5");
        assert_eq!(json(FieldValue::Float(f64::INFINITY)), "\"inf\"");
        assert_eq!(json(FieldValue::Text(b"a\"b")), r#""a\"b""#);
        assert_eq!(json(FieldValue::Bytes(&[0x1f])), "\"0x1f\"");
    }
}
