//! Sums of calls by stack in the trace.

use std::io::{self, Write};

use xray_trace::{
    FileAddr,
    analysis::{MORE_STACKS, StackSums},
    container::ProfileEncoder,
    model::{Function, Missing, Thread},
};

use super::{NO_FUNCTION, TraceWriter};
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
                MORE_STACKS => self.more_stacks(source)?,
                id => self.function(source, id, tables)?,
            }
        }
        let thread = self.thread_number(source, thread.id);
        let numbers = self.sources.get(&source);
        let number = |id| match id {
            MORE_STACKS => id,
            id => numbers.map_or(id, |numbers| numbers.function(id).unwrap_or(NO_FUNCTION)),
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

    /// Describes the function that stands for all stacks that were not kept apart.
    fn more_stacks(&mut self, source: Source) -> io::Result<()> {
        let numbers = self.sources.get(&source);
        let module = numbers.and_then(|numbers| numbers.modules.first());
        let Some(module) = module.map(|module| module.row) else {
            return Ok(());
        };
        if !std::mem::replace(&mut self.more_stacks, true) {
            self.writer.function(&Function {
                id: MORE_STACKS,
                module,
                xray_id: 0,
                address: FileAddr(0),
                symbol: None,
                name: "[more stacks]".to_owned(),
                source: None,
                sleds: 0,
            })?;
        }
        Ok(())
    }
}
