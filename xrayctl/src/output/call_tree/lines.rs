//! The lines of a tree as text: heading, headers of threads, a row for each line. They are written
//! as they are read, or held in memory until other parts of a report are written.

use std::io;

use xray_trace::analysis::{Order, Tree, TreeLine};

use super::{DURATION_WIDTH, ShownTrace, TID_WIDTH, TreeRow, thread_header};
use crate::output::folded_lines::{FoldedLine, FoldedLines, Folding};
use crate::output::{Look, Tone, text};

/// How a tree becomes text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// The order in which the tree has its lines.
    pub(crate) order: Order,
    /// The treatment of equal calls in a row.
    pub(crate) folding: Folding,
    /// The number of lines to show, headers of threads not counted.
    pub(crate) limit: usize,
}

/// The first lines of a tree, in memory, for a report that prints other parts before them.
#[derive(Debug)]
pub(crate) struct FirstLines {
    lines: Vec<FoldedLine>,
    /// True if there are lines behind these. Counting them would take as long as showing them.
    has_more: bool,
    headers: Headers,
}

/// Which lines have a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Headers {
    None,
    /// The first line of each thread. It names the thread.
    EachThread,
}

/// Writes the first lines as they come. The number of lines is not limited by memory.
pub(crate) fn render(
    tree: Tree<'_>,
    shown: ShownTrace<'_>,
    layout: Layout,
    out: &mut dyn io::Write,
    look: Look,
) -> io::Result<()> {
    let headers = Headers::of(tree.threads(), layout.order);
    render_heading(out, look)?;
    let mut lines = FoldedLines::new(tree, layout.folding);
    let first = lines.by_ref().take(layout.limit);
    render_lines(first, shown, headers, out, look)?;
    if lines.has_more() {
        render_more(out, look)?;
    }
    Ok(())
}

fn render_lines(
    lines: impl Iterator<Item = FoldedLine>,
    shown: ShownTrace<'_>,
    headers: Headers,
    out: &mut dyn io::Write,
    look: Look,
) -> io::Result<()> {
    let mut latest = None;
    for folded in lines {
        let FoldedLine { line, equal } = folded;
        let thread = line.thread();
        if headers == Headers::EachThread && latest != Some(thread) {
            if latest.is_some() {
                writeln!(out)?;
            }
            let header = thread_header(shown.trace, thread);
            let header = text::cut(&header, look.width.unwrap_or(usize::MAX));
            writeln!(out, "{}", look.paint(Tone::Heading, &header))?;
            latest = Some(thread);
        }
        let row = TreeRow::new(&line, shown, 0);
        row.standing_for(equal).render(out, look)?;
    }
    Ok(())
}

/// Writes the titles of the columns.
pub(in crate::output) fn render_heading(out: &mut dyn io::Write, look: Look) -> io::Result<()> {
    let heading = format!(
        "{:>DURATION_WIDTH$}  {:>TID_WIDTH$}  FUNCTION",
        "DURATION", "TID"
    );
    let heading = text::cut(&heading, look.width.unwrap_or(usize::MAX));
    writeln!(out, "{}", look.paint(Tone::Heading, &heading))
}

/// Writes that there are more lines.
fn render_more(out: &mut dyn io::Write, look: Look) -> io::Result<()> {
    let line = "… more lines; --limit 0 shows everything";
    writeln!(out, "{}", look.paint(Tone::Dim, line))
}

// === impl FirstLines ===

impl FirstLines {
    /// Reads the first lines of a tree of this number of threads, and no more of it than they need.
    pub(crate) fn read(
        lines: impl Iterator<Item = TreeLine>,
        threads: usize,
        layout: Layout,
    ) -> Self {
        let mut lines = FoldedLines::new(lines, layout.folding);
        Self {
            lines: lines.by_ref().take(layout.limit).collect(),
            has_more: lines.has_more(),
            headers: Headers::of(threads, layout.order),
        }
    }

    /// Writes the lines.
    pub(crate) fn render(
        self,
        shown: ShownTrace<'_>,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        render_heading(out, look)?;
        render_lines(self.lines.into_iter(), shown, self.headers, out, look)?;
        if self.has_more {
            render_more(out, look)?;
        }
        Ok(())
    }
}

// === impl Headers ===

impl Headers {
    /// The lines of each thread have a header if they are not mixed with those of other threads.
    fn of(threads: usize, order: Order) -> Self {
        match order {
            Order::ByThread if threads > 1 => Self::EachThread,
            Order::ByThread | Order::ByTime => Self::None,
        }
    }
}
