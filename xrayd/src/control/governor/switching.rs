//! What the governor switches: the sleds of suppressed functions, and the recording of all
//! functions at once. For the latter, trampolines are enabled or disabled, however long sleds take.

use std::time::Duration;

use xray_trace::model::{FunctionId, Ticks};

use crate::{
    control::patching::Patching,
    inject::{DispatchMode, Enable},
    refusal::Result,
    sys::ticks_now,
    types::Wanted,
};

/// Pause after a switch that failed.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Disables the trampolines. Returns the time from which on nothing is recorded.
pub(super) fn close(patching: &mut Patching) -> Result<Ticks> {
    patching.patcher.set_enable(&patching.memory, Enable::Off)?;
    let until = ticks_now();
    patching.mark(&patching.all_on());
    Ok(until)
}

/// Switches all sleds off. Until then, disabled trampolines cost the program a call and a return.
pub(super) fn switch_all_off(patching: &mut Patching) -> Result<()> {
    let sites = patching.traced.functions.sites(&patching.all_on());
    patching.patch(&sites, Wanted::Off).map(drop)
}

/// Enables the trampolines. Functions that are on record again.
pub(super) fn open(patching: &mut Patching) -> Result<()> {
    if patching.patcher.dispatch_mode() == DispatchMode::Filter {
        // Calls that were open when the trampolines were disabled are long over.
        patching.renew_filters()?;
    }
    patching.mark(&patching.all_on());
    patching.patcher.set_enable(&patching.memory, Enable::On)
}

/// Switches sleds of functions off that stay switched on.
pub(super) fn suppress(patching: &mut Patching, ids: &[FunctionId]) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let sites = patching.traced.functions.sites(ids);
    let suppressed = patching.patch(&sites, Wanted::Off);
    patching.mark(ids);
    suppressed.map(drop)
}

/// Switches sleds of suppressed functions on. Returns the longest stop of the target's threads.
pub(super) fn resume(patching: &mut Patching, ids: &[FunctionId]) -> Result<Duration> {
    if ids.is_empty() {
        return Ok(Duration::ZERO);
    }
    patching.mark(ids);
    patching.patch_as_wanted(ids)
}
