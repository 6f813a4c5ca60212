//! The table of results: rows in sections, as aligned text and as Markdown. It measures nothing.

use std::fmt::{self, Write as _};

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The thing that was measured.
    pub(crate) what: String,
    /// The result, with its unit.
    pub(crate) result: String,
    /// Its ratio to the reference, which it names; empty for a reference.
    pub(crate) ratio: String,
    pub(crate) goal: Goal,
}

/// The goal of a measurement.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// No goal: the row is there to be compared with.
    None,
    /// A figure, and whether it was reached.
    Figure { text: String, met: bool },
    /// There is no measurement.
    NotMeasured,
}

/// All results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    sections: Vec<(String, Vec<Row>)>,
    /// Notes for the reader, a sentence each.
    notes: Vec<String>,
}

/// The table as lines for a terminal.
#[derive(Debug)]
pub(crate) struct Text<'a>(pub(crate) &'a Table);

/// The table in Markdown.
#[derive(Debug)]
pub(crate) struct Markdown<'a>(pub(crate) &'a Table);

const HEAD: [&str; 5] = ["", "result", "ratio", "target", "met"];

// === impl Row ===

impl Row {
    /// A row without a target.
    pub(crate) fn new(
        what: impl Into<String>,
        result: impl Into<String>,
        ratio: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            result: result.into(),
            ratio: ratio.into(),
            goal: Goal::None,
        }
    }

    /// Adds a target.
    pub(crate) fn goal(mut self, text: impl Into<String>, met: bool) -> Self {
        let text = text.into();
        self.goal = Goal::Figure { text, met };
        self
    }

    /// A row with the reason for a missing measurement.
    pub(crate) fn not_measured(what: impl Into<String>, why: impl fmt::Display) -> Self {
        // The errors of a compiler have many lines; a row is one.
        let why = why.to_string();
        let why: Vec<_> = why.split_whitespace().collect();
        Self {
            what: what.into(),
            result: format!("NOT MEASURED: {}", why.join(" ")),
            ratio: String::new(),
            goal: Goal::NotMeasured,
        }
    }

    fn cells(&self) -> [String; 5] {
        let Self {
            what,
            result,
            ratio,
            goal,
        } = self;
        let (text, met) = match goal {
            Goal::None => ("", ""),
            Goal::Figure { text, met } => (text.as_str(), if *met { "yes" } else { "NO" }),
            Goal::NotMeasured => ("", "–"),
        };
        [what, result, ratio, text, met].map(str::to_owned)
    }
}

// === impl Table ===

impl Table {
    pub(crate) fn section(&mut self, title: impl Into<String>, rows: Vec<Row>) {
        self.sections.push((title.into(), rows));
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Rows that have a target and do not reach it.
    pub(crate) fn missed(&self) -> usize {
        self.count(|goal| matches!(goal, Goal::Figure { met: false, .. }))
    }

    /// Rows without a measurement.
    pub(crate) fn not_measured(&self) -> usize {
        self.count(|goal| matches!(goal, Goal::NotMeasured))
    }

    fn count(&self, which: impl Fn(&Goal) -> bool) -> usize {
        let rows = self.sections.iter().flat_map(|(_, rows)| rows);
        rows.filter(|row| which(&row.goal)).count()
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { sections, notes } = self.0;
        let cells: Vec<_> = sections
            .iter()
            .map(|(title, rows)| (title, rows.iter().map(Row::cells).collect::<Vec<_>>()))
            .collect();
        let mut widths = HEAD.map(|head| head.chars().count());
        for row in cells.iter().flat_map(|(_, rows)| rows) {
            // A missing measurement has a long reason, and nothing stands behind it.
            let fitted = if row[1].starts_with("NOT") { 1 } else { 5 };
            for (width, cell) in widths.iter_mut().zip(row).take(fitted) {
                *width = (*width).max(cell.chars().count());
            }
        }
        line(f, &HEAD.map(str::to_owned), &widths)?;
        for (title, rows) in &cells {
            writeln!(f, "\n{title}")?;
            for row in rows {
                line(f, row, &widths)?;
            }
        }
        for note in notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, cells: &[String; 5], widths: &[usize; 5]) -> fmt::Result {
    let mut line = String::new();
    for (cell, &width) in cells.iter().zip(widths) {
        write!(line, "  {cell:width$}")?;
    }
    writeln!(f, "{}", line.trim_end())
}

impl fmt::Display for Markdown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Table { sections, notes } = self.0;
        writeln!(f, "| {} |", HEAD.join(" | "))?;
        writeln!(f, "|---|---|---|---|---|")?;
        for (title, rows) in sections {
            writeln!(f, "| **{}** | | | | |", escaped(title))?;
            for row in rows {
                writeln!(
                    f,
                    "| {} |",
                    row.cells().map(|cell| escaped(&cell)).join(" | ")
                )?;
            }
        }
        for note in notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        table.section(
            "a leaf",
            vec![
                Row::new("floor", "17.8 ns", ""),
                Row::new("traced", "19 ns", "1.07 × floor").goal("≤ 1.15 × floor", true),
                Row::not_measured("other", "a|b is not installed"),
            ],
        );
        table.section(
            "drain",
            vec![Row::new("rate", "1 M/s", "").goal("≥ 2", false)],
        );
        table.note("Noisy.");
        table.note("Noisy.");
        table
    }

    #[test]
    fn columns_of_the_text_are_aligned() {
        let text = Text(&table()).to_string();
        let wanted = "\
          result   ratio         target          met

a leaf
  floor   17.8 ns
  traced  19 ns    1.07 × floor  ≤ 1.15 × floor  yes
  other   NOT MEASURED: a|b is not installed                           –

drain
  rate    1 M/s                  ≥ 2             NO

Noisy.
";
        let squeezed = |text: &str| -> Vec<String> {
            let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            text.lines().map(line).collect()
        };
        assert_eq!(squeezed(&text), squeezed(wanted));
        let lines: Vec<_> = text.lines().collect();
        let column = |line: &str, word: &str| {
            let (before, _) = line.split_once(word).unwrap();
            before.chars().count()
        };
        assert_eq!(column(lines[0], "target"), column(lines[4], "≤ 1.15"));
        assert_eq!(column(lines[0], "target"), column(lines[8], "≥ 2"));
    }

    #[test]
    fn markdown_is_one_table() {
        let text = Markdown(&table()).to_string();
        assert!(text.contains("| traced | 19 ns | 1.07 × floor | ≤ 1.15 × floor | yes |"));
        assert!(text.contains("a\\|b"));
        assert_eq!(
            text.lines().filter(|line| line.starts_with("|---")).count(),
            1
        );
        assert_eq!(text.matches("Noisy.").count(), 1);
    }

    #[test]
    fn missing_figures_are_counted() {
        assert_eq!((table().missed(), table().not_measured()), (1, 1));
    }
}
