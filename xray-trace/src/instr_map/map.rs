//! The instrumentation map by itself: sleds and functions, without the file that they come from.

use std::collections::HashMap;
use std::ops::Range;

use super::{FileAddr, Machine, MapFunction, SharedText, Sled, SledKind, Warning};
use crate::model::{Trace, XrayIds, pack};

/// An instrumentation map. It gives the function ids of a log their meaning.
#[derive(Clone, Debug, Default)]
pub struct InstrMap {
    sleds: Vec<Sled>,
    functions: Vec<MapFunction>,
    warnings: Vec<Warning>,
    machine: Option<Machine>,
    /// Indexes into `functions` of ids that are not at id - 1. Computed with the map.
    elsewhere: HashMap<u32, usize>,
}

// === impl InstrMap ===

impl InstrMap {
    /// Joins the maps of a process's objects. Each map comes with the number of its object; the
    /// main program has 0.
    ///
    /// Ids become those of LLVM 20's runtime: the object's number above 24 bits with the function's
    /// id in the object. Addresses stay those of the files. The 257th object and later ones have no
    /// such ids, and neither have the 2^24th function of an object and later ones: they are left
    /// out. Returns the number of functions left out.
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

    /// The functions of a trace, with the ids that they have in exports of it, see [`XrayIds`]. A
    /// trace does not have the places of sleds, so each function has a sled at its entry.
    ///
    /// Returns the number of functions left out, too: those without such an id.
    pub fn of_trace(trace: &Trace) -> (Self, usize) {
        let ids = XrayIds::new(trace);
        let (mut sleds, mut functions, mut left_out) = (Vec::new(), Vec::new(), 0);
        for function in trace.functions() {
            let Ok(id) = ids.packed(function.id) else {
                left_out += 1;
                continue;
            };
            let begin = sleds.len();
            sleds.push(Sled {
                address: function.address,
                function: function.address,
                kind: SledKind::Entry,
                always_instrument: false,
                version: 2,
            });
            functions.push(MapFunction {
                symbol: function.symbol.as_deref().map(SharedText::from),
                name: SharedText::from(function.name.as_str()),
                ..MapFunction::unnamed(id, function.address, begin..sleds.len())
            });
        }
        (Self::new(sleds, functions, Vec::new()), left_out)
    }

    /// All sleds in the map's order.
    pub fn sleds(&self) -> &[Sled] {
        &self.sleds
    }

    /// All functions in the map's order.
    pub fn functions(&self) -> &[MapFunction] {
        &self.functions
    }

    /// The function with this id; of several the last one.
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

    /// Oddities of the file, at most one of each kind for one object.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The processor of the object file; `None` for a map from YAML.
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
    /// A function whose name is still empty.
    pub(super) fn unnamed(id: u32, address: FileAddr, sleds: Range<usize>) -> Self {
        Self {
            id,
            section: 0,
            address,
            size: 0,
            symbol: None,
            name: SharedText::default(),
            sleds,
        }
    }
}
