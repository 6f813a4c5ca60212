//! The table of functions, the slowest calls and the first lines of the tree of a trace, in one
//! pass: every event is unpacked once.
//!
//! ```text
//!             first lines of the tree             the rest of every thread
//!  thread 1  |────────────────────────|          |────────────────────────|  a worker
//!  thread 2  |──────────|                        |────────────────────────|  another worker
//!             step by step, for the lines,        for the table and the
//!             the table and the slowest calls     slowest calls alone
//! ```
//!
//! The caller reads as many lines as it wants, and then asks for the rest. It must hold the lines
//! if it prints the table before them. A tree that is too long for that needs a pass of its own:
//! the table is known at the end of a pass, and the lines are not kept until then.

use super::Filter;
use super::account_table::{Account, GroupBy};
use super::counted_calls::{Counted, CountedCalls};
use super::ordered_lines::{OrderedLines, Rest};
use super::part::Part;
use super::slow_lines::SlowCall;
use super::slowest::{Finder, Slowest, SlowestOptions};
use super::stack::Steps;
use super::step::{Call, Notes, Open, Siblings, UserEvent, Visitor};
use super::thread_blocks::ThreadBlocks;
use super::thread_lines::Observer;
use super::threads::in_shares;
use super::tree_line::{Order, Shown, TreeLine};
use crate::model::Trace;

/// The parts of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OnePassOptions {
    /// The table of functions.
    pub table: TableOption,
    /// The slowest calls.
    pub slowest: Option<SlowestOptions>,
    /// The calls that have a line in the tree.
    pub shown: Shown,
    /// The order of these lines.
    pub order: Order,
}

/// The use of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableOption {
    /// The table has a row for each function.
    Rows,
    /// The table has no rows, only the irregularities of the threads.
    NotesOnly,
}

/// A pass over the calls of a trace.
#[derive(Debug)]
pub struct OnePass<'a> {
    trace: &'a Trace,
    options: ThreadOptions<'a>,
    lines: OrderedLines<'a, ThreadPass<'a>>,
}

/// The results of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnePassResult {
    /// The table of functions.
    pub account: Account,
    /// The slowest calls, the slowest first.
    pub slowest: Vec<SlowCall>,
}

/// The options for each thread.
#[derive(Debug, Clone, Copy)]
struct ThreadOptions<'a> {
    filter: &'a Filter,
    table: TableOption,
    slowest: Option<SlowestOptions>,
}

/// The results for some threads.
#[derive(Debug, Default)]
struct Found {
    part: Part,
    slowest: Slowest,
}

/// Follows one thread.
#[derive(Debug)]
struct ThreadPass<'a> {
    options: ThreadOptions<'a>,
    calls: CountedCalls<'a>,
    part: Part,
    finder: Option<Finder<'a>>,
}

// === impl OnePass ===

impl<'a> OnePass<'a> {
    /// A pass over the calls that `filter` selects.
    #[must_use]
    pub fn new(trace: &'a Trace, filter: &'a Filter, options: OnePassOptions) -> Self {
        let OnePassOptions {
            table,
            slowest,
            shown,
            order,
        } = options;
        let options = ThreadOptions {
            filter,
            table,
            slowest: slowest.filter(|slowest| slowest.most > 0),
        };
        Self {
            trace,
            options,
            lines: OrderedLines::new(trace, filter, (shown, order), options),
        }
    }

    /// The number of threads that may have lines in the tree.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.lines.threads()
    }

    /// The lines of the tree that were not read yet.
    pub fn lines(&mut self) -> impl Iterator<Item = TreeLine> {
        self.lines.by_ref()
    }

    /// Reads the rest of the trace.
    #[must_use]
    pub fn finish(self) -> OnePassResult {
        let Self {
            trace,
            options,
            lines,
        } = self;
        let (mut all, rest) = lines.into_rest();
        let parts = in_shares(rest, Rest::len, |found: &mut Found, rest| {
            let (mut steps, mut pass) = match rest {
                Rest::Steps(steps, pass) => (*steps, pass),
                Rest::Whole(blocks) => (
                    Steps::in_window(trace, blocks, Siblings::Closed)
                        .with_user_events(trace, &options.filter.user_events),
                    ThreadPass::begin(options, found),
                ),
            };
            pass.visit(&mut steps);
            pass.end(steps.notes(), found);
        });
        for part in parts {
            all.add(part, options);
        }
        OnePassResult {
            account: all.part.into_account(GroupBy::Function),
            slowest: all.slowest.into_calls(),
        }
    }
}

// === impl Rest ===

impl<V> Rest<'_, V> {
    /// The number of packed bytes of the blocks that are left.
    fn len(&self) -> usize {
        match self {
            Self::Whole(blocks) => ThreadBlocks::len(blocks),
            Self::Steps(steps, _) => {
                let blocks = steps.blocks().iter();
                blocks.map(|block| block.encoded_len()).sum()
            }
        }
    }
}

// === impl Found ===

impl Found {
    /// Adds the results for other threads.
    fn add(&mut self, other: Self, options: ThreadOptions<'_>) {
        self.part.merge(other.part);
        if let Some(slowest) = options.slowest {
            self.slowest.merge(other.slowest, slowest.most);
        }
    }
}

/// The function of a call, and the number of its other calls around the call.
#[inline(always)]
fn function(call: &Call) -> (u32, usize) {
    (call.open.function.0, call.open.nesting as usize)
}

// === impl ThreadPass ===

impl ThreadPass<'_> {
    /// Follows the rest of the thread.
    fn visit(&mut self, steps: &mut Steps<'_>) {
        match (self.options.table, &self.finder) {
            // The way of a table alone is faster.
            (TableOption::Rows, None) => self.part.visit(steps, self.calls, function),
            _ => steps.visit(self),
        }
    }
}

impl<'a> Observer for ThreadPass<'a> {
    type Found = Found;
    type Options = ThreadOptions<'a>;

    fn begin(options: ThreadOptions<'a>, found: &mut Found) -> Self {
        let Found { part, slowest } = std::mem::take(found);
        let finder = options
            .slowest
            .map(|wanted| Finder::new(slowest, options.filter, wanted));
        Self {
            options,
            calls: CountedCalls::new(options.filter, Counted::All),
            part,
            finder,
        }
    }

    fn end(mut self, notes: Notes, found: &mut Found) {
        self.part.note(notes);
        let its = Found {
            part: self.part,
            slowest: self.finder.map(Finder::into_slowest).unwrap_or_default(),
        };
        found.add(its, self.options);
    }
}

impl Visitor for ThreadPass<'_> {
    #[inline(always)]
    fn enter(&mut self, open: &Open) {
        if let Some(finder) = &mut self.finder {
            finder.enter(open);
        }
    }

    #[inline(always)]
    fn leave(&mut self, call: &Call) {
        if self.options.table == TableOption::Rows {
            let (function, nesting) = function(call);
            self.part.count(call, function, nesting, self.calls);
        }
        if let Some(finder) = &mut self.finder {
            finder.leave(call);
        }
    }

    #[inline(always)]
    fn user_event(&mut self, user_event: &UserEvent, data: &[u8]) {
        if let Some(finder) = &mut self.finder {
            finder.user_event(user_event, data);
        }
    }
}
