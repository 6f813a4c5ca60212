//! Collects text for a file, so that one call of the writer behind it covers many events. It does
//! not flush the writer.

use std::borrow::Cow;
use std::io::{self, Write};

/// Bytes after which the buffer is passed on.
const ENOUGH: usize = 1 << 16;

/// A text that is being written. Only [`Text::pass`] and [`Text::finish`] pass text on.
pub(super) struct Text<'a> {
    to: &'a mut dyn Write,
    buffer: Vec<u8>,
}

/// The data of a user event as text. It is escaped if it is not UTF-8, or if it contains a NUL,
/// where many readers end a text.
pub(super) fn readable(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text.into(),
        _ => bytes.escape_ascii().to_string().into(),
    }
}

// === impl Text ===

impl<'a> Text<'a> {
    pub(super) fn new(to: &'a mut dyn Write) -> Self {
        Self {
            to,
            buffer: Vec::with_capacity(2 * ENOUGH),
        }
    }

    #[inline]
    pub(super) fn put(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
    }

    #[inline]
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    #[inline]
    pub(super) fn number(&mut self, number: impl Into<u64>) {
        self.put(itoa::Buffer::new().format(number.into()));
    }

    /// Puts a number of nanoseconds with `DECIMALS` decimals: 3 for microseconds, 6 for
    /// milliseconds.
    #[inline]
    pub(super) fn decimal<const DECIMALS: usize>(&mut self, ns: u64) {
        let mut digits = itoa::Buffer::new();
        match digits.format(ns).as_bytes().split_last_chunk::<DECIMALS>() {
            Some((whole, decimals)) if !whole.is_empty() => {
                self.bytes(whole);
                self.buffer.push(b'.');
                self.bytes(decimals);
            }
            _ => self.put(&format!("0.{ns:0DECIMALS$}")),
        }
    }

    /// Puts a JSON string with its quotes.
    pub(super) fn json(&mut self, text: &str) {
        json(&mut self.buffer, text);
    }

    /// Puts bytes as a JSON string, see [`readable`].
    pub(super) fn json_bytes(&mut self, bytes: &[u8]) {
        self.json(&readable(bytes));
    }

    pub(super) fn hex(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.put(&format!("{byte:02x}"));
        }
    }

    /// Passes the buffer on if it has enough bytes.
    pub(super) fn pass(&mut self) -> io::Result<()> {
        if self.buffer.len() >= ENOUGH {
            self.finish()?;
        }
        Ok(())
    }

    /// Passes the whole buffer on.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.to.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// Appends a JSON string, with its quotes.
pub(super) fn json(to: &mut Vec<u8>, text: &str) {
    to.push(b'"');
    // A backslash at the end is written as an escape: Perfetto up to v52 takes `\\"` for an escaped
    // quote (<https://github.com/google/perfetto/issues/3361>).
    let (text, end) = match text.strip_suffix('\\') {
        Some(text) => (text, &b"\\u005c\""[..]),
        None => (text, &b"\""[..]),
    };
    for byte in text.bytes() {
        match byte {
            b'"' => to.extend_from_slice(b"\\\""),
            b'\\' => to.extend_from_slice(b"\\\\"),
            b'\n' => to.extend_from_slice(b"\\n"),
            b'\t' => to.extend_from_slice(b"\\t"),
            b'\r' => to.extend_from_slice(b"\\r"),
            0..0x20 => {
                let digit = |half: u8| char::from_digit(half.into(), 16).map_or(b'0', |c| c as u8);
                to.extend_from_slice(b"\\u00");
                to.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
            }
            _ => to.push(byte),
        }
    }
    to.extend_from_slice(end);
}
