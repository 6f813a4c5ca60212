//! The names in a page: each once, by number.

use std::collections::HashMap;

use super::limits;

/// The replacement for a name that exceeds the limit.
const LEFT_OUT: &str = "(name left out)";

/// The names of functions, modules and files in a page.
#[derive(Debug)]
pub(super) struct Names {
    all: Vec<String>,
    numbers: HashMap<String, u64>,
    bytes: usize,
    left_out: u64,
}

// === impl Names ===

impl Names {
    /// The number of a name; 0 if the limit leaves no room for it.
    pub(super) fn number(&mut self, name: &str) -> u64 {
        let name = cut(name, limits::NAME);
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let bytes = escaped_len(&name);
        if self.bytes + bytes > limits::NAMES {
            self.left_out += 1;
            return 0;
        }
        self.bytes += bytes;
        let number = self.all.len() as u64;
        self.all.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    pub(super) fn all(&self) -> &[String] {
        &self.all
    }

    /// The number of bytes that they take in the document.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The number of look-ups for which there was no room.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Default for Names {
    fn default() -> Self {
        Self {
            all: vec![LEFT_OUT.to_owned()],
            numbers: HashMap::new(),
            bytes: 0,
            left_out: 0,
        }
    }
}

/// The begin of a text, `most` bytes at most.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// The number of bytes of a text in JSON, with its separator.
fn escaped_len(text: &str) -> usize {
    let inner = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    });
    inner.sum::<usize>() + 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number_and_a_long_one_is_cut() {
        let mut names = Names::default();
        let one = names.number("one");
        assert_eq!(names.number("two"), one + 1);
        assert_eq!(names.number("one"), one);
        let long = names.number(&"é".repeat(limits::NAME));
        assert!(names.all()[usize::try_from(long).unwrap()].len() <= limits::NAME);
    }

    #[test]
    fn names_beyond_the_room_are_counted() {
        let mut names = Names::default();
        for number in 0..100_000 {
            names.number(&format!("{number:0100}"));
        }
        let json = serde_json::to_string(names.all()).unwrap();
        assert!(json.len() <= limits::NAMES + 100, "{}", json.len());
        assert_eq!(names.left_out(), 100_000 + 1 - names.all().len() as u64);
        assert_eq!(names.number(&"x".repeat(200)), 0);
    }

    #[test]
    fn the_length_of_a_text_in_json_is_known() {
        for text in ["", "plain", "\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}é日"] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(escaped_len(text), json.len() + 1, "{text:?}");
        }
    }
}
