//! Reading the names of event types from the target, when events ask for them.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::patching::Patching;
use crate::{
    store::NameRequest,
    target::{Load, MOST_TYPE_NAMES, has_type_names, new_type_names},
};

/// Time between looks for names that were not there: after a library with names has come, and after
/// names were found. It doubles with each look that finds nothing.
const AFTER_LIBRARY: Duration = Duration::from_millis(20);
const AFTER_NAMES: Duration = Duration::from_secs(1);
/// The longest time between such looks.
const LONGEST: Duration = Duration::from_secs(5);
/// Limit on the type numbers that are remembered for all modules together.
const MOST_READ: usize = 16 * MOST_TYPE_NAMES;

/// The names that the controller has read.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The time of the last look.
    last: Option<Instant>,
    /// The time from there to the next look for names that were not there.
    patience: Duration,
    /// The numbers that each loaded module names.
    read: HashMap<Load, HashSet<u16>>,
}

// === impl Reading ===

impl Default for Reading {
    fn default() -> Self {
        Self {
            last: None,
            patience: AFTER_NAMES,
            read: HashMap::new(),
        }
    }
}

impl Reading {
    /// Reads names if events have requested them and a look is due.
    pub(super) fn tend(&mut self, patching: &Patching) {
        let request = patching.output.event_types.request();
        let due = match request {
            NameRequest::None => false,
            NameRequest::Retry => self.last.is_none_or(|last| last.elapsed() >= self.patience),
            NameRequest::Now => true,
        };
        if due && request == NameRequest::Retry {
            self.patience = (2 * self.patience).min(LONGEST);
        }
        if due {
            self.read(patching);
        }
    }

    /// Reads the names that were registered since the last look. A process that has ended has none.
    pub(super) fn read(&mut self, patching: &Patching) {
        patching.output.event_types.clear_request();
        self.last = Some(Instant::now());
        let read = &mut self.read;
        if patching.output.event_types.take_new_table() {
            // It may lie where another one was.
            read.clear();
            self.patience = AFTER_LIBRARY;
        }
        read.retain(|load, _| patching.traced.has(load));
        for module in patching.traced.modules() {
            if !has_type_names(module) {
                continue;
            }
            if read.values().map(HashSet::len).sum::<usize>() >= MOST_READ {
                break;
            }
            let known = read.entry(module.load).or_default();
            for (number, name) in new_type_names(&patching.memory, module, known) {
                known.insert(number);
                if patching.output.name_event_type(number, &name) {
                    self.patience = self.patience.min(AFTER_NAMES);
                }
            }
        }
        patching.output.event_types.settle(read.values());
    }
}
