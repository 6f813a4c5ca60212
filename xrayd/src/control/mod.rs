//! The control of one session: everything that changes the target after the attach.
//!
//! | file | holds |
//! |---|---|
//! | `handle` | the session's handle to the controller |
//! | `request` | the requests that it sends |
//! | `shared` | the state that the task publishes |
//! | `controller` | that task: requests, the watch on the target's life, detach |
//! | `task` | its steps in the pool of all sessions |
//! | `held` | a program that xrayd started, until it runs |
//! | `child` | the exit status of a process that xrayd started |
//! | `patching` | the target, and everything that writes its sleds |
//! | `switcher` | switching of functions: sleds, states and the governor together |
//! | `states` | which functions are on |
//! | `leases` | temporary overrides of which functions are on |
//! | `choices` | what a later daemon goes on with |
//! | `rules` | selections that also hold for libraries that are loaded later |
//! | `patterns` | selections that were compiled once |
//! | `traced` | modules that are loaded and traced |
//! | `loading` | libraries that are loaded and unloaded |
//! | `watch` | the detection method for libraries that are loaded |
//! | `sites` | sleds of a module, as a survey found them |
//! | `event_types` | reading the names of event types |
//! | `settings` | changes of mode, filter and budget |
//! | `filter` | the filter in force |
//! | `governor` | the limit on what tracing costs |
//! | `numbers` | figures of a session for metrics |

mod child;
mod choices;
mod controller;
mod event_types;
mod filter;
#[cfg(fuzzing)]
mod fuzzing;
mod governor;
mod handle;
mod held;
mod leases;
mod loading;
mod numbers;
mod patching;
mod patterns;
mod request;
mod rules;
mod settings;
mod shared;
mod sites;
mod states;
mod switcher;
mod task;
mod traced;
mod watch;

pub(crate) use child::StartedChild;
pub(crate) use choices::{ChoiceKeeper, Choices, ChosenModule, CompiledChoices};
pub(crate) use controller::Controller;
pub(crate) use event_types::Reading;
#[cfg(fuzzing)]
pub(crate) use fuzzing::{keep_filter, keep_selection};
pub(crate) use governor::Governor;
pub(crate) use handle::{Commands, Control};
pub(crate) use held::{Held, Holder};
pub(crate) use loading::Loading;
pub(crate) use numbers::SessionNumbers;
pub(crate) use patching::{Patching, limit_profiles};
pub use patterns::{Chosen, Patterns};
pub(crate) use request::ToggleRequest;
pub(crate) use rules::{RuleEffect, Rules};
pub(crate) use settings::{PreparedUpdate, adds_up};
pub(crate) use shared::Shared;
pub(crate) use sites::{Staged, call_site_of, patch_sites, range_of, staged_sites, stubs_of};
pub(crate) use task::Controllers;
pub(crate) use traced::TracedModules;
pub(crate) use watch::Watch;
