//! The functions of a target, with names, source lines and sleds.

use std::sync::OnceLock;

use xray_trace::{
    instr_map::{Candidate, CompiledSelection, SourceMap},
    model::{Function, FunctionId, ModuleId, SourceLine},
};

use crate::{
    inject::PatchSite,
    pid::Pid,
    target::{Image, Module, Parts, open_mapped},
};

/// One function, for a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRow {
    /// Id in this session.
    pub id: FunctionId,
    /// Path of its module.
    pub module: String,
    /// Name to be read.
    pub name: String,
    /// Symbol.
    pub symbol: Option<String>,
    /// Where it is defined.
    pub source: Option<SourceLine>,
    /// Its usable sleds.
    pub sleds: u32,
    /// Whether it is on.
    pub enabled: bool,
    /// Entries seen since attach.
    pub calls: u64,
    /// Id in its module's map.
    pub xray_id: u32,
    /// Address in the target.
    pub address: u64,
}

/// All functions of a target; a [`FunctionId`] is an index.
#[derive(Debug)]
pub(crate) struct Functions {
    pid: Pid,
    modules: Vec<Module>,
    /// Id of the first function of each module.
    firsts: Vec<u32>,
    /// Usable sleds of each function.
    sites: Vec<Vec<PatchSite>>,
    /// Source lines by module; read when first asked for.
    sources: Vec<OnceLock<Option<SourceMap>>>,
}

// === impl Functions ===

impl Functions {
    /// The functions of `modules`; `sites` says for each of them its usable sleds: index of the module, index of the function in it, sled.
    pub(crate) fn new(
        pid: Pid,
        modules: Vec<Module>,
        sites: impl IntoIterator<Item = (u32, PatchSite)>,
    ) -> Self {
        let mut firsts = Vec::new();
        let mut next = 0usize;
        for module in &modules {
            firsts.push(u32::try_from(next).unwrap_or(u32::MAX));
            next += module.object.functions().len();
        }
        let mut table = Self {
            pid,
            sources: modules.iter().map(|_| OnceLock::new()).collect(),
            modules,
            firsts,
            sites: vec![Vec::new(); next],
        };
        for (function, site) in sites {
            let id = table.id(site.module, function);
            if let Some(sites) = id.and_then(|id| table.sites.get_mut(id.0 as usize)) {
                sites.push(site);
            }
        }
        table
    }

    /// The id of function `index` of module `module`.
    pub(crate) fn id(&self, module: u32, index: u32) -> Option<FunctionId> {
        let first = self.firsts.get(module as usize)?;
        Some(FunctionId(first.checked_add(index)?))
    }

    pub(crate) fn len(&self) -> usize {
        self.sites.len()
    }

    pub(crate) fn all(&self) -> Vec<FunctionId> {
        (0..u32::try_from(self.len()).unwrap_or(u32::MAX))
            .map(FunctionId)
            .collect()
    }

    /// The usable sleds of a function.
    pub(crate) fn sites(&self, id: FunctionId) -> &[PatchSite] {
        self.sites.get(id.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// The functions that a selection matches, by id.
    pub(crate) fn matching(&self, selection: &CompiledSelection) -> Vec<FunctionId> {
        let mut matching = Vec::new();
        for (index, module) in (0u32..).zip(&self.modules) {
            for (function, map) in (0u32..).zip(module.object.functions()) {
                let Some(id) = self.id(index, function) else {
                    continue;
                };
                let source = if selection.needs_source() {
                    self.source(index, map.address)
                } else {
                    None
                };
                let candidate = Candidate {
                    id: id.0,
                    module: &module.path,
                    symbol: map.symbol.as_deref(),
                    name: &map.name,
                    source: source.as_ref().map(|source| source.file.as_str()),
                };
                if selection.matches(&candidate) {
                    matching.push(id);
                }
            }
        }
        matching
    }

    /// As a trace describes it.
    pub(crate) fn describe(&self, id: FunctionId) -> Option<Function> {
        let (index, module, function) = self.find(id)?;
        Some(Function {
            id,
            module: ModuleId(index),
            xray_id: function.id,
            address: function.address,
            symbol: function.symbol.clone(),
            name: function.name.clone(),
            source: self.source(index, function.address),
            sleds: u32::try_from(module.object.sleds_of(function).len()).unwrap_or(u32::MAX),
        })
    }

    /// As a listing shows it.
    pub(crate) fn row(&self, id: FunctionId, enabled: bool, calls: u64) -> Option<FunctionRow> {
        let (index, module, function) = self.find(id)?;
        Some(FunctionRow {
            id,
            module: module.path.clone(),
            name: function.name.clone(),
            symbol: function.symbol.clone(),
            source: self.source(index, function.address),
            sleds: u32::try_from(self.sites(id).len()).unwrap_or(u32::MAX),
            enabled,
            calls,
            xray_id: function.id,
            address: module.in_target(function.address).0,
        })
    }

    fn find(&self, id: FunctionId) -> Option<(u32, &Module, &xray_trace::instr_map::MapFunction)> {
        let index = self
            .firsts
            .partition_point(|&first| first <= id.0)
            .checked_sub(1)?;
        let module = self.modules.get(index)?;
        let function = module
            .object
            .functions()
            .get((id.0 - self.firsts.get(index)?) as usize)?;
        Some((u32::try_from(index).ok()?, module, function))
    }

    fn source(&self, module: u32, address: xray_trace::FileAddr) -> Option<SourceLine> {
        let map = self.sources.get(module as usize)?.get_or_init(|| {
            let module = self.modules.get(module as usize)?;
            let file = open_mapped(self.pid, &module.entry).ok()?;
            let image = Image::read(&file, Parts::Lines).ok()?;
            let addresses = module
                .object
                .functions()
                .iter()
                .map(|function| function.address);
            SourceMap::parse(&image, addresses).ok()
        });
        let place = map.as_ref()?.lookup(address)?;
        Some(SourceLine {
            file: place.file.to_owned(),
            line: place.line,
        })
    }
}
