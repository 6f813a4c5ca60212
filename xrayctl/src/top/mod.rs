//! The full-screen view of a process: its activity, interval by interval.
//!
//! | file | holds |
//! |---|---|
//! | `interval` | the figures of one interval |
//! | `state` | the state of the view, and the keys that change it |
//! | `thread_times` | the processor time of threads |
//! | `view` | the drawing |

mod interval;
mod state;
mod thread_times;
mod view;

pub(crate) use interval::{Header, Interval};
pub(crate) use state::{Action, State};
pub(crate) use thread_times::ThreadTimes;
pub(crate) use view::draw;
