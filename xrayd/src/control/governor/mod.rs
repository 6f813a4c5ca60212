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
//! | `cost_model` | the cost of functions, and the choice of those to suppress |
//! | `pace` | how fast the program works during a trial |
//! | `kept` | the functions that a budget never suppresses |
//! | `history` | times of suppression, and times in which all functions were on |
//! | `switching` | switching of suppressed functions, and of all functions at once |
//! | `trial` | a trial, and the comparison before it |
//! | `refused` | a duty cycle that was refused |
//! | `tick_rate` | the duration of a tick |
//! | `overhead` | a limit on the overhead: looks, trials, suppression |
//! | `duty_cycle` | the windows of a duty cycle |
//! | `run` | the controller's part: limits begin, do their steps and end |

mod cost_model;
mod duty_cycle;
mod event_cost;
mod history;
mod kept;
mod measure;
mod overhead;
mod pace;
mod refused;
mod run;
mod switching;
mod tick_rate;
mod trial;

pub(crate) use self::{history::History, kept::KeptFunctions, run::Governor};
