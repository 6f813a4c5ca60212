//! The governor: keeps the cost of tracing within its limit.
//!
//! ```text
//!  budget  ─ look ─► which functions filled the rings? ─► weigh ─► suppress the costly ─┐
//!              ▲                                                                        │
//!              └──── now and then suppressed functions are on for milliseconds ◄────────┘
//!
//!  duty    ── off ──┤ on ├────────────── off ──────────────┤ on ├──
//! ```
//!
//! A suppressed function is on in [`States`](super::states), and its sleds are off. The [`History`]
//! records for how long functions were suppressed, about how many of their calls were not recorded,
//! and when all functions were on. Users and traces get these figures.
//!
//! | file | holds |
//! |---|---|
//! | `event_cost` | the cost of an event |
//! | `measure` | the events of each function between two looks, and their cost |
//! | `run_clocks` | the processor time of threads during a try |
//! | `cost_model` | the cost of functions, and the choice of those to suppress |
//! | `kept` | the functions that a budget never suppresses |
//! | `history` | times of suppression, and times in which all functions were on |
//! | `run` | the control thread's part: looks, tries, switching |

mod cost_model;
mod event_cost;
mod history;
mod kept;
mod measure;
mod run;
mod run_clocks;

pub(crate) use self::{history::History, kept::KeptFunctions, run::Governor};
