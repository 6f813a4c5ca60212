//! Answers from a trace. All of them unpack one block at a time and never hold the events of a whole trace.

mod account;
mod economy;
mod filter;
mod frames;
mod gathered;
mod graph;
mod histogram;
mod index;
mod open;
mod part;
mod profile;
mod profiler;
mod spread;
mod stack;
mod step;
mod strays;
mod threads;
mod timeline;
mod tree;
mod trie;
mod window;

pub use account::{
    Account, AccountOptions, AccountRow, Counted, Direction, Distribution, GroupBy, SortBy,
    Subject, account,
};
pub use economy::{DutyCycle, Economy, FilterSpan, Resting};
pub use filter::{Filter, PatternError};
pub use graph::{Graph, GraphEdge};
pub use index::{SPACING, Survey};
pub use open::{OpenThread, open_calls};
pub use profile::account_profile;
pub use profiler::{MORE_STACKS, ProfileRoom, Profiler, StackSums};
pub use spread::{Spread, account_with_spreads, profile_spreads};
pub use stack::Steps;
pub use step::{Call, Ending, Notes, Open, Said, Siblings, Step, Visitor};
pub use strays::{Stray, strays};
pub use timeline::{Gap, MOST_LANES, Slice, ThreadTimeline, Timeline, TimelineCall, TimelineRoom};
pub use tree::{Order, Shown, Tree, TreeLine};
pub use trie::{Side, StackCounts, StackNode, StackRoots, Stacks};
