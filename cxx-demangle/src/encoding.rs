//! The grammar of functions with their types, and of variables. The parts of a name are in `names`.
//!
//! ```text
//!  name [Ua9enable_ifI condition… E] [result] parameters [Q constraint]
//! ```

use super::ast::{Encoding, Id, Node, Signature};
use super::parser::{NameState, Parser};

// === impl Parser ===

impl Parser<'_> {
    /// Reads a function with its type, a variable, or an entity made for one of them.
    pub(super) fn encoding(&mut self) -> Option<Id> {
        // The template parameters of this encoding are independent of the enclosing ones.
        let templates = std::mem::take(&mut self.templates);
        let found = self.deeper(Self::encoding_within);
        self.templates = templates;
        found
    }

    fn encoding_within(&mut self) -> Option<Id> {
        if matches!(self.peek(), Some(b'G' | b'T')) {
            return self.special_name();
        }
        let mut state = NameState::default();
        let forward = self.forward.len();
        let name = self.name(Some(&mut state))?;
        self.resolve_forward(forward)?;
        if self.is_at_end_of_encoding() {
            return Some(name);
        }
        let attributes = match self.eat("Ua9enable_ifI") {
            true => Some(self.list_until("E", Self::template_argument)?),
            false => None,
        };
        let has_result = !state.without_result && state.ends_with_arguments;
        let result = match has_result {
            true => Some(self.type_()?),
            false => None,
        };
        let mut parameters = Vec::new();
        if !self.eat("v") {
            loop {
                let mut parameter = self.type_()?;
                if parameters.is_empty() && state.has_explicit_object {
                    parameter = self.add(Node::ExplicitObject(parameter));
                }
                parameters.push(parameter);
                if self.is_at_end_of_encoding() || self.peek() == Some(b'Q') {
                    break;
                }
            }
        }
        let requires = self.constraint_behind()?;
        let signature = Signature {
            result,
            parameters: self.add_list(&parameters),
            qualifiers: state.qualifiers,
            reference: state.reference,
        };
        Some(self.add(Node::Encoding(Box::new(Encoding {
            name,
            signature,
            attributes,
            requires,
        }))))
    }

    fn is_at_end_of_encoding(&self) -> bool {
        matches!(self.peek(), None | Some(b'E' | b'.' | b'_'))
    }

    /// Resolves the parameters that were met since then: their arguments are known now.
    fn resolve_forward(&mut self, since: usize) -> Option<()> {
        for number in since..self.forward.len() {
            let index = self.forward[number]?;
            let found = *self
                .templates
                .first()?
                .as_ref()?
                .get(usize::try_from(index.0).ok()?)?;
            self.forward[number] = Some(found);
        }
        Some(())
    }
}
