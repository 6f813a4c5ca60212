//! The functions that a budget never suppresses.

use std::collections::HashSet;

use xray_trace::{instr_map::CompiledSelection, model::FunctionId};

use crate::{quotas::Ticket, refusal::Result, target::Functions, types::Budget};

/// The functions that a budget never suppresses. The default is none.
#[derive(Debug, Default)]
pub(crate) struct KeptFunctions {
    /// `None` if there are none.
    selection: Option<CompiledSelection>,
    /// Function ids of the process at the last [`Self::match_new`].
    known: usize,
    /// The functions among them that match. Written by [`Self::match_new`].
    ids: HashSet<FunctionId>,
    /// The share of the patterns in the quota of the user who attached.
    _ticket: Option<Ticket>,
}

// === impl KeptFunctions ===

impl KeptFunctions {
    /// Compiles the patterns of a budget. `take` takes their size from the quota.
    ///
    /// # Errors
    /// A pattern that does not compile, or an exceeded quota.
    pub(crate) fn new(budget: &Budget, take: impl FnOnce(usize) -> Result<Ticket>) -> Result<Self> {
        let selection = budget.kept()?;
        let size = selection.as_ref().map(CompiledSelection::size);
        Ok(Self {
            _ticket: size.map(take).transpose()?,
            selection,
            ..Self::default()
        })
    }

    /// Matches the patterns again if functions have come since the last time.
    pub(super) fn match_new(&mut self, functions: &Functions) {
        let known = functions.ids();
        if let Some(selection) = &self.selection
            && known != self.known
        {
            let matching = functions.matching(&functions.loaded(), selection);
            self.ids.extend(matching);
            self.known = known;
        }
    }

    pub(super) fn contains(&self, id: FunctionId) -> bool {
        self.ids.contains(&id)
    }
}
