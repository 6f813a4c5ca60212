//! The events that a description is for, and the list of descriptions that a user gives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use super::{EventFormat, EventFormatError, TypeOfEvent};

/// Events of one type, as a user names it: `custom`, the number of a type of typed events, its
/// name, or the name of a kernel tracepoint. `"custom"` and `"7"`, in quotation marks, are names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventsOf {
    /// Custom events.
    Custom,
    /// Typed events with this number.
    Number(u16),
    /// Typed events whose type has this name, or events of the tracepoint of this name.
    Name(String),
}

/// Separator of the names of one type in a trace, if several libraries name its number differently.
const BETWEEN_NAMES: &str = " | ";
/// The longest text with several names, in bytes. The daemon joins names up to this length.
const LONGEST_NAMES: usize = 2048;

/// Reasons why a text names no type of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventsOfError {
    /// The text is empty, or has nothing between its quotation marks.
    #[error("expected the name of an event type")]
    NoName,
    /// The text begins with a digit and is no number of a type.
    #[error(
        "expected the number of an event type, from 0 to 65535; write a name that begins with a \
         digit in quotation marks"
    )]
    NoNumber,
}

/// The most texts of [`EventFormats::of_modules`].
pub const MOST_FORMATS_OF_MODULES: usize = 1 << 16;

/// Descriptions of the data of events, by the types of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFormats {
    all: Vec<(EventsOf, EventFormat)>,
    /// The places in `all` of the last description for custom events, for each number, and for each
    /// name.
    custom: Option<usize>,
    numbers: HashMap<u16, usize>,
    names: HashMap<String, usize>,
}

/// The names of one type, as a trace has them. A text longer than 2048 bytes is one name, so that
/// the search of a hostile trace's events for a name is fast.
pub fn names_of(names: &str) -> impl Iterator<Item = &str> + Clone {
    let most = match names.len() {
        0..=LONGEST_NAMES => usize::MAX,
        _ => 1,
    };
    names.splitn(most, BETWEEN_NAMES)
}

// === impl EventsOf ===

impl EventsOf {
    /// Whether an event of this type is one of them. A type to which several libraries gave names
    /// has each of the names.
    #[must_use]
    pub fn has(&self, of: TypeOfEvent<'_>) -> bool {
        match (self, of) {
            (Self::Custom, TypeOfEvent::Custom) => true,
            (Self::Number(wanted), TypeOfEvent::Typed(number, _)) => *wanted == number,
            (Self::Name(wanted), TypeOfEvent::Typed(_, Some(names))) => {
                names == wanted || names_of(names).any(|name| name == wanted)
            }
            (Self::Name(wanted), TypeOfEvent::Kernel(tracepoint)) => *wanted == tracepoint.name,
            (Self::Custom, TypeOfEvent::Typed(..) | TypeOfEvent::Kernel(_))
            | (Self::Number(_), TypeOfEvent::Custom | TypeOfEvent::Kernel(_))
            | (Self::Name(_), TypeOfEvent::Custom | TypeOfEvent::Typed(_, None)) => false,
        }
    }
}

impl FromStr for EventsOf {
    type Err = EventsOfError;

    fn from_str(text: &str) -> Result<Self, EventsOfError> {
        let quoted = text
            .strip_prefix('"')
            .and_then(|text| text.strip_suffix('"'));
        Ok(match quoted.unwrap_or(text) {
            "" => return Err(EventsOfError::NoName),
            name if quoted.is_some() => Self::Name(name.to_owned()),
            "custom" => Self::Custom,
            number if number.starts_with(|first: char| first.is_ascii_digit()) => {
                Self::Number(number.parse().map_err(|_| EventsOfError::NoNumber)?)
            }
            name => Self::Name(name.to_owned()),
        })
    }
}

impl fmt::Display for EventsOf {
    /// The text that names these events.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Custom => out.write_str("custom"),
            Self::Number(number) => write!(out, "{number}"),
            Self::Name(name) if name.parse().as_ref() == Ok(self) => out.write_str(name),
            Self::Name(name) => write!(out, "\"{name}\""),
        }
    }
}

/// A description with the events that it is for, as a user writes it: `order=id:u64,price:f64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedEvents {
    /// The events.
    pub events: EventsOf,
    /// The fields of their data.
    pub format: EventFormat,
}

/// Reasons why a text is no [`DescribedEvents`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescribedEventsError {
    /// It has no equals sign, or nothing before it.
    #[error("it is not TYPE=FIELDS, such as 'order=id:u64,price:f64'")]
    NoType,
    /// The text before the equals sign names no type of events.
    #[error(transparent)]
    Events(#[from] EventsOfError),
    /// The text behind it is no description.
    #[error(transparent)]
    Format(#[from] EventFormatError),
}

// === impl DescribedEvents ===

impl FromStr for DescribedEvents {
    type Err = DescribedEventsError;

    /// A name of a type may contain `=`.
    fn from_str(text: &str) -> Result<Self, DescribedEventsError> {
        let (events, fields) = text
            .rsplit_once('=')
            .filter(|(events, _)| !events.is_empty())
            .ok_or(DescribedEventsError::NoType)?;
        Ok(Self {
            events: events.parse()?,
            format: fields.parse()?,
        })
    }
}

// === impl EventFormats ===

impl EventFormats {
    /// The descriptions that modules have. Texts that cannot be read are left out. If the same
    /// events have several different descriptions, none of them is used. At most
    /// [`MOST_FORMATS_OF_MODULES`] texts are read.
    #[must_use]
    pub fn of_modules<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut different = BTreeSet::new();
        for text in texts {
            if different.len() >= MOST_FORMATS_OF_MODULES {
                break;
            }
            different.insert(text);
        }
        let mut formats: BTreeMap<EventsOf, Option<EventFormat>> = BTreeMap::new();
        for text in different {
            let Ok(DescribedEvents { events, format }) = text.parse() else {
                continue;
            };
            match formats.entry(events) {
                Entry::Vacant(place) => {
                    place.insert(Some(format));
                }
                Entry::Occupied(mut place) => {
                    if place.get().as_ref() != Some(&format) {
                        place.insert(None);
                    }
                }
            }
        }
        let formats = formats.into_iter();
        let formats = formats.filter_map(|(events, format)| Some((events, format?)));
        Self::new(formats.collect())
    }

    /// These descriptions, and those in `others` for other events.
    #[must_use]
    pub fn or(mut self, mut others: Self) -> Self {
        others.all.append(&mut self.all);
        Self::new(others.all)
    }

    /// Descriptions. The last one for a type counts.
    #[must_use]
    pub fn new(formats: Vec<(EventsOf, EventFormat)>) -> Self {
        let mut this = Self {
            all: formats,
            ..Self::default()
        };
        for (place, (events, _)) in this.all.iter().enumerate() {
            match events {
                EventsOf::Custom => this.custom = Some(place),
                EventsOf::Number(number) => {
                    this.numbers.insert(*number, place);
                }
                EventsOf::Name(name) => {
                    this.names.insert(name.clone(), place);
                }
            }
        }
        this
    }

    /// True without descriptions. A tracepoint has one all the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The description of events of this type. The trace describes the events of a tracepoint.
    #[must_use]
    pub fn of<'a>(&'a self, of: TypeOfEvent<'a>) -> Option<&'a EventFormat> {
        let place = match of {
            TypeOfEvent::Kernel(tracepoint) => return tracepoint.format(),
            TypeOfEvent::Custom => self.custom,
            TypeOfEvent::Typed(number, names) => {
                let number = self.numbers.get(&number).copied();
                if self.names.is_empty() {
                    number
                } else {
                    let names = names.into_iter();
                    let all = names.flat_map(|names| names_of(names).chain([names]));
                    let named = all.filter_map(|name| self.names.get(name).copied());
                    named.chain(number).max()
                }
            }
        };
        let (_, format) = self.all.get(place?)?;
        Some(format)
    }

    /// The description whose type is named in the same way.
    #[must_use]
    pub fn described(&self, wanted: &EventsOf) -> Option<&EventFormat> {
        let mut formats = self.all.iter().rev();
        let found = formats.find(|(events, _)| events == wanted);
        found.map(|(_, format)| format)
    }

    /// The descriptions as a user writes them: `order=id:u64,price:f64`.
    pub fn texts(&self) -> impl Iterator<Item = String> {
        let texts = self.all.iter();
        texts.map(|(events, format)| format!("{events}={format}"))
    }

    /// The events that have a description.
    pub fn events(&self) -> impl Iterator<Item = &EventsOf> {
        self.all.iter().map(|(events, _)| events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_custom_a_number_or_a_name() {
        let name = |name: &str| EventsOf::Name(name.to_owned());
        for (text, expected) in [
            ("custom", Ok(EventsOf::Custom)),
            ("7", Ok(EventsOf::Number(7))),
            ("65535", Ok(EventsOf::Number(u16::MAX))),
            ("order", Ok(name("order"))),
            ("request done", Ok(name("request done"))),
            ("\"custom\"", Ok(name("custom"))),
            ("\"7\"", Ok(name("7"))),
            ("\"", Ok(name("\""))),
            ("\"a\"\"", Ok(name("a\""))),
            ("", Err(EventsOfError::NoName)),
            ("\"\"", Err(EventsOfError::NoName)),
            ("65536", Err(EventsOfError::NoNumber)),
            ("7up", Err(EventsOfError::NoNumber)),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
            if let Ok(events) = expected {
                assert_eq!(events.to_string().parse(), Ok(events), "{text}");
            }
        }
    }

    #[test]
    fn modules_that_differ_describe_nothing() {
        let texts = [
            "order=id:u64",
            "order=id:u64",
            "price=a:u8",
            "price=b:u8",
            "7=c:u8",
            "nonsense",
            "custom=d:u9",
        ];
        let formats = EventFormats::of_modules(texts.into_iter());
        let name = |events: &str| {
            let format = formats.described(&events.parse().unwrap())?;
            format.names().next()
        };
        assert_eq!(name("order"), Some("id"));
        assert_eq!(name("7"), Some("c"));
        let texts: Vec<_> = formats.texts().collect();
        assert_eq!(texts, ["7=c:u8", "order=id:u64"]);
        // A user's own description counts.
        let DescribedEvents { events, format } = "7=e:u8".parse().unwrap();
        let own = EventFormats::new(vec![(events, format)]).or(formats.clone());
        let seven = |formats: &EventFormats| {
            let format = formats.of(TypeOfEvent::Typed(7, None))?;
            format.names().next().map(str::to_owned)
        };
        assert_eq!(seven(&own).as_deref(), Some("e"));
        assert_eq!(seven(&formats).as_deref(), Some("c"));
        assert!(own.of(TypeOfEvent::Typed(1, Some("order"))).is_some());
    }

    #[test]
    fn a_type_has_each_of_its_names() {
        let has =
            |wanted: &str, name| EventsOf::Name(wanted.to_owned()).has(TypeOfEvent::Typed(7, name));
        for wanted in ["a", "b c", "a | b c"] {
            assert!(has(wanted, Some("a | b c")), "{wanted}");
            assert!(!has(wanted, None), "{wanted}");
        }
        for wanted in ["b", "c", "a |", ""] {
            assert!(!has(wanted, Some("a | b c")), "{wanted}");
        }
    }

    #[test]
    fn a_long_text_is_one_name() {
        let names = |count| vec!["a"; count].join(BETWEEN_NAMES);
        let has = |wanted: &str, names: &str| {
            EventsOf::Name(wanted.to_owned()).has(TypeOfEvent::Typed(7, Some(names)))
        };
        // A name takes 4 bytes, the first one 1 byte.
        let (short, long) = (names(512), names(513));
        assert_eq!((short.len(), long.len()), (2045, 2049));
        assert!(has("a", &short) && !has("a", &long));
        assert!(has(&short, &short) && has(&long, &long));
        assert_eq!(names_of(&short).count(), 512);
        assert_eq!(names_of(&long).collect::<Vec<_>>(), [&long]);
    }

    #[test]
    fn the_last_description_of_a_type_counts() {
        let formats = [
            ("custom", "a:u8"),
            ("7", "b:u8"),
            ("x=y", "c:u8"),
            ("7", "d:u8"),
        ];
        let formats = formats.map(|(events, format)| {
            let (events, format): (EventsOf, EventFormat) =
                (events.parse().unwrap(), format.parse().unwrap());
            (events, format)
        });
        let formats = EventFormats::new(formats.to_vec());
        let name = |typed| formats.of(typed)?.names().next();
        assert_eq!(name(TypeOfEvent::Custom), Some("a"));
        assert_eq!(name(TypeOfEvent::Typed(7, None)), Some("d"));
        assert_eq!(name(TypeOfEvent::Typed(7, Some("x=y"))), Some("d"));
        assert_eq!(name(TypeOfEvent::Typed(8, Some("x=y"))), Some("c"));
        assert_eq!(name(TypeOfEvent::Typed(8, Some("custom"))), None);
        assert_eq!(EventFormats::default().of(TypeOfEvent::Custom), None);
        let described = |events: &EventsOf| formats.described(events)?.names().next();
        assert_eq!(described(&EventsOf::Number(7)), Some("d"));
        assert_eq!(described(&EventsOf::Number(8)), None);
        assert_eq!(described(&EventsOf::Name("x=y".to_owned())), Some("c"));
    }
}
