//! The types of fields, as the metadata declares them.

use std::collections::HashMap;
use std::rc::Rc;

/// The most ranges of an enumeration that are looked at for a value.
const MOST_NEAR: usize = 64;

/// The type of a field.
#[derive(Debug, Clone)]
pub(super) enum Type {
    Integer(Integer),
    /// A number that is passed over: its size and its alignment in bits.
    Float(u32, u32),
    Enum(Rc<Enum>),
    /// Bytes up to the first zero byte.
    Text,
    Struct(Rc<Struct>),
    Variant(Rc<Variant>),
    Array(Rc<Array>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Integer {
    /// 1 to 64 bits.
    pub(super) bits: u32,
    /// In bits, a power of two.
    pub(super) align: u32,
    pub(super) is_signed: bool,
    pub(super) is_big_endian: bool,
    /// It is a time of the trace's clock.
    pub(super) is_time: bool,
}

/// An integer some of whose values have names.
#[derive(Debug)]
pub(super) struct Enum {
    pub(super) integer: Integer,
    /// Names, and the first and the last value of each.
    pub(super) labels: Vec<(String, i128, i128)>,
    /// The places in `labels`, sorted by the first value.
    pub(super) order: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Struct {
    pub(super) fields: Vec<(String, Type)>,
    /// In bits, a power of two.
    pub(super) align: u32,
    pub(super) depth: u32,
}

/// One of several fields, by the name that the value of another field has.
#[derive(Debug)]
pub(super) struct Variant {
    /// The name of that field.
    pub(super) tag: String,
    pub(super) choices: Rc<HashMap<String, Type>>,
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) struct Array {
    pub(super) element: Type,
    pub(super) length: Length,
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) enum Length {
    Fixed(u64),
    /// The value of the field with this name.
    Field(String),
}

/// What the metadata says.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) packet_header: Option<Type>,
    /// The classes of streams by their numbers.
    pub(super) streams: HashMap<u64, Stream>,
    /// The classes of events.
    pub(super) events: Vec<Event>,
    /// The places of the classes by their streams and numbers.
    pub(super) places: HashMap<(u64, u64), usize>,
    /// Ticks per second of the clock. `None` without a clock: times are in nanoseconds.
    pub(super) frequency: Option<u64>,
}

/// A class of streams.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) id: u64,
    pub(super) packet_context: Option<Type>,
    pub(super) event_header: Option<Type>,
    pub(super) event_context: Option<Type>,
}

/// A class of events.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) stream: u64,
    pub(super) name: String,
    pub(super) context: Option<Type>,
    pub(super) fields: Option<Type>,
}

// === impl Metadata ===

impl Metadata {
    /// The class of events with this number in a stream.
    pub(super) fn class(&self, stream: u64, id: u64) -> Option<&Event> {
        self.events.get(*self.places.get(&(stream, id))?)
    }
}

// === impl Type ===

impl Type {
    /// The alignment in bits.
    pub(super) fn align(&self) -> u32 {
        match self {
            Self::Integer(integer) => integer.align,
            Self::Float(_, align) => *align,
            Self::Enum(of) => of.integer.align,
            Self::Text => 8,
            Self::Struct(of) => of.align,
            // That of the chosen field counts.
            Self::Variant(_) => 1,
            Self::Array(of) => of.element.align(),
        }
    }

    /// The number of types within each other.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Integer(_) | Self::Float(..) | Self::Enum(_) | Self::Text => 0,
            Self::Struct(of) => of.depth,
            Self::Variant(of) => of.depth,
            Self::Array(of) => of.depth,
        }
    }
}

// === impl Enum ===

impl Enum {
    pub(super) fn new(integer: Integer, labels: Vec<(String, i128, i128)>) -> Self {
        let mut order: Vec<usize> = (0..labels.len()).collect();
        // Stable: of several labels with one first value the first one is found.
        order.sort_by_key(|&place| labels[place].1);
        Self {
            integer,
            labels,
            order,
        }
    }

    /// The names of a value. Ranges may overlap; the name of the one that begins last comes first.
    pub(super) fn names(&self, value: i128) -> impl Iterator<Item = &str> {
        let after = self
            .order
            .partition_point(|&place| self.labels[place].1 <= value);
        let places = self.order.get(..after).unwrap_or_default();
        // A hostile file may have many ranges that end before the value.
        let near = places.iter().rev().take(MOST_NEAR);
        let labels = near.filter_map(|&place| self.labels.get(place));
        let having = labels.filter(move |(_, _, last)| *last >= value);
        having.map(|(name, ..)| name.as_str())
    }
}
