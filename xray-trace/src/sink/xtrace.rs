//! Our own format, written anew: tables first, blocks as they are, finished with an end mark.

use std::io::{self, Write};

use super::events::is_entry;
use super::{DAMAGED_BLOCKS, Report, Sink};
use crate::container::Block;
use crate::model::Trace;

/// The `.xtrace` format.
#[derive(Debug, Clone, Copy)]
pub struct Xtrace;

// === impl Xtrace ===

impl Sink for Xtrace {
    fn name(&self) -> &'static str {
        "xtrace"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["xtrace"]
    }

    fn about(&self) -> &'static str {
        "our own, written anew"
    }

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        trace.write(output)?;
        let mut report = Report::default();
        let mut damaged = 0;
        // A block only says how many entries and exits it has.
        for event in trace.blocks().iter().flat_map(Block::events) {
            match event {
                Ok(event) => report.calls += u64::from(is_entry(&event.body)),
                Err(_) => damaged += 1,
            }
        }
        report.leave_out(DAMAGED_BLOCKS, damaged);
        Ok(report)
    }
}
