//! The text of a condition while it is parsed: what is left of it, and the place of a problem.

use super::bound::Bound;

/// A problem and its place. The first character is in column 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {problem}")]
pub struct ConditionError {
    /// The column of the first character of the problem.
    pub column: usize,
    problem: String,
}

/// The rest of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest<'a> {
    text: &'a str,
    /// Characters of the text before the rest.
    before: usize,
}

/// A parsed part.
pub type Parsed<T> = Result<T, ConditionError>;

// === impl Rest ===

impl<'a> Rest<'a> {
    /// A whole text.
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, before: 0 }
    }

    pub(super) fn text(self) -> &'a str {
        self.text
    }

    /// A problem at the begin of the rest.
    pub(super) fn error(self, problem: String) -> ConditionError {
        ConditionError {
            column: self.before + 1,
            problem,
        }
    }

    /// The text behind the first bytes. They must end where a character ends.
    pub(super) fn after(self, bytes: usize) -> Self {
        let (passed, text) = self.text.split_at(bytes);
        Self {
            text,
            before: self.before + passed.chars().count(),
        }
    }

    pub(super) fn end(self) -> Self {
        self.after(self.text.len())
    }

    /// The rest without blanks at its begin.
    pub(super) fn trimmed(self) -> Self {
        self.after(self.text.len() - self.text.trim_start().len())
    }

    /// The leading letters, digits and underscores, and the rest.
    pub(super) fn word(self) -> (Self, Self) {
        let end = self.text.find(|c: char| !c.is_alphanumeric() && c != '_');
        let rest = self.after(end.unwrap_or(self.text.len()));
        let text = &self.text[..self.text.len() - rest.text.len()];
        (Self { text, ..self }, rest)
    }

    /// The trimmed text between parentheses, and the rest behind them.
    pub(super) fn parenthesised(self, expected: &str) -> Parsed<(Self, Self)> {
        let open = self.trimmed();
        if !open.text.starts_with('(') {
            return Err(open.error(format!("expected {expected}")));
        }
        let mut depth = 0_usize;
        let closing = open.text.char_indices().find(|(_, c)| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let Some((closing, _)) = closing else {
            return Err(open.error("this parenthesis is not closed".to_owned()));
        };
        let inner = Self {
            text: &open.text[..closing],
            ..open
        };
        let inner = inner.after(1).trimmed();
        let inner = Self {
            text: inner.text.trim_end(),
            ..inner
        };
        if inner.text.is_empty() {
            return Err(inner.error(format!("expected {expected}")));
        }
        Ok((inner, open.after(closing + 1)))
    }

    /// Parses `>` or `>=`, and returns the rest behind it.
    pub(super) fn bound(self) -> Parsed<(Bound, Self)> {
        let rest = self.trimmed();
        let bound = match rest.text {
            text if text.starts_with(">=") => Bound::AtLeast,
            text if text.starts_with('>') => Bound::MoreThan,
            _ => return Err(rest.error("expected > or >=".to_owned())),
        };
        Ok((bound, rest.after(bound.sign().len()).trimmed()))
    }
}
