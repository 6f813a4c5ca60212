//! Reading the names of event types from the target, when events ask for them.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::controller::Controller;
use crate::{
    store::NameRequest,
    target::{Load, MOST_TYPE_NAMES, new_type_names},
};

/// Time between looks for names that were not there.
const PATIENCE: Duration = Duration::from_secs(1);
/// Limit on the type numbers that are remembered for all modules together.
const MOST_READ: usize = 16 * MOST_TYPE_NAMES;

/// The names that the control thread has read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The time of the last look.
    last: Option<Instant>,
    /// The numbers that each loaded module names.
    read: HashMap<Load, HashSet<u16>>,
}

impl Controller {
    /// Reads names if events have requested them and a look is due.
    pub(super) fn tend_event_types(&mut self) {
        let due = match self.output.event_types.request() {
            NameRequest::None => false,
            NameRequest::Retry => self
                .reading
                .last
                .is_none_or(|last| last.elapsed() >= PATIENCE),
            NameRequest::Now => true,
        };
        if due {
            self.read_event_types();
        }
    }

    /// Reads the names that were registered since the last look. A process that has ended has none.
    pub(super) fn read_event_types(&mut self) {
        self.output.event_types.clear_request();
        self.reading.last = Some(Instant::now());
        let read = &mut self.reading.read;
        read.retain(|load, _| self.loading.is_traced(load));
        for module in self.loading.modules() {
            if read.values().map(HashSet::len).sum::<usize>() >= MOST_READ {
                break;
            }
            let known = read.entry(module.load).or_default();
            for (number, name) in new_type_names(&self.memory, module, known) {
                known.insert(number);
                self.output.name_event_type(number, &name);
            }
        }
    }
}
