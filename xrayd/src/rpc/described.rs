//! Short descriptions of selections and settings in requests, for the audit record. They are not
//! parsed again.

use std::fmt::{self, Write as _};

use xrayd_proto::v1::{self, rule::Rule};

/// Limit on a description in bytes. The audit record cuts it off earlier.
const LONGEST: usize = 1024;

/// The rules of a selection: `+glob:api::* -function:api::ping`.
pub(super) fn selection(selection: Option<&v1::Selection>) -> String {
    let mut text = String::new();
    let Some(v1::Selection { include, exclude }) = selection else {
        return text;
    };
    let include = include.iter().map(|rule| ('+', rule));
    let exclude = exclude.iter().map(|rule| ('-', rule));
    for (sign, v1::Rule { rule }) in include.chain(exclude) {
        if text.len() >= LONGEST {
            break;
        }
        let gap = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{gap}{sign}");
        push(&mut text, rule.as_ref());
    }
    text
}

/// The rules of a stream's selection, and its kernel tracepoints: `+all kernel:sched:sched_switch`.
pub(super) fn stream(selection: Option<&v1::Selection>, tracepoints: &[String]) -> String {
    let mut text = self::selection(selection);
    for name in tracepoints {
        if text.len() >= LONGEST {
            break;
        }
        let gap = if text.is_empty() { "" } else { " " };
        let start: String = name.chars().take(LONGEST).collect();
        let _ = write!(text, "{gap}kernel:{start}");
    }
    text
}

/// The selections of a trigger's conditions.
pub(super) fn trigger(request: &v1::TriggerRequest) -> String {
    use v1::trigger_condition::What;
    if let Some(v1::TriggerOfPolicy { policy, index, .. }) = &request.of_policy {
        return value(&("policy", policy, index));
    }
    let conditions = request.conditions.iter();
    selections(
        conditions.filter_map(|condition| match condition.what.as_ref()? {
            What::Duration(duration) => duration.selection.as_ref(),
            What::Rate(rate) => rate.selection.as_ref(),
            What::Call(selection) => Some(selection),
            What::Event(_) | What::Death(_) => None,
        }),
    )
}

/// A value in its debug form.
pub(super) fn value(value: &impl fmt::Debug) -> String {
    let mut text = Bounded(String::new());
    // Writing fails once the text is long enough.
    let _ = write!(text, "{value:?}");
    text.0
}

/// The settings to change, in the form in which they were sent.
pub(super) fn settings(settings: &v1::Settings) -> String {
    let v1::Settings {
        mode,
        filter,
        budget,
    } = settings;
    let mode = match v1::Mode::try_from(*mode) {
        Ok(v1::Mode::Unspecified) => None,
        Ok(mode) => Some(mode.as_str_name().to_owned()),
        Err(_) => Some(format!("mode {mode}")),
    };
    let mut text = Bounded(String::new());
    // Writing fails once the text is long enough.
    let _ = mode.map_or(Ok(()), |mode| write!(text, "{mode} "));
    let _ = filter
        .as_ref()
        .map_or(Ok(()), |filter| write!(text, "{filter:?} "));
    let _ = budget
        .as_ref()
        .map_or(Ok(()), |budget| write!(text, "{budget:?}"));
    text.0.truncate(text.0.trim_end().len());
    text.0
}

fn selections<'a>(all: impl Iterator<Item = &'a v1::Selection>) -> String {
    let mut text = String::new();
    for one in all {
        if text.len() >= LONGEST {
            break;
        }
        let gap = if text.is_empty() { "" } else { "; " };
        text.push_str(gap);
        text.push_str(&selection(Some(one)));
    }
    text
}

/// A text of at most about [`LONGEST`] bytes.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.0.len() >= LONGEST {
                return Err(fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}

fn push(text: &mut String, rule: Option<&Rule>) {
    let (kind, pattern) = match rule {
        None => ("nothing", None),
        Some(Rule::All(_)) => ("all", None),
        Some(Rule::Id(id)) => {
            let _ = write!(text, "id:{id}");
            return;
        }
        Some(Rule::AlwaysInstrumented(_)) => ("always_instrumented", None),
        Some(Rule::SmallerThan(bytes)) => {
            let _ = write!(text, "smaller_than:{bytes}");
            return;
        }
        Some(Rule::Function(name)) => ("function", Some(name)),
        Some(Rule::Glob(glob)) => ("glob", Some(glob)),
        Some(Rule::Regex(regex)) => ("regex", Some(regex)),
        Some(Rule::Module(module)) => ("module", Some(module)),
        Some(Rule::Source(source)) => ("source", Some(source)),
    };
    text.push_str(kind);
    if let Some(pattern) = pattern {
        text.push(':');
        text.extend(pattern.chars().take(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: Vec<Rule>) -> Vec<v1::Rule> {
        let rules = rules.into_iter();
        rules.map(|rule| v1::Rule { rule: Some(rule) }).collect()
    }

    #[test]
    fn a_selection_is_described_by_its_rules_and_bounded() {
        let short = v1::Selection {
            include: rules(vec![Rule::Glob("api::*".into()), Rule::Id(7)]),
            exclude: rules(vec![Rule::Function("ping".into()), Rule::All(true)]),
        };
        let expected = "+glob:api::* +id:7 -function:ping -all";
        assert_eq!(selection(Some(&short)), expected);
        assert_eq!(selection(None), "");
        let both = selections([&short, &short].into_iter());
        assert_eq!(both, format!("{expected}; {expected}"));
        let long = v1::Selection {
            include: rules(vec![Rule::Regex("é".repeat(4000)); 1000]),
            exclude: Vec::new(),
        };
        assert!(selection(Some(&long)).len() < 4 * LONGEST);
    }

    #[test]
    fn a_mode_that_nobody_knows_is_described_by_its_number() {
        let of_mode = |mode| {
            settings(&v1::Settings {
                mode,
                ..v1::Settings::default()
            })
        };
        assert_eq!(of_mode(0), "");
        assert_eq!(of_mode(v1::Mode::Flight.into()), "MODE_FLIGHT");
        assert_eq!(of_mode(4711), "mode 4711");
    }
}
