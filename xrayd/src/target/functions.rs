//! The functions of a target, with names, source lines and sleds. It does not switch sleds.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::sync_channel,
    },
};

use sled_encoders::Capture;
use xray_trace::{
    FileAddr,
    instr_map::{Candidate, CompiledSelection, MapFunction, SourceMap},
    model::{
        Function, FunctionId, Lifetime, Module as TraceModule, ModuleId, ProcessId, SourceLine,
        Ticks,
    },
};

use crate::{
    liveness::{Liveness, NoAnswer},
    lock::{lock, lock_in_turn},
    pid::Pid,
    target::{Image, Module, Parts, effective_user, open_mapped},
    types::{Armed, FunctionRow, PatchSite},
};

/// Most threads that read source lines and may hang with processes of one user.
const MOST_HUNG: usize = 2;

/// The threads that read source lines and were left behind, and the users of their processes.
static HUNG_READERS: Mutex<Vec<(u32, Weak<()>)>> = Mutex::new(Vec::new());

/// All functions that a target has or had. A [`FunctionId`] names one for ever. The controller
/// adds modules and never removes one: events of an unloaded library keep their names.
#[derive(Debug)]
pub(crate) struct Functions {
    pid: Pid,
    /// By index, which is the module's id in the trace.
    modules: RwLock<Vec<Arc<Loaded>>>,
    /// Held while a thread reads source lines.
    reading: Mutex<()>,
}

/// A set of modules, by index. A module that goes and comes back keeps its index, so the number of
/// modules would not do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Indexes(HashSet<u32>);

/// Most load periods that are remembered for one module.
const MOST_LIFETIMES: usize = 1 << 12;

/// The usable sleds of a module's functions.
#[derive(Debug)]
struct SitesByFunction {
    /// In the order of the functions.
    sites: Vec<PatchSite>,
    /// For each function, the index behind its last site.
    ends: Vec<u32>,
}

/// A module that is loaded, or was.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) index: u32,
    pub(crate) module: Module,
    /// Id of its first function.
    first: u32,
    sites: SitesByFunction,
    /// Source lines. Read at the first request.
    source: OnceLock<Option<SourceMap>>,
    /// The thread that reads them, while it lives.
    reader: Mutex<Weak<()>>,
    /// Written by the controller, as are the fields below.
    unloaded: AtomicBool,
    /// The load periods, the oldest first; periods beyond the limit are forgotten. Empty while the
    /// module has always been there.
    lifetimes: Mutex<VecDeque<Lifetime>>,
    /// Memory in it that patching made private to the target, in bytes.
    copied: AtomicU64,
    /// The delay until the functions selected by rules were on. `None` if the module was there at
    /// the attach, or if no rule selects one of its functions.
    armed: Mutex<Option<Armed>>,
}

// === impl Functions ===

impl Functions {
    /// No functions yet.
    pub(crate) fn new(pid: Pid) -> Self {
        Self {
            pid,
            modules: RwLock::default(),
            reading: Mutex::default(),
        }
    }

    /// Adds a module. `sites` are its usable sleds, each with the index of its function in the
    /// module.
    pub(crate) fn add(&self, module: Module, sites: Vec<(u32, PatchSite)>) -> Arc<Loaded> {
        let sites = SitesByFunction::new(module.object.functions().len(), sites);
        self.push(module, sites, OnceLock::new())
    }

    /// Adds a module of a process that has ended, as a trace describes it. It has no usable sleds,
    /// and no source lines.
    pub(crate) fn add_ended(&self, module: Module) -> Arc<Loaded> {
        let sites = SitesByFunction::new(module.object.functions().len(), Vec::new());
        self.push(module, sites, OnceLock::from(None))
    }

    fn push(
        &self,
        module: Module,
        sites: SitesByFunction,
        source: OnceLock<Option<SourceMap>>,
    ) -> Arc<Loaded> {
        let mut modules = self.modules.write().unwrap_or_else(PoisonError::into_inner);
        let first = modules.last().map_or(0, |last| last.ids().end);
        let loaded = Arc::new(Loaded {
            index: u32::try_from(modules.len()).unwrap_or(u32::MAX),
            module,
            first,
            sites,
            source,
            reader: Mutex::default(),
            unloaded: AtomicBool::new(false),
            lifetimes: Mutex::default(),
            copied: AtomicU64::new(0),
            armed: Mutex::new(None),
        });
        modules.push(Arc::clone(&loaded));
        loaded
    }

    /// All modules that exist or existed, by index.
    pub(crate) fn modules(&self) -> Vec<Arc<Loaded>> {
        self.read().clone()
    }

    /// The path of module `index`; empty if that module never existed.
    pub(crate) fn path(&self, index: ModuleId) -> String {
        let modules = self.read();
        let loaded = modules.get(index.0 as usize);
        loaded.map_or_else(String::new, |loaded| loaded.module.path.clone())
    }

    /// Number of functions that have an id.
    pub(crate) fn ids(&self) -> usize {
        self.read().last().map_or(0, |last| last.ids().end as usize)
    }

    /// Number of functions that are loaded now.
    pub(crate) fn len(&self) -> usize {
        let modules = self.read();
        let living = modules.iter().filter(|loaded| !loaded.is_unloaded());
        living.map(|loaded| loaded.sites.functions()).sum()
    }

    /// All functions that have an id.
    pub(crate) fn all(&self) -> Vec<FunctionId> {
        let modules = self.modules();
        modules
            .iter()
            .flat_map(|loaded| loaded.functions())
            .collect()
    }

    /// The functions that are loaded now.
    pub(crate) fn living(&self) -> Vec<FunctionId> {
        let modules = self.loaded();
        let ids = modules.iter().flat_map(|loaded| loaded.functions());
        ids.collect()
    }

    /// The usable sleds of these functions, ordered by address.
    pub(crate) fn sites(&self, ids: &[FunctionId]) -> Vec<PatchSite> {
        let modules = self.read();
        let mut sites = Vec::new();
        for &id in ids {
            if let Some(loaded) = owner(&modules, id) {
                sites.extend_from_slice(loaded.sites_of(id));
            }
        }
        drop(modules);
        sites.sort_unstable_by_key(|site| site.address);
        sites
    }

    /// The modules that are loaded now.
    pub(crate) fn loaded(&self) -> Vec<Arc<Loaded>> {
        let modules = self.read();
        let living = modules.iter().filter(|loaded| !loaded.is_unloaded());
        living.cloned().collect()
    }

    /// The functions of these modules that a selection matches, by id.
    pub(crate) fn matching(
        &self,
        modules: &[Arc<Loaded>],
        selection: &CompiledSelection,
    ) -> Vec<FunctionId> {
        modules
            .iter()
            .flat_map(|loaded| {
                self.matching_in(loaded, selection.needs_source(), |candidate| {
                    selection.matches(candidate)
                })
            })
            .collect()
    }

    /// The functions of one module that match, by id.
    pub(crate) fn matching_in(
        &self,
        loaded: &Arc<Loaded>,
        needs_source: bool,
        matches: impl Fn(&Candidate<'_>) -> bool,
    ) -> Vec<FunctionId> {
        let mut ids = Vec::new();
        self.each_in(loaded, needs_source, |id, candidate| {
            if matches(candidate) {
                ids.push(id);
            }
        });
        ids
    }

    /// Passes each function of one module to `see`, by id.
    pub(crate) fn each_in(
        &self,
        loaded: &Arc<Loaded>,
        needs_source: bool,
        mut see: impl FnMut(FunctionId, &Candidate<'_>),
    ) {
        let functions = loaded.module.object.functions();
        for (id, function) in loaded.functions().zip(functions) {
            let source = if needs_source {
                self.source(loaded, function.address)
            } else {
                None
            };
            let candidate = Candidate {
                id: id.0,
                module: &loaded.module.path,
                symbol: function.symbol.as_deref(),
                name: &function.name,
                source: source.as_ref().map(|source| source.file.as_str()),
                size: function.size,
                always_instrumented: loaded.is_always_instrumented(function),
            };
            see(id, &candidate);
        }
    }

    /// The path of a function's module, and its readable name.
    pub(crate) fn name(&self, id: FunctionId) -> Option<(String, String)> {
        let loaded = self.find(id)?;
        let name = loaded.function(id)?.name.to_string();
        Some((loaded.module.path.clone(), name))
    }

    /// The description of a function for a trace.
    pub(crate) fn describe(&self, id: FunctionId) -> Option<Function> {
        let function = self.describe_without_source(id)?;
        let source = self.source(&self.find(id)?, function.address);
        Some(Function { source, ..function })
    }

    /// The same without the source line. This never waits for a file.
    pub(crate) fn describe_without_source(&self, id: FunctionId) -> Option<Function> {
        let loaded = self.find(id)?;
        let function = loaded.function(id)?;
        Some(Function {
            id,
            module: ModuleId(loaded.index),
            xray_id: function.id,
            address: function.address,
            symbol: function.symbol.as_ref().map(ToString::to_string),
            name: function.name.to_string(),
            source: None,
            sleds: u32::try_from(function.sleds.len()).unwrap_or(u32::MAX),
        })
    }

    /// A function's row in a listing. `recorded` is the capture of its calls, if the function is
    /// on.
    pub(crate) fn row(
        &self,
        id: FunctionId,
        recorded: Option<Capture>,
        calls: u64,
    ) -> Option<FunctionRow> {
        let loaded = self.find(id)?;
        let function = loaded.function(id)?;
        let sites = loaded.sites_of(id);
        let events = sites.iter().filter(|site| site.kind.is_event());
        Some(FunctionRow {
            id,
            module: loaded.module.path.clone(),
            name: function.name.to_string(),
            symbol: function.symbol.as_ref().map(ToString::to_string),
            source: self.source(&loaded, function.address),
            sleds: u32::try_from(sites.len()).unwrap_or(u32::MAX),
            event_sleds: u32::try_from(events.count()).unwrap_or(u32::MAX),
            enabled: recorded.is_some(),
            suppressed: false,
            capture: recorded.unwrap_or_default(),
            calls,
            xray_id: function.id,
            address: loaded.module.in_target(function.address).0,
            size: function.size,
            always_instrumented: loaded.is_always_instrumented(function),
        })
    }

    /// The id, in this process, of the first function of the module with the same file as `other`.
    /// `other` may be another process's module.
    pub(crate) fn first_of_same(&self, other: &Loaded) -> Option<u32> {
        let modules = self.read();
        let same = modules.iter().filter(|loaded| {
            !loaded.is_unloaded()
                && Arc::ptr_eq(&loaded.module.object, &other.module.object)
                && loaded.module.path == other.module.path
        });
        // Several copies of a file in one process differ in their places.
        same.min_by_key(|loaded| loaded.module.bias != other.module.bias)
            .map(|loaded| loaded.first)
    }

    fn find(&self, id: FunctionId) -> Option<Arc<Loaded>> {
        owner(&self.read(), id).map(Arc::clone)
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Loaded>>> {
        self.modules.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn source(&self, loaded: &Arc<Loaded>, address: xray_trace::FileAddr) -> Option<SourceLine> {
        if loaded.source.get().is_none() {
            self.read_lines(loaded);
        }
        let place = loaded.source.get()?.as_ref()?.lookup(address)?;
        Some(SourceLine {
            file: place.file.to_owned(),
            line: place.line,
        })
    }

    /// True if a file with source lines of this user's processes does not answer. Selections by
    /// source file are incomplete then.
    pub(crate) fn lacks_lines(&self) -> bool {
        hung_readers(effective_user(self.pid)) > 0
    }

    /// Reads the source lines of a module, on a thread of its own, since the file may not answer.
    /// While [`MOST_HUNG`] such threads hang with processes of one user, its processes get none.
    fn read_lines(&self, loaded: &Arc<Loaded>) {
        let _alone = lock_in_turn(&self.reading);
        // Another file may be mapped there now.
        let is_being_read = lock(&loaded.reader).strong_count() > 0;
        if is_being_read || loaded.source.get().is_some() || loaded.is_unloaded() {
            return;
        }
        let (pid, user) = (self.pid, effective_user(self.pid));
        if hung_readers(user) >= MOST_HUNG {
            return;
        }
        let running = Arc::new(());
        let reader = Arc::downgrade(&running);
        *lock(&loaded.reader) = reader.clone();
        let (liveness, (answer, answered)) = (Liveness::new(pid), sync_channel(1));
        let (loaded, of_thread) = (Arc::clone(loaded), Arc::clone(&liveness));
        let read = move || {
            of_thread.looks_for_requests();
            loaded.source.get_or_init(|| lines(pid, &loaded));
            drop(running);
            let _ = answer.send(());
        };
        let thread = std::thread::Builder::new().name(format!("lines-{pid}"));
        if let Err(error) = thread.spawn(read) {
            tracing::debug!(%pid, %error, "cannot start a thread that reads source lines");
            return;
        }
        if liveness.watch().wait(&answered) == Err(NoAnswer::Hangs) {
            tracing::warn!(%pid, "cannot read source lines: a file does not answer");
            lock(&HUNG_READERS).push((user, reader));
        }
    }
}

/// How many threads that read source lines hang with processes of this user.
fn hung_readers(user: u32) -> usize {
    let mut hung = lock(&HUNG_READERS);
    hung.retain(|(_, thread)| thread.strong_count() > 0);
    hung.iter().filter(|(of, _)| *of == user).count()
}

fn lines(pid: Pid, loaded: &Loaded) -> Option<SourceMap> {
    let file = open_mapped(pid, &loaded.module.entry).ok()?;
    let image = Image::read(&file, Parts::Lines, effective_user(pid)).ok()?;
    let functions = loaded.module.object.functions().iter();
    SourceMap::parse(image.bytes(), functions.map(|function| function.address)).ok()
}

// === impl Indexes ===

impl Indexes {
    /// The indexes of these modules.
    pub(crate) fn of(modules: &[Arc<Loaded>]) -> Self {
        Self(modules.iter().map(|loaded| loaded.index).collect())
    }

    /// True if the set contains the module.
    pub(crate) fn has(&self, loaded: &Loaded) -> bool {
        self.0.contains(&loaded.index)
    }
}

// === impl Loaded ===

impl Loaded {
    /// Ids of the module's functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = FunctionId> + use<> {
        self.ids().map(FunctionId)
    }

    /// Id of the module's first function.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// Usable sleds of the module, each with its function.
    pub(crate) fn sites(&self) -> impl Iterator<Item = (FunctionId, &PatchSite)> {
        let functions = self.functions().zip(0..);
        functions.flat_map(|(id, index)| self.sites.of(index).iter().map(move |site| (id, site)))
    }

    fn is_always_instrumented(&self, function: &MapFunction) -> bool {
        let sleds = self.module.object.sleds_of(function);
        sleds.iter().any(|sled| sled.always_instrument)
    }

    /// True while the module is not in the process.
    pub(crate) fn is_unloaded(&self) -> bool {
        self.unloaded.load(Ordering::Acquire)
    }

    /// Notes that the module has been loaded, for the first time or again at the same place.
    pub(crate) fn came(&self, now: Ticks) {
        let mut lifetimes = lock(&self.lifetimes);
        if lifetimes.len() == MOST_LIFETIMES {
            lifetimes.pop_front();
        }
        lifetimes.push_back(Lifetime {
            module: ModuleId(self.index),
            loaded: Some(now),
            unloaded: None,
        });
        self.unloaded.store(false, Ordering::Release);
    }

    /// Notes that the module cannot be traced now. A module without an earlier load period gets an
    /// empty one: without any, it would count as loaded all the time.
    pub(crate) fn never_came(&self, now: Ticks) {
        let mut lifetimes = lock(&self.lifetimes);
        if lifetimes.is_empty() {
            lifetimes.push_back(Lifetime {
                module: ModuleId(self.index),
                loaded: Some(now),
                unloaded: Some(now),
            });
        }
        self.unloaded.store(true, Ordering::Release);
    }

    /// Notes that the module has been unloaded.
    pub(crate) fn went(&self, now: Ticks) {
        let mut lifetimes = lock(&self.lifetimes);
        match lifetimes.back_mut() {
            Some(latest) => latest.unloaded = Some(now),
            None => lifetimes.push_back(Lifetime {
                module: ModuleId(self.index),
                loaded: None,
                unloaded: Some(now),
            }),
        }
        self.unloaded.store(true, Ordering::Release);
    }

    /// The load periods of the module, if it was not there all the time.
    pub(crate) fn lifetimes(&self) -> Vec<Lifetime> {
        lock(&self.lifetimes).iter().copied().collect()
    }

    pub(crate) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    pub(crate) fn note_copied(&self, bytes: u64) {
        self.copied.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn armed(&self) -> Option<Armed> {
        *lock(&self.armed)
    }

    pub(crate) fn note_armed(&self, armed: Option<Armed>) {
        *lock(&self.armed) = armed;
    }

    /// The description of the module for a trace.
    pub(crate) fn describe(&self, process: ProcessId) -> TraceModule {
        TraceModule {
            id: ModuleId(self.index),
            process,
            path: self.module.path.clone(),
            build_id: self.module.object.build_id().cloned(),
            load_bias: self.module.bias,
            event_formats: self.module.object.event_formats().to_vec(),
        }
    }

    /// The ids of the module's functions.
    pub(crate) fn ids(&self) -> Range<u32> {
        let count = u32::try_from(self.sites.functions()).unwrap_or(u32::MAX);
        self.first..self.first.saturating_add(count)
    }

    /// The id of the function with this id in its instrumentation map, and this address.
    pub(crate) fn id_of(&self, xray_id: u32, address: FileAddr) -> Option<FunctionId> {
        let functions = self.module.object.functions();
        // They are in the order of these.
        let name = |function: &MapFunction| (function.id, function.address);
        let index = functions.binary_search_by_key(&(xray_id, address), name);
        let index = index.ok()?;
        let id = self.first.checked_add(u32::try_from(index).ok()?)?;
        Some(FunctionId(id))
    }

    fn index_of(&self, id: FunctionId) -> Option<usize> {
        usize::try_from(id.0.checked_sub(self.first)?).ok()
    }

    fn function(&self, id: FunctionId) -> Option<&MapFunction> {
        self.module.object.functions().get(self.index_of(id)?)
    }

    fn sites_of(&self, id: FunctionId) -> &[PatchSite] {
        self.index_of(id).map_or(&[], |index| self.sites.of(index))
    }
}

// === impl SitesByFunction ===

impl SitesByFunction {
    /// Groups sites, each with the index of its function, among this many functions. Sites of one
    /// function stay in their order.
    fn new(functions: usize, mut sites: Vec<(u32, PatchSite)>) -> Self {
        sites.retain(|&(function, _)| (function as usize) < functions);
        sites.sort_by_key(|&(function, _)| function);
        let mut ends = Vec::with_capacity(functions);
        let mut end = 0;
        for function in 0..functions {
            let of_it = sites.get(end..).unwrap_or_default().iter();
            end += of_it
                .take_while(|&&(other, _)| other as usize == function)
                .count();
            ends.push(u32::try_from(end).unwrap_or(u32::MAX));
        }
        Self {
            sites: sites.into_iter().map(|(_, site)| site).collect(),
            ends,
        }
    }

    fn functions(&self) -> usize {
        self.ends.len()
    }

    /// The sites of the function with this index.
    fn of(&self, function: usize) -> &[PatchSite] {
        let before = function
            .checked_sub(1)
            .and_then(|before| self.ends.get(before));
        let start = before.copied().unwrap_or(0);
        let end = self.ends.get(function).copied().unwrap_or(start);
        self.sites
            .get(start as usize..end as usize)
            .unwrap_or_default()
    }
}

/// The module of a function, among all modules by index.
fn owner(modules: &[Arc<Loaded>], id: FunctionId) -> Option<&Arc<Loaded>> {
    let index = modules.partition_point(|loaded| loaded.first <= id.0);
    let loaded = modules.get(index.checked_sub(1)?)?;
    loaded.ids().contains(&id.0).then_some(loaded)
}
