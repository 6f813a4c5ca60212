//! The types of typed events, by their numbers in the file and their names.

use std::collections::{BTreeMap, HashMap};

use crate::model::{EventType, ProcessId};

/// Gives out the numbers of types. Two types of a process have different numbers in the trace, even
/// if they have the same number in the file.
#[derive(Debug, Default)]
pub(super) struct EventTypes {
    /// The number in the trace of the first type with each number.
    first: HashMap<(ProcessId, u16), u16>,
    /// The numbers in the trace of other types with such a number, by name.
    others: HashMap<(ProcessId, u16, String), u16>,
    /// The name of each number in the trace. Empty for a type without a name.
    names: BTreeMap<(ProcessId, u16), String>,
    /// The next number to try if the number of the file is in use; `None` without a further one.
    next: HashMap<ProcessId, Option<u16>>,
    /// The number of types with another number than in the file.
    pub(super) renumbered: u64,
    /// The number of events that have a wrong type, because no number is free.
    pub(super) mistyped: u64,
}

// === impl EventTypes ===

impl EventTypes {
    /// The number in the trace of a process's type with this number and name in the file. A type
    /// without a name is the first type with its number.
    pub(super) fn number(&mut self, process: ProcessId, number: u16, name: &str) -> u16 {
        let Some(first) = self.first_with(process, number) else {
            self.mistyped += 1;
            return number;
        };
        let first_name = self.names.entry((process, first)).or_default();
        if first_name.is_empty() {
            name.clone_into(first_name);
        }
        if name.is_empty() || first_name == name {
            return first;
        }
        let key = (process, number, name.to_owned());
        if let Some(known) = self.others.get(&key) {
            return *known;
        }
        let Some(free) = self.take_free(process, number) else {
            self.mistyped += 1;
            return first;
        };
        self.renumbered += 1;
        self.names.insert((process, free), name.to_owned());
        self.others.insert(key, free);
        free
    }

    /// The names of the types.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.values()
    }

    /// The types with names.
    pub(super) fn into_table(self) -> impl Iterator<Item = EventType> {
        let named = self.names.into_iter().filter(|(_, name)| !name.is_empty());
        named.map(|((process, number), name)| EventType {
            process,
            number,
            name,
        })
    }

    /// The number in the trace of the first type with this number; `None` if no number is free.
    fn first_with(&mut self, process: ProcessId, number: u16) -> Option<u16> {
        if let Some(known) = self.first.get(&(process, number)) {
            return Some(*known);
        }
        let free = self.take_free(process, number)?;
        self.renumbered += u64::from(free != number);
        self.first.insert((process, number), free);
        Some(free)
    }

    /// Takes a number that no type of the process has in the trace: this one if possible.
    fn take_free(&mut self, process: ProcessId, wanted: u16) -> Option<u16> {
        let next = self.next.entry(process).or_insert(Some(u16::MAX));
        let mut number = wanted;
        while self.names.contains_key(&(process, number)) {
            number = (*next)?;
            *next = number.checked_sub(1);
        }
        self.names.insert((process, number), String::new());
        Some(number)
    }
}
