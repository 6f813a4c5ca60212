//! The grammar of expressions: in computed types, in template arguments, in constraints.

use super::ast::{Id, List, Node, Precedence};
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
                // LLVM does not print the offset of the member.
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
                // An `I` behind the type would begin arguments of the type itself, which has none
                // here.
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

    /// Whether `fL` begins a fold, with an operator behind it, or a function's parameter, with a
    /// number behind it.
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
        // LLVM does not print the path through members of unions.
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
                // All enclosing parameters stand for themselves already.
                Node::NestedRequirement(self.constraint()?)
            };
            requirements.push(self.add(requirement));
        }
        let requirements = self.add_list(&requirements);
        Some(self.add(Node::Requires(parameters, requirements)))
    }
}
