//! Conditions on custom and typed events, as they are written for `--where` and for triggers:
//!
//! ```text
//!  event(custom | NUMBER | NAME)     event(…).FIELD RELATION NUMBER | "TEXT"
//! ```
//!
//! RELATION is `>`, `>=`, `<`, `<=`, `==` or `!=`. A text begins and ends with a quotation mark,
//! and may contain others.

use std::fmt;

use xray_trace::event_format::{EventsOf, EventsOfError, Literal, Relation};

use super::rest::{Parsed, Rest};

/// A condition on events, as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenEventCondition {
    /// The text that it was parsed from.
    pub text: String,
    /// The events that it is about.
    pub events: EventsOf,
    /// `None` for a condition that all of these events meet.
    pub comparison: Option<WrittenComparison>,
}

/// A comparison of a field with a constant.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenComparison {
    /// The name of the field.
    pub field: String,
    /// How it is compared.
    pub relation: Relation,
    /// What it is compared with.
    pub literal: Literal,
}

/// The relations. A longer one comes before a shorter one with the same begin.
const RELATIONS: [(&str, Relation); 6] = [
    (">=", Relation::AtLeast),
    (">", Relation::Greater),
    ("<=", Relation::AtMost),
    ("<", Relation::Less),
    ("==", Relation::Equal),
    ("!=", Relation::NotEqual),
];

/// Parses a condition on events.
///
/// # Errors
/// The first problem, and its column.
pub fn parse_event_condition(text: &str) -> Parsed<WrittenEventCondition> {
    let rest = Rest::of(text).trimmed();
    let (word, rest) = rest.word();
    if word.text() != "event" {
        return Err(word.error("expected event(…), like 'event(order).price > 100'".to_owned()));
    }
    let (events, comparison) = events_behind(rest)?;
    Ok(WrittenEventCondition {
        text: text.trim().to_owned(),
        events,
        comparison,
    })
}

/// Parses what follows on the word `event`, up to the end of the text: the events, and the
/// comparison of a field.
pub(super) fn events_behind(rest: Rest<'_>) -> Parsed<(EventsOf, Option<WrittenComparison>)> {
    let (inner, rest) = rest.parenthesised("event(custom), event(NUMBER) or event(NAME)")?;
    let events = inner.text().parse();
    let events = events.map_err(|error: EventsOfError| inner.error(error.to_string()))?;
    let rest = rest.trimmed();
    let comparison = match rest.text() {
        "" => None,
        text if text.starts_with('.') => Some(comparison(rest.after(1))?),
        other => {
            let what = format!("expected . and the name of a field, not {other:?}");
            return Err(rest.error(what));
        }
    };
    Ok((events, comparison))
}

fn comparison(rest: Rest<'_>) -> Parsed<WrittenComparison> {
    let (field, rest) = rest.word();
    if field.text().is_empty() {
        return Err(field.error("expected the name of a field".to_owned()));
    }
    let rest = rest.trimmed();
    let mut relations = RELATIONS.iter();
    let found = relations.find(|(sign, _)| rest.text().starts_with(sign));
    let Some((sign, relation)) = found else {
        return Err(rest.error("expected >, >=, <, <=, == or !=".to_owned()));
    };
    let value = rest.after(sign.len()).trimmed();
    Ok(WrittenComparison {
        field: field.text().to_owned(),
        relation: *relation,
        literal: literal(value)?,
    })
}

fn literal(value: Rest<'_>) -> Parsed<Literal> {
    let text = value.text().trim_end();
    if let Some(begun) = text.strip_prefix('"') {
        let quoted = begun.strip_suffix('"');
        let quoted =
            quoted.ok_or_else(|| value.error("this quotation mark is not closed".to_owned()));
        return quoted.map(|quoted| Literal::Text(quoted.to_owned()));
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number = digits.starts_with(|first: char| first.is_ascii_digit());
    let integer = text.parse().ok().map(Literal::Integer);
    let float = text.parse().ok().filter(|number: &f64| number.is_finite());
    let number = integer
        .or_else(|| float.map(Literal::Float))
        .filter(|_| number);
    number.ok_or_else(|| {
        let what = "expected a number, like 100 or 0.5, or a text in quotation marks, like \"AB\"";
        value.error(what.to_owned())
    })
}

// === impl WrittenComparison ===

impl fmt::Display for WrittenComparison {
    /// The comparison as it is written, with a blank on each side of the relation.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut relations = RELATIONS.iter();
        let found = relations.find(|(_, relation)| *relation == self.relation);
        let sign = found.map_or("", |(sign, _)| sign);
        write!(out, "{} {sign} ", self.field)?;
        match &self.literal {
            Literal::Integer(number) => write!(out, "{number}"),
            Literal::Float(number) => write!(out, "{number:?}"),
            Literal::Text(text) => write!(out, "\"{text}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        let name = |name: &str| EventsOf::Name(name.to_owned());
        let text = |text: &str| Literal::Text(text.to_owned());
        for (written, events, comparison) in [
            ("event(order)", name("order"), None),
            (" event ( 7 ) ", EventsOf::Number(7), None),
            (
                "event(order).price > 100",
                name("order"),
                Some(("price", Relation::Greater, Literal::Integer(100))),
            ),
            (
                "event(custom).a_1>=-0.5",
                EventsOf::Custom,
                Some(("a_1", Relation::AtLeast, Literal::Float(-0.5))),
            ),
            (
                "event(\"7\").a < 1e3",
                name("7"),
                Some(("a", Relation::Less, Literal::Float(1000.0))),
            ),
            (
                "event(a (b)) .c <=+4",
                name("a (b)"),
                Some(("c", Relation::AtMost, Literal::Integer(4))),
            ),
            (
                "event(order).symbol == \"A\"B\" ",
                name("order"),
                Some(("symbol", Relation::Equal, text("A\"B"))),
            ),
            (
                "event(order).symbol != \"\"",
                name("order"),
                Some(("symbol", Relation::NotEqual, text(""))),
            ),
        ] {
            let comparison = comparison.map(|(field, relation, literal)| WrittenComparison {
                field: field.to_owned(),
                relation,
                literal,
            });
            let expected = WrittenEventCondition {
                text: written.trim().to_owned(),
                events,
                comparison,
            };
            assert_eq!(parse_event_condition(written), Ok(expected), "{written}");
        }
    }

    #[test]
    fn a_comparison_is_displayed_as_it_is_read() {
        for (written, shown) in [
            ("event(order).price>100", "price > 100"),
            ("event(7).a<=  -0.50", "a <= -0.5"),
            ("event(7).a == \"x\"y\"", "a == \"x\"y\""),
            ("event(7).a != 1e300", "a != 1e300"),
        ] {
            let comparison = parse_event_condition(written).unwrap().comparison.unwrap();
            assert_eq!(comparison.to_string(), shown);
            let again = parse_event_condition(&format!("event(7).{shown}"))
                .unwrap()
                .comparison;
            assert_eq!(again, Some(comparison));
        }
    }

    #[test]
    fn a_problem_has_its_column() {
        for (text, problem) in [
            ("", "column 1: expected event(…)"),
            ("order.price > 1", "column 1: expected event(…)"),
            ("event", "column 6: expected event(custom)"),
            ("event(", "column 6: this parenthesis is not closed"),
            ("event()", "column 7: expected event(custom)"),
            (
                "event(65536)",
                "column 7: expected the number of an event type",
            ),
            (
                "event(\"\")",
                "column 7: expected the name of an event type",
            ),
            (
                "event(a) > 1",
                "column 10: expected . and the name of a field",
            ),
            ("event(a).", "column 10: expected the name of a field"),
            ("event(a).b", "column 11: expected >, >="),
            ("event(a).b = 1", "column 12: expected >, >="),
            ("event(é).b >", "column 13: expected a number"),
            ("event(a).b > x", "column 14: expected a number"),
            ("event(a).b > nan", "column 14: expected a number"),
            ("event(a).b > -inf", "column 14: expected a number"),
            ("event(a).b > 1e999", "column 14: expected a number"),
            ("event(a).b > 1 2", "column 14: expected a number"),
            (
                "event(a).b == \"",
                "column 15: this quotation mark is not closed",
            ),
            (
                "event(a).b == \"x\" y",
                "column 15: this quotation mark is not closed",
            ),
        ] {
            let refused = parse_event_condition(text).unwrap_err().to_string();
            assert!(refused.starts_with(problem), "{text}: {refused}");
        }
    }
}
