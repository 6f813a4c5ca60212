//! Reads the metadata of a trace: declarations of types, and the classes of streams and events.

use std::collections::HashMap;
use std::rc::Rc;

use super::lexer::{Lexer, Token};
use super::types::{Array, Enum, Event, Integer, Length, Metadata, Stream, Struct, Type, Variant};

/// The most types within each other.
const DEEPEST: u32 = 32;
/// The most fields of all types together, and the most labels.
const MOST_PARTS: usize = 1 << 22;

/// The most words of a type's name.
const MOST_WORDS: usize = 8;

/// Words of C's types, which are no names of fields.
const WORDS: [&str; 7] = [
    "int", "long", "short", "char", "unsigned", "signed", "const",
];

/// The begin of a packet of metadata. Plain text has none.
const PACKET_MAGIC: u32 = 0x75d1_1d57;
/// Bytes of a packet's head: magic, uuid, checksum, sizes in bits of content and packet,
/// compression, encryption, kind of the checksum, version.
const PACKET_HEAD: usize = 37;

/// Parses words.
struct Parser<'a> {
    lexer: Lexer<'a>,
    /// Words that were looked at.
    ahead: Vec<Token>,
    /// Types with names.
    types: HashMap<Key, Type>,
    /// For each open block, the types that its own declarations hide.
    hidden: Vec<Vec<(Key, Option<Type>)>>,
    is_big_endian: bool,
    depth: u32,
    parts: usize,
    metadata: Metadata,
}

/// The name of a type, and its kind: `alias`, `struct`, `enum` or `variant`.
type Key = (&'static str, String);

/// The value of an attribute.
enum Value {
    Type(Type),
    Number(i128),
    /// A name, perhaps with dots, or a text.
    Word(String),
}

/// The text of metadata, which may be in packets.
///
/// # Errors
///
/// A packet that is cut or compressed.
pub(super) fn text_of(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let read: fn([u8; 4]) -> u32 = match bytes.first_chunk() {
        Some(magic) if u32::from_le_bytes(*magic) == PACKET_MAGIC => u32::from_le_bytes,
        Some(magic) if u32::from_be_bytes(*magic) == PACKET_MAGIC => u32::from_be_bytes,
        _ => return Ok(bytes),
    };
    let mut text = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let word = |at: usize| rest.get(at..)?.first_chunk().copied().map(read);
        let sizes = (word(24), word(28), rest.get(32..34));
        let (Some(content), Some(packet), Some(&[0, 0])) = sizes else {
            return Err("a packet of the metadata is cut, compressed or encrypted".to_owned());
        };
        let (content, packet) = (content as usize / 8, packet as usize / 8);
        let inside = rest.get(PACKET_HEAD..content);
        let after = rest.get(packet..).filter(|_| packet >= PACKET_HEAD);
        let (Some(inside), Some(after)) = (inside, after) else {
            return Err("a packet of the metadata has a wrong size".to_owned());
        };
        text.extend_from_slice(inside);
        rest = after;
    }
    Ok(text)
}

/// Reads metadata.
///
/// # Errors
///
/// The line, and what is wrong there.
pub(super) fn parse(text: &[u8]) -> Result<Metadata, String> {
    // The byte order stands behind types that have it.
    let (described, is_big_endian) = parse_in(text, false)?;
    match is_big_endian {
        false => Ok(described),
        true => parse_in(text, true).map(|(described, _)| described),
    }
}

/// Reads metadata of types in this byte order. Returns the byte order of the trace, too.
fn parse_in(text: &[u8], is_big_endian: bool) -> Result<(Metadata, bool), String> {
    let mut parser = Parser {
        lexer: Lexer::new(text),
        ahead: Vec::new(),
        types: HashMap::new(),
        hidden: Vec::new(),
        is_big_endian,
        depth: 0,
        parts: 0,
        metadata: Metadata::default(),
    };
    let parsed = parser.all();
    let line = parser.lexer.line();
    parsed.map_err(|why| format!("line {line} of the metadata: {why}"))?;
    Ok((parser.metadata, parser.is_big_endian))
}

// === impl Parser ===

impl Parser<'_> {
    fn peek(&mut self) -> Result<Option<&Token>, String> {
        if self.ahead.is_empty()
            && let Some(token) = self.lexer.next()?
        {
            self.ahead.push(token);
        }
        Ok(self.ahead.last())
    }

    fn next(&mut self) -> Result<Token, String> {
        let next = match self.ahead.pop() {
            None => self.lexer.next()?,
            token => token,
        };
        next.ok_or_else(|| "it ends too early".to_owned())
    }

    /// Takes the mark if it is next.
    fn takes(&mut self, mark: char) -> Result<bool, String> {
        let is_next = self.peek()? == Some(&Token::Mark(mark));
        if is_next {
            self.next()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, mark: char) -> Result<(), String> {
        match self.next()? {
            Token::Mark(found) if found == mark => Ok(()),
            found => Err(format!("{found:?} in the place of '{mark}'")),
        }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.next()? {
            Token::Name(name) => Ok(name),
            // Names of attributes and fields may be texts.
            Token::Text(text) => Ok(text),
            found => Err(format!("{found:?} in the place of a name")),
        }
    }

    fn count(&mut self) -> Result<(), String> {
        self.parts += 1;
        match self.parts > MOST_PARTS {
            true => Err(format!(
                "there are more than {MOST_PARTS} fields and labels"
            )),
            false => Ok(()),
        }
    }

    fn all(&mut self) -> Result<(), String> {
        while let Some(token) = self.peek()? {
            match token {
                Token::Mark(';') => {
                    self.next()?;
                }
                Token::Name(word) => match word.as_str() {
                    "trace" | "stream" | "event" | "clock" | "env" | "callsite" => {
                        let what = self.name()?;
                        let attributes = self.block()?;
                        self.take(&what, attributes)?;
                        self.expect(';')?;
                    }
                    _ => self.declaration()?,
                },
                found => return Err(format!("{found:?} at the begin of a declaration")),
            }
        }
        Ok(())
    }

    /// A declaration of a type.
    fn declaration(&mut self) -> Result<(), String> {
        match self.peek()? {
            Some(Token::Name(word)) if word == "typealias" => {
                self.next()?;
                let of = self.type_()?;
                if self.next()? != Token::Assign {
                    return Err("a type alias without ':='".to_owned());
                }
                let name = self.words()?;
                self.declare(("alias", name), of);
            }
            Some(Token::Name(word)) if word == "typedef" => {
                self.next()?;
                let of = self.type_()?;
                let (name, of) = self.declared(of)?;
                self.declare(("alias", name), of);
            }
            _ => {
                self.type_()?;
            }
        }
        self.expect(';')
    }

    /// Gives a type a name, up to the end of the block.
    fn declare(&mut self, key: Key, of: Type) {
        let hidden = self.types.insert(key.clone(), of);
        if let Some(block) = self.hidden.last_mut() {
            block.push((key, hidden));
        }
    }

    /// Ends a block: what it has hidden counts again.
    fn leave(&mut self) {
        for (key, of) in self.hidden.pop().into_iter().flatten().rev() {
            match of {
                Some(of) => self.types.insert(key, of),
                None => self.types.remove(&key),
            };
        }
    }

    /// Names up to a mark, with spaces between them.
    fn words(&mut self) -> Result<String, String> {
        let mut words = vec![self.name()?];
        while let Some(Token::Name(_)) = self.peek()? {
            words.push(self.name()?);
            if words.len() > MOST_WORDS {
                return Err(format!("a type has more than {MOST_WORDS} words"));
            }
        }
        Ok(words.join(" "))
    }

    /// The attributes of a block in braces.
    fn block(&mut self) -> Result<Vec<(String, Value)>, String> {
        self.expect('{')?;
        self.hidden.push(Vec::new());
        let mut attributes = Vec::new();
        while !self.takes('}')? {
            if let Some(Token::Name(word)) = self.peek()?
                && ["typealias", "typedef", "struct", "enum", "variant"].contains(&word.as_str())
            {
                self.declaration()?;
                continue;
            }
            self.count()?;
            let name = self.path()?;
            let value = match self.next()? {
                Token::Assign => Value::Type(self.type_()?),
                Token::Mark('=') => self.value()?,
                found => return Err(format!("{found:?} behind '{name}'")),
            };
            self.expect(';')?;
            attributes.push((name, value));
        }
        self.leave();
        Ok(attributes)
    }

    /// Names with dots or arrows between them.
    fn path(&mut self) -> Result<String, String> {
        let mut path = self.name()?;
        while matches!(self.peek()?, Some(Token::Mark('.') | Token::Arrow)) {
            self.next()?;
            path.push('.');
            path.push_str(&self.name()?);
        }
        Ok(path)
    }

    fn value(&mut self) -> Result<Value, String> {
        Ok(match self.peek()? {
            Some(Token::Name(_)) => Value::Word(self.path()?),
            Some(Token::Text(_)) => Value::Word(self.name()?),
            _ => Value::Number(self.number()?),
        })
    }

    fn number(&mut self) -> Result<i128, String> {
        match self.next()? {
            Token::Number(number) => Ok(number),
            Token::Mark('-') => self.number_behind_sign().map(|number| -number),
            Token::Mark('+') => self.number_behind_sign(),
            found => Err(format!("{found:?} in the place of a number")),
        }
    }

    fn number_behind_sign(&mut self) -> Result<i128, String> {
        match self.next()? {
            Token::Number(number) => Ok(number),
            found => Err(format!("{found:?} behind a sign")),
        }
    }

    fn take(&mut self, what: &str, attributes: Vec<(String, Value)>) -> Result<(), String> {
        let mut stream = Stream::default();
        let mut event = Event::default();
        for (name, value) in attributes {
            match (what, name.as_str(), value) {
                ("trace", "byte_order", Value::Word(order)) => {
                    self.is_big_endian = is_big_endian(&order, false);
                }
                ("trace", "packet.header", Value::Type(of)) => {
                    self.metadata.packet_header = Some(of);
                }
                ("clock", "freq", Value::Number(number)) => {
                    let frequency = unsigned(number)?.max(1);
                    let known = *self.metadata.frequency.get_or_insert(frequency);
                    if known != frequency {
                        return Err("the clocks have different frequencies".to_owned());
                    }
                }
                ("stream", "id", Value::Number(id)) => stream.id = unsigned(id)?,
                ("stream", "packet.context", Value::Type(of)) => stream.packet_context = Some(of),
                ("stream", "event.header", Value::Type(of)) => stream.event_header = Some(of),
                ("stream", "event.context", Value::Type(of)) => stream.event_context = Some(of),
                ("event", "id", Value::Number(id)) => event.id = unsigned(id)?,
                ("event", "stream_id", Value::Number(id)) => event.stream = unsigned(id)?,
                ("event", "name", Value::Word(name)) => event.name = name,
                ("event", "context", Value::Type(of)) => event.context = Some(of),
                ("event", "fields", Value::Type(of)) => event.fields = Some(of),
                _ => {}
            }
        }
        match what {
            "stream" => {
                self.metadata.streams.insert(stream.id, stream);
            }
            "event" => {
                let place = self.metadata.events.len();
                let key = (event.stream, event.id);
                self.metadata.places.insert(key, place);
                self.metadata.events.push(event);
            }
            _ => {}
        }
        Ok(())
    }

    /// A type, without the name of a field.
    fn type_(&mut self) -> Result<Type, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("more than {DEEPEST} types are within each other"));
        }
        let of = self.any_type();
        self.depth -= 1;
        of
    }

    fn any_type(&mut self) -> Result<Type, String> {
        let first = self.name()?;
        match first.as_str() {
            "integer" => Ok(Type::Integer(self.integer()?)),
            "floating_point" => self.float(),
            "string" => {
                if self.peek()? == Some(&Token::Mark('{')) {
                    self.block()?;
                }
                Ok(Type::Text)
            }
            "enum" => self.enumeration(),
            "struct" => self.structure(),
            "variant" => self.variant(),
            _ => self.alias(first),
        }
    }

    /// A type with this name, or with more words. The last word may be the name of a field.
    fn alias(&mut self, first: String) -> Result<Type, String> {
        let mut name = first;
        let mut words = 1;
        while let Some(Token::Name(word)) = self.peek()? {
            words += 1;
            if words > MOST_WORDS {
                return Err(format!("a type has more than {MOST_WORDS} words"));
            }
            let is_word = WORDS.contains(&word.as_str());
            let longer = format!("{name} {word}");
            if !is_word && !self.types.contains_key(&("alias", longer.clone())) {
                break;
            }
            self.next()?;
            name = longer;
        }
        let known = self.types.get(&("alias", name.clone()));
        known
            .cloned()
            .ok_or_else(|| format!("there is no type '{name}'"))
    }

    fn integer(&mut self) -> Result<Integer, String> {
        let mut integer = Integer {
            bits: 0,
            align: 0,
            is_signed: false,
            is_big_endian: self.is_big_endian,
            is_time: false,
        };
        for (name, value) in self.block()? {
            match (name.as_str(), value) {
                ("size", Value::Number(bits @ 1..=64)) => {
                    integer.bits = u32::try_from(bits).unwrap_or(0);
                }
                ("align", Value::Number(align)) => integer.align = alignment(align)?,
                ("signed", Value::Word(word)) => {
                    integer.is_signed = ["true", "TRUE"].contains(&word.as_str());
                }
                ("signed", Value::Number(number)) => integer.is_signed = number != 0,
                ("byte_order", Value::Word(order)) => {
                    integer.is_big_endian = is_big_endian(&order, self.is_big_endian);
                }
                ("map", Value::Word(word)) => integer.is_time = word.starts_with("clock."),
                _ => {}
            }
        }
        if integer.bits == 0 {
            return Err("an integer without a size from 1 to 64".to_owned());
        }
        if integer.align == 0 {
            integer.align = if integer.bits.is_multiple_of(8) { 8 } else { 1 };
        }
        Ok(integer)
    }

    fn float(&mut self) -> Result<Type, String> {
        let (mut bits, mut align) = (0, 8);
        for (name, value) in self.block()? {
            match (name.as_str(), value) {
                ("exp_dig" | "mant_dig", Value::Number(digits @ 0..=128)) => {
                    bits += u32::try_from(digits).unwrap_or(0);
                }
                ("align", Value::Number(number)) => align = alignment(number)?,
                _ => {}
            }
        }
        Ok(Type::Float(bits, align))
    }

    /// The optional name of a structure, an enumeration or a variant.
    fn own_name(&mut self) -> Result<Option<String>, String> {
        match self.peek()? {
            Some(Token::Name(_)) => self.name().map(Some),
            _ => Ok(None),
        }
    }

    /// The type with this name, which was declared before.
    fn known(&self, kind: &'static str, name: Option<String>) -> Result<Type, String> {
        let name = name.unwrap_or_default();
        let known = self.types.get(&(kind, name.clone()));
        known
            .cloned()
            .ok_or_else(|| format!("there is no '{kind} {name}'"))
    }

    fn remember(&mut self, kind: &'static str, name: Option<String>, of: &Type) {
        if let Some(name) = name {
            self.declare((kind, name), of.clone());
        }
    }

    fn enumeration(&mut self) -> Result<Type, String> {
        let name = self.own_name()?;
        let integer = match self.takes(':')? {
            true => match self.type_()? {
                Type::Integer(integer) => Some(integer),
                _ => return Err("an enumeration that is not of integers".to_owned()),
            },
            false => None,
        };
        if !self.takes('{')? {
            return self.known("enum", name);
        }
        let integer = match (integer, self.types.get(&("alias", "int".to_owned()))) {
            (Some(integer), _) | (None, Some(&Type::Integer(integer))) => integer,
            _ => return Err("an enumeration without a type".to_owned()),
        };
        let mut labels = Vec::new();
        let mut next = 0;
        while !self.takes('}')? {
            self.count()?;
            let label = self.name()?;
            let (mut first, mut last) = (next, next);
            if self.takes('=')? {
                first = self.number()?;
                last = first;
                if self.peek()? == Some(&Token::Range) {
                    self.next()?;
                    last = self.number()?;
                }
            }
            next = last.saturating_add(1);
            labels.push((label, first, last));
            self.takes(',')?;
        }
        let of = Type::Enum(Rc::new(Enum::new(integer, labels)));
        self.remember("enum", name, &of);
        Ok(of)
    }

    fn structure(&mut self) -> Result<Type, String> {
        let name = self.own_name()?;
        if !self.takes('{')? {
            return self.known("struct", name);
        }
        let fields = self.fields()?;
        let inner = fields.iter().map(|(_, of)| of.align()).max();
        let mut align = inner.unwrap_or(1);
        if let Some(Token::Name(word)) = self.peek()?
            && word == "align"
        {
            self.next()?;
            self.expect('(')?;
            align = align.max(alignment(self.number()?)?);
            self.expect(')')?;
        }
        let depth = depth_of(fields.iter().map(|(_, of)| of))?;
        let of = Type::Struct(Rc::new(Struct {
            fields,
            align,
            depth,
        }));
        self.remember("struct", name, &of);
        Ok(of)
    }

    fn variant(&mut self) -> Result<Type, String> {
        let name = self.own_name()?;
        let tag = match self.takes('<')? {
            true => {
                let path = self.path()?;
                self.expect('>')?;
                last_of(&path).to_owned()
            }
            false => String::new(),
        };
        if self.takes('{')? {
            let choices = self.fields()?;
            let depth = depth_of(choices.iter().map(|(_, of)| of))?;
            // A variant that is declared without a tag gets one where it is used.
            let of = Type::Variant(Rc::new(Variant {
                tag,
                choices: Rc::new(choices.into_iter().collect()),
                depth,
            }));
            self.remember("variant", name, &of);
            return Ok(of);
        }
        match self.known("variant", name)? {
            Type::Variant(known) if !tag.is_empty() => Ok(Type::Variant(Rc::new(Variant {
                tag,
                choices: Rc::clone(&known.choices),
                depth: known.depth,
            }))),
            known => Ok(known),
        }
    }

    /// The fields of a structure or a variant, up to its brace.
    fn fields(&mut self) -> Result<Vec<(String, Type)>, String> {
        self.hidden.push(Vec::new());
        let mut fields = Vec::new();
        while !self.takes('}')? {
            if let Some(Token::Name(word)) = self.peek()?
                && ["typealias", "typedef"].contains(&word.as_str())
            {
                self.declaration()?;
                continue;
            }
            let of = self.type_()?;
            while !self.takes(';')? {
                self.count()?;
                let (name, of) = self.declared(of.clone())?;
                // LTTng puts an underscore before the names of fields.
                let name = name.strip_prefix('_').map(str::to_owned).unwrap_or(name);
                fields.push((name, of));
                self.takes(',')?;
            }
        }
        self.leave();
        Ok(fields)
    }

    /// The name behind a type, and the type that the brackets behind the name make.
    fn declared(&mut self, of: Type) -> Result<(String, Type), String> {
        let name = self.name()?;
        let mut lengths = Vec::new();
        while self.takes('[')? {
            self.count()?;
            lengths.push(match self.peek()? {
                Some(Token::Number(_)) => Length::Fixed(unsigned(self.number()?)?),
                _ => Length::Field(last_of(&self.path()?).to_owned()),
            });
            self.expect(']')?;
        }
        let mut of = of;
        for length in lengths.into_iter().rev() {
            let depth = depth_of(std::iter::once(&of))?;
            of = Type::Array(Rc::new(Array {
                element: of,
                length,
                depth,
            }));
        }
        Ok((name, of))
    }
}

/// The depth of a type that contains these.
fn depth_of<'a>(inner: impl Iterator<Item = &'a Type>) -> Result<u32, String> {
    let depth = 1 + inner.map(Type::depth).max().unwrap_or(0);
    match depth > DEEPEST {
        true => Err(format!("more than {DEEPEST} types are within each other")),
        false => Ok(depth),
    }
}

/// The last name of a path, as fields are named here.
fn last_of(path: &str) -> &str {
    let last = path.rsplit('.').next().unwrap_or(path);
    last.strip_prefix('_').unwrap_or(last)
}

fn is_big_endian(order: &str, native: bool) -> bool {
    match order {
        "be" | "network" => true,
        "le" => false,
        _ => native,
    }
}

fn unsigned(number: i128) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("the number {number} is out of range"))
}

fn alignment(number: i128) -> Result<u32, String> {
    match u32::try_from(number) {
        Ok(align) if align.is_power_of_two() && align <= 1 << 16 => Ok(align),
        _ => Err(format!("the alignment {number}")),
    }
}
