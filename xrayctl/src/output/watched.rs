//! `xrayctl watch`: a line for each call that has ended, and for each custom and typed event.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use serde::Serialize;
use xray_trace::event_format::{EventOptions, EventsOf, RecordedData, TypeOfEvent, names_of};
use xrayd_proto::v1::{Event, EventBatch, EventKind, UserEvent};

use super::event_data::EventData;
use super::{Look, Tone, text, units};
use crate::suggest;

/// Open calls of a thread that are remembered. With more of them, the outer ones are not shown.
const MOST_OPEN: usize = 4096;
/// The most threads that are remembered.
const MOST_THREADS: usize = 1 << 16;
/// The most callers of a call that are shown: the innermost ones.
const MOST_CALLERS: usize = 16;

/// The calls and user events that are shown.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// The least duration of a call. User events, which have none, are shown only if it is 0.
    pub(crate) least: Duration,
    /// The number of calls and user events.
    pub(crate) most: u64,
    /// True for a line of JSON for each.
    pub(crate) json: bool,
    /// Whether a call is shown with its callers.
    pub(crate) callers: Callers,
    /// The user events that are shown, and the fields in their data.
    pub(crate) user_events: EventOptions,
}

/// The treatment of the callers of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callers {
    None,
    /// They stand before the call, outermost first, as far as their begin was seen.
    Shown,
}

/// The state of the output.
#[derive(Debug)]
pub(crate) struct Watched {
    shown: Shown,
    /// Calls and user events that were shown.
    lines: u64,
    /// User events that were shown.
    user_events: u64,
    /// User events that the filter did not select.
    unselected: u64,
    /// Time of the first event.
    begun: Option<u64>,
    /// Names by process and function id.
    functions: HashMap<(u32, u32), String>,
    /// Names of types of typed events, by process and number.
    event_types: HashMap<(u32, u32), String>,
    threads: HashMap<(u32, u32), Thread>,
}

#[derive(Debug, Default)]
struct Thread {
    name: String,
    /// The innermost call last.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    function: u32,
    since: u64,
    arguments: Vec<u64>,
}

/// A call that has ended, in JSON.
#[derive(Debug, Serialize)]
struct Call<'a> {
    pid: u32,
    tid: u32,
    thread: &'a str,
    function: &'a str,
    /// The open calls around it, outermost first.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    callers: &'a [&'a str],
    /// Callers further out.
    #[serde(skip_serializing_if = "Option::is_none")]
    callers_left_out: Option<usize>,
    start_monotonic_ns: u64,
    duration_ns: u64,
    #[serde(skip_serializing_if = "<[u64]>::is_empty")]
    arguments: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<u64>,
}

/// A user event, in JSON.
#[derive(Debug, Serialize)]
struct ShownEvent<'a> {
    kind: &'a str,
    pid: u32,
    tid: u32,
    thread: &'a str,
    /// The function that contains its sled.
    function: &'a str,
    monotonic_ns: u64,
    #[serde(flatten)]
    event: EventData,
}

/// Missing events, in JSON.
#[derive(Debug, Serialize)]
struct Lost {
    lost: u64,
}

// === impl Watched ===

impl Watched {
    pub(crate) fn new(shown: Shown) -> Self {
        Self {
            shown,
            lines: 0,
            user_events: 0,
            unselected: 0,
            begun: None,
            functions: HashMap::new(),
            event_types: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    /// True if the wanted number of lines was shown.
    pub(crate) fn is_over(&self) -> bool {
        self.lines >= self.shown.most
    }

    /// The reason why no user event was shown: `--where` is about a name that no type had. `None`
    /// if there is another reason, or if user events were shown.
    pub(crate) fn note(&self) -> Option<String> {
        if self.user_events > 0 || self.unselected == 0 {
            return None;
        }
        let known = self.event_types.values().map(String::as_str);
        let mut unmet = Vec::new();
        for events in self.shown.user_events.filter.events() {
            if let EventsOf::Name(wanted) = events
                && !known
                    .clone()
                    .any(|names| events.has(TypeOfEvent::Typed(0, Some(names))))
            {
                unmet.push(wanted.clone());
            }
        }
        if unmet.is_empty() {
            return None;
        }
        let hint = suggest::hint(&unmet, known.flat_map(names_of));
        let wanted: Vec<_> = unmet.iter().map(|wanted| format!("{wanted:?}")).collect();
        Some(format!(
            "{} not shown: no type of events had the name {}, which --where needs{hint}",
            units::counted(self.unselected, "custom or typed event"),
            wanted.join(" or "),
        ))
    }

    /// Shows the calls that end in this batch, and its user events.
    pub(crate) fn take(
        &mut self,
        batch: EventBatch,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        let EventBatch {
            events,
            functions,
            reader_lost,
            target_lost,
            threads,
            event_types,
        } = batch;
        for event_type in event_types {
            let key = (event_type.pid, event_type.r#type);
            self.event_types.insert(key, event_type.name);
        }
        for function in functions {
            let key = (function.pid, function.id);
            self.functions.insert(key, text::printable(&function.name));
        }
        for thread in threads {
            self.thread(thread.pid, thread.tid).name = text::printable(&thread.name);
        }
        let lost = reader_lost.saturating_add(target_lost);
        if lost > 0 {
            self.lose(lost, out, look)?;
        }
        for event in events {
            if self.is_over() {
                break;
            }
            self.follow(event, out, look)?;
        }
        Ok(())
    }

    fn thread(&mut self, pid: u32, tid: u32) -> &mut Thread {
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&(pid, tid)) {
            self.threads.clear();
        }
        self.threads.entry((pid, tid)).or_default()
    }

    /// Notes a loss and forgets all open calls, because other calls may be open after it.
    fn lose(&mut self, lost: u64, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        self.threads
            .values_mut()
            .for_each(|thread| thread.open.clear());
        if self.shown.json {
            return json_line(&Lost { lost }, out);
        }
        let line = format!("{} missing here", units::counted(lost, "event"));
        writeln!(out, "{}", look.paint(Tone::Bad, &line))
    }

    fn follow(&mut self, event: Event, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let kind = event.kind();
        let Event {
            monotonic_ns,
            tid,
            function,
            arguments,
            pid,
            calls,
            result,
            user_event,
            kind: _,
        } = event;
        let begun = *self.begun.get_or_insert(monotonic_ns);
        let open = &mut self.thread(pid, tid).open;
        match kind {
            EventKind::Enter => {
                if open.len() == MOST_OPEN {
                    open.clear();
                }
                open.push(Open {
                    function,
                    since: monotonic_ns,
                    arguments,
                });
            }
            EventKind::Exit | EventKind::TailExit => {
                // The inner calls were left without an exit.
                let Some(at) = open.iter().rposition(|call| call.function == function) else {
                    return Ok(());
                };
                let call = open.swap_remove(at);
                open.truncate(at);
                let duration_ns = monotonic_ns.saturating_sub(call.since);
                if u128::from(duration_ns) >= self.shown.least.as_nanos() {
                    self.lines += 1;
                    let ended = (call, duration_ns, result);
                    return self.show((pid, tid), ended, begun, out, look);
                }
            }
            EventKind::Unwound => {
                let left = usize::try_from(calls.unwrap_or(0)).unwrap_or(usize::MAX);
                open.truncate(open.len().saturating_sub(left));
            }
            EventKind::Custom | EventKind::Typed if self.shown.least.is_zero() => {
                let user_event = user_event.unwrap_or_default();
                let of = self.type_of(pid, &user_event);
                let filter = &self.shown.user_events.filter;
                let data = RecordedData::of_size(&user_event.data, user_event.size);
                if !filter.wants(of, data) {
                    self.unselected += 1;
                    return Ok(());
                }
                self.lines += 1;
                self.user_events += 1;
                let at = (monotonic_ns, begun);
                return self.show_user_event((pid, tid), function, &user_event, at, out, look);
            }
            EventKind::Unspecified
            | EventKind::Custom
            | EventKind::Typed
            | EventKind::UnmatchedExit => {}
        }
        Ok(())
    }

    /// The names of the innermost callers of a call that has just ended, the outermost of them
    /// first, and the number of the others.
    fn callers(&self, (pid, tid): (u32, u32)) -> (Vec<&str>, usize) {
        let open = match self.shown.callers {
            Callers::None => None,
            // The ended call and those within it are not among them any more.
            Callers::Shown => self.threads.get(&(pid, tid)),
        };
        let open = open.map_or(&[][..], |thread| thread.open.as_slice());
        let left_out = open.len().saturating_sub(MOST_CALLERS);
        let shown = open.iter().skip(left_out);
        let names = shown.map(|call| self.name(pid, call.function));
        (names.collect(), left_out)
    }

    /// The name of a thread; empty if it is unknown.
    fn thread_name(&self, thread: (u32, u32)) -> &str {
        let thread = self.threads.get(&thread);
        thread.map_or("", |thread| thread.name.as_str())
    }

    /// The name of a function.
    fn name(&self, pid: u32, function: u32) -> &str {
        let name = self.functions.get(&(pid, function));
        name.map_or("?", String::as_str)
    }

    /// The type of a user event.
    fn type_of(&self, pid: u32, user_event: &UserEvent) -> TypeOfEvent<'_> {
        let Some(number) = user_event.r#type else {
            return TypeOfEvent::Custom;
        };
        let name = self.event_types.get(&(pid, number)).map(String::as_str);
        TypeOfEvent::Typed(u16::try_from(number).unwrap_or(u16::MAX), name)
    }

    fn show(
        &self,
        (pid, tid): (u32, u32),
        (call, duration_ns, result): (Open, u64, Option<u64>),
        begun: u64,
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        let function = self.name(pid, call.function);
        let (callers, callers_left_out) = self.callers((pid, tid));
        let thread = self.thread_name((pid, tid));
        if self.shown.json {
            let call = Call {
                pid,
                tid,
                thread,
                function,
                callers: &callers,
                callers_left_out: (callers_left_out > 0).then_some(callers_left_out),
                start_monotonic_ns: call.since,
                duration_ns,
                arguments: &call.arguments,
                result,
            };
            return json_line(&call, out);
        }
        let since = Duration::from_nanos(call.since.saturating_sub(begun));
        let arguments: Vec<String> = call.arguments.iter().map(|value| hex(*value)).collect();
        let arguments = match arguments.is_empty() {
            true => String::new(),
            false => format!(" ({})", arguments.join(", ")),
        };
        let mut path = String::new();
        if callers_left_out > 0 {
            path += &format!("… {callers_left_out} more > ");
        }
        for caller in callers {
            path += &format!("{} > ", look.names.show(caller));
        }
        let path = match path.is_empty() {
            true => path,
            false => look.paint(Tone::Dim, &path),
        };
        let result = result.map_or(String::new(), |value| format!(" = {}", hex(value)));
        writeln!(
            out,
            "{:>12.6} {:>11} {tid:>8} {thread:<15} {path}{}{arguments}{result}",
            since.as_secs_f64(),
            units::time(duration_ns),
            look.paint(Tone::Name, &look.names.show(function)),
        )
    }

    /// Shows a user event of this function, which happened at the first of these times. The other
    /// one is the first event's.
    fn show_user_event(
        &self,
        (pid, tid): (u32, u32),
        function: u32,
        user_event: &UserEvent,
        (monotonic_ns, begun): (u64, u64),
        out: &mut dyn io::Write,
        look: Look,
    ) -> io::Result<()> {
        let function = self.name(pid, function);
        let thread = self.thread_name((pid, tid));
        let of = self.type_of(pid, user_event);
        let event = EventData::new(
            &user_event.data,
            user_event.size,
            of,
            &self.shown.user_events.formats,
        );
        if self.shown.json {
            let kind = match of {
                TypeOfEvent::Custom => "custom-event",
                _ => "typed-event",
            };
            let shown = ShownEvent {
                kind,
                pid,
                tid,
                thread,
                function,
                monotonic_ns,
                event,
            };
            return json_line(&shown, out);
        }
        let since = Duration::from_nanos(monotonic_ns.saturating_sub(begun));
        let none = "";
        writeln!(
            out,
            "{:>12.6} {none:>11} {tid:>8} {thread:<15} {} {}",
            since.as_secs_f64(),
            look.paint(Tone::Name, &look.names.show(function)),
            look.paint(Tone::Dim, &event.line()),
        )
    }
}

fn hex(value: u64) -> String {
    match value {
        0..10 => value.to_string(),
        _ => format!("{value:#x}"),
    }
}

fn json_line(value: &impl Serialize, out: &mut dyn io::Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use xray_trace::event_format::{
        EventCondition, EventFilter, FieldComparison, Literal, Relation,
    };
    use xrayd_proto::v1::{EventTypeName, FunctionName, ThreadName};

    use super::super::golden;
    use super::*;

    fn event(monotonic_ns: u64, function: u32, kind: EventKind) -> Event {
        Event {
            monotonic_ns,
            tid: 8,
            pid: 7,
            function,
            kind: kind.into(),
            ..Event::default()
        }
    }

    fn batch(events: Vec<Event>) -> EventBatch {
        let function = |id, name: &str| FunctionName {
            id,
            name: name.into(),
            module: "m".into(),
            pid: 7,
        };
        EventBatch {
            events,
            functions: vec![
                function(1, "ns::outer"),
                function(2, "ns::inner (.llvm.77)"),
            ],
            threads: vec![ThreadName {
                tid: 8,
                name: "worker".into(),
                pid: 7,
            }],
            ..EventBatch::default()
        }
    }

    fn shown(json: bool) -> Shown {
        Shown {
            least: Duration::from_nanos(100),
            most: 4,
            json,
            callers: Callers::Shown,
            user_events: EventOptions::default(),
        }
    }

    /// A batch with a call without an exit and a short call, which are not shown, and one with a
    /// loss, after which no call is open.
    fn some() -> [EventBatch; 2] {
        use EventKind::{Enter, Exit, TailExit};
        let mut entry = event(1_000, 1, Enter);
        entry.arguments = vec![3, 0xdead_beef];
        let mut exit = event(2_001_000, 1, Exit);
        exit.result = Some(1);
        let first = vec![
            entry,
            event(1_100, 2, Enter),
            event(1_150, 2, Exit),
            event(1_200, 2, Enter),
            event(5_200, 2, TailExit),
            event(6_000, 2, Enter),
            exit,
            event(3_000_000, 1, Enter),
        ];
        let mut second = batch(vec![
            event(4_000_000, 1, Exit),
            event(5_000_000, 2, Enter),
            event(6_000_000, 2, Exit),
            event(6_500_000, 2, Enter),
            event(6_600_000, 2, Exit),
            event(6_700_000, 2, Enter),
            event(6_800_000, 2, Exit),
        ]);
        second.target_lost = 12;
        [batch(first), second]
    }

    /// Without a least duration, a call has its name alone. Of a deep recursion, the innermost
    /// callers are shown.
    #[test]
    fn callers_are_shown_on_request_and_bounded() {
        let deep = || {
            let enters = (0..40).map(|at| event(1000 + at, 1, EventKind::Enter));
            let last = [
                event(2000, 2, EventKind::Enter),
                event(9000, 2, EventKind::Exit),
            ];
            batch(enters.chain(last).collect())
        };
        let lines = |json, callers| {
            let mut watched = Watched::new(Shown {
                callers,
                ..shown(json)
            });
            let mut out = Vec::new();
            watched.take(deep(), &mut out, Look::PLAIN).unwrap();
            String::from_utf8(out).unwrap()
        };
        let path = format!(" … 24 more > {}ns::inner\n", "ns::outer > ".repeat(16));
        let text = lines(false, Callers::Shown);
        assert!(text.ends_with(&path), "{text}");
        let call: serde_json::Value = serde_json::from_str(&lines(true, Callers::Shown)).unwrap();
        assert_eq!(call["callers"].as_array().unwrap().len(), MOST_CALLERS);
        assert_eq!(call["callers_left_out"], 24);
        let text = lines(false, Callers::None);
        assert!(text.ends_with(" worker          ns::inner\n"), "{text}");
        let call: serde_json::Value = serde_json::from_str(&lines(true, Callers::None)).unwrap();
        assert!(call.get("callers").is_none(), "{call}");
    }

    /// Custom and typed events, within a call and with the name of their type if there is one.
    #[test]
    fn user_events_look_as_agreed() {
        let said = |monotonic_ns, kind, event_type, data: &[u8]| Event {
            user_event: Some(UserEvent {
                data: data.to_vec(),
                size: data.len() as u64,
                r#type: event_type,
            }),
            ..event(monotonic_ns, 2, kind)
        };
        let mut cut = said(3_000, EventKind::Typed, Some(9), b"\xff\x01");
        cut.user_event.as_mut().unwrap().size = 9000;
        let events = vec![
            event(1_000, 1, EventKind::Enter),
            said(2_000, EventKind::Custom, None, b"order 7\x1b[2J"),
            cut,
            said(4_000, EventKind::Typed, Some(3), b"42"),
            event(9_000, 1, EventKind::Exit),
        ];
        let mut batch = batch(events);
        batch.event_types = vec![EventTypeName {
            r#type: 3,
            name: "price".into(),
            pid: 7,
        }];
        let watched = |json| {
            Watched::new(Shown {
                least: Duration::ZERO,
                callers: Callers::None,
                ..shown(json)
            })
        };
        for (file, json) in [("watch-events.txt", false), ("watch-events.jsonl", true)] {
            golden::check(file, |out| {
                let mut watched = watched(json);
                watched.take(batch.clone(), out, Look::PLAIN)?;
                assert!(watched.is_over());
                Ok(())
            });
        }
        let mut slow = Watched::new(shown(false));
        let mut out = Vec::new();
        slow.take(batch, &mut out, Look::PLAIN).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(!out.contains("event"), "only slow calls: {out}");
    }

    /// The name of a type may arrive after the first event of the type.
    #[test]
    fn a_condition_selects_user_events_and_counts_no_others() {
        let event_of = |monotonic_ns, kind, event_type| Event {
            user_event: Some(UserEvent {
                r#type: event_type,
                ..UserEvent::default()
            }),
            ..event(monotonic_ns, 2, kind)
        };
        let events = vec![
            event_of(1_000, EventKind::Custom, None),
            event_of(2_000, EventKind::Typed, Some(3)),
            event_of(3_000, EventKind::Typed, Some(4)),
            event(4_000, 1, EventKind::Enter),
            event(5_000, 1, EventKind::Exit),
        ];
        let condition = EventCondition::of_type(EventsOf::Name("price".into()));
        let mut watched = Watched::new(Shown {
            least: Duration::ZERO,
            user_events: EventOptions {
                filter: EventFilter::new(vec![condition]),
                ..EventOptions::default()
            },
            ..shown(true)
        });
        let mut take = |batch| {
            let mut out = Vec::new();
            watched.take(batch, &mut out, Look::PLAIN).unwrap();
            let out = String::from_utf8(out).unwrap();
            let times = out.lines().map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                line["monotonic_ns"].as_u64()
            });
            (times.collect::<Vec<_>>(), watched.lines)
        };
        let first = batch(events);
        let mut second = first.clone();
        second.event_types = vec![EventTypeName {
            r#type: 3,
            name: "price".into(),
            pid: 7,
        }];
        assert_eq!(take(first), (vec![None], 1));
        assert_eq!(take(second), (vec![Some(2_000), None], 3));
    }

    /// A condition on a field is no reason for the note, if its type has the name.
    #[test]
    fn a_name_that_no_type_has_is_noted_if_no_user_event_is_shown() {
        let watched = |names: &[&str], events: Vec<Event>| {
            let conditions = names.iter().map(|name| {
                let format = "id:u8".parse().unwrap();
                let comparison =
                    FieldComparison::new(format, "id", Relation::Equal, Literal::Integer(7));
                let condition = EventCondition::of_type(EventsOf::Name((*name).to_owned()));
                comparison.map(|comparison| condition.with_field(comparison))
            });
            let conditions: Result<Vec<_>, _> = conditions.collect();
            let mut watched = Watched::new(Shown {
                least: Duration::ZERO,
                user_events: EventOptions {
                    filter: EventFilter::new(conditions.unwrap()),
                    ..EventOptions::default()
                },
                most: u64::MAX,
                ..shown(true)
            });
            let mut batch = batch(events);
            batch.event_types = vec![EventTypeName {
                r#type: 3,
                name: "price | order".into(),
                pid: 7,
            }];
            watched.take(batch, &mut Vec::new(), Look::PLAIN).unwrap();
            watched.note()
        };
        let typed = |id| Event {
            user_event: Some(UserEvent {
                data: vec![id],
                size: 1,
                r#type: Some(3),
            }),
            ..event(2_000, 2, EventKind::Typed)
        };
        let note = watched(&["ordr"], vec![typed(7), typed(1)]).unwrap();
        assert_eq!(
            note,
            "2 custom or typed events not shown: no type of events had the name \"ordr\", which \
             --where needs (did you mean order?)"
        );
        let note = watched(&["order", "x", "y"], vec![typed(1)]).unwrap();
        assert!(note.contains(" the name \"x\" or \"y\", which"), "{note}");
        for (names, events) in [
            (&["order"][..], vec![typed(1)]),
            (&["ordr", "price"], vec![typed(7), typed(1)]),
            (&["ordr"], vec![event(1_000, 1, EventKind::Enter)]),
            (&[], vec![typed(1)]),
        ] {
            assert_eq!(watched(names, events), None, "{names:?}");
        }
    }

    #[test]
    fn calls_look_as_agreed() {
        for (file, json) in [("watch.txt", false), ("watch.jsonl", true)] {
            golden::check(file, |out| {
                let mut watched = Watched::new(shown(json));
                for batch in some() {
                    watched.take(batch, out, Look::PLAIN)?;
                }
                assert!(watched.is_over());
                Ok(())
            });
        }
    }
}
