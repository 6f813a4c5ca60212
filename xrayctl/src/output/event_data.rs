//! What a custom or typed event holds, in words and in JSON.

use serde::Serialize;

use super::text;

/// The type of a user event and its data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct EventData {
    /// The type of a typed event.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type: Option<u16>,
    /// The name of that type, if the program registered one.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_type_name: Option<String>,
    /// Bytes that are not UTF-8 are escaped.
    data: String,
    /// The bytes of the data before a limit cut it; absent if nothing was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Bytes of `data` before anything was escaped.
    #[serde(skip)]
    kept: usize,
}

// === impl EventData ===

impl EventData {
    /// The first bytes of the data, whose whole size is `size`, and for a typed event its type and
    /// the type's name, if known.
    pub(crate) fn new(data: &[u8], size: u64, typed: Option<(u16, Option<&str>)>) -> Self {
        Self {
            event_type: typed.map(|(number, _)| number),
            event_type_name: typed.and_then(|(_, name)| name).map(str::to_owned),
            data: match std::str::from_utf8(data) {
                Ok(data) => data.to_owned(),
                Err(_) => data.escape_ascii().to_string(),
            },
            size: (size > data.len() as u64).then_some(size),
            kept: data.len(),
        }
    }

    /// The event in a line.
    pub(crate) fn line(&self) -> String {
        let name = self.event_type_name.as_deref().map(text::printable);
        let number = self.event_type.map(|number| number.to_string());
        let of_type = match name.or(number) {
            Some(event_type) => format!(" of type {event_type}"),
            None => String::new(),
        };
        let cut = match self.size {
            Some(size) => format!("({} of {size} bytes) ", self.kept),
            None => String::new(),
        };
        format!("// event{of_type}: {cut}{}", text::printable(&self.data))
    }
}
