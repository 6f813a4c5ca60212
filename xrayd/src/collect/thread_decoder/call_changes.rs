//! The change of a thread's open calls from block to block. Readers that have no earlier block
//! learn from it which calls are open at the begin of the next one.

use xray_trace::{
    container::{BegunCalls, OpenCall, StackChange},
    model::Values,
};

use crate::collect::{event_filter::KeptCalls, shadow_stack::ShadowStack};

/// The most open calls whose arguments are remembered: 64 KiB.
const MOST_ARGS: usize = 1024;

/// The open calls at the begin of a block, and what is known of the changes since.
#[derive(Debug, Default)]
pub(super) struct CallChanges {
    /// The number of kept calls that were open when the last block was closed.
    before: u64,
    /// True if all events since then are in the block under way.
    continues: bool,
    /// True if an exit belonged to no open call, or events were lost.
    pub(super) irregular: bool,
    /// True if arguments of an open call were not remembered. Reset when none are.
    lacks_args: bool,
    /// The arguments of open calls that have any, by their places in the shadow stack.
    args: Vec<(usize, Values)>,
}

// === impl CallChanges ===

impl CallChanges {
    /// The change of the kept open calls since the last block. `None` if it is not known.
    pub(super) fn take(
        &mut self,
        stacks: &mut ShadowStack,
        kept: Option<&KeptCalls>,
    ) -> Option<StackChange> {
        let Self {
            before,
            continues,
            irregular,
            lacks_args,
            ..
        } = *self;
        let least = stacks.take_least();
        let open = stacks.calls().len();
        self.drop_args(open);
        self.before = kept_open(stacks, kept);
        self.continues = true;
        self.irregular = false;
        self.lacks_args = lacks_args && !self.args.is_empty();
        let least = least.filter(|_| !lacks_args)?;
        let places = stacks.calls().enumerate().skip(least);
        let begun = places.map(|(place, (function, start))| OpenCall {
            function,
            start,
            args: self.args_at(place),
        });
        let (kept, begun) = match kept {
            None => (least as u64, BegunCalls::new(begun)),
            Some(kept) => {
                let mut flags = kept.calls();
                let outermost = flags.by_ref().take(least).filter(|kept| *kept).count();
                let begun = begun.zip(flags).filter(|(_, kept)| *kept);
                let begun = BegunCalls::new(begun.map(|(call, _)| call));
                (outermost as u64, begun)
            }
        };
        Some(StackChange {
            before,
            kept,
            begun,
            nests: !irregular,
            continues,
        })
    }

    /// Begins to follow the open calls anew: events since the last block are in no block.
    pub(super) fn begin_anew(&mut self, stacks: &mut ShadowStack, kept: Option<&KeptCalls>) {
        // The change since the last block has no reader.
        self.take(stacks, kept);
        self.continues = false;
    }

    /// Notes the arguments of the call that has just begun.
    #[cold]
    pub(super) fn note_args(&mut self, stacks: &ShadowStack, args: Values) {
        let Some(place) = stacks.calls().len().checked_sub(1) else {
            return;
        };
        self.drop_args(place);
        if args.is_empty() {
            return;
        }
        if self.args.len() < MOST_ARGS {
            self.args.push((place, args));
        } else {
            self.lacks_args = true;
        }
    }

    /// Forgets the arguments of calls from this place on.
    fn drop_args(&mut self, place: usize) {
        while self.args.pop_if(|(its, _)| *its >= place).is_some() {}
    }

    fn args_at(&self, place: usize) -> Values {
        let at = self.args.binary_search_by_key(&place, |(its, _)| *its);
        at.map_or(Values::NONE, |at| self.args[at].1)
    }

    /// True if arguments of an open call are remembered.
    #[inline]
    pub(super) fn has_args(&self) -> bool {
        !self.args.is_empty()
    }

    /// Forgets all open calls.
    pub(super) fn forget_calls(&mut self) {
        self.args.clear();
    }
}

/// The number of kept calls that are open and have room.
fn kept_open(stacks: &ShadowStack, kept: Option<&KeptCalls>) -> u64 {
    let open = stacks.calls().len();
    match kept {
        None => open as u64,
        Some(kept) => kept.calls().take(open).filter(|kept| *kept).count() as u64,
    }
}
