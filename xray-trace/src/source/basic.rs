//! Imports logs of basic mode. The records are decoded in `llvm::basic`.

use std::io::BufRead;

use super::importer::{Importer, Owner};
use super::{OpenError, Options};
use crate::llvm::basic::{Reader, Record};
use crate::model::Trace;

pub(super) fn import(
    input: impl BufRead,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut reader = Reader::new(input, options.mode)?;
    let mut importer = Importer::new(options, reader.header().cycle_frequency, None)?;
    for item in reader.by_ref() {
        let (_, record) = item?;
        let (Record::Function { owner, .. } | Record::Argument { owner, .. }) = record;
        let thread = importer.thread(Owner {
            pid: owner.pid.unwrap_or(0),
            tid: owner.tid,
        })?;
        match record {
            Record::Function { kind, cpu, tsc, .. } => {
                let function = importer.function(owner.function, None)?;
                importer.call(thread, tsc, u16::from(cpu), kind, function)?;
            }
            Record::Argument { value, .. } => importer.argument(thread, value),
        }
    }
    importer.finish(reader.skipped())
}
