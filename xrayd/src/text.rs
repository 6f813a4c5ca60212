//! Text from untrusted sources: characters that must not reach a log, a terminal, or an error
//! message. Nothing is escaped here.

/// True for a character that ends a line, drives a terminal, or reorders the text around it.
pub(crate) fn is_hazard(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Arabic letter mark, directional marks, separators of lines and paragraphs.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}'
                // Directional embeddings, overrides and isolates.
                | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_lines_escapes_and_directions_are_hazards_and_letters_are_not() {
        for c in "\n\r\t\0\u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}\u{202e}\u{2066}".chars() {
            assert!(is_hazard(c), "{c:?}");
        }
        for c in "az \\\"<é漢ש\u{200d}".chars() {
            assert!(!is_hazard(c), "{c:?}");
        }
    }
}
