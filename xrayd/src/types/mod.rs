//! Plain data that every layer shares: settings, requests, reports and identities.
//!
//! Nothing here has a lock, a thread or a descriptor, and nothing here knows a session.

mod budget;
mod detach_report;
mod filter;
mod function_row;
mod kinship;
mod lease;
mod mode;
mod patch_site;
mod selection;
mod settings;
mod status;
mod thread_choice;
mod time_range;
mod toggle;

pub use sled_encoders::Capture;

pub use budget::{Budget, BudgetStatus, Duty, Overhead, Suppressed};
pub use detach_report::DetachReport;
pub(crate) use filter::is_module_of;
pub use filter::{CallFilter, Filter, Window};
pub use function_row::FunctionRow;
pub use kinship::Kinship;
pub use lease::LeaseId;
pub use mode::Mode;
pub(crate) use patch_site::PatchSite;
pub(crate) use selection::compile;
pub use settings::{Settings, SettingsUpdate};
pub use status::{Armed, Detection, ModuleStatus, Phase, Since, Status, ThreadLoss, TimedGap};
pub(crate) use thread_choice::ThreadChoice;
pub use time_range::Reach;
pub use toggle::{Run, Switch, ToggleReport, ToggleTo, Wanted};
