//! What tracing may cost.
//!
//! ```text
//!  budget  ─ look ─► what did rings get, by whom? ─► weigh ─► the dear and short rest ─┐
//!              ▲                                                                       │
//!              └──── once in a while all that rests is on for milliseconds ◄───────────┘
//!
//!  duty    ── off ──┤ on ├────────────── off ──────────────┤ on ├──
//! ```
//!
//! A function that *rests* is off though it is switched on: [`States`](super::states) say what is wanted, the sleds what is. What rested for how long, about how many calls that
//! hid, and when everything was on, is in the [`History`], which is shown and goes into traces.
//!
//! | file | holds |
//! |---|---|
//! | `price` | what an event costs |
//! | `measure` | what was recorded between two looks, and what that cost whom |
//! | `run_clocks` | for how long threads run while something is tried |
//! | `weigh` | what functions cost, and which of them are worth it |
//! | `history` | what rested, and when everything was recorded |
//! | `run` | the control thread's part: looking, trying, switching |

mod history;
mod measure;
mod price;
mod run;
mod run_clocks;
mod weigh;

pub(crate) use self::{history::History, run::Governor};
