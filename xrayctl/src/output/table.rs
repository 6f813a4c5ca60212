//! Aligned columns.

use std::io;

use super::console::{Look, Tone};
use super::text;

/// A column that may be narrowed is not narrowed below this many characters.
const NARROWEST: usize = 12;

/// How a column's cells stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// To the left.
    Left(&'static str),
    /// To the right: numbers.
    Right(&'static str),
    /// To the left, and the first to give way where the terminal is narrow.
    Elastic(&'static str),
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// Rows under headings. Each row has as many cells as there are columns.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[Cell; N]>,
}

// === impl Column ===

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Left(title) | Self::Right(title) | Self::Elastic(title) => title,
        }
    }
}

// === impl Cell ===

impl Cell {
    /// A cell in a tone. What could disturb a terminal is shown as escapes.
    pub(crate) fn toned(content: impl AsRef<str>, tone: Tone) -> Self {
        Self {
            text: text::printable(content.as_ref()),
            tone,
        }
    }
}

impl From<String> for Cell {
    fn from(content: String) -> Self {
        Self::toned(content, Tone::Plain)
    }
}

impl From<&str> for Cell {
    fn from(content: &str) -> Self {
        Self::toned(content, Tone::Plain)
    }
}

// === impl Table ===

impl<const N: usize> Table<N> {
    /// A table without rows.
    pub(crate) fn new(columns: [Column; N]) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row at the end.
    pub(crate) fn push(&mut self, row: [Cell; N]) {
        self.rows.push(row);
    }

    /// Writes the headings and the rows.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let widths = self.widths(look.width);
        let headings = self
            .columns
            .map(|column| Cell::toned(column.title(), Tone::Heading));
        self.render_row(out, look, &widths, &headings)?;
        self.rows
            .iter()
            .try_for_each(|row| self.render_row(out, look, &widths, row))
    }

    fn render_row(
        &self,
        out: &mut dyn io::Write,
        look: Look,
        widths: &[usize; N],
        row: &[Cell; N],
    ) -> io::Result<()> {
        let mut room = look.width.unwrap_or(usize::MAX);
        let mut owed = 0;
        for (index, ((column, width), cell)) in self.columns.iter().zip(widths).zip(row).enumerate()
        {
            if index > 0 {
                owed += 2;
            }
            let shown = text::cut(&cell.text, *width);
            let padding = width - shown.chars().count();
            if matches!(column, Column::Right(_)) {
                owed += padding;
            }
            // Blanks are written only when something follows them, so that no line ends in blanks.
            if !shown.is_empty() {
                let blanks = owed.min(room);
                room -= blanks;
                let shown = text::cut(&shown, room);
                room -= shown.chars().count();
                write!(out, "{:blanks$}{}", "", look.paint(cell.tone, &shown))?;
                owed = 0;
            }
            if !matches!(column, Column::Right(_)) {
                owed += padding;
            }
        }
        writeln!(out)
    }

    fn widths(&self, terminal: Option<usize>) -> [usize; N] {
        let mut widths = [0; N];
        for (index, width) in widths.iter_mut().enumerate() {
            let cells = self.rows.iter().map(|row| row[index].text.chars().count());
            *width = cells
                .max()
                .unwrap_or(0)
                .max(self.columns[index].title().chars().count());
        }
        let Some(terminal) = terminal else {
            return widths;
        };
        let mut excess =
            (widths.iter().sum::<usize>() + 2 * N.saturating_sub(1)).saturating_sub(terminal);
        // The widest elastic column gives way first, down to the next widest one.
        while excess > 0 {
            let elastic = (0..N).filter(|&index| matches!(self.columns[index], Column::Elastic(_)));
            let Some(widest) = elastic.max_by_key(|&index| widths[index]) else {
                break;
            };
            if widths[widest] <= NARROWEST {
                break;
            }
            widths[widest] -= 1;
            excess -= 1;
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table<3> {
        let mut table = Table::new([
            Column::Right("PID"),
            Column::Elastic("COMMAND"),
            Column::Left("STATE"),
        ]);
        table.push(["7".into(), "short".into(), "ready".into()]);
        table.push([
            "1234".into(),
            "a rather long command line".into(),
            "".into(),
        ]);
        table
    }

    fn check(look: Look, expected: &str) {
        let mut out = Vec::new();
        sample().render(&mut out, look).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        check(
            Look::PLAIN,
            " PID  COMMAND                     STATE\n   7  short                       ready\n1234  a rather long command line\n",
        );
    }

    #[test]
    fn the_elastic_column_gives_way_on_a_narrow_terminal() {
        check(
            Look {
                width: Some(28),
                ..Look::PLAIN
            },
            " PID  COMMAND          STATE\n   7  short            ready\n1234  a rather long …\n",
        );
    }

    #[test]
    fn what_still_does_not_fit_is_cut_at_the_edge() {
        check(
            Look {
                width: Some(20),
                ..Look::PLAIN
            },
            " PID  COMMAND       \n   7  short         \n1234  a rather lo…\n",
        );
    }

    #[test]
    fn tones_are_painted_without_disturbing_the_alignment() {
        let mut table = Table::new([Column::Left("A"), Column::Left("B")]);
        table.push([Cell::toned("x", Tone::Good), "y".into()]);
        let mut out = Vec::new();
        table
            .render(
                &mut out,
                Look {
                    colour: true,
                    ..Look::PLAIN
                },
            )
            .unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(out.ends_with("\u{1b}[32mx\u{1b}[0m  y\n"), "{out:?}");
    }
}
