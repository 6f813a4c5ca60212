//! A window that slides over an input. It provides enough bytes for the next record, wherever the
//! chunks of the input end.

use std::io::{self, Read};
use std::ops::Range;

/// Bytes of a read. More gains nothing, and a record is copied only at the end of a chunk.
const CHUNK: usize = 256 << 10;

/// Bytes of an input, from the position of its reader.
#[derive(Debug)]
pub(super) struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that were read from the input and not taken yet.
    start: usize,
    end: usize,
    /// The offset in the file of the first byte of `buffer`.
    base: u64,
}

// === impl Window ===

impl<R: Read> Window<R> {
    /// A window over an input whose first byte has this offset in the file.
    pub(super) fn new(input: R, offset: u64) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            base: offset,
        }
    }

    /// The offset in the file of the next byte.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        // A file has fewer than 2^64 bytes, so this offset does not overflow.
        self.base.wrapping_add(self.start as u64)
    }

    /// The next bytes: at least `wanted`, or all that are left.
    #[inline]
    pub(super) fn ahead(&mut self, wanted: usize) -> io::Result<&[u8]> {
        if self.end - self.start < wanted {
            self.fill(wanted)?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Takes this number of bytes, at most those that [`Window::ahead`] returned. They stay in the
    /// buffer until its next call.
    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Range<usize> {
        let from = self.start;
        self.start = from.saturating_add(count).min(self.end);
        from..self.start
    }

    /// Bytes that were taken.
    #[inline]
    pub(super) fn taken(&self, range: Range<usize>) -> &[u8] {
        self.buffer.get(range).unwrap_or_default()
    }

    /// Skips this number of bytes, or all that are left. Returns the number of skipped bytes.
    pub(super) fn skip(&mut self, count: u64) -> io::Result<u64> {
        let mut left = count;
        while left > 0 {
            let ahead = self.ahead(1)?.len();
            if ahead == 0 {
                break;
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(ahead);
            self.take(step);
            left -= step as u64;
        }
        Ok(count - left)
    }

    #[cold]
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.base = self.base.wrapping_add(self.start as u64);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            if self.end == self.buffer.len() {
                // The buffer grows with the bytes that arrive, not with the value of a length
                // field.
                self.buffer.resize((self.end * 2).max(CHUNK), 0);
            }
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that yields one byte at a time, and is interrupted before each.
    struct Dripping<'a>(&'a [u8], bool);

    impl Read for Dripping<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = self.0.len().min(1);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn bytes_come_in_order_however_they_arrive() {
        let mut window = Window::new(Dripping(b"abcdef", false), 10);
        assert_eq!(window.ahead(4).unwrap(), b"abcd");
        let taken = window.take(3);
        assert_eq!(window.taken(taken), b"abc");
        assert_eq!(window.offset(), 13);
        assert_eq!(window.ahead(9).unwrap(), b"def");
        assert_eq!(window.skip(2).unwrap(), 2);
        assert_eq!(window.ahead(1).unwrap(), b"f");
        assert_eq!(window.skip(9).unwrap(), 1);
        assert_eq!((window.offset(), window.ahead(1).unwrap()), (16, &b""[..]));
    }

    #[test]
    fn the_buffer_grows_with_what_arrives() {
        let mut window = Window::new(&[7; 100][..], 0);
        assert_eq!(window.ahead(1 << 40).unwrap().len(), 100);
        assert_eq!(window.buffer.len(), CHUNK);
    }
}
