//! The types of events with data: those of the program, and those of the kernel.

use super::EventFormat;

/// A kernel tracepoint whose events a trace has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Its name in the kernel, like `sched:sched_wakeup`.
    pub name: String,
    /// The description of its events' data, as the trace has it.
    description: String,
    /// The same; `None` if this version cannot read it.
    format: Option<EventFormat>,
}

/// The type of an event with data, and what is known of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeOfEvent<'a> {
    /// A custom event. It has no type.
    Custom,
    /// A typed event: the number of its type, and the type's name, if known.
    Typed(u16, Option<&'a str>),
    /// An event of this kernel tracepoint.
    Kernel(&'a Tracepoint),
}

// === impl Tracepoint ===

impl Tracepoint {
    /// A tracepoint of which nothing is known.
    pub const UNKNOWN: &'static Self = &Self {
        name: String::new(),
        description: String::new(),
        format: None,
    };

    /// A tracepoint whose events have the fields of this description. A later version may have
    /// written it, with kinds of fields that are not known here.
    #[must_use]
    pub fn new(name: String, description: String) -> Self {
        Self {
            format: description.parse().ok(),
            name,
            description,
        }
    }

    /// The description of its events' data, as [`Self::new`] has received it.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The fields of its events; `None` if this version cannot read the description.
    #[must_use]
    pub fn format(&self) -> Option<&EventFormat> {
        self.format.as_ref()
    }
}

// === impl TypeOfEvent ===

impl<'a> TypeOfEvent<'a> {
    /// The name of the type, or of the tracepoint.
    #[must_use]
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Custom => None,
            Self::Typed(_, name) => name,
            Self::Kernel(tracepoint) => Some(&tracepoint.name),
        }
    }
}
