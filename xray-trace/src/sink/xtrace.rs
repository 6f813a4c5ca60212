//! Our own format, written anew: tables first, blocks as they are, finished with an end mark.

use std::io::{self, Write};

use super::{Report, Sink};
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

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        trace.write(output)?;
        let calls = trace
            .blocks()
            .iter()
            .map(|block| u64::from(block.calls))
            .sum();
        Ok(Report {
            calls,
            left_out: Vec::new(),
        })
    }
}
