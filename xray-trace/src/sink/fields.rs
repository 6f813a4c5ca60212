//! The fields in the data of a user event as a JSON object.

use super::text;
use crate::event_format::{DecodedFields, EventOptions, FieldValue};
use crate::model::{DataKind, ThreadId, Trace};

/// The form of integers in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Integers {
    /// All integers are numbers.
    Numbers,
    /// Integers beyond ±2^53 are text, for readers that take numbers for floating point.
    TextIfLarge,
}

/// The greatest integer up to which floating point has every integer.
const EXACT: u64 = 1 << 53;

/// Whether any event of the trace may have fields.
pub(super) fn are_described(options: &EventOptions, trace: &Trace) -> bool {
    !options.formats.is_empty() || trace.tracepoints().next().is_some()
}

/// Whether fields stand in the place of an event's data: those of a kernel event, if they are all
/// of its data.
pub(super) fn replace_data(kind: DataKind, decoded: Option<&DecodedFields<'_>>) -> bool {
    let is_of_kernel = matches!(kind, DataKind::Kernel(_));
    is_of_kernel && decoded.is_some_and(|decoded| !decoded.is_cut && decoded.rest.is_empty())
}

/// The fields of an event with this data; `None` if no description is for its type.
pub(super) fn decoded<'a>(
    options: &'a EventOptions,
    trace: &'a Trace,
    (thread, kind): (ThreadId, DataKind),
    data: &'a [u8],
) -> Option<DecodedFields<'a>> {
    if options.formats.is_empty() && !matches!(kind, DataKind::Kernel(_)) {
        return None;
    }
    let format = options.formats.of(trace.type_of(thread, kind))?;
    Some(format.decode(data))
}

/// The whole fields as an object. Texts that are not UTF-8 are escaped, bytes are hexadecimal
/// digits, and numbers that JSON does not have are text.
pub(super) fn json(decoded: &DecodedFields<'_>, integers: Integers) -> Vec<u8> {
    let mut object = Vec::new();
    let mut before = b'{';
    for (name, value) in &decoded.fields {
        object.push(before);
        before = b',';
        text::json(&mut object, name);
        object.push(b':');
        let is_number = match value {
            FieldValue::Unsigned(value) => integers == Integers::Numbers || *value <= EXACT,
            FieldValue::Signed(value) => {
                integers == Integers::Numbers || value.unsigned_abs() <= EXACT
            }
            FieldValue::Float(value) => value.is_finite(),
            FieldValue::Text(_) | FieldValue::Bytes(_) => false,
        };
        let shown = value.to_string();
        if is_number {
            object.extend_from_slice(shown.as_bytes());
        } else {
            text::json(&mut object, &shown);
        }
    }
    if decoded.fields.is_empty() {
        object.push(before);
    }
    object.push(b'}');
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_format::EventFormat;

    fn object(format: &str, data: &[u8], integers: Integers) -> String {
        let format: EventFormat = format.parse().unwrap();
        let object = String::from_utf8(json(&format.decode(data), integers)).unwrap();
        let read: Result<serde_json::Value, _> = serde_json::from_str(&object);
        assert!(read.is_ok(), "{object}");
        object
    }

    #[test]
    fn values_are_json() {
        for (format, data, expected) in [
            ("a:u8,b:i8", &[1, 0xff][..], r#"{"a":1,"b":-1}"#),
            ("a:f64", &1e300f64.to_le_bytes(), r#"{"a":1e300}"#),
            ("a:f64", &(-2.0f64).to_le_bytes(), r#"{"a":-2.0}"#),
            ("a:f64", &f64::NAN.to_le_bytes(), r#"{"a":"NaN"}"#),
            ("a:str", b"x\"\x01\\", r#"{"a":"x\"\u0001\u005c"}"#),
            ("a:str", b"\xff", r#"{"a":"\u005cxff"}"#),
            ("a:bytes", &[0, 1], r#"{"a":"0x0001"}"#),
            ("a:u8,b:u16", &[1, 2], r#"{"a":1}"#),
            ("a:u16", &[1], "{}"),
        ] {
            let found = object(format, data, Integers::Numbers);
            let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(read(&found), read(expected), "{format}");
        }
    }

    #[test]
    fn large_integers_are_text_where_readers_take_them_for_floating_point() {
        let data = |number: u64| number.to_le_bytes();
        for (number, signed, unsigned) in [
            (
                EXACT,
                r#"{"a":9007199254740992}"#,
                r#"{"a":9007199254740992}"#,
            ),
            (
                EXACT + 1,
                r#"{"a":"9007199254740993"}"#,
                r#"{"a":"9007199254740993"}"#,
            ),
            (u64::MAX, r#"{"a":-1}"#, r#"{"a":"18446744073709551615"}"#),
        ] {
            let text = |format| object(format, &data(number), Integers::TextIfLarge);
            assert_eq!(text("a:i64"), signed);
            assert_eq!(text("a:u64"), unsigned);
        }
        let exact = object("a:u64", &data(u64::MAX), Integers::Numbers);
        assert_eq!(exact, r#"{"a":18446744073709551615}"#);
    }
}
