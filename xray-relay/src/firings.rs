//! The moments at which a trigger of a policy has fired.

use std::path::Path;

use serde::Serialize;
use xrayd_proto::v1::{PolicyTrigger, TriggerFired, TriggerMissed, trigger_fired::Value};

use crate::utc;

/// The file of a policy, without the end of its name.
pub(crate) const NAME: &str = "firings";

/// A trigger has fired.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Firing {
    /// The trigger among those of the policy, from 1 on.
    pub(crate) trigger: u32,
    /// The condition that was met, as the policy writes it.
    pub(crate) condition: String,
    /// 0 for moments that have no firing.
    pub(crate) pid: u32,
    /// Absent if the condition is not about a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tid: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) function: String,
    /// The moment, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// The time of the call, for a condition about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value_ns: Option<u64>,
    /// Moments since the firing before that the limit did not allow.
    pub(crate) skipped: u64,
    /// Calls since the firing before whose time on or off the processor is not known.
    pub(crate) unjudged: u64,
    /// The file with the snapshot: DATE/NAME. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recording: Option<String>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

// === impl Firing ===

impl Firing {
    /// The firing of the trigger with this number.
    pub(crate) fn new(number: u32, trigger: &PolicyTrigger, fired: TriggerFired) -> Self {
        let condition = fired
            .condition
            .and_then(|index| usize::try_from(index).ok());
        let condition = condition.and_then(|index| trigger.when.get(index).cloned());
        Self {
            trigger: number,
            condition: condition.unwrap_or_default(),
            pid: fired.pid,
            tid: (fired.tid > 0).then_some(fired.tid),
            function: fired.function,
            at_ms: fired.wall_ns / 1_000_000,
            value_ns: match fired.value {
                Some(Value::DurationNs(ns) | Value::OnCpuNs(ns) | Value::OffCpuNs(ns)) => Some(ns),
                Some(Value::Calls(_) | Value::Type(_)) | None => None,
            },
            skipped: fired.skipped,
            unjudged: fired.unjudged,
            recording: None,
            why: None,
        }
    }

    /// Moments without a firing: the limit did not allow them, or they could not be judged.
    pub(crate) fn missed(number: u32, missed: &TriggerMissed) -> Self {
        let at_ms = u64::try_from(utc::now().as_millis()).unwrap_or(u64::MAX);
        Self {
            trigger: number,
            condition: String::new(),
            pid: 0,
            tid: None,
            function: String::new(),
            at_ms,
            value_ns: None,
            skipped: missed.skipped,
            unjudged: missed.unjudged,
            recording: None,
            why: None,
        }
    }

    /// Notes the file with its snapshot, or why there is none.
    pub(crate) fn end(&mut self, file: Result<&Path, String>) {
        match file {
            Ok(path) => {
                let mut parts = path.iter().rev().map(|part| part.to_string_lossy());
                let (name, date) = (parts.next(), parts.next());
                let name = name.unwrap_or_default();
                self.recording = Some(format!("{}/{name}", date.unwrap_or_default()));
            }
            Err(why) => self.why = Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firing_names_its_condition_and_its_file() {
        let trigger = PolicyTrigger {
            when: vec!["death".to_owned(), "duration(f) > 1ms".to_owned()],
            ..PolicyTrigger::default()
        };
        let fired = TriggerFired {
            condition: Some(1),
            pid: 7,
            tid: 8,
            function: "f".to_owned(),
            wall_ns: 5_999_999,
            value: Some(Value::DurationNs(1_000_001)),
            skipped: 2,
            ..TriggerFired::default()
        };
        let mut firing = Firing::new(3, &trigger, fired);
        firing.end(Ok(Path::new("/r/p/2026-11-30/1Z-7-trigger3.xtrace")));
        let text = serde_json::to_string(&firing).unwrap();
        let expected = "{\"trigger\":3,\"condition\":\"duration(f) > 1ms\",\"pid\":7,\"tid\":8,\
                        \"function\":\"f\",\"at_ms\":5,\"value_ns\":1000001,\"skipped\":2,\
                        \"unjudged\":0,\"recording\":\"2026-11-30/1Z-7-trigger3.xtrace\"}";
        assert_eq!(text, expected);
        // A condition that the relay does not know.
        let fired = TriggerFired {
            condition: Some(9),
            ..TriggerFired::default()
        };
        let mut firing = Firing::new(1, &trigger, fired);
        firing.end(Err("no room".to_owned()));
        assert_eq!(
            (firing.condition.as_str(), firing.why.as_deref()),
            ("", Some("no room"))
        );
    }
}
