//! The grammar of names in expressions that depend on template arguments.

use super::ast::{Id, Node};
use super::parser::{ArgumentsOf, Parser};

// === impl Parser ===

impl Parser<'_> {
    /// A name that the compiler cannot look up before the arguments are known.
    pub(super) fn unresolved_name(&mut self, is_global: bool) -> Option<Id> {
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

    /// A type, with its arguments if it has any.
    fn unresolved_type(&mut self) -> Option<Id> {
        let is_in_std = self.starts_with("St");
        let name = self.unresolved_type_alone()?;
        let type_ = self.with_arguments(name)?;
        if is_in_std && type_ != name {
            // GCC's way, which LLVM does not read: the class becomes a substitution like any other
            // class.
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
        let arguments = self.template_arguments(ArgumentsOf::Part)?;
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
