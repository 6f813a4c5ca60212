//! Conditions that select events by their type, and by the value of a field.

use std::cmp::Ordering;
use std::fmt;

use super::{
    EventFormat, EventFormats, EventsOf, FieldValue, Kind, MOST_FIELD_BYTES, RecordedData,
    TypeOfEvent,
};

/// The custom and typed events that an output shows, and the fields in their data. The default is
/// all events, without fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventOptions {
    /// The descriptions of the data.
    pub formats: EventFormats,
    /// The selected events.
    pub filter: EventFilter,
}

/// A selection of custom and typed events. It selects the events that meet any of its conditions,
/// and all events if it has no condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventFilter(Vec<EventCondition>);

/// A condition that an event meets by its type, and perhaps by the value of a field.
#[derive(Clone, Debug, PartialEq)]
pub struct EventCondition {
    events: EventsOf,
    comparison: Option<FieldComparison>,
}

/// A comparison of a field in the data of events with a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldComparison {
    format: EventFormat,
    field: String,
    relation: Relation,
    literal: Literal,
}

/// A relation of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `==`
    Equal,
    /// `!=`. It holds for NaN and any number.
    NotEqual,
    /// `>=`
    AtLeast,
    /// `>`
    Greater,
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// A number without a fraction.
    Integer(i128),
    /// Any other number. Its comparison with an integer is exact, too.
    Float(f64),
    /// A text. Bytes are compared with it as they are displayed, `0x001f`.
    Text(String),
}

/// Reasons why a field cannot be compared in this way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The description has no field of this name.
    #[error("there is no field '{0}'")]
    NoField(String),
    /// The field is a number, and the constant is none.
    #[error("the field '{0}' is a number: compare it with a number, such as 100 or 0.5")]
    Number(String),
    /// The field is text or bytes, and the constant is a number.
    #[error(
        "the field '{0}' is no number: compare it with a text in quotation marks, such as \"AB\" \
         for text and \"0x1f\" for bytes"
    )]
    NoNumber(String),
    /// The field is text or bytes, which have no order.
    #[error("the field '{0}' is no number: compare it with == or !=")]
    NoOrder(String),
    /// The field never has this text: it is too long, or has a zero byte.
    #[error("the field '{0}' never has this text: it ends at a zero byte, or after {1} bytes")]
    NoSuchText(String, usize),
    /// The field never has these bytes.
    #[error(
        "the field '{0}' never has this value: write its bytes as 0x and two digits of 0-9a-f for \
         each byte{1}"
    )]
    NoSuchBytes(String, ByteCount),
}

/// The number of bytes of a field, for an error; `None` if it takes the rest of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub Option<usize>);

// === impl EventFilter ===

impl EventFilter {
    /// The events that meet any of the conditions; all events if there are none.
    #[must_use]
    pub fn new(any_of: Vec<EventCondition>) -> Self {
        Self(any_of)
    }

    /// True if it selects all events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The events that the conditions are about.
    pub fn events(&self) -> impl Iterator<Item = &EventsOf> {
        self.0.iter().map(|condition| &condition.events)
    }

    /// Whether an event of this type is selected.
    #[must_use]
    pub fn wants(&self, of: TypeOfEvent<'_>, data: RecordedData<'_>) -> bool {
        self.0.is_empty() || self.0.iter().any(|condition| condition.holds(of, data))
    }
}

// === impl EventCondition ===

impl EventCondition {
    /// Whether it compares the data of events.
    #[must_use]
    pub fn compares_data(&self) -> bool {
        self.comparison.is_some()
    }

    /// The condition that an event is one of these.
    #[must_use]
    pub fn of_type(events: EventsOf) -> Self {
        Self {
            events,
            comparison: None,
        }
    }

    /// The same condition, and that the data of the event meets this comparison.
    #[must_use]
    pub fn with_field(self, comparison: FieldComparison) -> Self {
        Self {
            comparison: Some(comparison),
            ..self
        }
    }

    /// The events that the condition is about.
    #[must_use]
    pub fn events(&self) -> &EventsOf {
        &self.events
    }

    /// Whether an event meets the condition. An event whose recorded data ends before the field
    /// does not meet it.
    #[must_use]
    pub fn holds(&self, of: TypeOfEvent<'_>, data: RecordedData<'_>) -> bool {
        if !self.events.has(of) {
            return false;
        }
        match (of, &self.comparison) {
            // A merged trace may have several descriptions of one tracepoint.
            (TypeOfEvent::Kernel(tracepoint), Some(comparison)) => {
                let format = tracepoint.format();
                format.is_some_and(|format| comparison.holds_in(format, data))
            }
            _ => self.holds_for_data(data),
        }
    }

    /// Whether an event with this data meets the condition if it is one of [`Self::events`].
    #[must_use]
    pub fn holds_for_data(&self, data: RecordedData<'_>) -> bool {
        let comparison = self.comparison.as_ref();
        comparison.is_none_or(|comparison| comparison.holds(data))
    }
}

// === impl FieldComparison ===

impl FieldComparison {
    /// The comparison of the field with this name. `format` describes the data of the events.
    ///
    /// # Errors
    /// If the description has no such field, or the field cannot be compared in this way or never
    /// has this value.
    pub fn new(
        format: EventFormat,
        field: &str,
        relation: Relation,
        literal: Literal,
    ) -> Result<Self, ConditionError> {
        let name = || field.to_owned();
        let kind = format
            .kind(field)
            .ok_or_else(|| ConditionError::NoField(name()))?;
        let is_number = matches!(kind, Kind::Unsigned(_) | Kind::Signed(_) | Kind::Float(_));
        match (is_number, &literal) {
            (true, Literal::Text(_)) => return Err(ConditionError::Number(name())),
            (false, Literal::Integer(_) | Literal::Float(_)) => {
                return Err(ConditionError::NoNumber(name()));
            }
            (true, Literal::Integer(_) | Literal::Float(_)) | (false, Literal::Text(_)) => {}
        }
        if !is_number && !matches!(relation, Relation::Equal | Relation::NotEqual) {
            return Err(ConditionError::NoOrder(name()));
        }
        if let Literal::Text(text) = &literal {
            match kind {
                Kind::Text(_) | Kind::CountedText => {
                    let longest = match kind {
                        Kind::Text(length) => length.unwrap_or(MOST_FIELD_BYTES),
                        _ => u16::MAX.into(),
                    };
                    if text.len() > longest || text.contains('\0') {
                        return Err(ConditionError::NoSuchText(name(), longest));
                    }
                }
                Kind::Bytes(_) | Kind::CountedBytes => {
                    let (length, longest) = match kind {
                        Kind::Bytes(length) => (length, MOST_FIELD_BYTES),
                        _ => (None, u16::MAX.into()),
                    };
                    let bytes = bytes_in(text).map(Iterator::count);
                    let can_be = bytes.is_some_and(|bytes| match length {
                        Some(length) => bytes == length,
                        None => bytes <= longest,
                    });
                    if !can_be {
                        return Err(ConditionError::NoSuchBytes(name(), ByteCount(length)));
                    }
                }
                Kind::Unsigned(_) | Kind::Signed(_) | Kind::Float(_) | Kind::Skipped(_) => {}
            }
        }
        Ok(Self {
            field: name(),
            format,
            relation,
            literal,
        })
    }

    fn holds(&self, data: RecordedData<'_>) -> bool {
        self.holds_in(&self.format, data)
    }

    /// Whether data with this description meets the comparison.
    fn holds_in(&self, format: &EventFormat, data: RecordedData<'_>) -> bool {
        let value = format.value(&self.field, data);
        value.is_some_and(|value| self.relation.holds(self.literal.order_of(&value)))
    }
}

// === impl ByteCount ===

impl fmt::Display for ByteCount {
    /// A clause for the end of a sentence.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(1) => out.write_str("; it has 1 byte"),
            Some(bytes) => write!(out, "; it has {bytes} bytes"),
            None => Ok(()),
        }
    }
}

// === impl Relation ===

impl Relation {
    /// Whether values in this order have the relation; `None` for NaN.
    fn holds(self, order: Option<Ordering>) -> bool {
        match self {
            Self::Less => order == Some(Ordering::Less),
            Self::AtMost => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Equal => order == Some(Ordering::Equal),
            Self::NotEqual => order != Some(Ordering::Equal),
            Self::AtLeast => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
        }
    }
}

// === impl Literal ===

impl Literal {
    /// The order of a value and this constant. `None` if they have none.
    fn order_of(&self, value: &FieldValue<'_>) -> Option<Ordering> {
        match (value, self) {
            (FieldValue::Unsigned(value), Self::Integer(number)) => {
                Some(i128::from(*value).cmp(number))
            }
            (FieldValue::Signed(value), Self::Integer(number)) => {
                Some(i128::from(*value).cmp(number))
            }
            (FieldValue::Float(value), Self::Integer(number)) => {
                order_of_integer(*number, *value).map(Ordering::reverse)
            }
            (FieldValue::Unsigned(value), Self::Float(number)) => {
                order_of_integer((*value).into(), *number)
            }
            (FieldValue::Signed(value), Self::Float(number)) => {
                order_of_integer((*value).into(), *number)
            }
            (FieldValue::Float(value), Self::Float(number)) => value.partial_cmp(number),
            (FieldValue::Text(bytes), Self::Text(text)) => Some((*bytes).cmp(text.as_bytes())),
            // Bytes have no order: they are equal, or not.
            (FieldValue::Bytes(bytes), Self::Text(text)) => {
                let is_equal = text.len() == 2 + 2 * bytes.len()
                    && bytes_in(text).is_some_and(|wanted| wanted.eq(bytes.iter().copied()));
                is_equal.then_some(Ordering::Equal)
            }
            (FieldValue::Text(_) | FieldValue::Bytes(_), Self::Integer(_) | Self::Float(_))
            | (
                FieldValue::Unsigned(_) | FieldValue::Signed(_) | FieldValue::Float(_),
                Self::Text(_),
            ) => None,
        }
    }
}

/// The order of an integer and another number, without rounding; `None` for NaN.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a number without a fraction, within the range of the integers"
)]
fn order_of_integer(integer: i128, number: f64) -> Option<Ordering> {
    // 2^127, which is above each `i128`.
    const ABOVE: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if number.is_nan() {
        return None;
    }
    if number >= ABOVE {
        return Some(Ordering::Less);
    }
    if number < -ABOVE {
        return Some(Ordering::Greater);
    }
    let below = number.floor();
    let fraction = match number > below {
        true => Ordering::Less,
        false => Ordering::Equal,
    };
    Some(integer.cmp(&(below as i128)).then(fraction))
}

/// The bytes that a text like `0x001f` stands for; `None` if it stands for none.
fn bytes_in(text: &str) -> Option<impl Iterator<Item = u8>> {
    let digits = text.strip_prefix("0x")?.as_bytes();
    let digit = |letter: u8| match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_chunks::<2>();
    let are_digits = digits.iter().all(|letter| digit(*letter).is_some());
    (rest.is_empty() && are_digits).then(|| {
        let pairs = pairs.iter();
        pairs.filter_map(move |[high, low]| Some(digit(*high)? << 4 | digit(*low)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "id:u64,delta:i16,price:f64,symbol:str4,key:bytes2";

    fn data(id: u64, delta: i16, price: f64) -> Vec<u8> {
        let mut data = id.to_le_bytes().to_vec();
        data.extend(delta.to_le_bytes());
        data.extend(price.to_le_bytes());
        data.extend(b"AB\0x\x00\x1f");
        data
    }

    fn condition(
        field: &str,
        relation: Relation,
        literal: Literal,
    ) -> Result<EventCondition, ConditionError> {
        let order = EventCondition::of_type(EventsOf::Name("order".to_owned()));
        let comparison = FieldComparison::new(FORMAT.parse().unwrap(), field, relation, literal)?;
        Ok(order.with_field(comparison))
    }

    const ORDER: TypeOfEvent<'_> = TypeOfEvent::Typed(7, Some("order"));

    #[test]
    fn fields_are_compared_with_constants() {
        use Relation::{AtLeast, AtMost, Equal, Greater, Less, NotEqual};
        let text = |text: &str| Literal::Text(text.to_owned());
        let data = data(u64::MAX, -3, 0.5);
        let most = i128::from(u64::MAX);
        for (field, relation, literal, expected) in [
            ("id", Equal, Literal::Integer(most), true),
            ("id", Less, Literal::Integer(most + 1), true),
            ("id", Greater, Literal::Integer(most - 1), true),
            ("id", Greater, Literal::Integer(most), false),
            ("id", AtLeast, Literal::Integer(most), true),
            ("id", Greater, Literal::Float(1e18), true),
            ("id", Greater, Literal::Integer(-1), true),
            ("delta", Equal, Literal::Integer(-3), true),
            ("delta", AtMost, Literal::Integer(-3), true),
            ("delta", AtMost, Literal::Integer(-4), false),
            ("delta", Greater, Literal::Float(-3.5), true),
            (
                "id",
                Less,
                Literal::Float(18_446_744_073_709_551_616.0),
                true,
            ),
            (
                "id",
                Equal,
                Literal::Float(18_446_744_073_709_551_616.0),
                false,
            ),
            ("id", Greater, Literal::Float(-0.5), true),
            ("id", Less, Literal::Float(f64::INFINITY), true),
            ("delta", Greater, Literal::Float(f64::NEG_INFINITY), true),
            ("delta", Equal, Literal::Float(-3.0), true),
            ("delta", Less, Literal::Float(-2.5), true),
            ("price", Greater, Literal::Integer(0), true),
            ("price", Less, Literal::Integer(i128::MAX), true),
            ("delta", NotEqual, Literal::Integer(-3), false),
            ("price", Less, Literal::Integer(1), true),
            ("price", Equal, Literal::Float(0.5), true),
            ("price", NotEqual, Literal::Float(0.5), false),
            ("symbol", Equal, text("AB"), true),
            ("symbol", Equal, text("A"), false),
            ("symbol", NotEqual, text("A"), true),
            ("key", Equal, text("0x001f"), true),
            ("key", NotEqual, text("0x001f"), false),
        ] {
            let condition = condition(field, relation, literal.clone()).unwrap();
            let holds = condition.holds(ORDER, RecordedData::whole(&data));
            assert_eq!(holds, expected, "{field} {relation:?} {literal:?}");
        }
    }

    #[test]
    fn nan_differs_from_every_number() {
        let data = data(0, 0, f64::NAN);
        for relation in [
            Relation::Less,
            Relation::AtMost,
            Relation::Equal,
            Relation::AtLeast,
            Relation::Greater,
        ] {
            for literal in [Literal::Integer(0), Literal::Float(0.0)] {
                let condition = condition("price", relation, literal).unwrap();
                assert!(
                    !condition.holds(ORDER, RecordedData::whole(&data)),
                    "{relation:?}"
                );
            }
        }
        let differs = condition("price", Relation::NotEqual, Literal::Integer(0)).unwrap();
        assert!(differs.holds(ORDER, RecordedData::whole(&data)));
    }

    #[test]
    fn other_events_and_short_data_do_not_meet_a_condition() {
        let condition = condition("delta", Relation::NotEqual, Literal::Integer(9)).unwrap();
        let data = data(1, 2, 3.0);
        assert!(condition.holds(ORDER, RecordedData::whole(&data)));
        assert!(condition.holds(ORDER, RecordedData::whole(&data[..10])));
        assert!(!condition.holds(ORDER, RecordedData::whole(&data[..9])));
        assert!(!condition.holds(TypeOfEvent::Custom, RecordedData::whole(&data)));
        assert!(!condition.holds(TypeOfEvent::Typed(7, None), RecordedData::whole(&data)));
        assert!(!condition.holds(
            TypeOfEvent::Typed(7, Some("trade")),
            RecordedData::whole(&data)
        ));
        let all = EventFilter::default();
        assert!(
            all.is_empty()
                && all.wants(TypeOfEvent::Custom, RecordedData::whole(b""))
                && all.wants(ORDER, RecordedData::whole(b""))
        );
        let custom = EventCondition::of_type(EventsOf::Custom);
        let any = EventFilter::new(vec![condition, custom]);
        assert!(any.wants(TypeOfEvent::Custom, RecordedData::whole(b"")));
        assert!(any.wants(ORDER, RecordedData::whole(&data)));
        assert!(!any.wants(ORDER, RecordedData::whole(b"")));
        assert!(!any.wants(TypeOfEvent::Typed(8, None), RecordedData::whole(&data)));
        let order = EventsOf::Name("order".to_owned());
        assert!(any.events().eq([&order, &EventsOf::Custom]));
    }

    #[test]
    fn comparisons_without_a_meaning_are_refused() {
        use Relation::{Equal, Less, NotEqual};
        let text = || Literal::Text("AB".to_owned());
        let field = |field: &str| field.to_owned();
        for (name, relation, literal, error) in [
            (
                "prize",
                Equal,
                Literal::Integer(1),
                ConditionError::NoField(field("prize")),
            ),
            ("id", Equal, text(), ConditionError::Number(field("id"))),
            (
                "price",
                Equal,
                text(),
                ConditionError::Number(field("price")),
            ),
            (
                "symbol",
                Equal,
                Literal::Float(1.0),
                ConditionError::NoNumber(field("symbol")),
            ),
            (
                "key",
                Equal,
                Literal::Integer(31),
                ConditionError::NoNumber(field("key")),
            ),
            (
                "symbol",
                Less,
                text(),
                ConditionError::NoOrder(field("symbol")),
            ),
            (
                "symbol",
                Equal,
                Literal::Text("ABCDE".to_owned()),
                ConditionError::NoSuchText(field("symbol"), 4),
            ),
            (
                "symbol",
                NotEqual,
                Literal::Text("A\0".to_owned()),
                ConditionError::NoSuchText(field("symbol"), 4),
            ),
        ] {
            assert_eq!(condition(name, relation, literal), Err(error), "{name}");
        }
    }
    #[test]
    fn bytes_that_a_field_never_has_are_refused() {
        let format: EventFormat = "key:bytes2,rest:bytes".parse().unwrap();
        let compared = |field, text: &str| {
            let text = Literal::Text(text.to_owned());
            FieldComparison::new(format.clone(), field, Relation::NotEqual, text)
        };
        for text in ["0x001f", "0xffff"] {
            assert!(compared("key", text).is_ok(), "{text}");
        }
        for text in [
            "", "0x", "001f", "0x1f", "0x001F", "0x001f00", "0x001g", "0X001f", "0x01f",
        ] {
            let refused = compared("key", text).unwrap_err();
            assert_eq!(
                refused,
                ConditionError::NoSuchBytes("key".to_owned(), ByteCount(Some(2)))
            );
            assert!(
                refused.to_string().ends_with("; it has 2 bytes"),
                "{refused}"
            );
        }
        for text in [
            "0x",
            "0x00",
            &format!("0x{}", "00".repeat(MOST_FIELD_BYTES)),
        ] {
            assert!(compared("rest", text).is_ok(), "{text}");
        }
        for text in ["0x0", &format!("0x{}", "00".repeat(MOST_FIELD_BYTES + 1))] {
            assert!(compared("rest", text).is_err(), "{text}");
        }
    }

    /// Of long data, only the begin is recorded. A field that takes the rest ends behind it.
    #[test]
    fn a_rest_that_is_cut_meets_no_condition() {
        let cut = |bytes| RecordedData {
            bytes,
            is_cut: true,
        };
        let compared = |kind: &str, relation, text: &str| {
            let format = format!("a:u8,b:{kind}").parse().unwrap();
            let text = Literal::Text(text.to_owned());
            FieldComparison::new(format, "b", relation, text).unwrap()
        };
        for (kind, equal, other) in [("str", "AB", "A"), ("bytes", "0x4142", "0x41")] {
            let is = compared(kind, Relation::Equal, equal);
            let differs = compared(kind, Relation::NotEqual, other);
            let data = b"\0AB";
            assert!(
                is.holds(RecordedData::whole(data)) && differs.holds(RecordedData::whole(data))
            );
            assert!(!is.holds(cut(data)) && !differs.holds(cut(data)), "{kind}");
        }
        // The text ends before the data does.
        assert!(compared("str", Relation::Equal, "AB").holds(cut(b"\0AB\0x")));
        assert!(compared("str2", Relation::Equal, "AB").holds(cut(b"\0ABC")));
        assert!(!compared("str4", Relation::Equal, "AB").holds(cut(b"\0AB")));
    }
}
