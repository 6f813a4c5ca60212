//! The conditions of `xrayctl trigger`, as they are written:
//!
//! ```text
//!  duration(SELECTOR) > TIME     on_cpu(SELECTOR) > TIME     off_cpu(SELECTOR) > TIME
//!  call(SELECTOR)                rate(SELECTOR) > NUMBER/s
//!  event(custom | NUMBER | NAME)     event(…).FIELD > NUMBER
//!  death | death(SIGNAL) | death(any)     demand
//! ```
//!
//! Each comparison can be `>=`, and a field has further relations (`event_condition`). A
//! selector is the name of a function or a glob. Parentheses in it must be in pairs.

use nix::sys::signal::Signal;
use serde::Serialize;
use xray_trace::event_format::EventsOf;
use xray_trace::instr_map::{CompiledSelection, Rule, Selection};
use xrayd_proto::v1::{
    self, CallTime, DeathCondition, DurationCondition, EventCondition, RateCondition,
    TriggerCondition, death_condition::How, event_condition::Which, trigger_condition::What,
};

use crate::condition_text::{Parsed, Rest};
use crate::event_condition::{self, WrittenComparison};
use crate::output::units;
use crate::parse;
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

/// A parsed condition, without the text. `None` stands for `demand`.
type Meant = (Option<What>, Awaited);

/// Parses a condition.
///
/// # Errors
/// The first problem, and its column.
pub(crate) fn parse(text: &str) -> Parsed<Condition> {
    let rest = Rest::of(text).trimmed();
    let (word, rest) = rest.word();
    let mut comparison = None;
    let ((what, awaited), rest) = match word.text() {
        "duration" => call_time(CallTime::Duration, rest)?,
        "on_cpu" => call_time(CallTime::OnCpu, rest)?,
        "off_cpu" => call_time(CallTime::OffCpu, rest)?,
        "call" => {
            let (inner, rest) = rest.parenthesised("call(SELECTOR)")?;
            let name = inner.text();
            let awaited = meaning(format!("call({name})"), format!("a call of {name} begins"));
            ((Some(What::Call(selector(inner)?)), awaited), rest)
        }
        "event" => {
            let (events, compared) = event_condition::events_behind(rest)?;
            let meant = event(&events, compared.as_ref());
            comparison = compared.map(|compared| (events, compared));
            (meant, rest.end())
        }
        "rate" => rate(rest)?,
        "death" if rest.text().trim_start().is_empty() => {
            let awaited = meaning("death".to_owned(), "a signal ends a process".to_owned());
            ((Some(death_of(How::AnySignal(true))), awaited), rest)
        }
        "death" => {
            let (inner, rest) = rest.parenthesised("death, death(SIGNAL) or death(any)")?;
            (death(inner)?, rest)
        }
        "demand" => {
            let awaited = meaning(
                "demand".to_owned(),
                "SIGUSR1 to xrayctl, or Enter".to_owned(),
            );
            ((None, awaited), rest)
        }
        _ => {
            let what = "expected duration(…), on_cpu(…), off_cpu(…), call(…), event(…), rate(…), \
                        death or demand";
            return Err(word.error(match word.text() {
                "" => what.to_owned(),
                other => format!("{what}, not {other:?}"),
            }));
        }
    };
    let rest = rest.trimmed();
    if !rest.text().is_empty() {
        return Err(rest.error(format!("unexpected {:?} after the condition", rest.text())));
    }
    Ok(Condition {
        text: text.trim().to_owned(),
        awaited,
        wire: what.map(|what| TriggerCondition { what: Some(what) }),
        comparison,
    })
}

/// Parses a condition for clap.
pub(crate) fn argument(text: &str) -> Result<Condition, String> {
    parse(text).map_err(|error| error.to_string())
}

fn meaning(condition: String, meaning: String) -> Awaited {
    Awaited { condition, meaning }
}

fn call_time(measured: CallTime, rest: Rest<'_>) -> Parsed<(Meant, Rest<'_>)> {
    let word = match measured {
        CallTime::Unspecified | CallTime::Duration => "duration",
        CallTime::OnCpu => "on_cpu",
        CallTime::OffCpu => "off_cpu",
    };
    let (inner, rest) = rest.parenthesised(&format!("{word}(SELECTOR) > TIME"))?;
    let selection = selector(inner)?;
    let (more, rest) = rest.comparison()?;
    let sign = sign(more);
    let text = rest.text().trim_end();
    let time = parse::duration(text).map_err(|problem| rest.error(problem))?;
    // 0 is the same in each unit.
    if !time.is_zero() && text.ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(rest.error(format!(
            "expected a unit behind the number: write `{sign} {text}ms` for milliseconds, or use \
             ns, us, s, m or h"
        )));
    }
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (name, time) = (inner.text(), units::exact_time(ns));
    let long = match more {
        0 => format!("{time} or longer"),
        _ => format!("longer than {time}"),
    };
    let took = match measured {
        CallTime::Unspecified | CallTime::Duration => format!("took {long}"),
        CallTime::OnCpu => format!("had a processor for {long}"),
        CallTime::OffCpu => format!("had no processor for {long}"),
    };
    let awaited = meaning(
        format!("{word}({name}) {sign} {time}"),
        format!("a call of {name} ends that {took}"),
    );
    let what = What::Duration(DurationCondition {
        selection: Some(selection),
        at_least_ns: ns.saturating_add(more),
        time: measured.into(),
    });
    Ok(((Some(what), awaited), rest.end()))
}

fn rate(rest: Rest<'_>) -> Parsed<(Meant, Rest<'_>)> {
    let (inner, rest) = rest.parenthesised("rate(SELECTOR) > NUMBER/s")?;
    let selection = selector(inner)?;
    let (more, rest) = rest.comparison()?;
    let wrong = || rest.error("expected a number of calls per second, like 1000/s".to_owned());
    let (number, unit) = rest.text().split_once('/').ok_or_else(wrong)?;
    if unit.trim() != "s" {
        return Err(wrong());
    }
    let number: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    let at_least = number.saturating_add(more);
    if at_least == 0 {
        return Err(rest.error("expected 1 or more: a rate of 0 is always reached".to_owned()));
    }
    let what = What::Rate(RateCondition {
        selection: Some(selection),
        at_least,
    });
    let name = inner.text();
    let many = match more {
        0 => format!("{number} or more calls"),
        _ => format!("more than {}", units::counted(number, "call")),
    };
    let awaited = meaning(
        format!("rate({name}) {} {number}/s", sign(more)),
        format!("a process makes {many} of {name} within a second"),
    );
    Ok(((Some(what), awaited), rest.end()))
}

/// The comparison, by the number that [`Rest::comparison`] returns.
fn sign(more: u64) -> &'static str {
    if more == 0 { ">=" } else { ">" }
}

fn event(events: &EventsOf, comparison: Option<&WrittenComparison>) -> Meant {
    let (which, kind) = match events {
        EventsOf::Custom => (Which::Custom(true), "a custom event".to_owned()),
        EventsOf::Number(number) => (
            Which::Type((*number).into()),
            format!("a typed event with the number {number}"),
        ),
        EventsOf::Name(name) => (
            Which::Name(name.clone()),
            format!("a typed event with the name {name}"),
        ),
    };
    let awaited = match comparison {
        None => meaning(
            format!("event({events})"),
            format!("the program emits {kind}"),
        ),
        Some(comparison) => meaning(
            format!("event({events}).{comparison}"),
            format!("the program emits {kind}, and its {comparison}"),
        ),
    };
    let condition = EventCondition {
        which: Some(which),
        comparison: None,
    };
    (Some(What::Event(condition)), awaited)
}

fn death(inner: Rest<'_>) -> Parsed<Meant> {
    let name = inner.text();
    let (how, cause) = match name {
        "any" => (How::AnyEnd(true), "a process ends in any way".to_owned()),
        name => {
            let full = match name.starts_with("SIG") {
                true => name.to_owned(),
                false => format!("SIG{name}"),
            };
            let by_name = full.parse::<Signal>().ok().map(|signal| signal as i32);
            let by_number = name.parse().ok().filter(|number| (1..=64).contains(number));
            let signal = by_name.or(by_number);
            let signal = signal.ok_or_else(|| {
                inner.error(format!(
                    "expected a signal, like SIGSEGV, or any, not {name:?}"
                ))
            })?;
            let shown = Signal::try_from(signal).map_or_else(
                |_| format!("signal {signal}"),
                |signal| signal.as_str().to_owned(),
            );
            (How::Signal(signal), format!("{shown} ends a process"))
        }
    };
    let awaited = meaning(format!("death({name})"), cause);
    Ok((Some(death_of(how)), awaited))
}

fn death_of(how: How) -> What {
    What::Death(DeathCondition { how: Some(how) })
}

/// The functions of this name, or the functions that the glob matches.
fn selector(inner: Rest<'_>) -> Parsed<v1::Selection> {
    let text = inner.text().to_owned();
    let rule = match text.contains(['*', '?']) {
        true => Rule::Glob(text),
        false => Rule::Function(text),
    };
    let selection = Selection {
        include: vec![rule],
        exclude: Vec::new(),
    };
    CompiledSelection::new(&selection).map_err(|error| inner.error(error.to_string()))?;
    Ok(selectors::wire(selection))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::output::golden;

    /// A condition in short.
    fn brief(text: &str) -> String {
        let names = |selection: Option<v1::Selection>| {
            let rules = selection.unwrap_or_default().include;
            format!("{:?}", rules[0].rule.as_ref().unwrap())
        };
        match parse(text).unwrap().wire.map(|wire| wire.what.unwrap()) {
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
            let awaited = parse(text).unwrap().awaited;
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
                let error = parse(text).unwrap_err();
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
        if let Err(error) = parse(text) {
            prop_assert!((1..=text.chars().count() + 1).contains(&error.column));
        }
        Ok(())
    }
}
