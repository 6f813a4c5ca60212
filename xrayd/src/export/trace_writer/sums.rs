//! Sums of calls by stack in the trace.

use std::io::{self, Write};

use xray_trace::{
    analysis::{MORE_STACKS, StackSums},
    container::ProfileEncoder,
    model::{Missing, Thread},
};

use super::TraceWriter;
use crate::store::{Source, Tables};

// === impl TraceWriter ===

impl<W: Write> TraceWriter<W> {
    /// Adds sums of calls of a thread, after their functions and modules that were not described
    /// yet. `tables` are those of its process.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn sums(
        &mut self,
        source: Source,
        thread: &Thread,
        sums: &StackSums,
        tables: &dyn Tables,
    ) -> io::Result<()> {
        self.sums = true;
        self.thread(source, thread)?;
        for id in sums.functions() {
            match id {
                MORE_STACKS => {
                    let writer = &mut self.writer;
                    self.descriptions.add_more_stacks(writer, source)?;
                }
                id => self.function(source, id, tables)?,
            }
        }
        let thread = self.descriptions.thread_number(source, thread.id);
        let number = |id| match id {
            MORE_STACKS => id,
            id => self.descriptions.function_number(source, id),
        };
        let parts = sums.parts(thread, number);
        parts.iter().try_for_each(|part| self.writer.profile(part))
    }

    /// Marks the trace as a trace of sums, if no sums were added.
    ///
    /// # Errors
    /// The error of the inner writer.
    pub fn no_sums(&mut self) -> io::Result<()> {
        if self.sums {
            return Ok(());
        }
        let encoder = ProfileEncoder::new(Self::READER, Missing::default());
        let parts = encoder.finish();
        parts.iter().try_for_each(|part| self.writer.profile(part))
    }
}
