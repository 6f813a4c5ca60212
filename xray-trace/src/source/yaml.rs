//! Imports traces in LLVM's YAML. The records are decoded in `llvm::yaml`.

use std::io::BufRead;

use super::importer::{Importer, Owner};
use super::{OpenError, Options};
use crate::llvm::fdr::FunctionKind;
use crate::llvm::yaml::{Kind, Reader};
use crate::model::{DataKind, Trace};

pub(super) fn import(
    input: impl BufRead + 'static,
    options: &Options,
) -> Result<(Trace, Vec<(String, u64)>), OpenError> {
    let mut reader = Reader::new(input, options.mode)?;
    let mut importer = Importer::new(options, reader.header().cycle_frequency, None)?;
    for record in reader.by_ref() {
        let record = record?;
        let thread = importer.thread(Owner {
            pid: record.process,
            tid: record.thread,
        })?;
        let kind = match record.kind {
            Kind::Enter | Kind::EnterArg => FunctionKind::Enter,
            Kind::Exit => FunctionKind::Exit,
            Kind::TailExit => FunctionKind::TailExit,
            event @ (Kind::Custom | Kind::Typed) => {
                let kind = match event {
                    Kind::Typed => DataKind::Typed(record.record_type),
                    _ => DataKind::Custom,
                };
                importer.add_user_event(thread, record.tsc, record.cpu, kind, &record.data)?;
                continue;
            }
        };
        // A function without a name is printed with its id instead.
        let name = Some(record.function.as_ref())
            .filter(|name| !name.is_empty() && **name != *record.function_id.to_string());
        let function = importer.function(record.function_id, name)?;
        importer.call(thread, record.tsc, record.cpu, kind, function)?;
        for value in record.args.iter() {
            importer.argument(thread, *value);
        }
    }
    importer.finish(reader.skipped())
}
