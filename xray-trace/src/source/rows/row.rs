//! A row of an export: an event with the names of its process, thread and function.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A row. A text is empty, and a number is `None`, if the row does not have it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Row<'a> {
    pub(super) time_ns: Option<u64>,
    pub(super) pid: Option<u32>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) process: Cow<'a, str>,
    pub(super) tid: Option<u32>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) thread: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) event: Cow<'a, str>,
    pub(super) function_id: Option<u32>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) function: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) module: Cow<'a, str>,
    pub(super) arguments: Option<Vec<u64>>,
    pub(super) result: Option<u64>,
    pub(super) event_type: Option<u16>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) event_type_name: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) data: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) data_hex: Cow<'a, str>,
    pub(super) size: Option<u32>,
    pub(super) processor: Option<u16>,
    pub(super) lost: Option<u64>,
    pub(super) unwound: Option<u64>,
}

/// Reads a text, or `null` as an empty text.
struct Text;

// === impl Row ===

impl<'a> Row<'a> {
    /// Sets a field by its name. Ignores unknown names and empty values.
    ///
    /// # Errors
    ///
    /// If the value has another type than the field.
    pub(super) fn set(&mut self, name: &str, value: &'a str) -> Result<(), String> {
        if value.is_empty() {
            return Ok(());
        }
        match name {
            "time_ns" => self.time_ns = Some(number(name, value)?),
            "pid" => self.pid = Some(number(name, value)?),
            "process" => self.process = value.into(),
            "tid" => self.tid = Some(number(name, value)?),
            "thread" => self.thread = value.into(),
            "event" => self.event = value.into(),
            "function_id" => self.function_id = Some(number(name, value)?),
            "function" => self.function = value.into(),
            "module" => self.module = value.into(),
            "arguments" => {
                let args = value.split_ascii_whitespace();
                let args = args.map(|arg| number(name, arg));
                self.arguments = Some(args.collect::<Result<_, _>>()?);
            }
            "result" => self.result = Some(number(name, value)?),
            "event_type" => self.event_type = Some(number(name, value)?),
            "event_type_name" => self.event_type_name = value.into(),
            "data" => self.data = value.into(),
            "data_hex" => self.data_hex = value.into(),
            "size" => self.size = Some(number(name, value)?),
            "processor" => self.processor = Some(number(name, value)?),
            "lost" => self.lost = Some(number(name, value)?),
            "unwound" => self.unwound = Some(number(name, value)?),
            _ => {}
        }
        Ok(())
    }
}

fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<N, String> {
    let start: String = value.chars().take(40).collect();
    value
        .parse()
        .map_err(|_| format!("{name} is {start:?}, which is no number that fits"))
}

fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Cow<'de, str>, D::Error> {
    from.deserialize_any(Text)
}

// === impl Text ===

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(text.into())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(text.to_owned().into())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok("".into())
    }
}
