//! Tracing policies: files that say which processes are traced, and how.
//!
//! | file | holds |
//! |---|---|
//! | `spec` | a policy as its file describes it |
//! | `matching` | which processes it is for |

mod matching;
mod spec;

pub use matching::{Matching, ProcessFacts};
pub use spec::{PolicySpec, TraceSpec};
