//! Conditions and limits of triggers as they are written, on the command line and in policies. The
//! conditions:
//!
//! ```text
//!  duration(SELECTOR) > TIME     on_cpu(SELECTOR) > TIME     off_cpu(SELECTOR) > TIME
//!  call(SELECTOR)                rate(SELECTOR) > NUMBER/s
//!  event(custom | NUMBER | NAME)     event(…).FIELD > NUMBER
//!  death | death(SIGNAL) | death(any)     demand
//! ```
//!
//! Each comparison can be `>=`, and a field has further relations (`event`). A selector is the name
//! of a function or a glob. Parentheses in it must be in pairs.

mod bound;
mod event;
mod limit;
mod rest;

use std::time::Duration;

use nix::sys::signal::Signal;
use xray_trace::{
    event_format::{EventCondition, EventsOf, FieldComparison},
    instr_map::{CompiledSelection, Rule, Selection},
};

use crate::{
    parse,
    triggers::{CallTime, Condition, DeathWanted},
};

pub use self::{
    bound::Bound,
    event::{WrittenComparison, WrittenEventCondition, parse_event_condition},
    limit::{FiringLimit, parse_limit},
    rest::{ConditionError, Parsed},
};
use self::{event::events_behind, rest::Rest};

/// A condition, and the text that it was parsed from.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenCondition {
    /// The text, without blanks around it.
    pub text: String,
    /// Its meaning.
    pub form: Form,
}

/// The meaning of a condition.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// `duration(…)`, `on_cpu(…)` and `off_cpu(…)`.
    CallTime {
        /// The measured time of a call.
        measured: CallTime,
        /// The functions.
        of: WrittenFunctions,
        /// How the time is compared.
        bound: Bound,
        /// What it is compared with.
        time: Duration,
    },
    /// `call(…)`.
    Call(WrittenFunctions),
    /// `rate(…)`.
    Rate {
        /// The functions.
        of: WrittenFunctions,
        /// How the number is compared.
        bound: Bound,
        /// The number of calls in a second that it is compared with.
        calls: u64,
    },
    /// `event(…)`, and the comparison of a field.
    Event(EventsOf, Option<WrittenComparison>),
    /// `death`, and the text in its parentheses.
    Death(DeathWanted, Option<String>),
    /// `demand`: a client fires the trigger.
    Demand,
}

/// The functions of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFunctions {
    /// The name or the glob.
    pub text: String,
    /// The same as a selection.
    pub selection: Selection,
}

/// Parses a condition.
///
/// # Errors
/// The first problem, and its column.
pub fn parse_condition(text: &str) -> Parsed<WrittenCondition> {
    let rest = Rest::of(text).trimmed();
    let (word, rest) = rest.word();
    let (form, rest) = match word.text() {
        "duration" => call_time(CallTime::Duration, rest)?,
        "on_cpu" => call_time(CallTime::OnCpu, rest)?,
        "off_cpu" => call_time(CallTime::OffCpu, rest)?,
        "call" => {
            let (inner, rest) = rest.parenthesised("call(SELECTOR)")?;
            (Form::Call(functions(inner)?), rest)
        }
        "event" => {
            let (events, comparison) = events_behind(rest)?;
            (Form::Event(events, comparison), rest.end())
        }
        "rate" => rate(rest)?,
        "death" if rest.text().trim_start().is_empty() => {
            (Form::Death(DeathWanted::AnySignal, None), rest)
        }
        "death" => {
            let (inner, rest) = rest.parenthesised("death, death(SIGNAL) or death(any)")?;
            let name = Some(inner.text().to_owned());
            (Form::Death(death(inner)?, name), rest)
        }
        "demand" => (Form::Demand, rest),
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
    Ok(WrittenCondition {
        text: text.trim().to_owned(),
        form,
    })
}

fn call_time(measured: CallTime, rest: Rest<'_>) -> Parsed<(Form, Rest<'_>)> {
    let word = measured.name();
    let (inner, rest) = rest.parenthesised(&format!("{word}(SELECTOR) > TIME"))?;
    let of = functions(inner)?;
    let (bound, rest) = rest.bound()?;
    let text = rest.text().trim_end();
    let time = parse::duration(text).map_err(|problem| rest.error(problem))?;
    // 0 is the same in each unit.
    if !time.is_zero() && text.ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        let sign = bound.sign();
        return Err(rest.error(format!(
            "expected a unit behind the number: write `{sign} {text}ms` for milliseconds, or use \
             ns, us, s, m or h"
        )));
    }
    let form = Form::CallTime {
        measured,
        of,
        bound,
        time,
    };
    Ok((form, rest.end()))
}

fn rate(rest: Rest<'_>) -> Parsed<(Form, Rest<'_>)> {
    let (inner, rest) = rest.parenthesised("rate(SELECTOR) > NUMBER/s")?;
    let of = functions(inner)?;
    let (bound, rest) = rest.bound()?;
    let wrong = || rest.error("expected a number of calls per second, like 1000/s".to_owned());
    let (number, unit) = rest.text().split_once('/').ok_or_else(wrong)?;
    if unit.trim() != "s" {
        return Err(wrong());
    }
    let calls: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    if bound.least(calls) == 0 {
        return Err(rest.error("expected 1 or more: a rate of 0 is always reached".to_owned()));
    }
    Ok((Form::Rate { of, bound, calls }, rest.end()))
}

fn death(inner: Rest<'_>) -> Parsed<DeathWanted> {
    let name = inner.text();
    if name == "any" {
        return Ok(DeathWanted::AnyEnd);
    }
    let full = match name.starts_with("SIG") {
        true => name.to_owned(),
        false => format!("SIG{name}"),
    };
    let by_name = full.parse::<Signal>().ok().map(|signal| signal as i32);
    let by_number = name.parse().ok().filter(|number| (1..=64).contains(number));
    let signal = by_name.or(by_number).ok_or_else(|| {
        inner.error(format!(
            "expected a signal, like SIGSEGV, or any, not {name:?}"
        ))
    })?;
    Ok(DeathWanted::Signal(signal))
}

/// The functions of this name, or the functions that the glob matches.
fn functions(inner: Rest<'_>) -> Parsed<WrittenFunctions> {
    let text = inner.text().to_owned();
    let rule = match text.contains(['*', '?']) {
        true => Rule::Glob(text.clone()),
        false => Rule::Function(text.clone()),
    };
    let selection = Selection {
        include: vec![rule],
        exclude: Vec::new(),
    };
    CompiledSelection::new(&selection).map_err(|error| inner.error(error.to_string()))?;
    Ok(WrittenFunctions { text, selection })
}

// === impl Form ===

impl Form {
    /// The condition that the daemon judges; `None` for `demand`. `compare` makes the comparison of
    /// a field from a written one, with a description of the events' data.
    ///
    /// # Errors
    /// Those of `compare`.
    pub fn condition<E>(
        &self,
        compare: impl FnOnce(&EventsOf, &WrittenComparison) -> Result<FieldComparison, E>,
    ) -> Result<Option<Condition>, E> {
        Ok(Some(match self {
            Self::CallTime {
                measured,
                of,
                bound,
                time,
            } => {
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                Condition::Duration {
                    of: of.selection.clone(),
                    time: *measured,
                    at_least: Duration::from_nanos(bound.least(ns)),
                }
            }
            Self::Call(of) => Condition::Call(of.selection.clone()),
            Self::Rate { of, bound, calls } => Condition::Rate {
                of: of.selection.clone(),
                at_least: bound.least(*calls),
            },
            Self::Event(events, comparison) => {
                let condition = EventCondition::of_type(events.clone());
                Condition::Event(match comparison {
                    None => condition,
                    Some(comparison) => condition.with_field(compare(events, comparison)?),
                })
            }
            Self::Death(wanted, _) => Condition::Death(*wanted),
            Self::Demand => return Ok(None),
        }))
    }
}
