//! One function of a session, as a listing shows it.

use sled_encoders::Capture;
use xray_trace::model::{FunctionId, SourceLine};

/// One function, for a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionRow {
    /// Id in this session.
    pub id: FunctionId,
    /// Path of its module.
    pub module: String,
    /// Name to be read.
    pub name: String,
    /// Symbol.
    pub symbol: Option<String>,
    /// Where it is defined.
    pub source: Option<SourceLine>,
    /// Its usable sleds.
    pub sleds: u32,
    /// Those among them of custom and typed events.
    pub event_sleds: u32,
    /// Whether it is on.
    pub enabled: bool,
    /// Whether it is on and rests.
    pub rests: bool,
    /// What is recorded of its calls beside their time.
    pub capture: Capture,
    /// Entries seen since attach.
    pub calls: u64,
    /// Id in its module's map.
    pub xray_id: u32,
    /// Address in the target.
    pub address: u64,
}
