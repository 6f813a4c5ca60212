//! The grammar of literals, and of braced initializers. Operators are in `expressions`.

use super::ast::{FloatKind, Id, Node};
use super::parser::Parser;

// === impl Parser ===

impl Parser<'_> {
    /// `L` type value `E`.
    pub(super) fn literal(&mut self) -> Option<Id> {
        self.expect("L")?;
        let type_name = match self.peek()? {
            b'b' if self.eat("b0E") => return Some(self.add(Node::Name("false"))),
            b'b' if self.eat("b1E") => return Some(self.add(Node::Name("true"))),
            b'w' => "wchar_t",
            b'c' => "char",
            b'a' => "signed char",
            b'h' => "unsigned char",
            b's' => "short",
            b't' => "unsigned short",
            b'i' => "",
            b'j' => "u",
            b'l' => "l",
            b'm' => "ul",
            b'x' => "ll",
            b'y' => "ull",
            b'n' => "__int128",
            b'o' => "unsigned __int128",
            b'f' => return self.float(8, FloatKind::Float),
            b'd' => return self.float(16, FloatKind::Double),
            b'e' => return self.float(20, FloatKind::LongDouble),
            b'_' => {
                self.expect("_Z")?;
                let encoding = self.encoding()?;
                self.expect("E")?;
                return Some(encoding);
            }
            b'A' => {
                let type_ = self.type_()?;
                self.expect("E")?;
                return Some(self.add(Node::StringLiteral(type_)));
            }
            b'D' if self.eat("Dn") => {
                self.eat("0");
                self.expect("E")?;
                return Some(self.add(Node::Name("nullptr")));
            }
            b'T' => return None,
            b'U' => {
                let closure = self.unnamed_type()?;
                self.expect("E")?;
                return Some(self.add(Node::LambdaLiteral(closure)));
            }
            _ => {
                let type_ = self.type_()?;
                let value = self.number();
                if value.is_empty() {
                    return None;
                }
                self.expect("E")?;
                return Some(self.add(Node::Enumerator(type_, value)));
            }
        };
        self.skip(1);
        let value = self.number();
        if value.is_empty() {
            return None;
        }
        self.expect("E")?;
        Some(self.add(Node::Integer { type_name, value }))
    }

    /// The bytes of a number, each as two hexadecimal digits, the most significant first.
    fn float(&mut self, length: usize, kind: FloatKind) -> Option<Id> {
        self.skip(1);
        let digits = self.take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        self.expect("E")?;
        let is_whole = digits.len() == length;
        is_whole.then(|| self.add(Node::FloatLiteral { digits, kind }))
    }

    /// A value between braces, which may name the member or element that it initializes.
    pub(super) fn braced(&mut self) -> Option<Id> {
        self.deeper(|parser| {
            if parser.eat("di") {
                let field = parser.source_name()?;
                let initial = parser.braced()?;
                return Some(parser.add(Node::Braced {
                    designator: field,
                    initial,
                    is_array: false,
                }));
            }
            if parser.eat("dx") {
                let index = parser.expression()?;
                let initial = parser.braced()?;
                return Some(parser.add(Node::Braced {
                    designator: index,
                    initial,
                    is_array: true,
                }));
            }
            if parser.eat("dX") {
                let first = parser.expression()?;
                let last = parser.expression()?;
                let initial = parser.braced()?;
                return Some(parser.add(Node::BracedRange(first, last, initial)));
            }
            parser.expression()
        })
    }
}
