//! Decodes the fields of packets and events, by their types.

use super::types::{Enum, Integer, Length, Type};

/// The most fields of an event.
const MOST_FIELDS: usize = 1 << 13;
/// The most elements of arrays of numbers that are kept of an event.
const MOST_ELEMENTS: usize = 1 << 10;
/// The types of an event that may be looked at beside one for each of its bits. Empty structures
/// have no bits.
const MOST_STEPS: usize = 1 << 10;

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Number(i128),
    /// A number that may have names.
    Named(i128, &'a Enum),
    Text(&'a [u8]),
}

/// The fields that were decoded, with names. An element of an array has the array's name.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    all: Vec<(&'a str, Value<'a>)>,
    /// Kept elements of arrays of numbers.
    elements: usize,
}

/// Reads bits of a packet.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The next bit.
    at: usize,
    /// The bit behind the last one.
    end: usize,
    /// The first bit of the event, and the types that were looked at since.
    begun: usize,
    steps: usize,
    /// The time of the clock. Fields of times change it.
    pub(super) now: u64,
    /// The first time that was read.
    pub(super) first_time: Option<u64>,
}

/// The reason why something cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// The packet ends in the middle.
    Short,
    /// No choice of a variant fits.
    Choice,
    /// There are too many fields.
    Many,
}

// === impl Bad ===

impl Bad {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Short => "the packet ends within a field",
            Self::Choice => "a field has no type for its tag, or no length",
            Self::Many => "an event has too many fields",
        }
    }
}

// === impl Value ===

impl Value<'_> {
    fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) | Self::Named(number, _) => u64::try_from(number).ok(),
            Self::Text(_) => None,
        }
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// The latest field with this name.
    pub(super) fn get(&self, name: &str) -> Option<Value<'a>> {
        self.get_behind(0, name)
    }

    /// The same, of the fields from this one on.
    fn get_behind(&self, from: usize, name: &str) -> Option<Value<'a>> {
        let fields = self.all.get(from..)?;
        let found = fields.iter().rev().find(|(its, _)| *its == name);
        found.map(|(_, value)| *value)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.number()
    }

    /// The same, of the fields from this one on.
    pub(super) fn number_behind(&self, from: usize, name: &str) -> Option<u64> {
        self.get_behind(from, name)?.number()
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a [u8]> {
        self.text_behind(0, name)
    }

    /// The same, of the fields from this one on.
    pub(super) fn text_behind(&self, from: usize, name: &str) -> Option<&'a [u8]> {
        match self.get_behind(from, name)? {
            Value::Text(text) => Some(text),
            Value::Number(_) | Value::Named(..) => None,
        }
    }

    /// The elements of an array of numbers.
    pub(super) fn numbers(&self, name: &str) -> impl Iterator<Item = i128> {
        let fields = self.all.iter().filter(move |(its, _)| *its == name);
        fields.filter_map(|(_, value)| match value {
            Value::Number(number) | Value::Named(number, _) => Some(*number),
            Value::Text(_) => None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn push(&mut self, name: &'a str, value: Value<'a>) -> Result<(), Bad> {
        if self.all.len() >= MOST_FIELDS {
            return Err(Bad::Many);
        }
        self.all.push((name, value));
        Ok(())
    }

    /// Adds an element of an array of numbers, unless there are many.
    fn push_element(&mut self, name: &'a str, number: i128) -> Result<(), Bad> {
        if self.elements >= MOST_ELEMENTS {
            return Ok(());
        }
        self.elements += 1;
        self.push(name, Value::Number(number))
    }

    /// The name that the tag of a variant has.
    fn tag(&self, name: &str) -> Option<&'a str> {
        match self.get(name)? {
            Value::Named(number, of) => of.names(number).next(),
            Value::Number(_) | Value::Text(_) => None,
        }
    }
}

// === impl Bits ===

impl<'a> Bits<'a> {
    /// The bits of a packet up to `end`.
    pub(super) fn new(bytes: &'a [u8], end: usize, now: u64) -> Self {
        Self {
            bytes,
            at: 0,
            end: end.min(bytes.len().saturating_mul(8)),
            begun: 0,
            steps: 0,
            now,
            first_time: None,
        }
    }

    /// The next bit.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Goes on at this bit, up to `end`.
    pub(super) fn go_to(&mut self, at: usize, end: usize) {
        (self.at, self.end) = (at, end.min(self.bytes.len().saturating_mul(8)));
        (self.begun, self.steps) = (at, 0);
    }

    fn align(&mut self, align: u32) -> Result<(), Bad> {
        let align = (align as usize).max(1);
        self.at = self.at.checked_next_multiple_of(align).ok_or(Bad::Short)?;
        Ok(())
    }

    /// Decodes the fields of a type, if there is one.
    pub(super) fn decode_any(
        &mut self,
        of: Option<&'a Type>,
        fields: &mut Fields<'a>,
    ) -> Result<(), Bad> {
        of.map_or(Ok(()), |of| self.decode("", of, fields))
    }

    /// Decodes a field, and adds it and the fields in it.
    pub(super) fn decode(
        &mut self,
        name: &'a str,
        of: &'a Type,
        fields: &mut Fields<'a>,
    ) -> Result<(), Bad> {
        self.steps += 1;
        if self.steps > MOST_STEPS + self.at.saturating_sub(self.begun) {
            return Err(Bad::Many);
        }
        self.align(of.align())?;
        match of {
            Type::Integer(integer) => {
                let number = self.integer(*integer)?;
                fields.push(name, Value::Number(number))
            }
            Type::Float(bits, _) => {
                self.skip(*bits as usize)?;
                Ok(())
            }
            Type::Enum(of) => {
                let number = self.integer(of.integer)?;
                fields.push(name, Value::Named(number, of))
            }
            Type::Text => {
                let text = self.text()?;
                fields.push(name, Value::Text(text))
            }
            Type::Struct(of) => {
                let mut inner = of.fields.iter();
                inner.try_for_each(|(name, of)| self.decode(name, of, fields))
            }
            Type::Variant(of) => {
                let label = fields.tag(&of.tag).ok_or(Bad::Choice)?;
                let label = label.strip_prefix('_').unwrap_or(label);
                let chosen = of.choices.get_key_value(label);
                let (name, of) = chosen.ok_or(Bad::Choice)?;
                self.decode(name, of, fields)
            }
            Type::Array(of) => {
                let length = match &of.length {
                    Length::Fixed(length) => *length,
                    Length::Field(name) => fields.number(name).ok_or(Bad::Choice)?,
                };
                self.elements(name, &of.element, length, fields)
            }
        }
    }

    fn elements(
        &mut self,
        name: &'a str,
        of: &'a Type,
        length: u64,
        fields: &mut Fields<'a>,
    ) -> Result<(), Bad> {
        // Bytes are one text.
        if let Type::Integer(Integer {
            bits: 8, align: 8, ..
        }) = of
        {
            self.align(8)?;
            let from = self.at / 8;
            let length = usize::try_from(length).map_err(|_| Bad::Short)?;
            self.skip(length.checked_mul(8).ok_or(Bad::Short)?)?;
            let text = self.bytes.get(from..from + length).ok_or(Bad::Short)?;
            return fields.push(name, Value::Text(text));
        }
        if let Type::Integer(integer) = of {
            for _ in 0..length {
                let number = self.integer(*integer)?;
                fields.push_element(name, number)?;
            }
            return Ok(());
        }
        for _ in 0..length {
            let before = (self.at, fields.len());
            self.decode(name, of, fields)?;
            // Elements without a size have no end.
            if before == (self.at, fields.len()) {
                break;
            }
        }
        Ok(())
    }

    fn skip(&mut self, bits: usize) -> Result<usize, Bad> {
        let from = self.at;
        let to = from.checked_add(bits).filter(|to| *to <= self.end);
        self.at = to.ok_or(Bad::Short)?;
        Ok(from)
    }

    fn text(&mut self) -> Result<&'a [u8], Bad> {
        let from = self.at / 8;
        let rest = self.bytes.get(from..self.end / 8).ok_or(Bad::Short)?;
        let length = rest.iter().position(|&byte| byte == 0);
        let length = length.ok_or(Bad::Short)?;
        self.at = (from + length + 1) * 8;
        rest.get(..length).ok_or(Bad::Short)
    }

    fn integer(&mut self, of: Integer) -> Result<i128, Bad> {
        self.align(of.align)?;
        let from = self.skip(of.bits as usize)?;
        let mut value: u64 = 0;
        if from.is_multiple_of(8) && of.bits.is_multiple_of(8) {
            let bytes = self.bytes.get(from / 8..self.at / 8).ok_or(Bad::Short)?;
            let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
            value = match of.is_big_endian {
                true => bytes.iter().fold(0, fold),
                false => bytes.iter().rev().fold(0, fold),
            };
        } else {
            for index in 0..of.bits as usize {
                let at = from + index;
                let byte = *self.bytes.get(at / 8).ok_or(Bad::Short)?;
                match of.is_big_endian {
                    true => value = value << 1 | u64::from(byte >> (7 - at % 8) & 1),
                    false => value |= u64::from(byte >> (at % 8) & 1) << index,
                }
            }
        }
        if of.is_time {
            self.now = later(self.now, value, of.bits);
            self.first_time.get_or_insert(self.now);
            return Ok(i128::from(self.now));
        }
        if of.is_signed {
            let shift = 64 - of.bits;
            return Ok(i128::from((value << shift).cast_signed() >> shift));
        }
        Ok(i128::from(value))
    }
}

/// The first time from `now` on whose low bits are these.
fn later(now: u64, low: u64, bits: u32) -> u64 {
    if bits >= 64 {
        return low;
    }
    let mask = (1 << bits) - 1;
    let time = now & !mask | low;
    match low < now & mask {
        true => time.wrapping_add(1 << bits),
        false => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(bits: u32) -> Integer {
        Integer {
            bits,
            align: 1,
            is_signed: false,
            is_big_endian: false,
            is_time: false,
        }
    }

    #[test]
    fn integers_have_any_number_of_bits() {
        let bytes = [0b1010_1101, 0x34, 0x12, 0xff];
        let mut bits = Bits::new(&bytes, 32, 0);
        assert_eq!(bits.integer(integer(5)), Ok(0b01101));
        assert_eq!(bits.integer(integer(3)), Ok(0b101));
        assert_eq!(bits.integer(integer(16)), Ok(0x1234));
        let signed = Integer {
            is_signed: true,
            ..integer(8)
        };
        assert_eq!(bits.integer(signed), Ok(-1));
        assert_eq!(bits.integer(integer(1)), Err(Bad::Short));
        let big = Integer {
            is_big_endian: true,
            ..integer(12)
        };
        assert_eq!(Bits::new(&bytes, 32, 0).integer(big), Ok(0b1010_1101_0011));
    }

    #[test]
    fn low_bits_of_a_time_go_on_from_the_time_before() {
        assert_eq!(later(0x1234, 0x40, 8), 0x1240);
        assert_eq!(later(0x1234, 0x30, 8), 0x1330);
        assert_eq!(later(0x1234, 7, 64), 7);
    }
}
