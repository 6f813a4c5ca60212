//! `xrayctl access`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::{AccessAnswer, GetAccessResponse};

use super::checked_policy::Mistake;
use super::table::{Column, Table};
use super::{Look, text};

/// The rules in force.
#[derive(Debug, Serialize)]
pub(crate) struct Rules {
    /// Absent if the daemon has no file of rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// The rules as TOML; empty without rules.
    text: String,
    mistakes: Vec<Mistake>,
}

/// The user and the process of a question.
#[derive(Debug, Serialize)]
pub(crate) struct Asked {
    /// Absent for the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
}

/// What a user may do.
#[derive(Debug, Serialize)]
pub(crate) struct Answers {
    #[serde(flatten)]
    asked: Asked,
    answers: Vec<Answer>,
}

#[derive(Debug, Serialize)]
struct Answer {
    verb: String,
    is_allowed: bool,
    why: String,
    /// Absent if no rule gives rights here.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

// === impl Rules ===

impl Rules {
    pub(crate) fn new(got: GetAccessResponse) -> Self {
        let GetAccessResponse {
            path,
            text,
            mistakes,
        } = got;
        Self {
            file: (!path.is_empty()).then_some(path),
            text,
            mistakes: mistakes.into_iter().map(Mistake::without_text).collect(),
        }
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let Some(file) = &self.file else {
            return writeln!(out, "the daemon has no file of rules (xrayd --access-file)");
        };
        let file = text::printable(file);
        for mistake in &self.mistakes {
            mistake.render(out, &file)?;
        }
        let state = match (self.mistakes.is_empty(), self.text.trim().is_empty()) {
            (true, true) => "# no rules are in force",
            (false, true) => "# no rules are in force, and the file as it is now changes nothing",
            (true, false) => "# in force",
            (false, false) => "# in force; the file as it is now changes nothing",
        };
        writeln!(out, "# {file}\n{state}")?;
        self.text
            .lines()
            .try_for_each(|line| writeln!(out, "{}", text::printable(line)))
    }
}

// === impl Answers ===

impl Answers {
    pub(crate) fn new(asked: Asked, answers: Vec<AccessAnswer>) -> Self {
        let answers = answers.into_iter().map(|answer| Answer {
            verb: answer.verb,
            is_allowed: answer.is_allowed,
            why: answer.why,
            line: (answer.line > 0).then_some(answer.line),
        });
        Self {
            asked,
            answers: answers.collect(),
        }
    }

    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut table = Table::new([
            Column::left("RIGHT"),
            Column::left("ALLOWED"),
            Column::right("LINE").minor(1),
            Column::left("WHY"),
        ]);
        for answer in &self.answers {
            table.push([
                text::printable(&answer.verb).into(),
                if answer.is_allowed { "yes" } else { "no" }.into(),
                answer
                    .line
                    .map(|line| line.to_string())
                    .unwrap_or_default()
                    .into(),
                text::printable(&answer.why).into(),
            ]);
        }
        table.render(out, look)
    }
}
