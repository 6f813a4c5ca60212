//! Writes the arrays of the profiler's tables.

use std::io;

use crate::sink::text::Text;

/// An array of a table that is being written.
pub(super) struct Column<'t, 'o> {
    text: &'t mut Text<'o>,
    comma: &'static str,
}

/// Writes a column with the same value in every row.
pub(super) fn same(text: &mut Text<'_>, key: &str, value: &str, rows: u64) -> io::Result<()> {
    let mut column = Column::begin(text, key);
    for _ in 0..rows {
        column.cell()?.put(value);
    }
    column.end();
    Ok(())
}

/// Writes a column with a number or null in each row.
pub(super) fn numbers(
    text: &mut Text<'_>,
    key: &str,
    numbers: impl Iterator<Item = Option<u64>>,
) -> io::Result<()> {
    let mut column = Column::begin(text, key);
    for number in numbers {
        match number {
            Some(number) => column.cell()?.number(number),
            None => column.cell()?.put("null"),
        }
    }
    column.end();
    Ok(())
}

/// Writes the number of rows of a table, after its columns.
pub(super) fn length(text: &mut Text<'_>, rows: u64) {
    text.put("\"length\":");
    text.number(rows);
}

// === impl Column ===

impl<'t, 'o> Column<'t, 'o> {
    /// Begins a column of a table, after the brace or another column.
    pub(super) fn begin(text: &'t mut Text<'o>, key: &str) -> Self {
        text.put("\"");
        text.put(key);
        text.put("\":[");
        Self { text, comma: "" }
    }

    /// The place for the value of the next row. Passes the collected text on if there is enough of
    /// it.
    pub(super) fn cell(&mut self) -> io::Result<&mut Text<'o>> {
        self.text.pass()?;
        self.text.put(self.comma);
        self.comma = ",";
        Ok(self.text)
    }

    /// Ends the column. Another part of the table must follow.
    pub(super) fn end(self) {
        self.text.put("],\n");
    }
}
