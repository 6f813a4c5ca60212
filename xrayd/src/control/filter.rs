//! The filter in force, split into the parts that the program and the collector apply.

use std::{ops::Range, sync::Arc};

use sled_encoders::{SledKind, x86_64::call_site};
use xray_trace::{
    instr_map::CompiledSelection,
    model::{Clock, ClockAnchor, Ticks},
};

use crate::{
    collect::EventFilter,
    inject::TrampolineFilter,
    pid::Pid,
    quotas::Ticket,
    refusal::{Reason, Refusal, Result},
    sys::now_anchor,
    target::Functions,
    types::{CallFilter, Filter, ThreadChoice, Window, is_module_of},
};

/// A filter that is in force.
#[derive(Debug, Default)]
pub(super) struct Filtering {
    filter: Filter,
    /// `None` for all modules.
    modules: Option<CompiledSelection>,
    /// `None` for all times.
    window: Option<Range<Ticks>>,
    /// `None` if calls inside of any function are recorded.
    inside: Option<CompiledSelection>,
    /// `None` for all threads.
    threads: Option<Arc<ThreadChoice>>,
    /// Ticks of the shortest call that is recorded.
    shortest: u64,
    /// The share of its patterns in the quota of the user who attached.
    ticket: Option<Ticket>,
}

// === impl Filtering ===

impl Filtering {
    /// Compiles a filter. The times in it are relative to the attach.
    ///
    /// # Errors
    /// A pattern that does not compile, a window that ends before it begins, or a clock that cannot
    /// be read.
    pub(crate) fn new(pid: Pid, filter: &Filter, attached: ClockAnchor) -> Result<Self> {
        let modules = filter.modules()?;
        let now = now_anchor();
        let now = now.map_err(|error| Refusal::from_io(pid, "read the clock", &error))?;
        let window = if filter.window == Window::default() {
            None
        } else {
            Some(filter.window.ticks(attached, now))
        };
        let frequency = Clock::new(vec![attached, now]).frequency();
        let frequency = u128::from(frequency.unwrap_or(1_000_000_000));
        let shortest = filter.calls.shortest.as_nanos() * frequency / 1_000_000_000;
        Ok(Self {
            modules,
            window,
            inside: filter.calls.inside()?,
            threads: filter.calls.threads()?,
            shortest: u64::try_from(shortest).unwrap_or(u64::MAX),
            filter: filter.clone(),
            ticket: None,
        })
    }

    /// Takes the size of its patterns from the quota, for as long as it is in force.
    ///
    /// # Errors
    /// The quota would be exceeded.
    pub(super) fn pay(&mut self, take: impl FnOnce(usize) -> Result<Ticket>) -> Result<()> {
        let selections = [&self.modules, &self.inside].into_iter().flatten();
        let sizes = selections.map(CompiledSelection::size);
        let threads = self.threads.as_ref().map_or(0, |threads| threads.size());
        self.ticket = Some(take(sizes.sum::<usize>() + threads)?);
        Ok(())
    }

    /// The threads that are recorded. `None` for all threads.
    pub(crate) fn threads(&self) -> Option<Arc<ThreadChoice>> {
        self.threads.clone()
    }

    /// The part that the program applies, for the functions that exist now. `None` if all calls are
    /// recorded.
    ///
    /// # Errors
    /// The filter selects more functions than the program has room for.
    pub(crate) fn choice(
        &self,
        pid: Pid,
        functions: &Functions,
    ) -> Result<Option<TrampolineFilter>> {
        if self.filter.calls == CallFilter::default() {
            return Ok(None);
        }
        let inside = self.inside.as_ref().map(|inside| {
            let ids = functions.matching(&functions.loaded(), inside);
            let sites = functions.sites(&ids).into_iter();
            let entries =
                sites.filter(|site| matches!(site.kind, SledKind::Entry | SledKind::EntryArgument));
            #[expect(clippy::cast_possible_truncation, reason = "the low half is the name")]
            let names = entries.map(|site| call_site(site.kind, site.address) as u32);
            names.collect::<Vec<u32>>()
        });
        if let Some(names) = &inside
            && names.len() > TrampolineFilter::MOST_INSIDE
        {
            let message = format!(
                "process {pid}: --inside matches {} functions; the maximum is {}",
                names.len(),
                TrampolineFilter::MOST_INSIDE
            );
            return Err(Refusal::new(Reason::Limit, message));
        }
        Ok(Some(TrampolineFilter {
            shortest: self.shortest,
            max_depth: self.filter.calls.max_depth,
            one_in: self.filter.calls.one_in,
            inside,
        }))
    }

    /// True if a new library changes what the program applies.
    pub(super) fn is_by_function(&self) -> bool {
        self.inside.is_some()
    }

    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// True if a new library changes what the collector applies.
    pub(super) fn is_by_module(&self) -> bool {
        self.modules.is_some()
    }

    /// The part that the collector applies, for the functions that exist now. `None` if all events
    /// are kept.
    pub(crate) fn keep(&self, functions: &Functions) -> Option<Arc<EventFilter>> {
        if self.modules.is_none() && self.window.is_none() {
            return None;
        }
        let functions = self.modules.as_ref().map(|modules| {
            let loaded = functions.modules().into_iter();
            let kept = loaded.filter(|loaded| is_module_of(modules, &loaded.module.path));
            kept.map(|loaded| loaded.ids()).collect()
        });
        let window = self.window.clone();
        let window = window.unwrap_or(Ticks(0)..Ticks(u64::MAX));
        Some(Arc::new(EventFilter::new(functions, window)))
    }
}
