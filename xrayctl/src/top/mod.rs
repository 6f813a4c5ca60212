//! The full-screen view of a process: its activity, interval by interval.
//!
//! | file | holds |
//! |---|---|
//! | `interval` | the figures of one interval |
//! | `state` | the state of the view, and the keys that change it |
//! | `view` | the drawing |

mod interval;
mod state;
mod view;

pub(crate) use interval::{Header, Interval};
pub(crate) use state::{Action, State};
pub(crate) use view::draw;
