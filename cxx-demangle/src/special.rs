//! The grammar of entities that compilers make for functions, classes and variables.

use super::ast::{Id, Node};
use super::parser::Parser;

/// Texts before a type.
const OF_TYPES: [(&str, &str); 4] = [
    ("TV", "vtable for "),
    ("TT", "VTT for "),
    ("TI", "typeinfo for "),
    ("TS", "typeinfo name for "),
];

/// Texts before a name.
const OF_NAMES: [(&str, &str); 3] = [
    ("TW", "thread-local wrapper routine for "),
    ("TH", "thread-local initialization routine for "),
    ("GV", "guard variable for "),
];

// === impl Parser ===

impl Parser<'_> {
    pub(super) fn special_name(&mut self) -> Option<Id> {
        for (letters, text) in OF_TYPES {
            if self.eat(letters) {
                let type_ = self.type_()?;
                return Some(self.add(Node::Prefixed(text, type_)));
            }
        }
        for (letters, text) in OF_NAMES {
            if self.eat(letters) {
                let name = self.name(None)?;
                return Some(self.add(Node::Prefixed(text, name)));
            }
        }
        if self.eat("TA") {
            let argument = self.template_argument()?;
            return Some(self.add(Node::Prefixed("template parameter object for ", argument)));
        }
        if self.eat("TC") {
            let derived = self.type_()?;
            self.number();
            self.expect("_")?;
            let base = self.type_()?;
            return Some(self.add(Node::ConstructionTable(base, derived)));
        }
        if self.eat("GR") {
            let name = self.name(None)?;
            let has_number = !self
                .take_while(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
                .is_empty();
            // LLVM does not print the number of the temporary.
            if !self.eat("_") && has_number {
                return None;
            }
            return Some(self.add(Node::Prefixed("reference temporary for ", name)));
        }
        let text = if self.eat("Tc") {
            self.offset()?;
            self.offset()?;
            "covariant return thunk to "
        } else {
            self.expect("T")?;
            let is_virtual = self.peek() == Some(b'v');
            self.offset()?;
            if is_virtual {
                "virtual thunk to "
            } else {
                "non-virtual thunk to "
            }
        };
        let function = self.encoding()?;
        Some(self.add(Node::Prefixed(text, function)))
    }

    /// Skips the offset by which a thunk moves `this`. LLVM does not print it.
    fn offset(&mut self) -> Option<()> {
        let numbers = match self.eat("v") {
            true => 2,
            false => {
                self.expect("h")?;
                1
            }
        };
        for _ in 0..numbers {
            self.number();
            self.expect("_")?;
        }
        Some(())
    }
}
