//! Conditions on the fields of custom and typed events: `--when` names the field, and
//! `--event-format` describes the data that it is in.

use xray_trace::event_format::{EventFormats, Literal, Relation};
use xrayd::trigger_text::WrittenComparison;
use xrayd_proto::v1::{
    self, TriggerCondition, field_comparison::Constant, trigger_condition::What,
};

use crate::condition::Condition;
use crate::failure::Failure;
use crate::user_events::{compared, format_of};

/// The condition as the daemon takes it; `None` for `demand`. Refuses a field that no description
/// has, or that cannot be compared in this way.
pub(super) fn on_the_wire(
    condition: &Condition,
    formats: &EventFormats,
) -> Result<Option<TriggerCondition>, Failure> {
    let mut wire = condition.wire.clone();
    if let Some((events, comparison)) = &condition.comparison {
        let written = format!("--when '{}'", condition.text);
        let format = format_of(&written, events, &comparison.field, formats)?;
        let WrittenComparison {
            field,
            relation,
            literal,
        } = comparison.clone();
        let constant = constant(&literal);
        compared(&written, format, &field, relation, literal)?;
        if let Some(TriggerCondition {
            what: Some(What::Event(event)),
        }) = &mut wire
        {
            event.comparison = Some(v1::FieldComparison {
                format: format.to_string(),
                field,
                relation: relation_on_the_wire(relation).into(),
                constant: Some(constant),
            });
        }
    }
    Ok(wire)
}

fn relation_on_the_wire(relation: Relation) -> v1::Relation {
    match relation {
        Relation::Less => v1::Relation::Less,
        Relation::AtMost => v1::Relation::AtMost,
        Relation::Equal => v1::Relation::Equal,
        Relation::NotEqual => v1::Relation::NotEqual,
        Relation::AtLeast => v1::Relation::AtLeast,
        Relation::Greater => v1::Relation::Greater,
    }
}

fn constant(literal: &Literal) -> Constant {
    match literal {
        Literal::Integer(number) => match (u64::try_from(*number), i64::try_from(*number)) {
            (Ok(number), _) => Constant::Unsigned(number),
            (_, Ok(number)) => Constant::Signed(number),
            // Beyond each integer, also if it is rounded.
            (Err(_), Err(_)) => Constant::Number(*number as f64),
        },
        Literal::Float(number) => Constant::Number(*number),
        Literal::Text(text) => Constant::Text(text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition;

    fn wire(condition: &str, format: &str) -> Result<v1::EventCondition, String> {
        let (events, fields) = format.split_once('=').unwrap();
        let formats = vec![(events.parse().unwrap(), fields.parse().unwrap())];
        let condition = condition::argument(condition).unwrap();
        match on_the_wire(&condition, &EventFormats::new(formats)) {
            Ok(Some(TriggerCondition {
                what: Some(What::Event(event)),
            })) => Ok(event),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn a_comparison_is_sent_with_the_description_of_the_same_events() {
        let format = "order=id:u64,pad2,price:f64,symbol:str4";
        for (condition, relation, constant) in [
            (
                "id > 18446744073709551615",
                v1::Relation::Greater,
                Constant::Unsigned(u64::MAX),
            ),
            ("id != -1", v1::Relation::NotEqual, Constant::Signed(-1)),
            (
                "id <= 18446744073709551616",
                v1::Relation::AtMost,
                Constant::Number(18_446_744_073_709_551_616.0),
            ),
            ("price >= 0.5", v1::Relation::AtLeast, Constant::Number(0.5)),
            ("price < 1", v1::Relation::Less, Constant::Unsigned(1)),
            (
                "symbol == \"AB\"",
                v1::Relation::Equal,
                Constant::Text("AB".to_owned()),
            ),
        ] {
            let event = wire(&format!("event(order).{condition}"), format).unwrap();
            let comparison = event.comparison.unwrap();
            assert_eq!(comparison.format, "id:u64,pad2,price:f64,symbol:str4");
            assert_eq!(comparison.relation(), relation, "{condition}");
            assert_eq!(comparison.constant, Some(constant), "{condition}");
        }
        assert_eq!(wire("event(7)", format).unwrap().comparison, None);
    }

    #[test]
    fn a_field_without_a_description_is_refused() {
        for (condition, problem) in [
            (
                "event(7).price > 1",
                "--when 'event(7).price > 1': no --event-format describes the data of event(7)",
            ),
            ("event(order).prise > 1", "did you mean price?"),
            (
                "event(order).price > \"x\"",
                "the field 'price' is a number",
            ),
        ] {
            let refused = wire(condition, "order=price:u8").unwrap_err();
            assert!(refused.contains(problem), "{condition}: {refused}");
        }
    }
}
