//! The fields of a trace event, and of its `args` as `sink::chrome` writes them.

use std::borrow::Cow;

use super::decimal;
use super::scan::each_field;
use crate::model::Values;

/// A trace event. Texts are without quotes.
#[derive(Debug, Default)]
pub(super) struct TraceEvent<'a> {
    /// The phase; `None` without a phase of one character.
    pub(super) phase: Option<u8>,
    /// The process, a number or a name. Empty if the event has none.
    pub(super) pid: Cow<'a, str>,
    /// The thread, likewise.
    pub(super) tid: Cow<'a, str>,
    /// The time in nanoseconds; `None` without a time that can be used.
    pub(super) ns: Option<u64>,
    /// The duration in nanoseconds, likewise.
    pub(super) duration_ns: Option<u64>,
    pub(super) name: Option<Cow<'a, str>>,
    /// Whether it is an event of a kernel tracepoint.
    pub(super) is_of_kernel: bool,
    pub(super) args: Args<'a>,
}

/// The data of an event.
#[derive(Debug, Default)]
pub(super) struct Args<'a> {
    /// `arg1` and so on, up to the first one that is missing.
    pub(super) values: Values,
    pub(super) result: Option<u64>,
    /// The way in which a call ended.
    pub(super) end: Option<Cow<'a, str>>,
    /// The data of a custom or typed event.
    pub(super) data: Option<Cow<'a, str>>,
    /// The number of a typed event's type.
    pub(super) event_type: Option<u16>,
    /// The number of bytes that the program gave, if `data` has fewer.
    pub(super) size: Option<u32>,
    /// The number of lost events.
    pub(super) lost: Option<u64>,
    /// The name of a process or a thread.
    pub(super) name: Option<Cow<'a, str>>,
    /// Whether there are other fields, or fields with unusable values.
    has_others: bool,
}

// === impl TraceEvent ===

impl<'a> TraceEvent<'a> {
    /// Reads an event.
    ///
    /// # Errors
    ///
    /// If the bytes are no object, or a text in it is no JSON.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut event = Self::default();
        let mut fault = None;
        let mut args = None;
        let is_object = each_field(bytes, |key, value| {
            let mut text = || match plain(value) {
                Ok(text) => Some(text),
                Err(why) => {
                    fault = Some(why);
                    None
                }
            };
            match key {
                b"ph" => {
                    event.phase = match *text().unwrap_or_default().as_bytes() {
                        [phase] => Some(phase),
                        _ => None,
                    }
                }
                b"pid" => event.pid = text().unwrap_or_default(),
                b"tid" => event.tid = text().unwrap_or_default(),
                b"ts" => event.ns = decimal::nanoseconds(unquoted(value)),
                b"dur" => event.duration_ns = decimal::nanoseconds(unquoted(value)),
                b"name" => event.name = text(),
                b"cat" => event.is_of_kernel = unquoted(value) == b"kernel",
                b"args" => args = Some(value),
                _ => {}
            }
        });
        if !is_object {
            return Err("it is no JSON object".to_owned());
        }
        if let Some(args) = args {
            event.args = Args::read(args)?;
        }
        fault.map_or(Ok(event), Err)
    }
}

// === impl Args ===

impl<'a> Args<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut args = Self::default();
        let mut values = [None; Values::MOST];
        let mut fault = None;
        let is_object = each_field(bytes, |key, value| {
            let mut text = || match plain(value) {
                Ok(text) => Some(text),
                Err(why) => {
                    fault = Some(why);
                    None
                }
            };
            let number = || std::str::from_utf8(unquoted(value)).ok();
            let is_known = match key {
                b"result" => is_set(&mut args.result, number().and_then(integer)),
                b"end" => is_set(&mut args.end, text()),
                b"data" => is_set(&mut args.data, text()),
                b"type" => is_set(&mut args.event_type, number().and_then(|n| n.parse().ok())),
                b"size" => is_set(&mut args.size, number().and_then(|n| n.parse().ok())),
                b"events" => is_set(&mut args.lost, number().and_then(integer)),
                b"name" => is_set(&mut args.name, text()),
                [b'a', b'r', b'g', digit @ b'1'..=b'6'] => {
                    let place = values.get_mut(usize::from(digit - b'1'));
                    place.is_some_and(|place| is_set(place, number().and_then(integer)))
                }
                _ => false,
            };
            args.has_others |= !is_known;
        });
        if !is_object {
            args.has_others = true;
        }
        args.values = Values::new(values.into_iter().map_while(|value| value));
        // A trace has no place for an argument behind a missing one.
        args.has_others |= values.iter().flatten().count() > args.values.len();
        fault.map_or(Ok(args), Err)
    }

    /// Whether there are fields that the import has not taken. Each phase takes other fields.
    pub(super) fn has_rest(&self) -> bool {
        let Self {
            values,
            result,
            end,
            data,
            event_type,
            size,
            lost,
            name,
            has_others,
        } = self;
        *has_others
            || !values.is_empty()
            || [
                result.is_some(),
                end.is_some(),
                data.is_some(),
                event_type.is_some(),
                size.is_some(),
                lost.is_some(),
                name.is_some(),
            ]
            .contains(&true)
    }
}

/// Sets a field. Returns whether there is a value.
fn is_set<T>(field: &mut Option<T>, value: Option<T>) -> bool {
    let is_some = value.is_some();
    *field = value;
    is_some
}

/// A whole number, decimal or hexadecimal.
fn integer(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The value without the quotes of a string.
fn unquoted(value: &[u8]) -> &[u8] {
    let inner = value.strip_prefix(b"\"");
    inner
        .and_then(|inner| inner.strip_suffix(b"\""))
        .unwrap_or(value)
}

/// The text of a string, or of another value as it is written.
fn plain(value: &[u8]) -> Result<Cow<'_, str>, String> {
    let not_utf8 = |_| "a text in it is not UTF-8".to_owned();
    if value.first() != Some(&b'"') || !value.contains(&b'\\') {
        return Ok(std::str::from_utf8(unquoted(value))
            .map_err(not_utf8)?
            .into());
    }
    let text = serde_json::from_slice::<String>(value);
    text.map(Cow::Owned)
        .map_err(|_| "a text in it is no JSON string".to_owned())
}
