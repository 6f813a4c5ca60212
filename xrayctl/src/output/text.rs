//! Text from other programs, made safe for a terminal.
//!
//! Names and command lines come from programs that may be hostile. An escape sequence in one must
//! not reach the terminal.

use std::fmt::Write as _;

/// The text with escapes in place of control characters and of characters that turn the direction
/// of writing.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push(' '),
            _ if c.is_control() || turns_direction(c) => {
                // Writing to a String cannot fail.
                let _ = write!(out, "{}", c.escape_default());
            }
            _ => out.push(c),
        }
    }
    out
}

/// The text if it fits, else its beginning and an ellipsis: `width` characters at most.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        out.push('…');
    }
    out
}

/// A name as a word for a shell.
pub(crate) fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

/// The text broken at blanks into lines of at most `width` characters. A longer word is a line of
/// its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let joined = line.chars().count() + 1 + word.chars().count();
            if !line.is_empty() && joined > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

fn turns_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_survive() {
        for (text, expected) in [
            ("plain äöü", "plain äöü"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\nb\tc", "a\\nb c"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("x\u{202e}y", "x\\u{202e}y"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }

    #[test]
    fn cutting_counts_characters() {
        for (text, width, expected) in [
            ("äöü", 3, "äöü"),
            ("äöüx", 3, "äö…"),
            ("abc", 1, "…"),
            ("abc", 0, ""),
            ("", 0, ""),
        ] {
            assert_eq!(cut(text, width), expected);
        }
    }

    #[test]
    fn wrapping_keeps_paragraphs_and_long_words() {
        assert_eq!(
            wrap("a bb ccc\n\ndddddd e", 4),
            ["a bb", "ccc", "", "dddddd", "e"]
        );
    }

    #[test]
    fn names_are_quoted_where_a_shell_wants_it() {
        for (name, expected) in [
            ("a/b-1.xtrace", "a/b-1.xtrace"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(name), expected);
        }
    }
}
