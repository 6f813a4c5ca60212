//! Answers from a trace. All of them unpack one block at a time and never hold the events of a whole trace.

mod account;
mod filter;
mod function_map;
mod histogram;
mod stack;
mod tree;

pub use account::{Account, AccountRow, Distribution, SortBy, account};
pub use filter::{Filter, PatternError};
pub use stack::{Call, Ending, Notes, Open, Said, Step, Steps};
pub use tree::{Order, Tree, TreeLine};
