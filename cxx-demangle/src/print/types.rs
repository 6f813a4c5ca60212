//! Prints types, both parts of them, and template parameters.

use super::{Equal, NO_PACK, Printer};
use crate::ast::{Id, Node, Precedence, Qualifiers, Reference};

/// Properties of a type that are tested before it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    /// It has a right part.
    TwoSided,
    Array,
    Function,
}

// === impl Printer ===

impl<'p, 'a> Printer<'p, 'a> {
    pub(super) fn left_of_type(&mut self, node: &'p Node<'a>) -> Option<()> {
        match node {
            Node::Qualified(type_, qualifiers) => {
                self.left(*type_)?;
                self.qualifiers(*qualifiers)
            }
            Node::Vendor(type_, name, arguments) => {
                self.print(*type_)?;
                self.put(" ")?;
                self.put(name)?;
                arguments.map_or(Some(()), |arguments| self.print(arguments))
            }
            Node::Postfixed(type_, text) => {
                self.left(*type_)?;
                self.put(text)
            }
            Node::Transformed(name, type_) => {
                self.put(name)?;
                self.put("(")?;
                self.print(*type_)?;
                self.put(")")
            }
            Node::BitInt { size, is_signed } => {
                self.put(if *is_signed { "" } else { "unsigned " })?;
                self.put("_BitInt")?;
                self.open("(")?;
                self.operand(*size, Precedence::Default, Equal::Parentheses)?;
                self.close(")")
            }
            Node::Float(bits) => {
                self.put("_Float")?;
                self.put(bits)
            }
            Node::Pointer(target) => self.left_of_pointer(*target, "*"),
            Node::Reference(target, kind) => {
                let (target, kind) = self.collapsed(*target, *kind)?;
                let text = match kind {
                    Reference::Left => "&",
                    Reference::Right => "&&",
                };
                self.left_of_pointer(target, text)
            }
            Node::MemberPointer { class, member } => {
                self.left(*member)?;
                let is_enclosed = self.is_enclosed(*member)?;
                self.put(if is_enclosed { "(" } else { " " })?;
                self.print(*class)?;
                self.put("::*")
            }
            Node::Array(element, _) => self.left(*element),
            Node::Function(signature, _) => {
                if let Some(result) = signature.result {
                    self.left(result)?;
                }
                self.put(" ")
            }
            Node::Vector(element, size) => {
                self.print(*element)?;
                self.put(" vector[")?;
                if let Some(size) = size {
                    self.print(*size)?;
                }
                self.put("]")
            }
            Node::Constrained(constraint, text) => {
                self.print(*constraint)?;
                self.put(text)
            }
            Node::Throw(types) => {
                self.put("throw")?;
                self.in_parentheses(types)
            }
            Node::ExplicitObject(type_) => {
                self.put("this ")?;
                self.print(*type_)
            }
            Node::Pack(list) => match self.of_pack(list) {
                Some(argument) => self.left(argument),
                None => Some(()),
            },
            Node::PackArguments(list) => self.with_commas(list),
            Node::Expansion(pattern) => self.expansion(*pattern),
            Node::Forward(number) => match self.forward.get(*number as usize).copied()? {
                Some(target) => self.left(target),
                None => Some(()),
            },
            Node::Parameter { kind, number } => self.made_up(*kind, *number),
            Node::TypeDeclaration(_) => self.put("typename "),
            Node::ConstrainedDeclaration(constraint, _) => {
                self.print(*constraint)?;
                self.put(" ")
            }
            Node::ValueDeclaration(_, type_) => {
                self.left(*type_)?;
                match self.has_right(*type_)? {
                    true => Some(()),
                    false => self.put(" "),
                }
            }
            Node::TemplateDeclaration { parameters, .. } => {
                self.put("template")?;
                self.in_angles(|printer| printer.with_commas(parameters))?;
                self.put(" typename ")
            }
            Node::PackDeclaration(declaration) => {
                self.left(*declaration)?;
                self.put("...")
            }
            other => self.expression(other),
        }
    }

    pub(super) fn right(&mut self, id: Id) -> Option<()> {
        self.deeper(|printer| printer.right_of(printer.node(id)))
    }

    fn right_of(&mut self, node: &'p Node<'a>) -> Option<()> {
        match node {
            Node::Encoding(encoding) => self.right_of_encoding(encoding),
            Node::Qualified(type_, _) => self.right(*type_),
            Node::Pointer(target) => self.right_of_pointer(*target),
            Node::Reference(target, kind) => {
                let (target, _) = self.collapsed(*target, *kind)?;
                self.right_of_pointer(target)
            }
            Node::MemberPointer { member, .. } => self.right_of_pointer(*member),
            Node::Array(element, size) => {
                if !self.text.ends_with(']') {
                    self.put(" ")?;
                }
                self.open("[")?;
                if let Some(size) = size {
                    self.print(*size)?;
                }
                self.close("]")?;
                self.right(*element)
            }
            Node::Function(signature, exceptions) => {
                self.behind_name(signature)?;
                let Some(exceptions) = exceptions else {
                    return Some(());
                };
                self.put(" ")?;
                self.print(*exceptions)
            }
            Node::Pack(list) => match self.of_pack(list) {
                Some(argument) => self.right(argument),
                None => Some(()),
            },
            Node::Forward(number) => match self.forward.get(*number as usize).copied()? {
                Some(target) => self.right(target),
                None => Some(()),
            },
            Node::TypeDeclaration(name) | Node::ConstrainedDeclaration(_, name) => {
                self.print(*name)
            }
            Node::ValueDeclaration(name, type_) => {
                self.print(*name)?;
                self.right(*type_)
            }
            Node::TemplateDeclaration { name, requires, .. } => {
                self.print(*name)?;
                self.requires(*requires)
            }
            Node::PackDeclaration(declaration) => self.right(*declaration),
            _ => Some(()),
        }
    }

    pub(super) fn qualifiers(&mut self, qualifiers: Qualifiers) -> Option<()> {
        let Qualifiers {
            is_const,
            is_volatile,
            is_restrict,
        } = qualifiers;
        for (is_there, text) in [
            (is_const, " const"),
            (is_volatile, " volatile"),
            (is_restrict, " restrict"),
        ] {
            if is_there {
                self.put(text)?;
            }
        }
        Some(())
    }

    fn left_of_pointer(&mut self, target: Id, text: &str) -> Option<()> {
        self.left(target)?;
        if self.ask(target, Is::Array)? {
            self.put(" ")?;
        }
        if self.is_enclosed(target)? {
            self.put("(")?;
        }
        self.put(text)
    }

    fn right_of_pointer(&mut self, target: Id) -> Option<()> {
        if self.is_enclosed(target)? {
            self.put(")")?;
        }
        self.right(target)
    }

    /// Collapses a reference to a reference into one reference.
    fn collapsed(&mut self, target: Id, kind: Reference) -> Option<(Id, Reference)> {
        let (mut target, mut kind) = (target, kind);
        loop {
            let found = self.syntax(target)?;
            let Node::Reference(inner, inner_kind) = self.node(found) else {
                return Some((target, kind));
            };
            // Each round counts as a step: parameters that stand for each other would make the loop
            // endless.
            self.deeper(|_| Some(()))?;
            target = *inner;
            kind = kind.min(*inner_kind);
        }
    }

    fn is_enclosed(&mut self, target: Id) -> Option<bool> {
        Some(self.ask(target, Is::Array)? || self.ask(target, Is::Function)?)
    }

    pub(super) fn has_right(&mut self, id: Id) -> Option<bool> {
        self.ask(id, Is::TwoSided)
    }

    fn ask(&mut self, id: Id, is: Is) -> Option<bool> {
        self.deeper(|printer| match printer.node(id) {
            Node::Array(..) => Some(is != Is::Function),
            Node::Function(..) | Node::Encoding(_) => Some(is != Is::Array),
            Node::Qualified(type_, _) => printer.ask(*type_, is),
            Node::Pointer(target)
            | Node::Reference(target, _)
            | Node::MemberPointer { member: target, .. } => match is {
                Is::TwoSided => printer.ask(*target, is),
                Is::Array | Is::Function => Some(false),
            },
            Node::Pack(list) => match printer.of_pack(list) {
                Some(argument) => printer.ask(argument, is),
                None => Some(false),
            },
            Node::Forward(number) => match printer.forward.get(*number as usize).copied()? {
                Some(target) => printer.ask(target, is),
                None => Some(false),
            },
            Node::TypeDeclaration(_)
            | Node::ConstrainedDeclaration(..)
            | Node::ValueDeclaration(..)
            | Node::TemplateDeclaration { .. }
            | Node::PackDeclaration(_) => Some(is == Is::TwoSided),
            _ => Some(false),
        })
    }

    /// Prints the pattern once for each argument of its packs.
    pub(super) fn expansion(&mut self, pattern: Id) -> Option<()> {
        let around = std::mem::replace(&mut self.pack, (NO_PACK, NO_PACK));
        let before = self.text.len();
        self.print(pattern)?;
        match self.pack.1 {
            // A pattern without a pack consists of parameters of the function, which have no names.
            NO_PACK => self.put("...")?,
            0 => self.text.truncate(before),
            count => {
                for index in 1..count {
                    self.put(", ")?;
                    self.pack.0 = index;
                    self.print(pattern)?;
                }
            }
        }
        self.pack = around;
        Some(())
    }
}
