//! What a custom, typed or kernel event holds, in words and in JSON.

use serde::{Serialize, Serializer};
use serde_json::Value;
use xray_trace::event_format::{DecodedFields, EventFormats, FieldValue, TypeOfEvent};

use super::text;

/// The type of an event and its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct EventData {
    /// The type of a typed event.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type: Option<u16>,
    /// The name of that type, if the program registered one; of a kernel event, its tracepoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type_name: Option<String>,
    #[serde(skip)]
    is_of_kernel: bool,
    /// Bytes that are not UTF-8 are escaped. `None` for a kernel event with fields, which are all
    /// of its data.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// The bytes of the data before a limit cut it; absent if nothing was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Bytes of `data` before anything was escaped.
    #[serde(skip)]
    kept: usize,
    /// The fields of the data, where `--event-format` describes it, and of a kernel event.
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<Fields>,
}

/// The fields of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fields {
    /// Names, and values in JSON and in words.
    fields: Vec<(String, Value, String)>,
    /// True if the data ends before the last field does.
    is_cut: bool,
    /// Number of bytes behind the last field.
    more: u64,
}

// === impl EventData ===

impl EventData {
    /// The first bytes of the data, whose whole size is `size`, of an event of this type.
    pub(crate) fn new(data: &[u8], size: u64, of: TypeOfEvent<'_>, formats: &EventFormats) -> Self {
        let fields = formats
            .of(of)
            .map(|format| Fields::new(format.decode(data)));
        let is_of_kernel = matches!(of, TypeOfEvent::Kernel(_));
        let event_type = match of {
            TypeOfEvent::Typed(number, _) => Some(number),
            TypeOfEvent::Custom | TypeOfEvent::Kernel(_) => None,
        };
        let is_whole = |fields: &Fields| !fields.is_cut && fields.more == 0;
        let is_in_fields = is_of_kernel && fields.as_ref().is_some_and(is_whole);
        let shown = || match std::str::from_utf8(data) {
            Ok(data) => data.to_owned(),
            Err(_) => data.escape_ascii().to_string(),
        };
        Self {
            fields,
            event_type,
            event_type_name: of.name().map(str::to_owned),
            is_of_kernel,
            data: (!is_in_fields).then(shown),
            size: (size > data.len() as u64).then_some(size),
            kept: data.len(),
        }
    }

    /// The event in a line.
    pub(crate) fn line(&self) -> String {
        let name = self.event_type_name.as_deref().map(text::printable);
        let number = self.event_type.map(|number| number.to_string());
        let what = match name.or(number) {
            Some(tracepoint) if self.is_of_kernel => format!("kernel {tracepoint}"),
            Some(event_type) => format!("event of type {event_type}"),
            None => "event".to_owned(),
        };
        let cut = match self.size {
            Some(size) => format!("({} of {size} bytes) ", self.kept),
            None => String::new(),
        };
        let fields = self.fields.as_ref().filter(|fields| fields.have_values());
        match fields {
            Some(fields) => format!("// {what}: {cut}{}", fields.line()),
            None => {
                let data = self.data.as_deref().unwrap_or_default();
                format!("// {what}: {cut}{}", text::printable(data))
            }
        }
    }
}

// === impl Fields ===

impl Fields {
    fn new(decoded: DecodedFields<'_>) -> Self {
        let fields = decoded.fields.into_iter().map(|(name, value)| {
            let json = serde_json::to_value(&value).unwrap_or_default();
            let shown = match &value {
                FieldValue::Text(bytes) => format!("\"{}\"", quoted(bytes)),
                _ => value.to_string(),
            };
            (name.to_owned(), json, shown)
        });
        Self {
            fields: fields.collect(),
            is_cut: decoded.is_cut,
            more: decoded.rest.len() as u64,
        }
    }

    /// False if the data ends before the first field does.
    fn have_values(&self) -> bool {
        !self.fields.is_empty()
    }

    fn line(&self) -> String {
        let shown = self.fields.iter();
        let shown = shown.map(|(name, _, shown)| format!("{name}={shown}"));
        let mut words: Vec<_> = shown.collect();
        if self.is_cut {
            words.push("…".to_owned());
        }
        if self.more > 0 {
            words.push(format!(
                "and {}",
                super::units::counted(self.more, "more byte")
            ));
        }
        words.join(" ")
    }
}

/// A text for a line, between quotes: quotes and backslashes in it are escaped, and so are bytes
/// that are not UTF-8.
fn quoted(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        let escaped = chunk.valid().replace('\\', r"\\").replace('"', r#"\""#);
        shown.push_str(&text::printable(&escaped));
        shown.push_str(&chunk.invalid().escape_ascii().to_string());
    }
    shown
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields.iter();
        serializer.collect_map(fields.map(|(name, value, _)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use xray_trace::event_format::EventsOf;

    use super::*;

    fn order(data: &[u8], size: u64) -> EventData {
        let events = EventsOf::Name("order".to_owned());
        let formats = EventFormats::new(vec![(events, "id:u16,symbol:str4".parse().unwrap())]);
        EventData::new(data, size, TypeOfEvent::Typed(7, Some("order")), &formats)
    }

    #[test]
    fn fields_stand_in_the_place_of_the_data() {
        for (data, size, line) in [
            (&b"\x01\x00AB\0\0"[..], 6, "id=1 symbol=\"AB\""),
            (
                b"\x01\x00A\x1b\"Drest",
                10,
                r#"id=1 symbol="A\u{1b}\"D" and 4 more bytes"#,
            ),
            (b"\x01\x00\\\"\xff\\", 6, r#"id=1 symbol="\\\"\xff\\""#),
            (b"\x01\x00AB", 4, "id=1 …"),
            (b"\x01\x00AB", 40, "(4 of 40 bytes) id=1 …"),
            (b"A", 1, "A"),
        ] {
            let shown = order(data, size);
            assert_eq!(shown.line(), format!("// event of type order: {line}"));
        }
    }

    #[test]
    fn json_has_the_data_and_the_fields_that_are_whole() {
        let json = |data| serde_json::to_string(&order(data, 4)).unwrap();
        let begin = r#"{"event_type":7,"event_type_name":"order","data":"#;
        assert_eq!(
            json(b"ABCD"),
            format!(r#"{begin}"ABCD","fields":{{"id":16961}}}}"#)
        );
        assert_eq!(
            json(b"A"),
            format!(r#"{begin}"A","size":4,"fields":{{}}}}"#)
        );
    }
}
