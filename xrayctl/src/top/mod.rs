//! The full-screen view of a process: its activity, interval by interval.
//!
//! | file | holds |
//! |---|---|
//! | `function_times` | the time for which functions had a processor |
//! | `interval` | the figures of one interval |
//! | `live_times` | the live trace that shows that time |
//! | `state` | the state of the view, and the keys that change it |
//! | `thread_times` | the processor time of threads |
//! | `view` | the drawing |

mod function_times;
mod interval;
mod live_times;
mod state;
mod thread_times;
mod view;

pub(crate) use interval::{Header, Interval};
pub(crate) use live_times::{ARRIVAL, LiveTimes, monotonic_now};
pub(crate) use state::{Action, State};
pub(crate) use thread_times::ThreadTimes;
pub(crate) use view::draw;
