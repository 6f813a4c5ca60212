//! A window that slides over an input: enough bytes for the next record, wherever the chunks that were read end.

use std::io::{self, Read};
use std::ops::Range;

/// Read at once. Larger gains nothing, and a record is copied only where a chunk ends.
const CHUNK: usize = 256 << 10;

/// Bytes of an input, from where its reader stands.
#[derive(Debug)]
pub(super) struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that were read from the input and not taken yet.
    start: usize,
    end: usize,
    /// Where in the file the first byte of `buffer` stands.
    base: u64,
}

// === impl Window ===

impl<R: Read> Window<R> {
    /// A window over an input whose first byte stands at this offset of the file.
    pub(super) fn new(input: R, offset: u64) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            base: offset,
        }
    }

    /// Where in the file the next byte stands.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        // A file has fewer than 2^64 bytes, so what has been read of it does not overflow.
        self.base.wrapping_add(self.start as u64)
    }

    /// What comes next: so many bytes or more, or all that there are.
    #[inline]
    pub(super) fn ahead(&mut self, wanted: usize) -> io::Result<&[u8]> {
        if self.end - self.start < wanted {
            self.fill(wanted)?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Goes on behind so many bytes, at most those that [`Window::ahead`] gave. They stay until the next call of that.
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

    /// Skips so many bytes, or all that there are, and says how many there were.
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
                // Grows with what arrives, not with what a length field claims.
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

    /// Gives one byte at a time, and is interrupted before each.
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
