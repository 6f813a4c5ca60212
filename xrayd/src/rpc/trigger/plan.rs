//! The plan of a trigger, from the client's first message: its conditions, and its actions. The
//! ranges are checked here.

use std::time::Duration;

use xray_trace::{
    event_format::{
        EventCondition, EventFormatError, EventsOf, FieldComparison, Literal, MOST_FIELD_BYTES,
        Relation,
    },
    instr_map::Selection,
};
use xrayd_proto::v1::{
    self, death_condition::How, event_condition::Which, field_comparison::Constant,
    trigger_condition::What, trigger_switch::Switch,
};

use crate::{
    policies::TriggerSpec,
    process::{Registry, Toggle},
    refusal::{Reason, Refusal},
    rpc::{authorise::Targets, convert::selection},
    target::Caller,
    triggers::{CallTime, Condition, DeathWanted, LONGEST_AFTER, MOST_CONDITIONS, MOST_FIRINGS},
    types::{Capture, LeaseId, Run, Wanted},
};

/// Limit on selections that one trigger switches.
const MOST_SWITCHES: usize = 16;

/// The longest description of the fields of an event, in bytes.
const LONGEST_FORMAT: usize = 16_384;

/// The longest name of a compared field, in bytes.
const LONGEST_NAME: usize = 1024;

/// The longest text that a field is compared with, in bytes: the most bytes of a field, in
/// hexadecimal digits behind `0x`.
const LONGEST_TEXT: usize = 2 + 2 * MOST_FIELD_BYTES;

/// Conditions and actions of a trigger.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) whom: Targets,
    pub(crate) conditions: Vec<Condition>,
    pub(super) switches: Vec<Switching>,
    pub(super) snapshot: Option<SnapshotPlan>,
    pub(crate) limit: u32,
    /// The period of the limit. `None`: the limit is for the whole call.
    pub(super) period: Option<Duration>,
    pub(super) expire: Option<Duration>,
}

/// Functions that are switched when the trigger fires.
#[derive(Debug, Clone)]
pub(super) struct Switching {
    selection: Selection,
    to: Wanted,
}

/// The processes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The processes of the request.
    Targets,
    /// All processes that the caller may read.
    All,
    /// The process that met the condition.
    Matching,
}

/// The time and the processes of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SnapshotPlan {
    pub(super) whose: Whose,
    /// Time before the moment. `None`: all that is there.
    pub(super) before: Option<Duration>,
    pub(super) after: Duration,
}

// === impl Plan ===

impl TryFrom<v1::TriggerRequest> for Plan {
    type Error = Refusal;

    fn try_from(request: v1::TriggerRequest) -> Result<Self, Refusal> {
        let v1::TriggerRequest {
            pid,
            conditions,
            switches,
            snapshot,
            limit,
            limit_period_ns,
            expire_ns,
            fire,
            of_policy: _,
        } = request;
        if fire {
            return Err(limit_of(
                "the first message of a trigger must not have `fire` set",
            ));
        }
        let limit = if limit == 0 { 1 } else { limit };
        if limit > MOST_FIRINGS {
            return Err(limit_of(&format!(
                "a trigger can fire at most {MOST_FIRINGS} times"
            )));
        }
        // Checked before the conditions are converted, because each may have a thousand patterns.
        if conditions.len() > MOST_CONDITIONS {
            return Err(limit_of(&format!(
                "a trigger can have at most {MOST_CONDITIONS} conditions; arm another trigger for \
                 the others"
            )));
        }
        if switches.len() > MOST_SWITCHES {
            return Err(limit_of(&format!(
                "a trigger can switch at most {MOST_SWITCHES} selections; a selection can have \
                 many patterns"
            )));
        }
        Ok(Self {
            whom: Targets::try_from(pid)?,
            conditions: conditions
                .into_iter()
                .map(condition)
                .collect::<Result<_, _>>()?,
            switches: switches
                .into_iter()
                .map(switching)
                .collect::<Result<_, _>>()?,
            snapshot: snapshot.map(SnapshotPlan::try_from).transpose()?,
            limit,
            period: nanoseconds(limit_period_ns),
            expire: nanoseconds(expire_ns),
        })
    }
}

impl Plan {
    /// The plan of a trigger of the policy with this lease.
    pub(in crate::rpc) fn of_policy(policy: LeaseId, trigger: &TriggerSpec) -> Self {
        let TriggerSpec {
            when: _,
            event_formats: _,
            conditions,
            before,
            after,
            limit,
            period,
        } = trigger;
        Self {
            whom: Targets::OfPolicy(policy),
            conditions: conditions.clone(),
            switches: Vec::new(),
            snapshot: Some(SnapshotPlan {
                whose: Whose::Matching,
                before: *before,
                after: *after,
            }),
            limit: *limit,
            period: Some(*period),
            expire: None,
        }
    }
}

#[cfg(fuzzing)]
impl Plan {
    /// Compiles the selections to switch.
    pub(crate) fn compile_switches(&self, registry: &Registry, caller: Caller) {
        for switching in &self.switches {
            let _ = switching.toggle(registry, caller);
        }
    }
}

// === impl Switching ===

impl Switching {
    /// The toggle, as a request for it would make it.
    pub(super) fn toggle(&self, registry: &Registry, caller: Caller) -> Result<Toggle, Refusal> {
        let patterns = registry.compile(caller.payer(), &self.selection)?;
        Ok(Toggle::Functions(patterns, self.to.into(), Run::Real))
    }
}

// === impl SnapshotPlan ===

impl TryFrom<v1::SnapshotWanted> for SnapshotPlan {
    type Error = Refusal;

    fn try_from(wanted: v1::SnapshotWanted) -> Result<Self, Refusal> {
        let v1::SnapshotWanted {
            all_processes,
            before_ns,
            after_ns,
        } = wanted;
        let after = Duration::from_nanos(after_ns);
        if after > LONGEST_AFTER {
            return Err(limit_of(&format!(
                "a snapshot can extend at most {LONGEST_AFTER:?} beyond the moment that it is about"
            )));
        }
        Ok(Self {
            whose: match all_processes {
                true => Whose::All,
                false => Whose::Targets,
            },
            before: nanoseconds(before_ns),
            after,
        })
    }
}

fn condition(condition: v1::TriggerCondition) -> Result<Condition, Refusal> {
    let v1::TriggerCondition { what } = condition;
    Ok(
        match what.ok_or_else(|| limit_of("a condition is empty"))? {
            What::Duration(v1::DurationCondition {
                selection: of,
                at_least_ns,
                time,
            }) => Condition::Duration {
                of: required(of)?,
                time: call_time(time)?,
                at_least: Duration::from_nanos(at_least_ns),
            },
            What::Call(of) => Condition::Call(selection(of)?),
            What::Rate(v1::RateCondition {
                selection: of,
                at_least,
            }) => Condition::Rate {
                of: required(of)?,
                at_least,
            },
            What::Event(event) => Condition::Event(event_condition(event)?),
            What::Death(v1::DeathCondition { how }) => Condition::Death(match how {
                Some(How::AnySignal(true)) => DeathWanted::AnySignal,
                Some(How::Signal(signal)) if signal > 0 => DeathWanted::Signal(signal),
                Some(How::AnyEnd(true)) => DeathWanted::AnyEnd,
                _ => return Err(limit_of("a death condition names no kind of end")),
            }),
        },
    )
}

fn event_condition(condition: v1::EventCondition) -> Result<EventCondition, Refusal> {
    let v1::EventCondition { which, comparison } = condition;
    let events = match which {
        Some(Which::Custom(true)) => EventsOf::Custom,
        Some(Which::Type(number)) => EventsOf::Number(
            u16::try_from(number)
                .map_err(|_| limit_of("the type of an event must fit into 16 bits"))?,
        ),
        Some(Which::Name(name)) if !name.is_empty() => EventsOf::Name(name),
        Some(Which::Custom(false) | Which::Name(_)) | None => {
            return Err(limit_of("an event condition names no event"));
        }
    };
    let condition = EventCondition::of_type(events);
    Ok(match comparison {
        None => condition,
        Some(comparison) => condition.with_field(field_comparison(comparison)?),
    })
}

fn field_comparison(comparison: v1::FieldComparison) -> Result<FieldComparison, Refusal> {
    let v1::FieldComparison {
        format,
        field,
        relation,
        constant,
    } = comparison;
    if field.len() > LONGEST_NAME {
        return Err(limit_of(&format!(
            "the name of a field can have at most {LONGEST_NAME} bytes"
        )));
    }
    if format.len() > LONGEST_FORMAT {
        return Err(limit_of(&format!(
            "the description of the fields of an event can have at most {LONGEST_FORMAT} bytes"
        )));
    }
    let relation = match v1::Relation::try_from(relation) {
        Ok(v1::Relation::Less) => Relation::Less,
        Ok(v1::Relation::AtMost) => Relation::AtMost,
        Ok(v1::Relation::Equal) => Relation::Equal,
        Ok(v1::Relation::NotEqual) => Relation::NotEqual,
        Ok(v1::Relation::AtLeast) => Relation::AtLeast,
        Ok(v1::Relation::Greater) => Relation::Greater,
        Ok(v1::Relation::Unspecified) | Err(_) => {
            return Err(limit_of("a comparison of a field has no known `relation`"));
        }
    };
    let literal = match constant {
        Some(Constant::Unsigned(number)) => Literal::Integer(number.into()),
        Some(Constant::Signed(number)) => Literal::Integer(number.into()),
        Some(Constant::Number(number)) if !number.is_nan() => Literal::Float(number),
        Some(Constant::Text(text)) if text.len() <= LONGEST_TEXT => Literal::Text(text),
        Some(Constant::Text(_)) => {
            return Err(limit_of(&format!(
                "the text that a field is compared with can have at most {LONGEST_TEXT} bytes"
            )));
        }
        Some(Constant::Number(_)) | None => {
            return Err(limit_of(
                "a comparison of a field needs a number or a text to compare it with",
            ));
        }
    };
    let format = format.parse();
    let format = format.map_err(|error: EventFormatError| limit_of(&error.to_string()))?;
    let comparison = FieldComparison::new(format, &field, relation, literal);
    comparison.map_err(|error| limit_of(&error.to_string()))
}

fn call_time(time: i32) -> Result<CallTime, Refusal> {
    match v1::CallTime::try_from(time) {
        Ok(v1::CallTime::Unspecified | v1::CallTime::Duration) => Ok(CallTime::Duration),
        Ok(v1::CallTime::OnCpu) => Ok(CallTime::OnCpu),
        Ok(v1::CallTime::OffCpu) => Ok(CallTime::OffCpu),
        Err(_) => Err(limit_of("a duration condition has an unknown `time`")),
    }
}

fn switching(switch: v1::TriggerSwitch) -> Result<Switching, Refusal> {
    let v1::TriggerSwitch { switch } = switch;
    let (of, to) = match switch {
        Some(Switch::Enable(of)) => (of, Wanted::On(Capture::NONE)),
        Some(Switch::Disable(of)) => (of, Wanted::Off),
        None => return Err(limit_of("a switch is empty")),
    };
    Ok(Switching {
        selection: selection(of)?,
        to,
    })
}

fn required(of: Option<v1::Selection>) -> Result<Selection, Refusal> {
    let missing = || {
        Refusal::new(
            Reason::Selection,
            "a duration or rate condition has no selection",
        )
    };
    of.ok_or_else(missing).and_then(selection)
}

fn nanoseconds(ns: u64) -> Option<Duration> {
    (ns > 0).then(|| Duration::from_nanos(ns))
}

fn limit_of(message: &str) -> Refusal {
    Refusal::new(Reason::Limit, message)
}

#[cfg(test)]
mod tests {
    use xray_trace::event_format::{RecordedData, TypeOfEvent};

    use super::*;

    fn request() -> v1::TriggerRequest {
        v1::TriggerRequest::default()
    }

    #[test]
    fn zeros_mean_once_and_without_an_end() {
        let plan = Plan::try_from(request()).unwrap();
        assert_eq!((plan.limit, plan.period, plan.expire), (1, None, None));
        assert_eq!(plan.whom, Targets::All);
        assert!(plan.snapshot.is_none() && plan.conditions.is_empty());
    }

    #[test]
    fn too_many_conditions_and_switches_are_refused() {
        let conditions = |count| v1::TriggerRequest {
            conditions: vec![v1::TriggerCondition::default(); count],
            ..request()
        };
        let switches = |count| v1::TriggerRequest {
            switches: vec![v1::TriggerSwitch::default(); count],
            ..request()
        };
        for (request, expected) in [
            (conditions(MOST_CONDITIONS), "a condition is empty"),
            (
                conditions(MOST_CONDITIONS + 1),
                "a trigger can have at most 8 conditions",
            ),
            (switches(MOST_SWITCHES), "a switch is empty"),
            (
                switches(MOST_SWITCHES + 1),
                "a trigger can switch at most 16 selections",
            ),
        ] {
            let refusal = Plan::try_from(request).unwrap_err();
            assert_eq!(refusal.reason, Reason::Limit);
            assert!(refusal.message.starts_with(expected), "{refusal:?}");
        }
    }

    /// A condition on the events 7, with this comparison.
    fn compared(comparison: v1::FieldComparison) -> Result<Condition, Refusal> {
        condition(v1::TriggerCondition {
            what: Some(What::Event(v1::EventCondition {
                which: Some(Which::Type(7)),
                comparison: Some(comparison),
            })),
        })
    }

    #[test]
    fn a_comparison_of_a_field_is_understood() {
        for (relation, constant, below, at, above) in [
            (
                v1::Relation::Less,
                Constant::Unsigned(5),
                true,
                false,
                false,
            ),
            (v1::Relation::AtMost, Constant::Signed(5), true, true, false),
            (
                v1::Relation::Equal,
                Constant::Number(5.0),
                false,
                true,
                false,
            ),
            (
                v1::Relation::NotEqual,
                Constant::Unsigned(5),
                true,
                false,
                true,
            ),
            (
                v1::Relation::AtLeast,
                Constant::Number(4.5),
                false,
                true,
                true,
            ),
            (
                v1::Relation::Greater,
                Constant::Signed(5),
                false,
                false,
                true,
            ),
        ] {
            let condition = compared(v1::FieldComparison {
                format: "pad1,price:u8".to_owned(),
                field: "price".to_owned(),
                relation: relation.into(),
                constant: Some(constant),
            });
            let Ok(Condition::Event(wanted)) = condition else {
                panic!("{condition:?}");
            };
            let holds = [4, 5, 6].map(|price| {
                wanted.holds(
                    TypeOfEvent::Typed(7, None),
                    RecordedData::whole(&[0, price]),
                )
            });
            assert_eq!(holds, [below, at, above], "{relation:?}");
            assert!(!wanted.holds(TypeOfEvent::Typed(8, None), RecordedData::whole(&[0, 5])));
        }
    }

    #[test]
    fn a_bad_comparison_of_a_field_is_refused() {
        let good = || v1::FieldComparison {
            format: "price:u8,symbol:str".to_owned(),
            field: "price".to_owned(),
            relation: v1::Relation::Less.into(),
            constant: Some(Constant::Unsigned(5)),
        };
        assert!(compared(good()).is_ok());
        let text = |length| Some(Constant::Text("x".repeat(length)));
        let mut far = good();
        far.field = "x".repeat(LONGEST_NAME + 1);
        let of_symbol = |constant| v1::FieldComparison {
            field: "symbol".to_owned(),
            relation: v1::Relation::Equal.into(),
            constant,
            ..good()
        };
        assert!(compared(of_symbol(text(MOST_FIELD_BYTES))).is_ok());
        let mut long = good();
        long.format = format!("{}:u8,price:u8", "x".repeat(LONGEST_FORMAT));
        for (comparison, problem) in [
            (long, "at most 16384 bytes"),
            (far, "at most 1024 bytes"),
            (of_symbol(text(LONGEST_TEXT)), "never has this text"),
            (of_symbol(text(LONGEST_TEXT + 1)), "at most 8194 bytes"),
            (of_symbol(Some(Constant::Unsigned(1))), "is no number"),
            (
                v1::FieldComparison {
                    format: String::new(),
                    ..good()
                },
                "not NAME:KIND",
            ),
            (
                v1::FieldComparison {
                    field: "prize".to_owned(),
                    ..good()
                },
                "no field 'prize'",
            ),
            (
                v1::FieldComparison {
                    relation: 0,
                    ..good()
                },
                "no known `relation`",
            ),
            (
                v1::FieldComparison {
                    relation: 7,
                    ..good()
                },
                "no known `relation`",
            ),
            (
                v1::FieldComparison {
                    constant: None,
                    ..good()
                },
                "a number or a text",
            ),
            (
                v1::FieldComparison {
                    constant: Some(Constant::Number(f64::NAN)),
                    ..good()
                },
                "a number or a text",
            ),
        ] {
            let refusal = compared(comparison).unwrap_err();
            assert_eq!(refusal.reason, Reason::Limit);
            assert!(refusal.message.contains(problem), "{refusal:?}");
        }
    }

    #[test]
    fn an_empty_plan_is_refused() {
        let of = |what| v1::TriggerCondition { what };
        let event = |which| {
            of(Some(What::Event(v1::EventCondition {
                which,
                comparison: None,
            })))
        };
        let death = |how| of(Some(What::Death(v1::DeathCondition { how })));
        let bad = [
            of(None),
            of(Some(What::Call(v1::Selection::default()))),
            of(Some(What::Duration(v1::DurationCondition::default()))),
            of(Some(What::Duration(v1::DurationCondition {
                selection: Some(v1::Selection {
                    include: vec![v1::Rule {
                        rule: Some(v1::rule::Rule::All(true)),
                    }],
                    ..v1::Selection::default()
                }),
                time: 4,
                ..v1::DurationCondition::default()
            }))),
            of(Some(What::Rate(v1::RateCondition::default()))),
            event(None),
            event(Some(Which::Custom(false))),
            event(Some(Which::Type(1 << 16))),
            event(Some(Which::Name(String::new()))),
            death(None),
            death(Some(How::AnySignal(false))),
            death(Some(How::Signal(0))),
        ];
        for condition in bad {
            let mut request = request();
            request.conditions.push(condition.clone());
            assert!(Plan::try_from(request).is_err(), "{condition:?}");
        }
        let mut fires = request();
        fires.fire = true;
        let mut often = request();
        often.limit = MOST_FIRINGS + 1;
        let mut long = request();
        long.snapshot = Some(v1::SnapshotWanted {
            after_ns: 61_000_000_000,
            ..v1::SnapshotWanted::default()
        });
        let mut nothing = request();
        nothing.switches.push(v1::TriggerSwitch { switch: None });
        for request in [fires, often, long, nothing] {
            assert_eq!(Plan::try_from(request).unwrap_err().reason, Reason::Limit);
        }
    }
}
