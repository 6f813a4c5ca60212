//! Analyses of a trace. All of them unpack one block at a time, and never hold the events of a
//! whole trace.

mod account;
mod account_table;
mod budget;
mod closing;
mod counted_calls;
mod distribution;
mod filter;
mod find_unmatched;
mod frames;
mod gathered;
mod graph;
mod histogram;
mod index;
mod kernel_queue;
mod one_pass;
mod open;
mod ordered_lines;
mod page_pass;
mod part;
mod profile;
mod profile_difference;
mod profiler;
mod slow_lines;
mod slowest;
mod spread;
mod stack;
mod step;
mod thread_blocks;
mod thread_lines;
mod threads;
mod threads_in_window;
mod timeline;
mod tree;
mod tree_line;
mod trie;
mod unmatched_exit;
mod waits;
mod window;

pub use account::{AccountOptions, account};
pub use account_table::{Account, AccountRow, Direction, GroupBy, OnCpu, SortBy, Subject};
pub use budget::{Budget, DutyCycle, FilterSpan, GapSpan, Suppressed};
pub use counted_calls::Counted;
pub use distribution::Distribution;
pub use filter::{Filter, PatternError};
pub use find_unmatched::unmatched_exits;
pub use graph::{Graph, GraphEdge};
pub use index::{SPACING, Survey};
pub(crate) use kernel_queue::KernelQueue;
pub use one_pass::{OnePass, OnePassOptions, OnePassResult, TableOption};
pub use open::{OpenThread, open_calls};
pub use page_pass::PagePass;
pub use profile::account_profile;
pub use profile_difference::{SummedProfile, SummedProfileError};
pub use profiler::{MORE_STACKS, ProfileBudget, Profiler, StackId, StackSums};
pub use slow_lines::{SlowCall, SlowCallLines};
pub use slowest::SlowestOptions;
pub use spread::{Spread, profile_spreads};
pub use stack::Steps;
pub use step::{Call, Ending, Notes, Open, Siblings, Step, UserEvent, Visitor};
pub use timeline::{
    Gap, MOST_LANES, OffCpuSpan, OffCpuTimes, Slice, ThreadTimeline, Timeline, TimelineCall,
    TimelineLimits,
};
pub use tree::Tree;
pub use tree_line::{LeastTimes, Order, Shown, TreeLine};
pub use trie::{Side, StackCounts, StackNode, StackRoots, StackTrie};
pub use unmatched_exit::UnmatchedExit;
pub use waits::Waits;
