//! The secret word at the begin of every path. Only users who have the address can make a request.

use std::fs::File;
use std::io::{self, Read as _};

const BYTES: usize = 16;

/// A random word.
#[derive(Clone)]
pub(super) struct Secret(String);

// === impl Secret ===

impl Secret {
    pub(super) fn new() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    pub(super) fn word(&self) -> &str {
        &self.0
    }

    /// True if the word is right. The time of the comparison does not depend on the number of right
    /// characters.
    pub(super) fn is(&self, other: &str) -> bool {
        let pairs = self.0.bytes().zip(other.bytes());
        let wrong = pairs.fold(0, |wrong, (one, other)| wrong | (one ^ other));
        wrong == 0 && self.0.len() == other.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_itself_is_right() {
        let secret = Secret::new().unwrap();
        let word = secret.word().to_owned();
        assert_eq!(word.len(), 2 * BYTES);
        assert!(secret.is(&word));
        let other = Secret::new().unwrap();
        for wrong in ["", &word[1..], &format!("{word}0"), other.word()] {
            assert!(!secret.is(wrong), "{wrong}");
        }
    }
}
