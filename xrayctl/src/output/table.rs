//! Aligned columns.

use std::borrow::Cow;
use std::io;

use super::console::{Look, Tone};
use super::{Names, text};

/// An elastic column keeps this many characters while another column can be left out.
const READABLE: usize = 24;
/// An elastic column keeps this many characters in any case.
const NARROWEST: usize = 12;

/// A column. On a narrow terminal, elastic columns shrink first. Then minor columns are left out.
/// Then elastic columns shrink again. The rest is cut at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    title: &'static str,
    /// True if cells are aligned to the right, as numbers are.
    right: bool,
    elastic: bool,
    /// The order in which columns are left out: the greatest first, 0 never.
    minor: u8,
    /// True if there is nothing to show in it.
    absent: bool,
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
    content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Text,
    /// The whole name of a function.
    FunctionName,
}

/// Rows under headings. Each row has as many cells as there are columns.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[Cell; N]>,
}

// === impl Column ===

impl Column {
    /// A column with cells aligned to the left.
    pub(crate) const fn left(title: &'static str) -> Self {
        Self {
            title,
            right: false,
            elastic: false,
            minor: 0,
            absent: false,
        }
    }

    /// A column with cells aligned to the right, for numbers.
    pub(crate) const fn right(title: &'static str) -> Self {
        Self {
            right: true,
            ..Self::left(title)
        }
    }

    /// A column with cells aligned to the left that can be cut.
    pub(crate) const fn elastic(title: &'static str) -> Self {
        Self {
            elastic: true,
            ..Self::left(title)
        }
    }

    /// The same column, which is only there if there is something to show in it.
    pub(crate) const fn present(self, is_present: bool) -> Self {
        Self {
            absent: !is_present,
            ..self
        }
    }

    /// The same column, but it can be left out. The greatest rank goes first.
    pub(crate) const fn minor(self, rank: u8) -> Self {
        Self {
            minor: rank,
            ..self
        }
    }
}

// === impl Cell ===

impl Cell {
    /// A cell in a tone. Characters that could disturb a terminal are escaped.
    pub(crate) fn toned(content: impl AsRef<str>, tone: Tone) -> Self {
        Self {
            text: text::printable(content.as_ref()),
            tone,
            content: Content::Text,
        }
    }

    /// The name of a function. It is given whole, and shown in the form that the user wants.
    pub(crate) fn function(name: impl AsRef<str>) -> Self {
        Self {
            content: Content::FunctionName,
            ..Self::toned(name, Tone::Name)
        }
    }

    fn shown(&self, names: Names) -> Cow<'_, str> {
        match self.content {
            Content::Text => Cow::Borrowed(&self.text),
            Content::FunctionName => names.show(&self.text),
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

    /// Writes the headings and the rows, and names the columns that were left out.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let widths = self.widths(look);
        let headings = self
            .columns
            .map(|column| Cell::toned(column.title, Tone::Heading));
        self.render_row(out, look, &widths, &headings)?;
        for row in &self.rows {
            self.render_row(out, look, &widths, row)?;
        }
        let columns = self.columns.iter().zip(widths);
        let left_out = columns.filter(|(column, width)| width.is_none() && !column.absent);
        let left_out: Vec<_> = left_out.map(|(column, _)| column.title).collect();
        if left_out.is_empty() {
            return Ok(());
        }
        let line = format!("… no room for {}", left_out.join(", "));
        let line = text::cut(&line, look.width.unwrap_or(usize::MAX));
        writeln!(out, "{}", look.paint(Tone::Dim, &line))
    }

    fn render_row(
        &self,
        out: &mut dyn io::Write,
        look: Look,
        widths: &[Option<usize>; N],
        row: &[Cell; N],
    ) -> io::Result<()> {
        let mut room = look.width.unwrap_or(usize::MAX);
        let mut owed = 0;
        let mut first = true;
        for ((column, width), cell) in self.columns.iter().zip(widths).zip(row) {
            let Some(width) = width else { continue };
            if !first {
                owed += 2;
            }
            first = false;
            let shown = text::cut(&cell.shown(look.names), *width);
            let padding = width - shown.chars().count();
            if column.right {
                owed += padding;
            }
            // Blanks are written only before a text, so that no line ends in blanks.
            if !shown.is_empty() {
                let blanks = owed.min(room);
                room -= blanks;
                let shown = text::cut(&shown, room);
                room -= shown.chars().count();
                if shown.is_empty() {
                    break;
                }
                write!(out, "{:blanks$}{}", "", look.paint(cell.tone, &shown))?;
                owed = 0;
            }
            if !column.right {
                owed += padding;
            }
        }
        writeln!(out)
    }

    /// The width of each column; `None` for one that is left out.
    fn widths(&self, look: Look) -> [Option<usize>; N] {
        let mut index = 0;
        let mut widths = self.columns.map(|column| {
            let cells = self.rows.iter().map(|row| row[index].shown(look.names));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            index += 1;
            (!column.absent).then(|| widest.max(column.title.chars().count()))
        });
        let Some(terminal) = look.width else {
            return widths;
        };
        // The least width at which elastic columns are easy to read.
        let mut readable = widths;
        for (width, column) in readable.iter_mut().zip(&self.columns) {
            *width = width.map(|width| {
                if column.elastic {
                    width.min(READABLE)
                } else {
                    width
                }
            });
        }
        while excess(&readable, terminal) > 0 {
            let there = (0..N).filter(|&index| widths[index].is_some());
            let minor = there.filter(|&index| self.columns[index].minor > 0);
            let Some(least) = minor.max_by_key(|&index| self.columns[index].minor) else {
                break;
            };
            (readable[least], widths[least]) = (None, None);
        }
        // The rest is taken from the widest elastic column, down to the next widest, and so on.
        for _ in 0..excess(&widths, terminal) {
            let elastic = widths.iter_mut().zip(&self.columns);
            let elastic = elastic.filter(|(_, column)| column.elastic);
            match elastic.filter_map(|(width, _)| width.as_mut()).max() {
                Some(widest) if *widest > NARROWEST => *widest -= 1,
                Some(_) | None => break,
            }
        }
        widths
    }
}

/// The number of characters by which the columns are too wide.
fn excess<const N: usize>(widths: &[Option<usize>; N], terminal: usize) -> usize {
    let columns = widths.iter().flatten().count();
    let wanted = widths.iter().flatten().sum::<usize>() + 2 * columns.saturating_sub(1);
    wanted.saturating_sub(terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table<3> {
        let mut table = Table::new([
            Column::right("PID"),
            Column::elastic("COMMAND"),
            Column::left("STATE"),
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

    fn narrow(width: usize) -> Look {
        Look {
            width: Some(width),
            ..Look::PLAIN
        }
    }

    #[test]
    fn the_elastic_column_gives_way_on_a_narrow_terminal() {
        check(
            narrow(28),
            " PID  COMMAND          STATE\n   7  short            ready\n1234  a rather long …\n",
        );
    }

    #[test]
    fn a_wide_row_is_cut_at_the_edge() {
        check(
            narrow(20),
            " PID  COMMAND\n   7  short\n1234  a rather lo…\n",
        );
    }

    #[test]
    fn minor_columns_go_before_the_elastic_one_is_unreadable() {
        let mut table = Table::new([
            Column::right("N"),
            Column::left("MINOR").minor(2),
            Column::left("LESS").minor(1),
            Column::elastic("NAME"),
        ]);
        table.push([
            "1".into(),
            "mm".into(),
            "ll".into(),
            "abcdefghijklmnopqrstuvwxyz".into(),
        ]);
        let check = |width, expected: &str| {
            let mut out = Vec::new();
            table.render(&mut out, narrow(width)).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{width}");
        };
        check(
            40,
            "N  MINOR  LESS  NAME\n1  mm     ll    abcdefghijklmnopqrstuvw…\n",
        );
        check(
            39,
            "N  LESS  NAME\n1  ll    abcdefghijklmnopqrstuvwxyz\n… no room for MINOR\n",
        );
        check(20, "N  NAME\n1  abcdefghijklmnop…\n… no room for MINOR…\n");
    }

    #[test]
    fn names_of_functions_are_short_unless_the_user_wants_them_whole() {
        let mut table = Table::new([Column::elastic("NAME"), Column::right("N")]);
        table.push([Cell::function("f (.llvm.7)"), "1".into()]);
        table.push([Cell::function("f (.llvm.8)"), "2".into()]);
        table.push(["f (.llvm.9)".into(), "3".into()]);
        let check = |names, expected: &str| {
            let mut out = Vec::new();
            let look = Look {
                names,
                ..Look::PLAIN
            };
            table.render(&mut out, look).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        };
        check(
            Names::Short,
            "NAME         N\nf            1\nf            2\nf (.llvm.9)  3\n",
        );
        check(
            Names::Full,
            "NAME         N\nf (.llvm.7)  1\nf (.llvm.8)  2\nf (.llvm.9)  3\n",
        );
    }

    #[test]
    fn tones_are_painted_without_disturbing_the_alignment() {
        let mut table = Table::new([Column::left("A"), Column::left("B")]);
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
