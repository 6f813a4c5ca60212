//! Decodes the fields of packets and events, by their types.

use super::types::{Enum, Integer, Length, Type};

/// The most fields of an event, including the fields of its packet.
const MOST_FIELDS: usize = 1 << 11;
/// The most elements of arrays of numbers that are kept of an event.
const MOST_ELEMENTS: usize = 1 << 10;
/// The fields among which a length or a tag is looked for.
const MOST_BACK: usize = 1 << 10;
/// The types of a packet that may be looked at beside two for each of its bits. Empty structures
/// have no bits.
const MOST_STEPS: usize = 1 << 10;

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'m> {
    Number(i128),
    /// A number that may have names.
    Named(i128, &'m Enum),
    /// Bytes of the packet, by their place and their number.
    Text(usize, usize),
}

/// The fields that were decoded, with names. An element of an array has the array's name.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields<'m> {
    all: Vec<(&'m str, Value<'m>)>,
    /// Kept elements of arrays of numbers.
    elements: usize,
}

/// Reads bits of a packet.
#[derive(Debug)]
pub(super) struct Bits<'b> {
    bytes: &'b [u8],
    /// The next bit.
    pub(super) at: usize,
    /// The bit behind the last one.
    end: usize,
    /// The types of the packet that were looked at.
    pub(super) steps: usize,
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
            Self::Text(..) => None,
        }
    }
}

// === impl Fields ===

impl<'m> Fields<'m> {
    /// The latest field with this name.
    pub(super) fn get(&self, name: &str) -> Option<Value<'m>> {
        self.get_behind(0, name)
    }

    /// The same, of the fields from this one on.
    fn get_behind(&self, from: usize, name: &str) -> Option<Value<'m>> {
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

    /// A text of the packet with these bytes.
    pub(super) fn text<'b>(&self, bytes: &'b [u8], name: &str) -> Option<&'b [u8]> {
        self.text_behind(bytes, 0, name)
    }

    /// The same, of the fields from this one on.
    pub(super) fn text_behind<'b>(
        &self,
        bytes: &'b [u8],
        from: usize,
        name: &str,
    ) -> Option<&'b [u8]> {
        match self.get_behind(from, name)? {
            Value::Text(at, length) => bytes.get(at..at.checked_add(length)?),
            Value::Number(_) | Value::Named(..) => None,
        }
    }

    /// The elements of an array of numbers.
    pub(super) fn numbers(&self, name: &str) -> impl Iterator<Item = i128> {
        let fields = self.all.iter().filter(move |(its, _)| *its == name);
        fields.filter_map(|(_, value)| match value {
            Value::Number(number) | Value::Named(number, _) => Some(*number),
            Value::Text(..) => None,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn push(&mut self, name: &'m str, value: Value<'m>) -> Result<(), Bad> {
        if self.all.len() >= MOST_FIELDS {
            return Err(Bad::Many);
        }
        self.all.push((name, value));
        Ok(())
    }

    /// Adds an element of an array of numbers, unless there are many.
    fn push_element(&mut self, name: &'m str, number: i128) -> Result<(), Bad> {
        if self.elements >= MOST_ELEMENTS {
            return Ok(());
        }
        self.elements += 1;
        self.push(name, Value::Number(number))
    }

    /// The latest field with this name, if it is near.
    fn near(&self, name: &str) -> Option<Value<'m>> {
        self.get_behind(self.all.len().saturating_sub(MOST_BACK), name)
    }

    /// The name that the tag of a variant has.
    fn tag(&self, name: &str) -> Option<&'m str> {
        match self.near(name)? {
            Value::Named(number, of) => of.names(number).next(),
            Value::Number(_) | Value::Text(..) => None,
        }
    }
}

// === impl Bits ===

impl<'b> Bits<'b> {
    /// The bits of a packet up to `end`.
    pub(super) fn new(bytes: &'b [u8], end: usize, now: u64) -> Self {
        Self {
            bytes,
            at: 0,
            end: end.min(bytes.len().saturating_mul(8)),
            steps: 0,
            now,
            first_time: None,
        }
    }

    fn align(&mut self, align: u32) -> Result<(), Bad> {
        let align = (align as usize).max(1);
        self.at = self.at.checked_next_multiple_of(align).ok_or(Bad::Short)?;
        Ok(())
    }

    /// Decodes the fields of a type, if there is one.
    pub(super) fn decode_any<'m>(
        &mut self,
        of: Option<&'m Type>,
        fields: &mut Fields<'m>,
    ) -> Result<(), Bad> {
        of.map_or(Ok(()), |of| self.decode("", of, fields))
    }

    /// Decodes a field, and adds it and the fields in it.
    fn decode<'m>(
        &mut self,
        name: &'m str,
        of: &'m Type,
        fields: &mut Fields<'m>,
    ) -> Result<(), Bad> {
        self.steps += 1;
        if self.steps > MOST_STEPS + 2 * self.at {
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
                fields.push(name, text)
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
                    Length::Field(name) => fields
                        .near(name)
                        .and_then(Value::number)
                        .ok_or(Bad::Choice)?,
                };
                self.elements(name, &of.element, length, fields)
            }
        }
    }

    fn elements<'m>(
        &mut self,
        name: &'m str,
        of: &'m Type,
        length: u64,
        fields: &mut Fields<'m>,
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
            return fields.push(name, Value::Text(from, length));
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

    fn text(&mut self) -> Result<Value<'static>, Bad> {
        let from = self.at / 8;
        let rest = self.bytes.get(from..self.end / 8).ok_or(Bad::Short)?;
        let length = rest.iter().position(|&byte| byte == 0);
        let length = length.ok_or(Bad::Short)?;
        self.at = (from + length + 1) * 8;
        Ok(Value::Text(from, length))
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
