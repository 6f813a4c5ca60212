//! The characters of an input for a YAML parser. They are limited to the most characters of one
//! part of a trace, and the source can continue behind a part that is no YAML.

use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;

use crate::llvm::window::Window;

/// The characters. The reader and its parser share them.
pub(super) struct Source<R>(Rc<RefCell<State<R>>>);

struct State<R> {
    window: Window<R>,
    /// Characters that come first, in reverse order.
    ahead: Vec<char>,
    /// The characters since [`Source::keep`], for finding the next item among them.
    kept: Option<Vec<char>>,
    /// The number of characters that may be read before the parser has to return a piece.
    left: usize,
    /// The reason for an early end of the input.
    end: End,
}

/// The reason why a source yields no more characters.
#[derive(Debug, Default)]
pub(super) enum End {
    /// It yields more, or the file has ended.
    #[default]
    No,
    /// The part is too long.
    TooLong,
    /// A byte that is not UTF-8, at this offset.
    NotUtf8(u64),
    /// The input failed.
    Failed(io::Error),
}

// === impl Source ===

impl<R> Clone for Source<R> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Self {
        Self(Rc::new(RefCell::new(State {
            window: Window::new(input, 0),
            ahead: Vec::new(),
            kept: None,
            left: 0,
            end: End::No,
        })))
    }

    /// Allows this number of characters from now on.
    pub(super) fn allow(&self, count: usize) {
        self.0.borrow_mut().left = count;
    }

    /// The reason for an early end. Later calls return [`End::No`].
    pub(super) fn take_end(&self) -> End {
        std::mem::take(&mut self.0.borrow_mut().end)
    }

    /// The offset in the file of the next character.
    pub(super) fn offset(&self) -> u64 {
        self.0.borrow().window.offset()
    }

    /// Keeps the characters that are read from now on, for [`Source::skip_to_item`].
    pub(super) fn keep(&self) {
        self.0.borrow_mut().kept = Some(Vec::new());
    }

    /// Goes back to the call of [`Source::keep`], if there was one, and from there to the next line
    /// that begins an item of a list. Returns false if there is none.
    pub(super) fn skip_to_item(&self) -> io::Result<bool> {
        let mut state = self.0.borrow_mut();
        if let Some(kept) = state.kept.take() {
            state.ahead.extend(kept.into_iter().rev());
        }
        let mut indent = None::<usize>;
        loop {
            let char = match state.read() {
                Ok(Some(char)) => char,
                Ok(None) => return Ok(false),
                Err(End::Failed(error)) => return Err(error),
                Err(_) => '\u{fffd}',
            };
            indent = match (char, indent) {
                ('\n', _) => Some(0),
                (' ', Some(count)) => Some(count + 1),
                ('-', Some(count)) => {
                    state.ahead.push('-');
                    // Limits the indentation, which is shorter in sensible YAML.
                    let spaces = std::iter::repeat_n(' ', count.min(1000));
                    state.ahead.extend(spaces);
                    return Ok(true);
                }
                _ => None,
            };
        }
    }
}

impl<R: Read> State<R> {
    /// The next character; `None` at the end of the file.
    fn read(&mut self) -> Result<Option<char>, End> {
        if let Some(char) = self.ahead.pop() {
            return Ok(Some(char));
        }
        let ahead = self.window.ahead(4).map_err(End::Failed)?;
        let ahead = &ahead[..ahead.len().min(4)];
        let Some(first) = ahead.first().copied() else {
            return Ok(None);
        };
        if first.is_ascii() {
            self.window.take(1);
            return Ok(Some(first.into()));
        }
        let valid = match std::str::from_utf8(ahead) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&ahead[..error.valid_up_to()]).unwrap_or_default(),
        };
        let Some(char) = valid.chars().next() else {
            let offset = self.window.offset();
            self.window.take(1);
            return Err(End::NotUtf8(offset));
        };
        self.window.take(char.len_utf8());
        Ok(Some(char))
    }
}

impl<R: Read> Iterator for Source<R> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let Some(left) = state.left.checked_sub(1) else {
            state.end = End::TooLong;
            return None;
        };
        state.left = left;
        match state.read() {
            Ok(char) => {
                if let (Some(kept), Some(char)) = (&mut state.kept, char) {
                    kept.push(char);
                }
                char
            }
            Err(end) => {
                state.end = end;
                None
            }
        }
    }
}
