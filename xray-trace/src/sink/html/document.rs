//! The data of a page for its scripts: a head in JSON, and columns of numbers.
//!
//! ```text
//!  size of the head, u32 little endian │ head │ columns: unsigned LEB128 numbers
//! ```
//!
//! The head's `columns` has for each column, by name, its offset behind the head, its number of
//! bytes, and its number of values.

use serde_json::{Map, Value, json};

use crate::container::varint;

/// A document that is being built.
#[derive(Debug, Clone, Default)]
pub(super) struct Document {
    head: Map<String, Value>,
    columns: Map<String, Value>,
    numbers: Vec<u8>,
}

// === impl Document ===

impl Document {
    /// Sets a key of the head. Later values replace earlier ones.
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.head.insert(key.to_owned(), value);
    }

    pub(super) fn column(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        let at = self.numbers.len();
        let mut count = 0_u64;
        for value in values {
            varint::put(&mut self.numbers, value);
            count += 1;
        }
        let len = self.numbers.len() - at;
        self.columns
            .insert(name.to_owned(), json!([at, len, count]));
    }

    /// The number of bytes in the columns.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut head = self.head.clone();
        head.insert("columns".to_owned(), self.columns.clone().into());
        let head = Value::from(head).to_string();
        let len = u32::try_from(head.len()).unwrap_or(u32::MAX);
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(&self.numbers);
        bytes
    }
}
