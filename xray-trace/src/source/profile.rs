//! Imports profiles of XRay's profiling mode. The paths are decoded in `llvm::profile`.

use std::collections::HashMap;
use std::io::BufRead;

use super::importer::{Importer, Owner};
use super::{OpenError, OpenedProfile, Options};
use crate::llvm::Format;
use crate::llvm::profile::Reader;
use crate::model::{MOST_STACKS, Profile, ProfiledStack};

pub(super) fn import(
    input: impl BufRead,
    format: Format,
    options: &Options,
) -> Result<OpenedProfile, OpenError> {
    let mut reader = Reader::new(input, options.mode)?;
    let header = reader.header().copied();
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let pid = header.map_or(0, |header| number(header.pid));
    // The file does not have the rate of the counter.
    let mut importer = Importer::new(options, 0, None)?;
    let mut stacks = Vec::<ProfiledStack>::new();
    let mut known = HashMap::new();
    while let Some(path) = reader.next()? {
        let tid = number(path.block.thread);
        let thread = importer.thread(Owner { pid, tid })?;
        let mut caller = None;
        for function in path.functions.iter().rev() {
            let function = importer.function(*function, None)?;
            let stack = known.entry((thread, caller, function)).or_insert_with(|| {
                stacks.push(ProfiledStack {
                    thread,
                    caller,
                    function,
                    calls: 0,
                    self_ns: 0,
                });
                stacks.len() - 1
            });
            caller = Some(*stack);
        }
        if stacks.len() > MOST_STACKS {
            return Err(OpenError::TooManyStacks { limit: MOST_STACKS });
        }
        if let Some(stack) = caller.map(|innermost| &mut stacks[innermost]) {
            stack.calls = stack.calls.saturating_add(path.calls);
            stack.self_ns = stack.self_ns.saturating_add(path.ticks);
        }
    }
    let (tables, notes) = importer.finish(reader.skipped())?;
    Ok(OpenedProfile {
        profile: Profile::new(tables, stacks),
        format,
        written_wall_ns: header.map(|header| header.timestamp),
        notes,
    })
}
