//! The grammar of types without a name, and of template parameters: their uses, arguments and
//! declarations.
//!
//! ```text
//!  Ul [declarations] [Q constraint] parameters [Q constraint] E [which] _      closure
//!  Ut [which] _     Ub [which] _                                                unnamed, block
//!  T_ T0_ TL0_1_                                                                parameter
//!  I argument… [Q constraint] E                                                 arguments
//!  Ty     Tn type     Tt declarations E     Tp declaration     Tk constraint    declaration
//! ```

use super::ast::{Closure, Id, Node, ParameterKind};
use super::parser::{ArgumentsOf, Parser};

// === impl Parser ===

impl<'a> Parser<'a> {
    pub(super) fn unnamed_type(&mut self) -> Option<Id> {
        if self.eat("Ut") {
            let count = self.digits();
            self.expect("_")?;
            return Some(self.add(Node::Unnamed(count)));
        }
        if self.eat("Ub") {
            self.digits();
            self.expect("_")?;
            return Some(self.add(Node::Name("'block-literal'")));
        }
        self.expect("Ul")?;
        let level = self.lambda_level.replace(self.templates.len());
        let levels = self.templates.len();
        let closure = self.closure();
        self.templates.truncate(levels);
        self.lambda_level = level;
        let signature = closure?;
        let count = self.digits();
        self.expect("_")?;
        Some(self.add(Node::Closure { count, signature }))
    }

    fn closure(&mut self) -> Option<Closure> {
        self.templates.push(Some(Vec::new()));
        let mut templates = Vec::new();
        while self.is_declaration() {
            templates.push(self.declaration(Some(self.templates.len() - 1))?);
        }
        if templates.is_empty() {
            self.templates.pop();
        }
        let before = self.constraint_behind()?;
        let mut parameters = Vec::new();
        if !self.eat("v") {
            while !matches!(self.peek(), Some(b'E' | b'Q')) {
                parameters.push(self.type_()?);
            }
        }
        let after = self.constraint_behind()?;
        self.expect("E")?;
        Some(Closure {
            templates: self.add_list(&templates),
            before,
            parameters: self.add_list(&parameters),
            after,
        })
    }

    /// An optional constraint, with `Q` before it: `Some(None)` if there is none.
    #[expect(
        clippy::option_option,
        reason = "there may be none, and one may be broken"
    )]
    pub(super) fn constraint_behind(&mut self) -> Option<Option<Id>> {
        if !self.eat("Q") {
            return Some(None);
        }
        self.constraint().map(Some)
    }

    pub(super) fn constraint(&mut self) -> Option<Id> {
        let before = std::mem::replace(&mut self.in_constraint, true);
        let found = self.expression();
        self.in_constraint = before;
        found
    }

    pub(super) fn template_parameter(&mut self) -> Option<Id> {
        let name = self.rest();
        self.expect("T")?;
        let level = match self.eat("L") {
            true => {
                let level = self.positive()?.checked_add(1)?;
                self.expect("_")?;
                level
            }
            false => 0,
        };
        let index = self.index()?;
        if self.in_constraint {
            let (name, _) = name.split_at(name.len() - self.rest().len() - 1);
            return Some(self.add(Node::Name(name)));
        }
        if self.permits_forward && level == 0 {
            let number = u32::try_from(self.forward.len()).ok()?;
            self.forward.push(Some(Id(u32::try_from(index).ok()?)));
            return Some(self.add(Node::Forward(number)));
        }
        if let Some(Some(known)) = self.templates.get(level)
            && let Some(found) = known.get(index)
        {
            return Some(*found);
        }
        if self.lambda_level != Some(level) || level > self.templates.len() {
            return None;
        }
        // `auto` as a parameter of a lambda: a parameter of an implicit template.
        if level == self.templates.len() {
            self.templates.push(None);
        }
        Some(self.add(Node::Name("auto")))
    }

    /// Reads arguments of a template.
    pub(super) fn template_arguments(&mut self, owner: ArgumentsOf) -> Option<Id> {
        self.expect("I")?;
        if owner == ArgumentsOf::Symbol {
            self.templates.clear();
            self.templates.push(Some(Vec::new()));
        }
        let mut arguments = Vec::new();
        while !self.eat("E") {
            let argument = self.template_argument()?;
            arguments.push(argument);
            if owner == ArgumentsOf::Symbol {
                let known = match self.node(argument) {
                    Node::PackArguments(list) => {
                        let pack = Node::Pack(list.clone());
                        self.add(pack)
                    }
                    _ => argument,
                };
                if let Some(Some(outermost)) = self.templates.first_mut() {
                    outermost.push(known);
                }
            }
            if self.eat("Q") {
                // LLVM does not print the requirements on the arguments.
                self.constraint()?;
                self.expect("E")?;
                break;
            }
        }
        let list = self.add_list(&arguments);
        Some(self.add(Node::Arguments(list)))
    }

    pub(super) fn template_argument(&mut self) -> Option<Id> {
        self.deeper(|parser| match parser.peek()? {
            b'X' => {
                parser.skip(1);
                let expression = parser.expression()?;
                parser.expect("E")?;
                Some(expression)
            }
            b'J' => {
                parser.skip(1);
                let arguments = parser.list_until("E", Self::template_argument)?;
                Some(parser.add(Node::PackArguments(arguments)))
            }
            b'L' if parser.eat("LZ") => {
                let encoding = parser.encoding()?;
                parser.expect("E")?;
                Some(encoding)
            }
            b'L' => parser.literal(),
            b'T' if parser.is_declaration() => {
                // LLVM does not print the kind of the argument.
                parser.declaration(None)?;
                parser.template_argument()
            }
            _ => parser.type_(),
        })
    }

    pub(super) fn is_declaration(&self) -> bool {
        let kind = matches!(self.peek_at(1), Some(b'y' | b'n' | b't' | b'p' | b'k'));
        self.peek() == Some(b'T') && kind
    }

    /// Reads the declaration of a template parameter. The parameter gets a made-up name, and uses
    /// at this level refer to it from here on.
    fn declaration(&mut self, level: Option<usize>) -> Option<Id> {
        self.deeper(|parser| {
            parser.expect("T")?;
            let letter = parser.peek()?;
            parser.skip(1);
            match letter {
                b'y' => {
                    let name = parser.made_up_name(ParameterKind::Type, level);
                    Some(parser.add(Node::TypeDeclaration(name)))
                }
                b'k' => {
                    let constraint = parser.name(None)?;
                    let name = parser.made_up_name(ParameterKind::Type, level);
                    Some(parser.add(Node::ConstrainedDeclaration(constraint, name)))
                }
                b'n' => {
                    let name = parser.made_up_name(ParameterKind::Value, level);
                    let type_ = parser.type_()?;
                    Some(parser.add(Node::ValueDeclaration(name, type_)))
                }
                b't' => {
                    let name = parser.made_up_name(ParameterKind::Template, level);
                    let levels = parser.templates.len();
                    parser.templates.push(Some(Vec::new()));
                    let declarations = parser.inner_declarations(levels);
                    parser.templates.truncate(levels);
                    let (parameters, requires) = declarations?;
                    Some(parser.add(Node::TemplateDeclaration {
                        name,
                        parameters,
                        requires,
                    }))
                }
                b'p' => {
                    let declaration = parser.declaration(level)?;
                    Some(parser.add(Node::PackDeclaration(declaration)))
                }
                _ => None,
            }
        })
    }

    fn inner_declarations(&mut self, level: usize) -> Option<(super::ast::List, Option<Id>)> {
        let mut parameters = Vec::new();
        let mut requires = None;
        while !self.eat("E") {
            parameters.push(self.declaration(Some(level))?);
            if self.eat("Q") {
                requires = Some(self.constraint()?);
                self.expect("E")?;
                break;
            }
        }
        Some((self.add_list(&parameters), requires))
    }

    fn made_up_name(&mut self, kind: ParameterKind, level: Option<usize>) -> Id {
        let next = &mut self.made_up[kind as usize];
        let number = *next;
        *next += 1;
        let name = self.add(Node::Parameter { kind, number });
        let known = level.and_then(|level| self.templates.get_mut(level));
        if let Some(Some(known)) = known {
            known.push(name);
        }
        name
    }
}
