//! The full-screen view of a process: what it has been doing, interval by interval.
//!
//! | file | holds |
//! |---|---|
//! | `interval` | what the profile of one interval says |
//! | `state` | what is looked at, and what keys change |
//! | `view` | how it is drawn |

mod interval;
mod state;
mod view;

pub(crate) use interval::{Header, Interval};
pub(crate) use state::{Action, State};
pub(crate) use view::draw;
