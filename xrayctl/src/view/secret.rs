//! What only whoever was told can know: the begin of the path of everything that is served.

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

    /// Whether that is it. How long this takes does not tell how much of it is right.
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
