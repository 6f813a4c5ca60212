//! Finds the events in a file of trace events, without interpreting them.

use std::io::{self, BufRead};

use crate::source::OpenError;
use crate::source::damage::Damage;

/// The most bytes of an event.
const MAX_EVENT_LEN: usize = 16 << 20;

/// Follows JSON until the end of a value. It checks neither the spelling of literals nor which
/// bracket closes which.
#[derive(Debug, Default)]
struct Nesting {
    /// The number of open brackets.
    depth: u64,
    in_string: bool,
    /// The next byte of the string follows a backslash.
    escaped: bool,
}

/// Reads a file of trace events.
#[derive(Debug)]
pub(super) struct Scanner<R> {
    input: R,
    /// The offset of the next byte.
    offset: u64,
    /// The bytes of the latest value that was kept.
    value: Vec<u8>,
}

/// The reason why a value was not read.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    /// The file ends inside the value.
    End,
    /// There is no value, but a byte that cannot begin one.
    None,
    TooLong,
}

// === impl Nesting ===

impl Nesting {
    /// Follows these bytes. Returns the number of bytes of the value among them, and whether it
    /// ends there.
    fn follow(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (before, byte) in bytes.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return (before + 1, true);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => match self.depth {
                    0 => return (before, true),
                    1 => return (before + 1, true),
                    _ => self.depth -= 1,
                },
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                    return (before, true);
                }
                _ => {}
            }
        }
        (bytes.len(), false)
    }

    fn is_open(&self) -> bool {
        self.in_string || self.depth > 0
    }
}

/// Passes the key of each field of an object, without its quotes, and the bytes of its value.
/// Returns false if the bytes are no object.
pub(super) fn each_field<'a>(object: &'a [u8], mut take: impl FnMut(&'a [u8], &'a [u8])) -> bool {
    let Some(mut rest) = object.strip_prefix(b"{") else {
        return false;
    };
    loop {
        rest = rest.trim_ascii_start();
        if rest == b"}" {
            return true;
        }
        let Some((key, after)) = split_value(rest) else {
            return false;
        };
        let key = key
            .strip_prefix(b"\"")
            .and_then(|key| key.strip_suffix(b"\""));
        let after = after.trim_ascii_start().strip_prefix(b":");
        let (Some(key), Some(after)) = (key, after) else {
            return false;
        };
        let Some((value, after)) = split_value(after.trim_ascii_start()) else {
            return false;
        };
        take(key, value);
        rest = after.trim_ascii_start();
        match rest.split_first() {
            Some((b',', after)) => rest = after,
            _ if rest == b"}" => return true,
            _ => return false,
        }
    }
}

/// The value at the begin, and the bytes behind it.
fn split_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, is_whole) = Nesting::default().follow(bytes);
    if !is_whole || len == 0 {
        return None;
    }
    bytes.split_at_checked(len)
}

// === impl Fault ===

impl Fault {
    /// The error for a value of `len` bytes at this offset.
    fn at(self, offset: u64, len: u64) -> OpenError {
        let why = match self {
            Self::Io(error) => return error.into(),
            Self::End => format!("the file ends inside it, {len} bytes after its begin"),
            Self::None => "there is no JSON value".to_owned(),
            Self::TooLong => format!("it has {len} bytes, but the maximum is {MAX_EVENT_LEN}"),
        };
        damaged(offset, why)
    }
}

/// The error for a value at this offset.
fn damaged(offset: u64, why: String) -> OpenError {
    OpenError::TraceEvent { offset, why }
}

// === impl Scanner ===

impl<R: BufRead> Scanner<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            offset: 0,
            value: Vec::new(),
        }
    }

    /// Passes the bytes of each event to `take`, which returns the reason if the event is damaged.
    pub(super) fn each_event(
        &mut self,
        damage: &mut Damage,
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), OpenError> {
        if self.peek()? == Some(0xef) {
            // The mark of the encoding.
            for _ in 0..3 {
                self.take()?;
            }
        }
        match self.next()? {
            Some(b'[') => {
                self.list(damage, &mut take)?;
            }
            Some(b'{') => self.object(damage, &mut take)?,
            _ => return Err(OpenError::NoTraceEvents),
        }
        if self.next()?.is_some() {
            let offset = self.offset;
            let len = self.skip_rest()?;
            damage.skip(damaged(
                offset,
                format!("text of {len} bytes follows the end"),
            ))?;
        }
        Ok(())
    }

    /// Reads an object with the list of events. Its other fields are skipped.
    fn object(
        &mut self,
        damage: &mut Damage,
        take: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), OpenError> {
        self.take()?;
        let mut found = false;
        loop {
            match self.next()? {
                Some(b',') => self.take()?,
                Some(b'}') => {
                    self.take()?;
                    break;
                }
                Some(b'"') => {
                    let offset = self.offset;
                    if let Err(fault) = self.value(true) {
                        damage.skip(fault.at(offset, self.offset - offset))?;
                        break;
                    }
                    let is_list = self.value == b"\"traceEvents\"";
                    if self.next()? == Some(b':') {
                        self.take()?;
                    }
                    if is_list && self.next()? == Some(b'[') {
                        found = true;
                        if !self.list(damage, take)? {
                            damage.skip(Fault::End.at(offset, self.offset - offset))?;
                            break;
                        }
                        continue;
                    }
                    self.next()?;
                    let offset = self.offset;
                    if let Err(fault) = self.value(false) {
                        damage.skip(fault.at(offset, self.offset - offset))?;
                        break;
                    }
                }
                Some(_) => {
                    damage.skip(Fault::None.at(self.offset, 0))?;
                    self.take()?;
                }
                None => {
                    damage.skip(damaged(self.offset, "the file ends early".to_owned()))?;
                    break;
                }
            }
        }
        match found {
            true => Ok(()),
            false => Err(OpenError::NoTraceEvents),
        }
    }

    /// Reads the list of events. Returns false if the file ends before the list, which is allowed
    /// where the list is the whole file.
    fn list(
        &mut self,
        damage: &mut Damage,
        take: &mut impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<bool, OpenError> {
        self.take()?;
        loop {
            match self.next()? {
                None => return Ok(false),
                Some(b',') => self.take()?,
                Some(b']') => {
                    self.take()?;
                    return Ok(true);
                }
                Some(_) => {
                    let offset = self.offset;
                    let read = self.value(true);
                    let is_none = matches!(read, Err(Fault::None));
                    match read {
                        Ok(()) => {
                            if let Err(why) = take(&self.value) {
                                let len = self.offset - offset;
                                damage.skip(damaged(offset, format!("{why} ({len} bytes)")))?;
                            }
                        }
                        Err(fault) => damage.skip(fault.at(offset, self.offset - offset))?,
                    }
                    if is_none {
                        self.take()?;
                    }
                }
            }
        }
    }

    /// Reads a value, and keeps its bytes if `keeps`.
    fn value(&mut self, keeps: bool) -> Result<(), Fault> {
        self.value.clear();
        let mut nesting = Nesting::default();
        let mut is_too_long = false;
        let mut is_empty = true;
        loop {
            let bytes = self.input.fill_buf().map_err(Fault::Io)?;
            if bytes.is_empty() {
                // A number or a word may end with the file.
                return match nesting.is_open() || is_empty {
                    true => Err(Fault::End),
                    false => Ok(()),
                };
            }
            let (len, is_whole) = nesting.follow(bytes);
            is_too_long |= keeps && self.value.len() + len > MAX_EVENT_LEN;
            if keeps && !is_too_long {
                self.value
                    .extend_from_slice(bytes.get(..len).unwrap_or_default());
            }
            self.input.consume(len);
            self.offset += len as u64;
            is_empty &= len == 0;
            if is_whole {
                break;
            }
        }
        match (is_empty, is_too_long) {
            (true, _) => Err(Fault::None),
            (_, true) => Err(Fault::TooLong),
            (false, false) => Ok(()),
        }
    }

    /// Skips blanks. Returns the byte behind them, which stays unread.
    fn next(&mut self) -> io::Result<Option<u8>> {
        loop {
            match self.peek()? {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.take()?,
                other => return Ok(other),
            }
        }
    }

    /// Skips the rest of the file. Returns the number of its bytes.
    fn skip_rest(&mut self) -> io::Result<u64> {
        let begin = self.offset;
        loop {
            let len = self.input.fill_buf()?.len();
            if len == 0 {
                return Ok(self.offset - begin);
            }
            self.input.consume(len);
            self.offset += len as u64;
        }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.input.fill_buf()?.first().copied())
    }

    /// Takes a byte, unless the file has ended.
    fn take(&mut self) -> io::Result<()> {
        if self.peek()?.is_some() {
            self.input.consume(1);
            self.offset += 1;
        }
        Ok(())
    }
}
