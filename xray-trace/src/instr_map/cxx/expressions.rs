//! Expressions: in types that are computed, in arguments of templates, in constraints.

use super::ast::{FloatKind, Id, List, Node, Precedence};
use super::operators::{Form, Operator};
use super::parser::Parser;

// === impl Parser ===

impl<'a> Parser<'a> {
    pub(super) fn expression(&mut self) -> Option<Id> {
        self.deeper(Self::expression_within)
    }

    fn expression_within(&mut self) -> Option<Id> {
        let is_global = self.eat("gs");
        if let Some(operator) = Operator::of(self.rest()) {
            self.skip(2);
            return self.operation(operator, is_global);
        }
        match (self.peek()?, self.peek_at(1)) {
            (b'L', _) => self.literal(),
            (b'T', _) => self.template_parameter(),
            (b'f', Some(b'p' | b'L')) if !self.is_fold() => self.function_parameter(),
            (b'f', _) => self.fold(),
            (b'i', Some(b'l')) => {
                self.skip(2);
                let values = self.list_until("E", Self::braced)?;
                Some(self.add(Node::InitialList(None, values)))
            }
            (b't', Some(b'l')) => {
                self.skip(2);
                let type_ = self.type_()?;
                let values = self.list_until("E", Self::braced)?;
                Some(self.add(Node::InitialList(Some(type_), values)))
            }
            (b't', Some(b'w')) => {
                self.skip(2);
                let thrown = self.expression()?;
                Some(self.add(Node::Prefix("throw ", thrown, Precedence::Assign)))
            }
            (b't', Some(b'r')) => {
                self.skip(2);
                Some(self.add(Node::Name("throw")))
            }
            (b'n', Some(b'x')) => {
                self.skip(2);
                let tested = self.expression()?;
                Some(self.add(Node::Enclosed("noexcept ", tested)))
            }
            (b's', Some(b'Z' | b'P' | b'p' | b'o')) => self.pack_or_subobject(),
            (b'm', Some(b'c')) => {
                self.skip(2);
                let type_ = self.type_()?;
                let member = self.expression()?;
                // By how much it moves is not shown.
                self.number();
                self.expect("E")?;
                let members = self.add_list(&[member]);
                Some(self.add(Node::Conversions(type_, members)))
            }
            (b'r', Some(b'q' | b'Q')) => self.requires(),
            (b'u', _) => self.vendor_expression(),
            _ => self.unresolved_name(is_global),
        }
    }

    fn operation(&mut self, operator: &'static Operator, is_global: bool) -> Option<Id> {
        let precedence = operator.precedence;
        let symbol = operator.symbol();
        Some(match operator.form {
            Form::Binary => {
                let left = self.expression()?;
                let right = self.expression()?;
                self.add(Node::Binary {
                    left,
                    operator: symbol,
                    right,
                    precedence,
                })
            }
            Form::Postfix if !self.eat("_") => {
                let operand = self.expression()?;
                self.add(Node::Postfix(operand, symbol, precedence))
            }
            Form::Prefix | Form::Postfix => {
                let operand = self.expression()?;
                self.add(Node::Prefix(symbol, operand, precedence))
            }
            Form::Subscript => {
                let base = self.expression()?;
                let index = self.expression()?;
                self.add(Node::Subscript(base, index))
            }
            Form::Member => {
                let object = self.expression()?;
                let member = self.expression()?;
                self.add(Node::Member(object, symbol, member, precedence))
            }
            form @ (Form::New | Form::NewArray) => {
                let places = self.list_until("_", Self::expression)?;
                let created = self.type_()?;
                let initial = match self.eat("pi") {
                    true => Some(self.list_until("E", Self::expression)?),
                    false => {
                        self.expect("E")?;
                        None
                    }
                };
                self.add(Node::New {
                    places,
                    created,
                    initial,
                    is_global,
                    is_array: form == Form::NewArray,
                })
            }
            form @ (Form::Delete | Form::DeleteArray) => {
                let target = self.expression()?;
                self.add(Node::Delete {
                    target,
                    is_global,
                    is_array: form == Form::DeleteArray,
                })
            }
            form @ (Form::Call | Form::ParenthesisedCall) => {
                let callee = self.expression()?;
                let arguments = self.list_until("E", Self::expression)?;
                self.add(Node::Call {
                    callee,
                    arguments,
                    is_parenthesised: form == Form::ParenthesisedCall,
                })
            }
            Form::Conversion => {
                // `I` behind the type would be its own arguments, which it has none of here.
                let takes = std::mem::replace(&mut self.takes_arguments, false);
                let type_ = self.type_();
                self.takes_arguments = takes;
                let type_ = type_?;
                let operands = match self.eat("_") {
                    true => self.list_until("E", Self::expression)?,
                    false => {
                        let operand = self.expression()?;
                        self.add_list(&[operand])
                    }
                };
                self.add(Node::Conversions(type_, operands))
            }
            Form::Conditional => {
                let condition = self.expression()?;
                let then = self.expression()?;
                let otherwise = self.expression()?;
                self.add(Node::Conditional(condition, then, otherwise))
            }
            Form::NamedCast => {
                let type_ = self.type_()?;
                let operand = self.expression()?;
                self.add(Node::NamedCast(symbol, type_, operand))
            }
            Form::OfType => {
                let type_ = self.type_()?;
                self.add(Node::Enclosed(symbol, type_))
            }
            Form::OfExpression => {
                let operand = self.expression()?;
                self.add(Node::Enclosed(symbol, operand))
            }
            Form::Name => return None,
        })
    }

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

    /// The bytes of a number, each as two digits, the greatest first.
    fn float(&mut self, length: usize, kind: FloatKind) -> Option<Id> {
        self.skip(1);
        let digits = self.take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        self.expect("E")?;
        let is_whole = digits.len() == length;
        is_whole.then(|| self.add(Node::FloatLiteral { digits, kind }))
    }

    fn function_parameter(&mut self) -> Option<Id> {
        if self.eat("fpT") {
            return Some(self.add(Node::Name("this")));
        }
        if self.eat("fL") {
            self.digits();
            self.expect("p")?;
        } else {
            self.expect("fp")?;
        }
        self.qualifiers();
        let number = self.digits();
        self.expect("_")?;
        Some(self.add(Node::FunctionParameter(number)))
    }

    /// `fL` begins a fold where an operator follows, and a function's parameter where a number does.
    fn is_fold(&self) -> bool {
        self.peek_at(1) == Some(b'L') && !self.peek_at(2).is_some_and(|byte| byte.is_ascii_digit())
    }

    fn fold(&mut self) -> Option<Id> {
        let (is_left, has_initial) = match self.peek_at(1)? {
            b'l' => (true, false),
            b'L' => (true, true),
            b'r' => (false, false),
            b'R' => (false, true),
            _ => return None,
        };
        self.skip(2);
        let operator = Operator::of(self.rest())?;
        let is_foldable = match operator.form {
            Form::Binary => true,
            Form::Member => operator.name.ends_with('*'),
            _ => false,
        };
        if !is_foldable {
            return None;
        }
        self.skip(2);
        let mut pack = self.expression()?;
        let mut initial = match has_initial {
            true => Some(self.expression()?),
            false => None,
        };
        // A left fold has its initial value first.
        if is_left && let Some(initial) = &mut initial {
            std::mem::swap(&mut pack, initial);
        }
        Some(self.add(Node::Fold {
            is_left,
            operator: operator.symbol(),
            pack,
            initial,
        }))
    }

    /// A value between braces, which may say what it initializes.
    fn braced(&mut self) -> Option<Id> {
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

    fn pack_or_subobject(&mut self) -> Option<Id> {
        if self.eat("sZ") {
            let pack = match self.peek() {
                Some(b'T') => self.template_parameter()?,
                _ => self.function_parameter()?,
            };
            return Some(self.add(Node::SizeOfPack(pack)));
        }
        if self.eat("sP") {
            let arguments = self.list_until("E", Self::template_argument)?;
            return Some(self.add(Node::SizeOfArguments(arguments)));
        }
        if self.eat("sp") {
            let pattern = self.expression()?;
            return Some(self.add(Node::Expansion(pattern)));
        }
        self.expect("so")?;
        let type_ = self.type_()?;
        let object = self.expression()?;
        let offset = self.number();
        // Which members of unions lead there is not shown.
        while self.eat("_") {
            self.digits();
        }
        self.eat("p");
        self.expect("E")?;
        Some(self.add(Node::Subobject {
            type_,
            object,
            offset,
        }))
    }

    fn vendor_expression(&mut self) -> Option<Id> {
        self.expect("u")?;
        let callee = self.source_name()?;
        let is_uuid = matches!(self.node(callee), Node::Name("__uuidof"));
        if is_uuid && (self.eat("t") || self.peek() == Some(b'z')) {
            let operand = match self.eat("z") {
                true => self.expression()?,
                false => self.type_()?,
            };
            let arguments = self.add_list(&[operand]);
            return Some(self.call(callee, arguments));
        }
        let arguments = self.list_until("E", Self::template_argument)?;
        Some(self.call(callee, arguments))
    }

    fn call(&mut self, callee: Id, arguments: List) -> Id {
        self.add(Node::Call {
            callee,
            arguments,
            is_parenthesised: false,
        })
    }

    fn requires(&mut self) -> Option<Id> {
        let has_parameters = self.eat("rQ");
        let mut parameters = self.add_list(&[]);
        if has_parameters {
            parameters = self.types_until("_")?;
        } else {
            self.expect("rq")?;
        }
        let mut requirements = Vec::new();
        while !self.eat("E") {
            let requirement = if self.eat("X") {
                let expression = self.expression()?;
                let is_noexcept = self.eat("N");
                let constraint = match self.eat("R") {
                    true => Some(self.name(None)?),
                    false => None,
                };
                Node::ExpressionRequirement {
                    expression,
                    is_noexcept,
                    constraint,
                }
            } else if self.eat("T") {
                Node::TypeRequirement(self.type_()?)
            } else {
                self.expect("Q")?;
                // All parameters around it stand for themselves, as they do already.
                Node::NestedRequirement(self.constraint()?)
            };
            requirements.push(self.add(requirement));
        }
        let requirements = self.add_list(&requirements);
        Some(self.add(Node::Requires(parameters, requirements)))
    }

    /// A name that the compiler could not look up before the arguments are known.
    fn unresolved_name(&mut self, is_global: bool) -> Option<Id> {
        if self.eat("srN") {
            let mut scope = self.unresolved_type()?;
            while !self.eat("E") {
                let part = self.simple_name()?;
                scope = self.add(Node::Nested(scope, part));
            }
            let name = self.base_unresolved_name()?;
            return Some(self.add(Node::Nested(scope, name)));
        }
        if !self.eat("sr") {
            let name = self.base_unresolved_name()?;
            return Some(self.global(name, is_global));
        }
        let scope = if self.peek_digit() {
            let first = self.simple_name()?;
            let mut scope = self.global(first, is_global);
            while !self.eat("E") {
                let part = self.simple_name()?;
                scope = self.add(Node::Nested(scope, part));
            }
            scope
        } else {
            self.unresolved_type()?
        };
        let name = self.base_unresolved_name()?;
        Some(self.add(Node::Nested(scope, name)))
    }

    fn global(&mut self, name: Id, is_global: bool) -> Id {
        match is_global {
            true => self.add(Node::Global(name)),
            false => name,
        }
    }

    /// With its arguments, if it has any.
    fn unresolved_type(&mut self) -> Option<Id> {
        let is_in_std = self.starts_with("St");
        let name = self.unresolved_type_alone()?;
        let type_ = self.with_arguments(name)?;
        if is_in_std && type_ != name {
            // GCC's way, which LLVM does not read: the class counts as any class does.
            self.add_substitution(type_);
        }
        Some(type_)
    }

    fn unresolved_type_alone(&mut self) -> Option<Id> {
        let found = match self.peek()? {
            b'T' => self.template_parameter()?,
            b'D' => self.decltype()?,
            _ => return self.substitution_or_std(),
        };
        self.add_substitution(found);
        Some(found)
    }

    fn substitution_or_std(&mut self) -> Option<Id> {
        if !self.eat("St") {
            return self.substitution();
        }
        let scope = self.add(Node::Name("std"));
        let name = self.source_name()?;
        let found = self.add(Node::Nested(scope, name));
        self.add_substitution(found);
        Some(found)
    }

    fn with_arguments(&mut self, name: Id) -> Option<Id> {
        if self.peek() != Some(b'I') {
            return Some(name);
        }
        let arguments = self.template_arguments(false)?;
        Some(self.add(Node::Template(name, arguments)))
    }

    fn simple_name(&mut self) -> Option<Id> {
        let name = self.source_name()?;
        self.with_arguments(name)
    }

    fn base_unresolved_name(&mut self) -> Option<Id> {
        if self.peek_digit() {
            return self.simple_name();
        }
        if self.eat("dn") {
            let class = match self.peek_digit() {
                true => self.simple_name()?,
                false => self.unresolved_type_alone()?,
            };
            return Some(self.add(Node::Prefixed("~", class)));
        }
        self.eat("on");
        let name = self.operator_name(None)?;
        self.with_arguments(name)
    }
}
