//! The instrumentation map by itself: sleds and functions, without the file that they came from.

use std::collections::HashMap;
use std::ops::Range;

use super::{FileAddr, Machine, MapFunction, Sled, Warning};
use crate::model::pack;

/// An instrumentation map: what gives the function ids of a log their meaning.
#[derive(Clone, Debug, Default)]
pub struct InstrMap {
    sleds: Vec<Sled>,
    functions: Vec<MapFunction>,
    warnings: Vec<Warning>,
    machine: Option<Machine>,
    /// Where in `functions` an id is that does not stand at id - 1. Made with the map.
    elsewhere: HashMap<u32, usize>,
}

// === impl InstrMap ===

impl InstrMap {
    /// The maps of a process's objects as one, each with its number there (the main program's is 0): ids are those of LLVM
    /// 20's runtime, the object's number above 24 bits of the function's in it, and addresses stay those of the files.
    /// Functions that have no such id, of the 257th object and beyond or the 2^24th of an object and beyond, are left out;
    /// returns how many.
    pub fn of_process(objects: impl IntoIterator<Item = (u32, Self)>) -> (Self, usize) {
        let (mut sleds, mut functions, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut left_out = 0;
        for (object, map) in objects {
            for function in &map.functions {
                let Some(id) = pack(object, function.id) else {
                    left_out += 1;
                    continue;
                };
                let begin = sleds.len();
                sleds.extend_from_slice(map.sleds_of(function));
                functions.push(MapFunction {
                    id,
                    sleds: begin..sleds.len(),
                    ..function.clone()
                });
            }
            warnings.extend(map.warnings);
        }
        (Self::new(sleds, functions, warnings), left_out)
    }

    /// All sleds in the map's order.
    pub fn sleds(&self) -> &[Sled] {
        &self.sleds
    }

    /// All functions in the map's order.
    pub fn functions(&self) -> &[MapFunction] {
        &self.functions
    }

    /// The function with this id; of several the last.
    pub fn function(&self, id: u32) -> Option<&MapFunction> {
        let place = self.elsewhere.get(&id).copied();
        let place = place.or_else(|| usize::try_from(id).ok()?.checked_sub(1))?;
        self.functions
            .get(place)
            .filter(|function| function.id == id)
    }

    /// The sleds of one of [`InstrMap::functions`]; none for a function of another map.
    pub fn sleds_of(&self, function: &MapFunction) -> &[Sled] {
        self.sleds.get(function.sleds.clone()).unwrap_or_default()
    }

    /// What is odd about the file; at most a few.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The processor that the object file is made for; YAML does not say.
    pub fn machine(&self) -> Option<Machine> {
        self.machine
    }

    pub(super) fn new(
        sleds: Vec<Sled>,
        functions: Vec<MapFunction>,
        warnings: Vec<Warning>,
    ) -> Self {
        let elsewhere = (0..)
            .zip(&functions)
            .filter(|(place, function)| u64::from(function.id) != place + 1)
            .filter_map(|(place, function)| Some((function.id, usize::try_from(place).ok()?)))
            .collect();
        Self {
            sleds,
            functions,
            warnings,
            machine: None,
            elsewhere,
        }
    }

    pub(super) fn of_machine(self, machine: Machine) -> Self {
        Self {
            machine: Some(machine),
            ..self
        }
    }
}

// === impl MapFunction ===

impl MapFunction {
    pub(super) fn unnamed(id: u32, address: FileAddr, sleds: Range<usize>) -> Self {
        Self {
            id,
            section: 0,
            address,
            size: 0,
            symbol: None,
            name: address.to_string(),
            sleds,
        }
    }
}
