//! The grammar of types.
//!
//! ```text
//!  v i …    built in    P R O  pointer, references    r V K   qualifiers   A   array
//!  F … E    function    M      member pointer         Dt X E  decltype     Dv  vector
//!  S_ T_    an earlier name                           Dp      expansion
//! ```

use super::ast::{Id, List, Node, Qualifiers, Reference, Signature};
use super::parser::{ArgumentsOf, Parser};

// === impl Parser ===

impl<'a> Parser<'a> {
    /// A type. All types but the built-in ones are added as substitutions.
    pub(super) fn type_(&mut self) -> Option<Id> {
        self.deeper(|parser| {
            if let Some(name) = parser.builtin() {
                return Some(parser.add(Node::Name(name)));
            }
            let (type_, is_new) = parser.compound_type()?;
            if is_new {
                parser.add_substitution(type_);
            }
            Some(type_)
        })
    }

    fn builtin(&mut self) -> Option<&'static str> {
        let name = match self.peek()? {
            b'v' => "void",
            b'w' => "wchar_t",
            b'b' => "bool",
            b'c' => "char",
            b'a' => "signed char",
            b'h' => "unsigned char",
            b's' => "short",
            b't' => "unsigned short",
            b'i' => "int",
            b'j' => "unsigned int",
            b'l' => "long",
            b'm' => "unsigned long",
            b'x' => "long long",
            b'y' => "unsigned long long",
            b'n' => "__int128",
            b'o' => "unsigned __int128",
            b'f' => "float",
            b'd' => "double",
            b'e' => "long double",
            b'g' => "__float128",
            b'z' => "...",
            b'D' => {
                let name = match self.peek_at(1)? {
                    b'd' => "decimal64",
                    b'e' => "decimal128",
                    b'f' => "decimal32",
                    b'h' => "half",
                    b'i' => "char32_t",
                    b's' => "char16_t",
                    b'u' => "char8_t",
                    b'a' => "auto",
                    b'c' => "decltype(auto)",
                    b'n' => "std::nullptr_t",
                    _ => return None,
                };
                self.skip(1);
                name
            }
            _ => return None,
        };
        self.skip(1);
        Some(name)
    }

    /// A type that is not built in, and whether it becomes a substitution.
    fn compound_type(&mut self) -> Option<(Id, bool)> {
        let found = match self.peek()? {
            b'r' | b'V' | b'K' => {
                let qualifiers = [b'r', b'V', b'K'];
                let mut behind = 0;
                for letter in qualifiers {
                    behind += usize::from(self.peek_at(behind) == Some(letter));
                }
                match (self.peek_at(behind), self.peek_at(behind + 1)) {
                    (Some(b'F'), _) | (Some(b'D'), Some(b'o' | b'O' | b'w' | b'x')) => {
                        self.function_type()?
                    }
                    _ => self.qualified_type()?,
                }
            }
            b'U' => self.qualified_type()?,
            b'u' => self.vendor_type()?,
            b'D' => return self.type_with_d(),
            b'F' => self.function_type()?,
            b'A' => self.array_type()?,
            b'M' => {
                self.skip(1);
                let class = self.type_()?;
                let member = self.type_()?;
                self.add(Node::MemberPointer { class, member })
            }
            b'T' if !matches!(self.peek_at(1), Some(b's' | b'u' | b'e')) => {
                let parameter = self.template_parameter()?;
                if self.takes_arguments && self.peek() == Some(b'I') {
                    self.add_substitution(parameter);
                    let arguments = self.template_arguments(ArgumentsOf::Part)?;
                    self.add(Node::Template(parameter, arguments))
                } else {
                    parameter
                }
            }
            b'P' => {
                self.skip(1);
                let target = self.type_()?;
                self.add(Node::Pointer(target))
            }
            letter @ (b'R' | b'O') => {
                self.skip(1);
                let target = self.type_()?;
                let kind = match letter {
                    b'R' => Reference::Left,
                    _ => Reference::Right,
                };
                self.add(Node::Reference(target, kind))
            }
            letter @ (b'C' | b'G') => {
                self.skip(1);
                let part = self.type_()?;
                let text = if letter == b'C' {
                    " complex"
                } else {
                    " imaginary"
                };
                self.add(Node::Postfixed(part, text))
            }
            b'S' if self.peek_at(1) != Some(b't') => return self.substituted_type(),
            _ => self.class_type()?,
        };
        Some((found, true))
    }

    fn type_with_d(&mut self) -> Option<(Id, bool)> {
        let letter = self.peek_at(1)?;
        let built_in = match letter {
            b'F' => {
                self.skip(2);
                if self.eat("16b") {
                    self.add(Node::Name("std::bfloat16_t"))
                } else {
                    let bits = self.digits();
                    self.expect("_")?;
                    self.add(Node::Float(bits))
                }
            }
            b'B' | b'U' => {
                self.skip(2);
                let size = match self.peek_digit() {
                    true => {
                        let bits = self.digits();
                        self.add(Node::Name(bits))
                    }
                    false => self.expression()?,
                };
                self.expect("_")?;
                self.add(Node::BitInt {
                    size,
                    is_signed: letter == b'B',
                })
            }
            b'k' | b'K' => {
                self.skip(2);
                let constraint = self.name(None)?;
                let text = if letter == b'k' {
                    " auto"
                } else {
                    " decltype(auto)"
                };
                self.add(Node::Constrained(constraint, text))
            }
            b't' | b'T' => return Some((self.decltype()?, true)),
            b'v' => return Some((self.vector_type()?, true)),
            b'p' => {
                self.skip(2);
                let pattern = self.type_()?;
                return Some((self.add(Node::Expansion(pattern)), true));
            }
            b'o' | b'O' | b'w' | b'x' => return Some((self.function_type()?, true)),
            _ => return Some((self.class_type()?, true)),
        };
        Some((built_in, false))
    }

    fn substituted_type(&mut self) -> Option<(Id, bool)> {
        let (name, is_substitution) = self.unscoped_name(None)?;
        if self.peek() == Some(b'I') && (!is_substitution || self.takes_arguments) {
            if !is_substitution {
                self.add_substitution(name);
            }
            let arguments = self.template_arguments(ArgumentsOf::Part)?;
            return Some((self.add(Node::Template(name, arguments)), true));
        }
        Some((name, !is_substitution))
    }

    /// A class or an enumeration, optionally with its keyword.
    fn class_type(&mut self) -> Option<Id> {
        const ELABORATED: [(&str, &str); 3] =
            [("Ts", "struct "), ("Tu", "union "), ("Te", "enum ")];
        let kind = ELABORATED
            .into_iter()
            .find(|(letters, _)| self.eat(letters));
        let name = self.name(None)?;
        Some(match kind {
            Some((_, text)) => self.add(Node::Prefixed(text, name)),
            None => name,
        })
    }

    fn qualified_type(&mut self) -> Option<Id> {
        self.deeper(|parser| {
            if parser.eat("U") {
                let name = parser.identifier()?;
                let arguments = match parser.peek() {
                    Some(b'I') => Some(parser.template_arguments(ArgumentsOf::Part)?),
                    _ => None,
                };
                let type_ = parser.qualified_type()?;
                return Some(parser.add(Node::Vendor(type_, name, arguments)));
            }
            let qualifiers = parser.qualifiers();
            let type_ = parser.type_()?;
            Some(match qualifiers == Qualifiers::default() {
                true => type_,
                false => parser.add(Node::Qualified(type_, qualifiers)),
            })
        })
    }

    fn vendor_type(&mut self) -> Option<Id> {
        self.expect("u")?;
        let name = self.identifier()?;
        if !self.eat("I") {
            return Some(self.add(Node::Name(name)));
        }
        let type_ = self.type_()?;
        self.expect("E")?;
        Some(self.add(Node::Transformed(name, type_)))
    }

    fn function_type(&mut self) -> Option<Id> {
        let qualifiers = self.qualifiers();
        let exceptions = if self.eat("Do") {
            Some(self.add(Node::Name("noexcept")))
        } else if self.eat("DO") {
            let condition = self.expression()?;
            self.expect("E")?;
            Some(self.add(Node::Enclosed("noexcept", condition)))
        } else if self.eat("Dw") {
            let thrown = self.list_until("E", Self::type_)?;
            Some(self.add(Node::Throw(thrown)))
        } else {
            None
        };
        // The mark of a function that is safe in a transaction.
        self.eat("Dx");
        self.expect("F")?;
        // The mark of a C function.
        self.eat("Y");
        let result = self.type_()?;
        let mut parameters = Vec::new();
        let reference = loop {
            if self.eat("E") {
                break None;
            } else if self.eat("v") {
            } else if self.eat("RE") {
                break Some(Reference::Left);
            } else if self.eat("OE") {
                break Some(Reference::Right);
            } else {
                parameters.push(self.type_()?);
            }
        };
        let signature = Signature {
            result: Some(result),
            parameters: self.add_list(&parameters),
            qualifiers,
            reference,
        };
        Some(self.add(Node::Function(signature, exceptions)))
    }

    fn array_type(&mut self) -> Option<Id> {
        self.expect("A")?;
        let size = if self.peek_digit() {
            let digits = self.digits();
            self.expect("_")?;
            Some(self.add(Node::Name(digits)))
        } else if self.eat("_") {
            None
        } else {
            let size = self.expression()?;
            self.expect("_")?;
            Some(size)
        };
        let element = self.type_()?;
        Some(self.add(Node::Array(element, size)))
    }

    fn vector_type(&mut self) -> Option<Id> {
        self.expect("Dv")?;
        let size = if self.peek().is_some_and(|byte| matches!(byte, b'1'..=b'9')) {
            let digits = self.digits();
            self.expect("_")?;
            let size = self.add(Node::Name(digits));
            if self.eat("p") {
                let pixel = self.add(Node::Name("pixel"));
                return Some(self.add(Node::Vector(pixel, Some(size))));
            }
            Some(size)
        } else if self.eat("_") {
            None
        } else {
            let size = self.expression()?;
            self.expect("_")?;
            Some(size)
        };
        let element = self.type_()?;
        Some(self.add(Node::Vector(element, size)))
    }

    pub(super) fn decltype(&mut self) -> Option<Id> {
        if !self.eat("Dt") {
            self.expect("DT")?;
        }
        let expression = self.expression()?;
        self.expect("E")?;
        Some(self.add(Node::Enclosed("decltype", expression)))
    }

    pub(super) fn types_until(&mut self, end: &str) -> Option<List> {
        self.list_until(end, Self::type_)
    }
}
