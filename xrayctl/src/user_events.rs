//! `--event-format` and `--where`: the fields in the data of custom, typed and kernel events, and
//! the events that are shown. Triggers have conditions on such fields, too.

use anyhow::Context as _;
use xray_trace::event_format::{
    self, ConditionError, DescribedEvents, EventCondition, EventFilter, EventFormat, EventFormats,
    EventOptions, EventsOf, FieldComparison, Literal, Relation, TypeOfEvent,
};
use xray_trace::model::Trace;
use xrayd::trigger_text::{WrittenComparison, WrittenEventCondition, parse_event_condition};
use xrayd_proto::v1::StatusRequest;

use crate::client::Rpc;
use crate::failure::{self, Failure};
use crate::suggest;

/// The descriptions of the data of custom and typed events.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EventFormatArgs {
    /// Read the data of custom or typed events as fields, like 'order=id:u64,price:f64,symbol:str8'
    ///
    /// TYPE is custom, or the number or the name of a type of typed events. FIELDS are the fields
    /// in their order, without gaps between them, as NAME:KIND. Kinds are u8 to u64, i8 to i64, f32
    /// and f64 (little-endian), strN (a text in N bytes, up to the first zero byte), bytesN (N
    /// bytes), str and bytes for the rest, and lenstr and lenbytes (behind their length in 2
    /// bytes). padN skips N bytes. The option can be given several times; the last one for a type
    /// counts. Without it, the descriptions that the program itself has are used.
    #[arg(long, value_name = "TYPE=FIELDS")]
    event_format: Vec<DescribedEvents>,
}

/// The options about the custom and typed events of an output.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UserEventArgs {
    #[command(flatten)]
    formats: EventFormatArgs,
    /// Select custom and typed events, and kernel events of a trace, by a condition, like
    /// 'event(order).price > 100'
    ///
    /// A condition is event(TYPE), or event(TYPE).FIELD with >, >=, <, <=, == or != and a number,
    /// or with == or != and a text in quotation marks. TYPE can be a kernel tracepoint of the
    /// trace. A condition with a field of another TYPE needs --event-format for it. The option can
    /// be given several times: an event is shown if it meets any of the conditions. Calls are shown
    /// as without the option.
    #[arg(
        id = "where",
        long = "where",
        value_name = "CONDITION",
        value_parser = where_argument
    )]
    conditions: Vec<WrittenEventCondition>,
}

/// Parses a condition for clap.
fn where_argument(text: &str) -> Result<WrittenEventCondition, String> {
    parse_event_condition(text).map_err(|error| error.to_string())
}

/// The descriptions of events that the modules of an attached process have; with the pid 0 those of
/// all attached processes.
pub(crate) async fn formats_of_modules(rpc: &mut Rpc, pid: u32) -> anyhow::Result<EventFormats> {
    let response = rpc.get_status(StatusRequest { pid }).await;
    let status = response.map_err(|status| failure::from_status(&status));
    let status = status.context("cannot read the descriptions of events")?;
    let texts = status.into_inner().event_formats;
    Ok(EventFormats::of_modules(texts.iter().map(String::as_str)))
}

// === impl EventFormatArgs ===

impl EventFormatArgs {
    /// True without a description.
    pub(crate) fn is_empty(&self) -> bool {
        self.event_format.is_empty()
    }

    /// The descriptions that were given, and those of `modules` for other events.
    pub(crate) fn formats(&self, modules: EventFormats) -> EventFormats {
        let given = self.event_format.iter().cloned();
        let given = given.map(|DescribedEvents { events, format }| (events, format));
        EventFormats::new(given.collect()).or(modules)
    }
}

// === impl UserEventArgs ===

impl UserEventArgs {
    /// True if neither option is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.formats.is_empty() && self.conditions.is_empty()
    }

    /// Refuses a condition that cannot be met by events that --event-format describes. Others may
    /// be described by modules.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let given = self.formats.formats(EventFormats::default());
        let known = self.conditions.iter();
        let mut known = known.filter(|condition| given.described(&condition.events).is_some());
        known.try_for_each(|condition| resolved(condition, &given).map(drop))
    }

    /// The options for events whose types are not known yet, with the descriptions of modules.
    pub(crate) fn options(&self, modules: EventFormats) -> Result<EventOptions, Failure> {
        self.options_with(modules, Vec::new())
    }

    /// The options, with these descriptions for conditions on kernel events.
    fn options_with(
        &self,
        modules: EventFormats,
        tracepoints: Vec<(EventsOf, EventFormat)>,
    ) -> Result<EventOptions, Failure> {
        let given = self.formats.formats(EventFormats::default());
        let formats = given.clone().or(modules.clone());
        // A tracepoint is described by the kernel.
        let all = given.or(EventFormats::new(tracepoints)).or(modules);
        let conditions = self.conditions.iter();
        let conditions: Result<Vec<_>, _> = conditions
            .map(|condition| resolved(condition, &all))
            .collect();
        Ok(EventOptions {
            filter: EventFilter::new(conditions?),
            formats,
        })
    }

    /// The options for the events of a trace. Refuses a condition on a type that has no name in the
    /// trace.
    pub(crate) fn options_for(&self, trace: &Trace) -> Result<EventOptions, Failure> {
        let tracepoints = || trace.tracepoints().map(|(_, tracepoint)| tracepoint);
        let described = tracepoints().filter_map(|tracepoint| {
            let events = EventsOf::Name(tracepoint.name.clone());
            Some((events, tracepoint.format()?.clone()))
        });
        let options = self.options_with(trace.event_formats(), described.collect())?;
        let types = || trace.event_types().iter();
        let names = types().flat_map(|known| event_format::names_of(&known.name));
        let names = names.chain(tracepoints().map(|tracepoint| tracepoint.name.as_str()));
        for condition in &self.conditions {
            let events = &condition.events;
            if let EventsOf::Name(wanted) = events
                && !types()
                    .any(|known| events.has(TypeOfEvent::Typed(known.number, Some(&known.name))))
                && !tracepoints().any(|known| events.has(TypeOfEvent::Kernel(known)))
            {
                let hint = match trace.event_types() {
                    [] if tracepoints().next().is_none() => {
                        ": it has no names of types, so use the number of the type".to_owned()
                    }
                    _ => suggest::hint(std::slice::from_ref(wanted), names.clone()),
                };
                let what = format!(
                    "no type of events of the trace has the name {wanted:?}, which --where '{}' \
                     needs{hint}",
                    condition.text
                );
                return Err(Failure::NothingMatched(what));
            }
        }
        Ok(options)
    }
}

/// The condition of a `--where`, with the description of the events that it is about.
fn resolved(
    condition: &WrittenEventCondition,
    formats: &EventFormats,
) -> Result<EventCondition, Failure> {
    let WrittenEventCondition {
        text,
        events,
        comparison,
    } = condition;
    let bare = EventCondition::of_type(events.clone());
    let Some(comparison) = comparison else {
        return Ok(bare);
    };
    let WrittenComparison {
        field,
        relation,
        literal,
    } = comparison.clone();
    let written = format!("--where '{text}'");
    let format = format_of(&written, events, &field, formats)?;
    let comparison = compared(&written, format, &field, relation, literal)?;
    Ok(bare.with_field(comparison))
}

/// The description of these events, of which a condition names a field. `written` is the option
/// with the condition.
pub(crate) fn format_of<'a>(
    written: &str,
    events: &EventsOf,
    field: &str,
    formats: &'a EventFormats,
) -> Result<&'a EventFormat, Failure> {
    formats.described(events).ok_or_else(|| {
        let known: Vec<_> = formats.events().map(ToString::to_string).collect();
        let hint = suggest::hint(&[events.to_string()], known.iter().map(String::as_str));
        let remedy = match hint.is_empty() {
            true => format!(": add --event-format '{events}=FIELDS', with the field {field}"),
            false => hint,
        };
        Failure::Usage(format!(
            "{written}: no --event-format describes the data of event({events}){remedy}"
        ))
    })
}

/// The comparison of a field, if the description has the field and it can be compared in this way.
pub(crate) fn compared(
    written: &str,
    format: &EventFormat,
    field: &str,
    relation: Relation,
    literal: Literal,
) -> Result<FieldComparison, Failure> {
    FieldComparison::new(format.clone(), field, relation, literal).map_err(|error| {
        let hint = match &error {
            ConditionError::NoField(field) => {
                let near = suggest::hint(std::slice::from_ref(field), format.names());
                let names = format.names().collect::<Vec<_>>().join(", ");
                match near.is_empty() {
                    true => format!("; the fields of --event-format are: {names}"),
                    false => near,
                }
            }
            ConditionError::Number(_)
            | ConditionError::NoNumber(_)
            | ConditionError::NoOrder(_)
            | ConditionError::NoSuchText(..)
            | ConditionError::NoSuchBytes(..) => String::new(),
        };
        Failure::Usage(format!("{written}: {error}{hint}"))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use xray_trace::event_format::RecordedData;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        user_events: UserEventArgs,
    }

    fn parsed(options: &[&str]) -> Result<UserEventArgs, String> {
        let line = Line::try_parse_from([&["test"], options].concat());
        line.map(|line| line.user_events)
            .map_err(|error| error.to_string())
    }

    fn options(options: &[&str]) -> Result<EventOptions, String> {
        let options = parsed(options)?.options(EventFormats::default());
        options.map_err(|failure| failure.to_string())
    }

    #[test]
    fn bad_formats_are_refused_with_the_reason() {
        for (format, reason) in [
            ("a:u8", "not TYPE=FIELDS"),
            ("=a:u8", "not TYPE=FIELDS"),
            ("order=", "'' is not NAME:KIND"),
            ("order=a:u9", "'u9' is not a kind"),
            ("65536=a:u8", "expected the number of an event type"),
        ] {
            let refused = parsed(&["--event-format", format]).unwrap_err();
            assert!(refused.contains(reason), "{format}: {refused}");
        }
    }

    #[test]
    fn a_format_is_for_the_type_before_the_last_equals_sign() {
        let options = options(&["--event-format", "x=y=a:u8"]).unwrap();
        assert!(
            options
                .formats
                .of(TypeOfEvent::Typed(1, Some("x=y")))
                .is_some()
        );
        assert!(
            options
                .formats
                .of(TypeOfEvent::Typed(1, Some("x")))
                .is_none()
        );
        assert!(options.filter.is_empty());
        assert!(parsed(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_condition_selects_events_by_the_format_of_the_same_type() {
        let format = ["--event-format", "order=id:u8,symbol:str2"];
        let conditions = [
            "--where",
            "event(order).symbol == \"AB\"",
            "--where",
            "event(7)",
        ];
        let options = options(&[&format[..], &conditions].concat()).unwrap();
        let order = TypeOfEvent::Typed(8, Some("order"));
        assert!(options.filter.wants(order, RecordedData::whole(b"\x01AB")));
        assert!(!options.filter.wants(order, RecordedData::whole(b"\x01AC")));
        assert!(
            options
                .filter
                .wants(TypeOfEvent::Typed(7, None), RecordedData::whole(b""))
        );
        assert!(
            !options
                .filter
                .wants(TypeOfEvent::Custom, RecordedData::whole(b""))
        );
    }

    #[test]
    fn a_condition_without_its_field_is_refused_with_a_suggestion() {
        let format = "--event-format=order=id:u8,price:f64,symbol:str2";
        for (condition, reason) in [
            ("event(ordr).price > 1", "(did you mean order?)"),
            (
                "event(7).price > 1",
                "no --event-format describes the data of event(7): add --event-format '7=FIELDS', \
                 with the field price",
            ),
            (
                "event(order).prize > 1",
                "there is no field 'prize' (did you mean price?)",
            ),
            (
                "event(order).x > 1",
                "there is no field 'x'; the fields of --event-format are: id, price, symbol",
            ),
            ("event(order).symbol > \"A\"", "compare it with == or !="),
            ("event(order).id == \"A\"", "'id' is a number"),
        ] {
            let refused = options(&[format, "--where", condition]).unwrap_err();
            assert!(refused.contains(reason), "{condition}: {refused}");
        }
        let refused = options(&["--where", "event(order) > 1"]).unwrap_err();
        assert!(refused.contains("column 14: expected ."), "{refused}");
    }
}
