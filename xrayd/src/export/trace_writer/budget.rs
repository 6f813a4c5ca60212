//! Suppressions, duty windows, filters and gaps of a process in the trace, each written once.

use std::io::{self, Write};

use xray_trace::model::{DutyWindow, FilterNote, Gap, Suppression, Ticks};

use super::{TraceWriter, numbers::Report};
use crate::store::{Source, Tables};

// === impl TraceWriter ===

impl<W: Write> TraceWriter<W> {
    /// Adds suppressions, windows, filters and gaps since the first block of `source` that were not
    /// added before. So a trace that is cut off has them, too. Does nothing before the first block.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn so_far(&mut self, source: Source, tables: &dyn Tables) -> io::Result<()> {
        let first = self
            .descriptions
            .sources
            .get(&source)
            .and_then(|numbers| numbers.first);
        first.map_or(Ok(()), |first| {
            self.budget(source, first, tables, Report::Interim)
        })
    }

    /// Adds suppressions, windows, filters and gaps from `first` on. The final report also adds
    /// suppressions that go on.
    pub(super) fn budget(
        &mut self,
        source: Source,
        first: Ticks,
        tables: &dyn Tables,
        report: Report,
    ) -> io::Result<()> {
        let Some(numbers) = self.descriptions.sources.get_mut(&source) else {
            return Ok(());
        };
        let process = numbers.process;
        let mut reported = std::mem::take(&mut numbers.reported);
        for suppression in tables.suppressions() {
            let over = suppression.until.is_some();
            let known = match reported.suppressions.get(&suppression.function) {
                Some((from, ended)) if suppression.from == *from => {
                    *ended || !over && report == Report::Interim
                }
                Some((from, _)) => suppression.from < *from,
                None => suppression.until.is_some_and(|until| until < first),
            };
            if known {
                continue;
            }
            reported
                .suppressions
                .insert(suppression.function, (suppression.from, over));
            let function = self.descriptions.add_function(
                &mut self.writer,
                source,
                suppression.function,
                tables,
            )?;
            self.writer.add(&Suppression {
                function,
                process,
                ..suppression
            })?;
        }
        for window in tables.duty() {
            // The last window is written again, because its duration is known when the next one
            // comes.
            let known = match reported.windows {
                Some(reported) => window.from < reported,
                None => window.until < first,
            };
            if !known {
                reported.windows = Some(window.from);
                self.writer.add(&DutyWindow { process, ..window })?;
            }
        }
        let filters = tables.filters();
        let later = |note: &FilterNote| note.since.is_some_and(|since| since > first);
        // The last filter before `first` is in force at `first`.
        let at = filters.iter().position(later).unwrap_or(filters.len());
        for note in filters.into_iter().skip(at.saturating_sub(1)) {
            if reported
                .filters
                .is_none_or(|reported| note.since > Some(reported))
            {
                reported.filters = note.since;
                self.writer.add(&FilterNote { process, ..note })?;
            }
        }
        // The last gap before `first` may be the reason why no earlier event is there.
        let gaps = tables.gaps();
        let before = gaps.iter().filter(|gap| gap.until < first).count();
        for gap in gaps.into_iter().skip(before.saturating_sub(1)) {
            if reported.gaps.is_none_or(|reported| gap.until > reported) {
                reported.gaps = Some(gap.until);
                self.writer.add(&Gap { process, ..gap })?;
            }
        }
        if let Some(numbers) = self.descriptions.sources.get_mut(&source) {
            numbers.reported = reported;
        }
        Ok(())
    }
}
