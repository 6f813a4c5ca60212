//! The conditions of `xrayctl trigger`: their meaning in words, and as the daemon takes them.
//! [`xrayd::trigger_text`] parses them.

use nix::sys::signal::Signal;
use serde::Serialize;
use xray_trace::event_format::EventsOf;
use xrayd::trigger_text::{Bound, Form, WrittenComparison, parse_condition};
use xrayd::triggers::{self, DeathWanted};
use xrayd_proto::v1::{
    CallTime, DeathCondition, DurationCondition, EventCondition, RateCondition, TriggerCondition,
    death_condition::How, event_condition::Which, trigger_condition::What,
};

use crate::output::units;
use crate::selectors;

/// A condition, and the text that it was parsed from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Condition {
    pub(crate) text: String,
    /// The condition as it was understood, and what it waits for.
    pub(crate) awaited: Awaited,
    /// `None` for `demand`: the trigger fires on request. A comparison of a field is missing in it.
    pub(crate) wire: Option<TriggerCondition>,
    /// The comparison of a field of these events, which needs a description of their data.
    pub(crate) comparison: Option<(EventsOf, WrittenComparison)>,
}

/// A condition as it was understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Awaited {
    /// With a unit at each number: `duration(f) > 10 ms`.
    pub(crate) condition: String,
    /// The event that it waits for, in words.
    pub(crate) meaning: String,
}

/// Parses a condition for clap.
pub(crate) fn argument(text: &str) -> Result<Condition, String> {
    let written = parse_condition(text).map_err(|error| error.to_string())?;
    let (awaited, wire) = (Awaited::of(&written.form), wire(&written.form));
    let comparison = match written.form {
        Form::Event(events, Some(comparison)) => Some((events, comparison)),
        _ => None,
    };
    Ok(Condition {
        text: written.text,
        awaited,
        wire: wire.map(|what| TriggerCondition { what: Some(what) }),
        comparison,
    })
}

fn wire(form: &Form) -> Option<What> {
    Some(match form {
        Form::CallTime {
            measured,
            of,
            bound,
            time,
        } => What::Duration(DurationCondition {
            selection: Some(selectors::wire(of.selection.clone())),
            at_least_ns: bound.least(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            time: match measured {
                triggers::CallTime::Duration => CallTime::Duration,
                triggers::CallTime::OnCpu => CallTime::OnCpu,
                triggers::CallTime::OffCpu => CallTime::OffCpu,
            }
            .into(),
        }),
        Form::Call(of) => What::Call(selectors::wire(of.selection.clone())),
        Form::Rate { of, bound, calls } => What::Rate(RateCondition {
            selection: Some(selectors::wire(of.selection.clone())),
            at_least: bound.least(*calls),
        }),
        Form::Event(events, _) => What::Event(EventCondition {
            which: Some(match events {
                EventsOf::Custom => Which::Custom(true),
                EventsOf::Number(number) => Which::Type((*number).into()),
                EventsOf::Name(name) => Which::Name(name.clone()),
            }),
            comparison: None,
        }),
        Form::Death(wanted, _) => What::Death(DeathCondition {
            how: Some(match wanted {
                DeathWanted::AnySignal => How::AnySignal(true),
                DeathWanted::Signal(signal) => How::Signal(*signal),
                DeathWanted::AnyEnd => How::AnyEnd(true),
            }),
        }),
        Form::Demand => return None,
    })
}

// === impl Awaited ===

impl Awaited {
    fn of(form: &Form) -> Self {
        let (condition, meaning) = match form {
            Form::CallTime {
                measured,
                of,
                bound,
                time,
            } => {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                let (word, sign, time) = (measured.name(), bound.sign(), units::exact_time(ns));
                let long = match bound {
                    Bound::AtLeast => format!("{time} or longer"),
                    Bound::MoreThan => format!("longer than {time}"),
                };
                let took = match measured {
                    triggers::CallTime::Duration => format!("took {long}"),
                    triggers::CallTime::OnCpu => format!("had a processor for {long}"),
                    triggers::CallTime::OffCpu => format!("had no processor for {long}"),
                };
                let name = &of.text;
                (
                    format!("{word}({name}) {sign} {time}"),
                    format!("a call of {name} ends that {took}"),
                )
            }
            Form::Call(of) => {
                let name = &of.text;
                (format!("call({name})"), format!("a call of {name} begins"))
            }
            Form::Rate { of, bound, calls } => {
                let (name, sign) = (&of.text, bound.sign());
                let many = match bound {
                    Bound::AtLeast => format!("{calls} or more calls"),
                    Bound::MoreThan => format!("more than {}", units::counted(*calls, "call")),
                };
                (
                    format!("rate({name}) {sign} {calls}/s"),
                    format!("a process makes {many} of {name} within a second"),
                )
            }
            Form::Event(events, comparison) => {
                let kind = match events {
                    EventsOf::Custom => "a custom event".to_owned(),
                    EventsOf::Number(number) => format!("a typed event with the number {number}"),
                    EventsOf::Name(name) => format!("a typed event with the name {name}"),
                };
                match comparison {
                    None => (
                        format!("event({events})"),
                        format!("the program emits {kind}"),
                    ),
                    Some(comparison) => (
                        format!("event({events}).{comparison}"),
                        format!("the program emits {kind}, and its {comparison}"),
                    ),
                }
            }
            Form::Death(wanted, name) => {
                let cause = match wanted {
                    DeathWanted::AnySignal => "a signal ends a process".to_owned(),
                    DeathWanted::AnyEnd => "a process ends in any way".to_owned(),
                    DeathWanted::Signal(signal) => match Signal::try_from(*signal) {
                        Ok(known) => format!("{known} ends a process"),
                        Err(_) => format!("signal {signal} ends a process"),
                    },
                };
                let written = match name {
                    None => "death".to_owned(),
                    Some(name) => format!("death({name})"),
                };
                (written, cause)
            }
            Form::Demand => (
                "demand".to_owned(),
                "SIGUSR1 to xrayctl, or Enter".to_owned(),
            ),
        };
        Self { condition, meaning }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use xrayd_proto::v1::Selection;

    use super::*;
    use crate::output::golden;

    /// A condition in short.
    fn brief(text: &str) -> String {
        let names = |selection: Option<Selection>| {
            let rules = selection.unwrap_or_default().include;
            format!("{:?}", rules[0].rule.as_ref().unwrap())
        };
        match argument(text).unwrap().wire.map(|wire| wire.what.unwrap()) {
            None => "demand".to_owned(),
            Some(What::Duration(of)) => {
                let time = match of.time() {
                    CallTime::Duration => "",
                    other => other.as_str_name(),
                };
                format!("{} {}{time}", names(of.selection), of.at_least_ns)
            }
            Some(What::Rate(of)) => format!("{} {}", names(of.selection), of.at_least),
            Some(What::Call(of)) => names(Some(of)),
            Some(What::Event(of)) => {
                assert_eq!(of.comparison, None);
                format!("{:?}", of.which.unwrap())
            }
            Some(What::Death(of)) => format!("{:?}", of.how.unwrap()),
        }
    }

    #[test]
    fn conditions_that_make_sense_are_understood() {
        for (text, expected) in [
            ("duration(foo) > 10ms", "Function(\"foo\") 10000001"),
            ("duration(foo)>=10ms", "Function(\"foo\") 10000000"),
            (
                " duration ( ns::f* ) > 1.5s ",
                "Glob(\"ns::f*\") 1500000001",
            ),
            (
                "duration(A::operator()(int, char)) > 1us",
                "Function(\"A::operator()(int, char)\") 1001",
            ),
            (
                "duration((anonymous namespace)::f) > 1us",
                "Function(\"(anonymous namespace)::f\") 1001",
            ),
            ("duration(operator[]) > 0", "Function(\"operator[]\") 1"),
            ("on_cpu(f)>1ms", "Function(\"f\") 1000001CALL_TIME_ON_CPU"),
            (
                " off_cpu (f*) >= 1ms",
                "Glob(\"f*\") 1000000CALL_TIME_OFF_CPU",
            ),
            ("call(foo)", "Function(\"foo\")"),
            ("call(ß?)", "Glob(\"ß?\")"),
            ("rate(foo) > 1000/s", "Function(\"foo\") 1001"),
            ("rate(foo) >= 1 / s", "Function(\"foo\") 1"),
            ("event(custom)", "Custom(true)"),
            ("event(7)", "Type(7)"),
            ("event(request done)", "Name(\"request done\")"),
            ("event(\"custom\")", "Name(\"custom\")"),
            ("event(\"7\")", "Name(\"7\")"),
            ("event (order) .price>100", "Name(\"order\")"),
            ("death", "AnySignal(true)"),
            ("death(SIGSEGV)", "Signal(11)"),
            ("death(KILL)", "Signal(9)"),
            ("death(34)", "Signal(34)"),
            ("death(any)", "AnyEnd(true)"),
            ("demand", "demand"),
        ] {
            assert_eq!(brief(text), expected, "{text}");
        }
    }

    #[test]
    fn a_condition_has_its_meaning_in_words() {
        for (text, condition, meaning) in [
            (
                "duration(f)>10ms",
                "duration(f) > 10 ms",
                "a call of f ends that took longer than 10 ms",
            ),
            (
                "duration(f*) >= 1500us",
                "duration(f*) >= 1.5 ms",
                "a call of f* ends that took 1.5 ms or longer",
            ),
            ("call( f )", "call(f)", "a call of f begins"),
            (
                "rate(f)>1/s",
                "rate(f) > 1/s",
                "a process makes more than 1 call of f within a second",
            ),
            (
                "rate(f) >= 100 / s",
                "rate(f) >= 100/s",
                "a process makes 100 or more calls of f within a second",
            ),
            (
                "event(7)",
                "event(7)",
                "the program emits a typed event with the number 7",
            ),
            (
                "event(custom)",
                "event(custom)",
                "the program emits a custom event",
            ),
            (
                "event(\"7\")",
                "event(\"7\")",
                "the program emits a typed event with the name 7",
            ),
            (
                "event(order).price>1e2",
                "event(order).price > 100.0",
                "the program emits a typed event with the name order, and its price > 100.0",
            ),
            (
                "event(custom).state == \"up\"",
                "event(custom).state == \"up\"",
                "the program emits a custom event, and its state == \"up\"",
            ),
            ("death", "death", "a signal ends a process"),
            ("death(SEGV)", "death(SEGV)", "SIGSEGV ends a process"),
            ("death(34)", "death(34)", "signal 34 ends a process"),
            ("death(any)", "death(any)", "a process ends in any way"),
            ("demand", "demand", "SIGUSR1 to xrayctl, or Enter"),
        ] {
            let awaited = argument(text).unwrap().awaited;
            assert_eq!(awaited.condition, condition);
            assert_eq!(awaited.meaning, meaning);
        }
    }

    #[test]
    fn errors_say_where_and_what() {
        let wrong = [
            "",
            "  ",
            "duraton(foo) > 10ms",
            "duration",
            "duration foo > 10ms",
            "duration() > 10ms",
            "duration(foo > 10ms",
            "duration(foo)",
            "duration(foo) < 10ms",
            "duration(foo) > 10",
            "duration(foo) >= 1.5",
            "duration(foo) > ten",
            "duration(foo) > 10 parsecs",
            "duration([*) > 10ms",
            "ß duration(foo) > 10ms",
            "duration(äöü) < 10ms",
            "call(foo) > 1",
            "call",
            "rate(foo) > 1000",
            "rate(foo) > 1000/min",
            "rate(foo) >= 0/s",
            "rate(foo) > many/s",
            "event()",
            "event(\"\")",
            "event(70000)",
            "event(order) > 100",
            "event(order).price",
            "event(order).price > high",
            "death(SIGNOT)",
            "death(0)",
            "death of a process",
            "demand now",
        ];
        golden::check("conditions.txt", |out| {
            for text in wrong {
                let error = parse_condition(text).unwrap_err();
                writeln!(
                    out,
                    "{text}\n{:>width$}\n    {error}",
                    '^',
                    width = error.column
                )?;
            }
            Ok(())
        });
    }

    proptest! {
        /// Any text is a condition, or it has an error with a column in the text or right behind
        /// it.
        #[test]
        fn any_text_is_a_condition_or_an_error(text in "\\PC*") {
            check_any(&text)?;
        }

        #[test]
        fn almost_any_condition_is_one_or_an_error(
            text in "(duration|call|event|rate|death|demand)[( ]{0,2}[a-zß*?()\"\\[]{0,6}[) ]{0,2}[<>=]{0,2}[ 0-9.]{0,3}[a-z/µ]{0,3}"
        ) {
            check_any(&text)?;
        }
    }

    fn check_any(text: &str) -> Result<(), TestCaseError> {
        if let Err(error) = parse_condition(text) {
            prop_assert!((1..=text.chars().count() + 1).contains(&error.column));
        }
        Ok(())
    }
}
