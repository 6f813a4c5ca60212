//! One function of a session, as a listing shows it.

use sled_encoders::Capture;
use xray_trace::model::{FunctionId, SourceLine};

/// One function in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRow {
    /// Its id in the session.
    pub id: FunctionId,
    /// The path of its module.
    pub module: String,
    /// Its demangled name.
    pub name: String,
    /// Its symbol.
    pub symbol: Option<String>,
    /// The place of its definition.
    pub source: Option<SourceLine>,
    /// Its usable sleds.
    pub sleds: u32,
    /// Sleds among them of custom and typed events.
    pub event_sleds: u32,
    /// True if the function is on.
    pub enabled: bool,
    /// True if the function is on, and suppressed to keep to a budget.
    pub suppressed: bool,
    /// Values that are recorded with its calls.
    pub capture: Capture,
    /// Calls since the attach.
    pub calls: u64,
    /// Its id in the instrumentation map of its module.
    pub xray_id: u32,
    /// Its address in the target.
    pub address: u64,
    /// The size of its code in bytes; 0 if unknown.
    pub size: u64,
    /// True if the source marks it with the attribute `xray_always_instrument`.
    pub always_instrumented: bool,
}
