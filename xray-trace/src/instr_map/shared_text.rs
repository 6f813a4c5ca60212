//! Texts that share one allocation. A large program has hundreds of thousands of names, and an
//! allocation for each of them would take more memory than the names, and most of the time.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A text that shares its memory with other texts. Its clones share it too. The memory is freed
/// with the last of them.
#[derive(Clone, Default)]
pub struct SharedText {
    /// `None` for an empty text.
    all: Option<Arc<Box<str>>>,
    start: u32,
    end: u32,
}

/// Collects texts that will share one allocation.
#[derive(Debug, Default)]
pub(super) struct TextCollector {
    all: String,
}

/// The place of a text in its collector.
pub(super) type TextPlace = Range<u32>;

// === impl TextCollector ===

impl TextCollector {
    /// Adds a text. `None` if all texts together would exceed 4 GiB.
    pub(super) fn add(&mut self, text: &str) -> Option<TextPlace> {
        let start = u32::try_from(self.all.len()).ok()?;
        let end = start.checked_add(u32::try_from(text.len()).ok()?)?;
        self.all.push_str(text);
        Some(start..end)
    }

    /// Ends the collection, and returns the text at each place.
    pub(super) fn finish(self) -> impl Fn(TextPlace) -> SharedText {
        let all = Arc::new(self.all.into_boxed_str());
        move |place| SharedText {
            all: Some(Arc::clone(&all)),
            start: place.start,
            end: place.end,
        }
    }
}

// === impl SharedText ===

impl SharedText {
    /// The text.
    pub fn as_str(&self) -> &str {
        let range = self.start as usize..self.end as usize;
        let all = self.all.as_deref();
        all.and_then(|all| all.get(range)).unwrap_or_default()
    }
}

impl From<&str> for SharedText {
    /// Copies the text. Texts over 4 GiB become empty.
    fn from(text: &str) -> Self {
        let mut collector = TextCollector::default();
        let place = collector.add(text).unwrap_or_default();
        collector.finish()(place)
    }
}

impl Deref for SharedText {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for SharedText {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SharedText {}

impl PartialEq<str> for SharedText {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for SharedText {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for SharedText {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

impl fmt::Display for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
