//! Rules of access: a file by which the administrator gives users and groups rights to processes
//! that are not their own.
//!
//! | file | holds |
//! |---|---|
//! | `verb` | what a rule allows |
//! | `rules` | the rules of a file, and what they allow a subject |
//! | `handle` | the rules in force, their file, and what outlives the daemon |
//!
//! The rules only add rights. What a caller may do without them is in `rpc/authorise.rs`.

mod handle;
mod rules;
mod verb;

pub(crate) use handle::{AccessKeeper, default_path};
pub use handle::{AccessRules, AccessStatus};
pub use rules::{Granted, Rule, Rules, Subject};
pub use verb::{Verb, Verbs};
