//! The grammar of names: of functions, and of their scopes.
//!
//! ```text
//!  name    N [qualifiers] part… E     Z encoding E name [which]     [St] part [I arguments E]
//!  part    length and identifier     operator     C1 D2 constructor, destructor
//!          Ul Ut closure, unnamed type
//! ```

use super::ast::{Id, Node, Reference, Standard};
use super::operators::{Form, Operator};
use super::parser::{ArgumentsOf, NameState, Parser};

// === impl Parser ===

impl<'a> Parser<'a> {
    pub(super) fn name(&mut self, state: Option<&mut NameState>) -> Option<Id> {
        self.deeper(|parser| match parser.peek() {
            Some(b'N') => parser.nested_name(state),
            Some(b'Z') => parser.local_name(state),
            _ => parser.plain_name(state),
        })
    }

    fn plain_name(&mut self, mut state: Option<&mut NameState>) -> Option<Id> {
        let (name, is_substitution) = self.unscoped_name(state.as_deref_mut())?;
        if self.peek() != Some(b'I') {
            return (!is_substitution).then_some(name);
        }
        if !is_substitution {
            self.add_substitution(name);
        }
        let arguments = self.template_arguments(ArgumentsOf::name(state.as_deref()))?;
        if let Some(state) = state {
            state.ends_with_arguments = true;
        }
        Some(self.add(Node::Template(name, arguments)))
    }

    /// A name in no scope or in `std`, and whether it is only a substitution.
    pub(super) fn unscoped_name(&mut self, state: Option<&mut NameState>) -> Option<(Id, bool)> {
        let scope = self.eat("St").then(|| self.add(Node::Name("std")));
        let mut module = None;
        if self.peek() == Some(b'S') {
            let found = self.substitution()?;
            if self.is_module(found) {
                module = Some(found);
            } else {
                return scope.is_none().then_some((found, true));
            }
        }
        Some((self.unqualified_name(state, scope, module)?, false))
    }

    fn nested_name(&mut self, mut state: Option<&mut NameState>) -> Option<Id> {
        self.expect("N")?;
        if self.eat("H") {
            if let Some(state) = &mut state {
                state.has_explicit_object = true;
            }
        } else {
            let qualifiers = self.qualifiers();
            let reference = self.reference();
            if let Some(state) = &mut state {
                state.qualifiers = qualifiers;
                state.reference = reference;
            }
        }
        let mut scope: Option<Id> = None;
        while !self.eat("E") {
            if let Some(state) = &mut state {
                state.ends_with_arguments = false;
            }
            let next = match (self.peek(), self.peek_at(1)) {
                (Some(b'T'), _) if scope.is_none() => self.template_parameter()?,
                (Some(b'I'), _) => {
                    let template = scope?;
                    let arguments = self.template_arguments(ArgumentsOf::name(state.as_deref()))?;
                    if matches!(self.node(template), Node::Template(..)) {
                        return None;
                    }
                    if let Some(state) = &mut state {
                        state.ends_with_arguments = true;
                    }
                    self.add(Node::Template(template, arguments))
                }
                (Some(b'D'), Some(b't' | b'T')) if scope.is_none() => self.decltype()?,
                (Some(b'S'), Some(b't')) if scope.is_none() => {
                    self.skip(2);
                    scope = Some(self.add(Node::Name("std")));
                    continue;
                }
                (Some(b'S'), _) => {
                    let found = self.substitution()?;
                    if self.is_module(found) {
                        self.unqualified_name(state.as_deref_mut(), scope, Some(found))?
                    } else if scope.is_none() {
                        scope = Some(found);
                        continue;
                    } else {
                        return None;
                    }
                }
                _ => self.unqualified_name(state.as_deref_mut(), scope, None)?,
            };
            scope = Some(next);
            self.add_substitution(next);
            // The mark behind a lambda in the initializer of a member.
            self.eat("M");
        }
        // The name as a whole is no substitution. If it is a type, the reader of the type adds it.
        self.substitutions.pop()?;
        scope
    }

    pub(super) fn reference(&mut self) -> Option<Reference> {
        if self.eat("O") {
            Some(Reference::Right)
        } else {
            self.eat("R").then_some(Reference::Left)
        }
    }

    fn local_name(&mut self, state: Option<&mut NameState>) -> Option<Id> {
        self.expect("Z")?;
        let function = self.encoding()?;
        self.expect("E")?;
        if self.eat("s") {
            self.discriminator();
            let literal = self.add(Node::Name("string literal"));
            return Some(self.add(Node::Nested(function, literal)));
        }
        let is_in_default_argument = self.eat("d");
        if is_in_default_argument {
            self.number();
            self.expect("_")?;
        }
        // The template parameters around a type are independent of its own. A function's type
        // refers to the function's own parameters, and no others enclose them.
        let entity = match state {
            Some(state) => self.name(Some(state))?,
            None => {
                let templates = std::mem::take(&mut self.templates);
                let entity = self.name(None)?;
                self.templates = templates;
                entity
            }
        };
        if !is_in_default_argument {
            self.discriminator();
        }
        Some(self.add(Node::Nested(function, entity)))
    }

    /// Skips the number of one of several equal names. LLVM does not print it.
    fn discriminator(&mut self) {
        let rest = self.rest();
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        if let Some(long) = rest.strip_prefix("__") {
            let count = digits(long);
            if long.as_bytes().get(count) == Some(&b'_') {
                self.skip(3 + count);
            }
        } else if let Some(short) = rest.strip_prefix('_') {
            if digits(short) > 0 {
                self.skip(2);
            }
        } else if !rest.is_empty() && digits(rest) == rest.len() {
            self.skip(rest.len());
        }
    }

    /// A name without its scope, appended to the scope.
    fn unqualified_name(
        &mut self,
        state: Option<&mut NameState>,
        scope: Option<Id>,
        module: Option<Id>,
    ) -> Option<Id> {
        let module = self.module_name(module)?;
        let mut scope = scope;
        let is_friend = scope.is_some() && self.eat("F");
        // GCC's mark of internal linkage.
        self.eat("L");
        let name = match (self.peek(), self.peek_at(1)) {
            (Some(b'1'..=b'9'), _) => self.source_name()?,
            (Some(b'U'), _) => self.unnamed_type()?,
            (Some(b'D'), Some(b'C')) => {
                self.skip(2);
                let names = self.list_until("E", Self::source_name)?;
                self.add(Node::Binding(names))
            }
            (Some(b'C' | b'D'), _) => {
                let class = scope.filter(|_| module.is_none())?;
                let class = self.whole_standard(class);
                scope = Some(class);
                self.constructor_or_destructor(class, state)?
            }
            _ => self.operator_name(state)?,
        };
        let name = match module {
            Some(module) => self.add(Node::InModule(name, module)),
            None => name,
        };
        let name = self.abi_tags(name)?;
        Some(match scope {
            Some(scope) if is_friend => self.add(Node::Friend(scope, name)),
            Some(scope) => self.add(Node::Nested(scope, name)),
            None => name,
        })
    }

    /// The full class of a constructor: `std::string` is `std::basic_string<…>` there.
    fn whole_standard(&mut self, class: Id) -> Id {
        match *self.node(class) {
            Node::Standard(class) => self.add(Node::StandardWhole(class)),
            _ => class,
        }
    }

    /// The modules at this point, appended to one that was read before.
    fn module_name(&mut self, known: Option<Id>) -> Option<Option<Id>> {
        let mut module = known;
        while self.eat("W") {
            let is_partition = self.eat("P");
            let name = self.source_name()?;
            let found = self.add(Node::Module {
                parent: module,
                name,
                is_partition,
            });
            self.add_substitution(found);
            module = Some(found);
        }
        Some(module)
    }

    fn is_module(&self, id: Id) -> bool {
        matches!(self.node(id), Node::Module { .. })
    }

    pub(super) fn source_name(&mut self) -> Option<Id> {
        let name = self.identifier()?;
        Some(self.add(Node::Name(match name.starts_with("_GLOBAL__N") {
            true => "(anonymous namespace)",
            false => name,
        })))
    }

    fn constructor_or_destructor(
        &mut self,
        class: Id,
        state: Option<&mut NameState>,
    ) -> Option<Id> {
        let is_constructor = self.eat("C");
        if !is_constructor {
            self.expect("D")?;
        }
        let is_inherited = is_constructor && self.eat("I");
        let variants = if is_constructor {
            b'1'..=b'5'
        } else {
            b'0'..=b'5'
        };
        self.peek().filter(|variant| variants.contains(variant))?;
        self.skip(1);
        if let Some(state) = state {
            state.without_result = true;
            if is_inherited {
                self.name(Some(state))?;
            }
        } else if is_inherited {
            self.name(None)?;
        }
        Some(self.add(match is_constructor {
            true => Node::Constructor(class),
            false => Node::Destructor(class),
        }))
    }

    /// The name of an operator as a function name.
    pub(super) fn operator_name(&mut self, state: Option<&mut NameState>) -> Option<Id> {
        if let Some(operator) = Operator::of(self.rest()) {
            if !operator.is_function() {
                return None;
            }
            self.skip(2);
            if operator.form != Form::Conversion {
                return Some(self.add(Node::Name(operator.name)));
            }
            // Its type may refer to parameters of the operator's own template, whose arguments come
            // later.
            let permits = self.permits_forward || state.is_some();
            let permits = std::mem::replace(&mut self.permits_forward, permits);
            let takes = std::mem::replace(&mut self.takes_arguments, false);
            let type_ = self.type_();
            self.permits_forward = permits;
            self.takes_arguments = takes;
            let type_ = type_?;
            if let Some(state) = state {
                state.without_result = true;
            }
            return Some(self.add(Node::Conversion(type_)));
        }
        if self.eat("li") {
            let name = self.source_name()?;
            return Some(self.add(Node::LiteralOperator(name)));
        }
        self.expect("v")?;
        self.peek().filter(u8::is_ascii_digit)?;
        self.skip(1);
        let name = self.source_name()?;
        Some(self.add(Node::Conversion(name)))
    }

    pub(super) fn abi_tags(&mut self, name: Id) -> Option<Id> {
        let mut name = name;
        while self.eat("B") {
            let tag = self.identifier()?;
            name = self.add(Node::Tagged(name, tag));
        }
        Some(name)
    }

    /// A name from before, or a class of the standard library.
    pub(super) fn substitution(&mut self) -> Option<Id> {
        self.expect("S")?;
        let Some(letter @ b'a'..=b'z') = self.peek() else {
            return self.numbered_substitution();
        };
        let class = match letter {
            b'a' => Standard::Allocator,
            b'b' => Standard::BasicString,
            b's' => Standard::String,
            b'i' => Standard::Istream,
            b'o' => Standard::Ostream,
            b'd' => Standard::Iostream,
            _ => return None,
        };
        self.skip(1);
        let class = self.add(Node::Standard(class));
        let tagged = self.abi_tags(class)?;
        if tagged != class {
            self.add_substitution(tagged);
        }
        Some(tagged)
    }

    fn numbered_substitution(&mut self) -> Option<Id> {
        let digits = self.take_while(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        self.expect("_")?;
        let number = match digits {
            "" => 0,
            digits => usize::from_str_radix(digits, 36).ok()?.checked_add(1)?,
        };
        self.substitutions.get(number).copied()
    }

    /// The node with this id. Every id in the parser refers to a node.
    pub(super) fn node(&self, id: Id) -> &Node<'a> {
        &self.nodes[id.0 as usize]
    }
}
