//! Entry points for a fuzz target: the handling of requests up to the first look at a process. They
//! exist only with `--cfg fuzzing`.

use std::sync::LazyLock;

use sled_encoders::Capture;
use tonic::Status;
use xray_trace::{instr_map::Selection, model::FunctionId};
use xrayd_proto::v1;

use super::{
    authorise::{self, Targets},
    convert, described,
    trigger::Plan,
    undo::Undo,
};
use crate::{
    control::{keep_filter, keep_selection},
    process::{Registry, RegistryConfig},
    quotas::Quotas,
    refusal::Refusal,
    target::Caller,
    text::is_hazard,
    triggers::{Condition, MOST_CONDITIONS, MOST_FIRINGS},
    types::{FunctionRow, Mode, Run, Settings, Switch, Wanted},
};

/// Limit on a description in an audit record in bytes, with a character and a pattern that is cut
/// off.
const LONGEST_DESCRIPTION: usize = 8 << 10;
/// Limit on a message in bytes. A message is a header.
const LONGEST_MESSAGE: usize = 8 << 10;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    Registry::new(RegistryConfig {
        quotas: Quotas::DAEMON,
        ..RegistryConfig::default()
    })
});

/// A request to switch functions.
pub fn toggle(request: v1::ToggleRequest, switch: Switch) {
    let v1::ToggleRequest {
        pid,
        selection,
        dry_run,
        capture,
        lease,
    } = request;
    describe(selection.as_ref());
    let _ = Targets::try_from(pid);
    let run = if dry_run { Run::Dry } else { Run::Real };
    let Ok(to) = checked(convert::wanted(switch, capture)) else {
        return;
    };
    let mut compiled = None;
    let toggled = convert::toggle(selection, to, lease, run, |selection: &Selection| {
        compiled = Some(selection.clone());
        REGISTRY.compile(Some(1000), selection)
    });
    if checked(toggled).is_ok()
        && let Some(selection) = compiled
    {
        keep_selection(&selection, to);
    }
}

/// A request with a selection, for a list or a stream.
pub fn select(selection: Option<v1::Selection>, undo: Option<v1::Undo>) {
    describe(selection.as_ref());
    let _ = checked(undo.map(Undo::try_from).transpose());
    let Ok(Some(selection)) = checked(selection.map(convert::selection).transpose()) else {
        return;
    };
    let rows = rows();
    let most = rows.len();
    let matching = convert::matching(rows, &selection).expect("it was compiled before");
    assert!(matching.len() <= most);
    for row in matching {
        let _ = convert::function(crate::Pid::this(), row);
    }
}

/// A request for other settings.
pub fn settings(request: v1::UpdateSettingsRequest) {
    let v1::UpdateSettingsRequest { pid, settings } = request;
    let _ = Targets::try_from(pid);
    let settings = settings.unwrap_or_default();
    assert!(described::settings(&settings).len() <= LONGEST_DESCRIPTION);
    let Ok(update) = checked(convert::settings_update(settings)) else {
        return;
    };
    let _ = checked(update.applied_to(&Settings::default()).check());
    if let Some(filter) = &update.filter {
        keep_filter(filter);
    }
}

/// A request to attach.
pub fn attach(request: v1::AttachRequest) {
    let _ = authorise::one(request.pid);
    let Ok(options) = checked(convert::attach_options(request)) else {
        return;
    };
    assert!(options.ring_bytes > 0 && options.max_threads > 0);
    assert!(Mode::ALL.contains(&options.mode));
    let _ = checked(options.budget.check());
}

/// The first request of a trigger.
pub fn trigger(request: v1::TriggerRequest) {
    assert!(described::trigger(&request).len() <= LONGEST_DESCRIPTION);
    let Ok(plan) = checked(Plan::try_from(request)) else {
        return;
    };
    assert!(plan.conditions.len() <= MOST_CONDITIONS && plan.limit <= MOST_FIRINGS);
    for condition in &plan.conditions {
        if let Condition::Call(of) | Condition::Duration { of, .. } | Condition::Rate { of, .. } =
            condition
        {
            keep_selection(of, Wanted::Off);
        }
    }
    plan.compile_switches(&REGISTRY, Caller::in_process(0, 0));
}

fn describe(selection: Option<&v1::Selection>) {
    assert!(described::selection(selection).len() <= LONGEST_DESCRIPTION);
}

/// Checks that a refusal has a message of one line that fits into a header.
fn checked<T>(outcome: Result<T, Refusal>) -> Result<T, Refusal> {
    outcome.inspect_err(|refusal| {
        let status = Status::from(refusal.clone());
        let message = status.message();
        assert!(!message.is_empty() && message.len() <= LONGEST_MESSAGE);
        assert!(!message.contains(is_hazard), "{message:?}");
    })
}

fn rows() -> Vec<FunctionRow> {
    let row = |(id, name): (u32, &str)| FunctionRow {
        id: FunctionId(id),
        module: "/usr/bin/demo".to_owned(),
        name: name.to_owned(),
        symbol: None,
        source: None,
        sleds: 2,
        event_sleds: 0,
        enabled: false,
        suppressed: false,
        capture: Capture::NONE,
        calls: 0,
        xray_id: id + 1,
        address: 0,
        size: 0,
        always_instrumented: false,
    };
    let names = ["main", "ns::Class::method(int) const", ""];
    (0..).zip(names).map(row).collect()
}
