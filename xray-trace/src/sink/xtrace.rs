//! Our own format, rewritten: tables first, blocks unchanged, an index of time, an end mark. It
//! unpacks events only for the index and the counts.

use std::io::{self, Write};

use super::report::DAMAGED_BLOCKS;
use super::{Report, Sink};
use crate::analysis::{SPACING, Survey};
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
        "the format of xrayctl itself, written anew"
    }

    fn is_text(&self) -> bool {
        false
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        // The header of a block has only the number of its entries and exits together.
        let Survey {
            calls,
            damaged_blocks,
            index,
        } = Survey::new(trace, SPACING);
        trace.write(output, &index)?;
        let mut report = Report {
            calls,
            ..Report::default()
        };
        report.leave_out(DAMAGED_BLOCKS, damaged_blocks);
        Ok(report)
    }
}
