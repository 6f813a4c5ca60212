//! `xrayctl policy check`.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;
use xrayd::policies::PolicySpec;

use super::processes::ProcessRow;
use super::{Look, text, units};

/// The longest part of a line that is shown, in characters.
const LONGEST_LINE: usize = 100;

/// A policy that was checked.
#[derive(Debug, Serialize)]
pub(crate) struct CheckedPolicy {
    file: String,
    /// Absent if the policy has a mistake.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    mistakes: Vec<Mistake>,
    /// Absent if the policy has a mistake, or if the processes are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    matches: Option<Vec<MatchedProcess>>,
    has_expired: bool,
    #[serde(skip)]
    max_processes: u32,
}

/// A mistake in a policy.
#[derive(Debug, Serialize)]
pub(crate) struct Mistake {
    line: usize,
    column: usize,
    what: String,
    /// The line.
    #[serde(skip)]
    text: String,
}

/// A process with sleds that a policy matches.
#[derive(Debug, Serialize)]
pub(crate) struct MatchedProcess {
    /// False for the processes beyond `max_processes`.
    pub(crate) is_within: bool,
    #[serde(flatten)]
    pub(crate) process: ProcessRow,
}

// === impl Mistake ===

impl Mistake {
    /// A mistake in the text of a policy.
    pub(crate) fn of(mistake: xrayd::Mistake, policy: &str) -> Self {
        let xrayd::Mistake { line, column, what } = mistake;
        let text = policy.lines().nth(line - 1).unwrap_or_default();
        Self {
            line,
            column,
            what,
            text: text.to_owned(),
        }
    }

    /// A mistake in the text of a policy that is not here.
    pub(crate) fn without_text(mistake: xrayd_proto::v1::PolicyMistake) -> Self {
        let xrayd_proto::v1::PolicyMistake { line, column, what } = mistake;
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            line: number(line),
            column: number(column),
            what,
            text: String::new(),
        }
    }

    /// A mistake that the daemon has found in a text.
    pub(crate) fn told(mistake: xrayd_proto::v1::PolicyMistake, policy: &str) -> Self {
        let told = Self::without_text(mistake);
        let text = policy.lines().nth(told.line.saturating_sub(1));
        Self {
            text: text.unwrap_or_default().to_owned(),
            ..told
        }
    }

    /// Writes the mistake, its line, and a mark below its column.
    pub(crate) fn render(&self, out: &mut dyn io::Write, file: &str) -> io::Result<()> {
        let Self {
            line,
            column,
            what,
            text,
        } = self;
        writeln!(out, "{file}:{line}:{column}: {}", text::printable(what))?;
        // Tabs take more columns than one.
        let shown = text.replace('\t', " ");
        if *column <= LONGEST_LINE && !shown.trim().is_empty() {
            let shown: String = shown.chars().take(LONGEST_LINE).collect();
            let before: String = shown.chars().take(column - 1).collect();
            let mark = text::printable(&before).chars().count();
            writeln!(out, "  {}\n  {:mark$}^", text::printable(&shown), "")?;
        }
        Ok(())
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line, column, what, ..
        } = self;
        write!(f, "line {line}, column {column}: {what}")
    }
}

// === impl CheckedPolicy ===

impl CheckedPolicy {
    /// A policy with mistakes.
    pub(crate) fn wrong(file: &Path, mistakes: Vec<Mistake>) -> Self {
        Self {
            file: file.display().to_string(),
            name: None,
            mistakes,
            matches: None,
            has_expired: false,
            max_processes: 0,
        }
    }

    /// A policy without one, and the processes that it matches, if they could be found out.
    pub(crate) fn right(
        file: &Path,
        policy: &PolicySpec,
        matches: Option<Vec<MatchedProcess>>,
    ) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        Self {
            file: file.display().to_string(),
            name: Some(policy.name.clone()),
            mistakes: Vec::new(),
            matches,
            has_expired: policy.expires.is_some_and(|expires| expires <= now),
            max_processes: policy.matching.max_processes,
        }
    }

    /// The number of its mistakes.
    pub(crate) fn mistakes(&self) -> usize {
        self.mistakes.len()
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let file = text::printable(&self.file);
        for mistake in &self.mistakes {
            mistake.render(out, &file)?;
        }
        let Some(name) = &self.name else {
            return Ok(());
        };
        if self.has_expired {
            writeln!(out, "{name}: it has expired")?;
        }
        let Some(matches) = &self.matches else {
            return writeln!(out, "{name}: no mistake");
        };
        let count = units::counted(matches.len() as u64, "process");
        writeln!(out, "{name}: no mistake; it matches {count} now")?;
        if !matches.is_empty() {
            let rows = matches.iter().map(|matched| &matched.process);
            ProcessRow::render_all(rows, out, look)?;
        }
        let beyond = matches.iter().filter(|matched| !matched.is_within).count();
        if beyond > 0 {
            let most = self.max_processes;
            let beyond = units::counted(beyond as u64, "process");
            writeln!(
                out,
                "{beyond} would not be traced: max_processes is {most}, and the oldest ones come first"
            )?;
        }
        Ok(())
    }
}
