//! The command line of `xrayctl`: conditions of triggers and of events, limits, selectors, times,
//! sizes. Policies, which have these in a file, and rules of access.
//!
//! `xrayctl` has no library, so the target compiles the files that it needs.
#![no_main]
#![expect(dead_code, reason = "of the files of xrayctl, a part is used here")]

#[path = "../../xrayctl/src/condition.rs"]
mod condition;
#[path = "../../xrayctl/src/failure.rs"]
mod failure;
#[path = "../../xrayctl/src/selectors/patterns.rs"]
mod patterns;
#[path = "../../xrayctl/src/output/text.rs"]
mod text;
#[path = "../../xrayctl/src/output/units.rs"]
mod units;
#[path = "../../xrayctl/src/values.rs"]
mod values;

/// The path by which those files import `text` and `units`.
mod output {
    pub(crate) use super::{text, units};
}

/// The path by which they import the conversion of a selection.
mod selectors {
    pub(crate) use super::patterns::wire;
}

use clap::Parser as _;
use libfuzzer_sys::fuzz_target;

use patterns::Patterns;
use values::Values;
use xrayd::access::Rules;
use xrayd::policies::PolicySpec;
use xrayd::trigger_text::{parse_condition, parse_event_condition, parse_limit};
use xrayd::{Mistake, parse};

#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    patterns: Patterns,
    #[command(flatten)]
    values: Values,
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match kind % 6 {
        0 => condition(text),
        1 => selection(text),
        2 => pattern(text),
        3 => numbers(text),
        5 => file(text),
        _ => event_condition(text),
    }
});

fn condition(text: &str) {
    let parsed = parse_condition(text);
    match &parsed {
        Ok(condition) => {
            assert_eq!(condition.text, text.trim());
            // A condition is shown as this text, so the parser has to read it as the same one.
            let again = parse_condition(&condition.text).expect("it was read before");
            assert_eq!(again.form, condition.form);
        }
        Err(error) => check_column(text, &error.to_string()),
    }
    assert_eq!(parsed.is_ok(), condition::argument(text).is_ok());
}

fn event_condition(text: &str) {
    match parse_event_condition(text) {
        Ok(condition) => {
            let again = parse_event_condition(&condition.text).expect("it was read before");
            assert_eq!(again, condition);
            let events = condition.events.to_string();
            assert_eq!(events.parse(), Ok(condition.events));
        }
        Err(error) => check_column(text, &error.to_string()),
    }
}

/// An error begins with a column of the text, or the one behind it.
fn check_column(text: &str, error: &str) {
    let places = 1..=text.chars().count() + 1;
    let column = error
        .strip_prefix("column ")
        .and_then(|rest| rest.split_once(':'));
    let column = column.and_then(|(column, _)| column.parse().ok());
    assert!(
        column.is_some_and(|column| places.contains(&column)),
        "{error}"
    );
}

fn selection(text: &str) {
    let Ok(line) = Line::try_parse_from(text.split('\n')) else {
        return;
    };
    let _ = line.values.capture();
    let (include, exclude) = (line.patterns.include(), line.patterns.exclude());
    let rules = (include.len(), exclude.len());
    let Ok(selection) = patterns::checked(include, exclude) else {
        return;
    };
    let wire = patterns::wire(selection);
    assert_eq!((wire.include.len(), wire.exclude.len()), rules);
}

fn pattern(text: &str) {
    if let Ok(selection) = patterns::pattern(text) {
        assert_eq!(patterns::wire(selection).include.len(), 1);
    }
    let shown = output::text::printable(text);
    assert!(!shown.contains(char::is_control));
    assert!(output::text::cut(&shown, 7).chars().count() <= 7);
    let words = output::text::wrap(text, 9);
    let words = words.iter().flat_map(|line| line.split_whitespace());
    assert!(words.eq(text.split_whitespace()));
}

/// A policy, or rules of access. A wrong file has a mistake, and each mistake is in the text or
/// right behind it.
fn file(text: &str) {
    let policy = PolicySpec::parse(text).err();
    let rules = Rules::parse(text).err();
    let lines = 1..=text.split('\n').count();
    for mistakes in [policy, rules].into_iter().flatten() {
        let is_inside = |it: &Mistake| lines.contains(&it.line) && it.column > 0;
        assert!(!mistakes.is_empty() && mistakes.iter().all(is_inside));
    }
}

fn numbers(text: &str) {
    let _ = parse::pattern(text);
    let _ = parse::follow(text);
    let _ = parse::mode(text);
    let _ = parse_limit(text);
    if let Ok(size) = parse::ring_size(text) {
        assert!(size.is_power_of_two());
    }
    if let Ok(share) = parse::percent(text) {
        assert!((100..=1_000_000).contains(&share));
    }
    if let Ok((on, every)) = parse::duty(text) {
        assert!(on < every);
    }
    assert!(parse::positive_duration(text).is_err() || parse::duration(text).is_ok());
}
