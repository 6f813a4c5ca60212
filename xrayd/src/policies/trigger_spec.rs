//! A trigger of a policy as its text describes it.

use std::time::Duration;

use xray_trace::event_format::{DescribedEvents, EventFormats, FieldComparison};

use crate::{
    parse,
    toml_file::{Item, Located, Table, TomlText},
    trigger_text::{FiringLimit, Form, parse_condition, parse_limit},
    triggers::{Condition, LONGEST_AFTER, MOST_CONDITIONS},
};

/// The most triggers of a policy.
const MOST_TRIGGERS: usize = 8;
/// The firings of a trigger, if the policy does not say.
const USUAL_LIMIT: (u32, Duration) = (10, Duration::from_secs(3600));

/// A trigger of a policy. When a condition is met in a process of the policy, a recorder writes a
/// snapshot of that process.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerSpec {
    /// The conditions as they are written.
    pub when: Vec<String>,
    /// The descriptions of events whose fields are compared, as they are written.
    pub event_formats: Vec<String>,
    /// The same conditions.
    pub conditions: Vec<Condition>,
    /// The time before the moment that a snapshot reaches back. `None`: as far as it can.
    pub before: Option<Duration>,
    /// The time after the moment at which a snapshot ends.
    pub after: Duration,
    /// The most firings within `period`, in all processes of the policy.
    pub limit: u32,
    /// The time of `limit`.
    pub period: Duration,
}

/// The tables `[[trigger]]` of a policy. Those with mistakes are left out.
pub(super) fn read_triggers(file: &TomlText<'_>, items: Vec<Item<'_, '_>>) -> Vec<TriggerSpec> {
    if let Some(item) = items.get(MOST_TRIGGERS) {
        let what = format!("there are more than {MOST_TRIGGERS} triggers");
        file.mistake(item.at(), what);
    }
    let items = items.into_iter().take(MOST_TRIGGERS);
    let triggers = items.filter_map(|item| match item {
        Item::Table(table) => TriggerSpec::read(file, table),
        Item::Text(text) => {
            file.mistake(text.at, "a trigger is a table: [[trigger]]");
            None
        }
    });
    triggers.collect()
}

// === impl TriggerSpec ===

impl TriggerSpec {
    fn read(file: &TomlText<'_>, mut table: Table<'_, '_>) -> Option<Self> {
        let at = table.at;
        let when = table.strings("when");
        if when.is_empty() {
            file.mistake(
                at,
                "when is missing: when = \"duration(checkout::handle) > 100ms\"",
            );
        }
        if let Some(condition) = when.get(MOST_CONDITIONS) {
            let what = format!("there are more than {MOST_CONDITIONS} conditions");
            file.mistake(condition.at, what);
        }
        let event_formats = table.strings("event_formats");
        let formats = event_formats.iter().filter_map(|text| {
            let described = text.value.parse::<DescribedEvents>();
            file.check(text.at, described)
        });
        let formats = formats.map(|DescribedEvents { events, format }| (events, format));
        let formats = EventFormats::new(formats.collect());
        let conditions: Vec<_> = when
            .iter()
            .take(MOST_CONDITIONS)
            .filter_map(|text| file.check(text.at, condition(&text.value, &formats)))
            .collect();
        let limit = table.string("limit").map(|limit| read_limit(file, &limit));
        let (limit, period) = limit.unwrap_or(Some(USUAL_LIMIT))?;
        let (before, after) = match table.table("snapshot") {
            Some(snapshot) => read_snapshot(file, snapshot),
            None => (None, Duration::ZERO),
        };
        table.finish();
        (conditions.len() == when.len()).then(|| Self {
            when: when.into_iter().map(|text| text.value).collect(),
            event_formats: event_formats.into_iter().map(|text| text.value).collect(),
            conditions,
            before,
            after,
            limit,
            period,
        })
    }
}

/// Reads a condition. `demand` is refused: only a client at a terminal can fire a trigger.
fn condition(text: &str, formats: &EventFormats) -> Result<Condition, String> {
    let written = parse_condition(text).map_err(|error| error.to_string())?;
    if written.form == Form::Demand {
        return Err(
            "demand is for xrayctl trigger: no user can fire the trigger of a policy".into(),
        );
    }
    let condition = written.form.condition(|events, comparison| {
        let format = formats.described(events).ok_or_else(|| {
            let field = &comparison.field;
            format!(
                "nothing describes the data of event({events}): add event_formats = \
                 [\"{events}=FIELDS\"], with the field {field}"
            )
        })?;
        let literal = comparison.literal.clone();
        let field = &comparison.field;
        FieldComparison::new(format.clone(), field, comparison.relation, literal)
            .map_err(|error| error.to_string())
    });
    // Only demand is no condition.
    let condition = condition?.ok_or_else(String::new)?;
    condition.check().map_err(|refusal| refusal.message)?;
    Ok(condition)
}

/// Reads a limit, which needs a period: the trigger of a policy has no end of its own.
fn read_limit(file: &TomlText<'_>, text: &Located<String>) -> Option<(u32, Duration)> {
    let FiringLimit { times, period } = file.check(text.at, parse_limit(&text.value))?;
    if period.is_none() {
        let what = format!("expected a number for a time, like {times}/1h");
        file.mistake(text.at, what);
    }
    Some((times, period?))
}

/// The time before and after the moment that a snapshot has.
fn read_snapshot(file: &TomlText<'_>, mut table: Table<'_, '_>) -> (Option<Duration>, Duration) {
    let before = file.parsed(table.string("before"), parse::positive_duration);
    let after = table.string("after");
    let after_at = after.as_ref().map_or(0, |after| after.at);
    let after = file.parsed(after, parse::duration).unwrap_or_default();
    if after > LONGEST_AFTER {
        file.mistake(after_at, format!("after must be {LONGEST_AFTER:?} or less"));
    }
    table.finish();
    (before, after)
}

#[cfg(test)]
mod tests {
    use xray_trace::instr_map::{Rule, Selection};

    use super::*;
    use crate::triggers::{CallTime, DeathWanted};

    fn read(text: &str) -> Result<Vec<TriggerSpec>, Vec<String>> {
        let file = TomlText::new(text);
        let mut table = file.table();
        let triggers = read_triggers(&file, table.items("trigger"));
        table.finish();
        let mistakes = file.mistakes();
        match mistakes.is_empty() {
            true => Ok(triggers),
            false => Err(mistakes.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn a_table_becomes_a_trigger() {
        let text = r#"
            [[trigger]]
            when = "duration(checkout::handle) > 100ms"
            snapshot = { before = "1s", after = "200ms" }
            limit = "3/10m"
            [[trigger]]
            when = ["death", "event(order).price >= 10"]
            event_formats = ["order=id:u64,price:f64"]
        "#;
        let [slow, dead] = read(text).unwrap().try_into().unwrap();
        let expected = TriggerSpec {
            when: vec!["duration(checkout::handle) > 100ms".to_owned()],
            event_formats: Vec::new(),
            conditions: vec![Condition::Duration {
                of: Selection {
                    include: vec![Rule::Function("checkout::handle".to_owned())],
                    exclude: Vec::new(),
                },
                time: CallTime::Duration,
                at_least: Duration::from_nanos(100_000_001),
            }],
            before: Some(Duration::from_secs(1)),
            after: Duration::from_millis(200),
            limit: 3,
            period: Duration::from_secs(600),
        };
        assert_eq!(slow, expected);
        assert_eq!(dead.conditions[0], Condition::Death(DeathWanted::AnySignal));
        assert!(dead.conditions[1].reads_data());
        assert_eq!((dead.before, dead.after), (None, Duration::ZERO));
        assert_eq!((dead.limit, dead.period), USUAL_LIMIT);
    }

    #[test]
    fn each_mistake_of_a_trigger_has_its_place() {
        let text = r#"trigger = ["slow",
{ limit = "3" },
{ when = "demand" },
{ when = ["duration(f) < 3", "event(7).a > 1", "event(8).b > 1"], event_formats = ["8=a:u8", "9"] },
{ when = "call(f)", snapshot = { before = "0s", after = "2m", on = 1 }, then = "exec" },
{ when = "call(f)", limit = "0/1h" }]
"#;
        let found = read(text).unwrap_err();
        let starts = [
            "line 1, column 12: a trigger is a table",
            "line 2, column 1: when is missing",
            "line 2, column 11: expected a number for a time, like 3/1h",
            "line 3, column 10: demand is for xrayctl trigger",
            "line 4, column 11: column 13: expected > or >=",
            "line 4, column 30: nothing describes the data of event(7)",
            "line 4, column 48: ",
            "line 4, column 94: ",
            "line 5, column 43: ",
            "line 5, column 57: after must be 60s or less",
            "line 5, column 63: unknown key \"on\"",
            "line 5, column 73: unknown key \"then\"",
            "line 6, column 29: expected N or N/TIME",
        ];
        for start in starts {
            let is_there = found.iter().any(|found| found.starts_with(start));
            assert!(is_there, "{start}: {found:#?}");
        }
        assert_eq!(found.len(), starts.len(), "{found:#?}");
    }
}
