//! Prints the text of a tree, with the spelling of LLVM.
//!
//! C++ writes a declarator around its name, so a type has a left part and a right part: `int (*`
//! name `)[3]`. Each node prints both parts. Most nodes have no right part.
//!
//! [`Printer`] has a method for each production of the grammar that it prints, and all of them
//! append to the same text, so it stays one type.

mod expressions;
mod types;

use super::ast::{
    Closure, Encoding, Id, List, Node, ParameterKind, Precedence, Signature, Standard,
};
use super::parser::{DEEPEST, Parser};

/// The deepest nesting of nodes. A substitution prints its node one level deeper each time.
const DEEPEST_NODE: u32 = 2 * DEEPEST;
/// The most nodes that are visited. A real name needs a few thousand.
const MOST_STEPS: usize = 1 << 18;
/// The count of a pack outside of any expansion.
const NO_PACK: u32 = u32::MAX;

/// Prints the tree of a parser.
#[derive(Debug)]
pub(super) struct Printer<'p, 'a> {
    nodes: &'p [Node<'a>],
    lists: &'p [Id],
    forward: &'p [Option<Id>],
    text: String,
    longest: usize,
    steps: usize,
    depth: u32,
    /// The index of the pack's argument that is printed, and the number of its arguments.
    /// [`NO_PACK`] outside of an expansion, or before its pack is met.
    pack: (u32, u32),
    /// Parentheses since the last `<`. Outside of parentheses a `>` would end the arguments.
    parentheses: u32,
}

/// The form of an operand that binds as tightly as the operator around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Equal {
    Parentheses,
    Bare,
}

// === impl Printer ===

impl<'p, 'a> Printer<'p, 'a> {
    pub(super) fn new(parser: &'p Parser<'a>, longest: usize) -> Self {
        Self {
            nodes: &parser.nodes,
            lists: &parser.lists,
            forward: &parser.forward,
            // Most names are less than twice as long as their symbols.
            text: String::with_capacity(longest.min(2 * parser.length())),
            longest,
            steps: 0,
            depth: 0,
            pack: (NO_PACK, NO_PACK),
            parentheses: 1,
        }
    }

    pub(super) fn steps(&self) -> usize {
        self.steps.max(self.text.len())
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Prints both parts of a node.
    pub(super) fn print(&mut self, id: Id) -> Option<()> {
        self.left(id)?;
        self.right(id)
    }

    fn put(&mut self, text: &str) -> Option<()> {
        if self.text.len() + text.len() > self.longest {
            return None;
        }
        self.text.push_str(text);
        Some(())
    }

    fn put_number(&mut self, number: u32) -> Option<()> {
        self.put(&number.to_string())
    }

    fn open(&mut self, bracket: &str) -> Option<()> {
        self.parentheses += 1;
        self.put(bracket)
    }

    fn close(&mut self, bracket: &str) -> Option<()> {
        self.parentheses = self.parentheses.saturating_sub(1);
        self.put(bracket)
    }

    fn node(&self, id: Id) -> &'p Node<'a> {
        &self.nodes[id.0 as usize]
    }

    fn list(&self, list: &List) -> &'p [Id] {
        &self.lists[list.start as usize..list.end as usize]
    }

    /// Visits a node one level deeper.
    fn deeper<T>(&mut self, look: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.steps += 1;
        if self.steps > MOST_STEPS || self.depth >= DEEPEST_NODE {
            return None;
        }
        self.depth += 1;
        let found = look(self);
        self.depth -= 1;
        found
    }

    /// The argument of a pack that is printed now. The first pack in an expansion sets the number
    /// of repetitions.
    fn of_pack(&mut self, list: &List) -> Option<Id> {
        let arguments = self.list(list);
        if self.pack.1 == NO_PACK {
            self.pack = (0, list.end - list.start);
        }
        arguments.get(self.pack.0 as usize).copied()
    }

    /// The actual node: resolves packs, and parameters that were met before their arguments.
    fn syntax(&mut self, id: Id) -> Option<Id> {
        self.deeper(|printer| match printer.node(id) {
            Node::Pack(list) => match printer.of_pack(list) {
                Some(argument) => printer.syntax(argument),
                None => Some(id),
            },
            Node::Forward(number) => match printer.forward.get(*number as usize).copied()? {
                Some(target) => printer.syntax(target),
                None => Some(id),
            },
            _ => Some(id),
        })
    }

    /// Prints an operand, in parentheses if it binds less tightly than `than`.
    fn operand(&mut self, id: Id, than: Precedence, equal: Equal) -> Option<()> {
        let own = self.node(id).precedence();
        let has_parentheses = match equal {
            Equal::Parentheses => own >= than,
            Equal::Bare => own > than,
        };
        if !has_parentheses {
            return self.print(id);
        }
        self.open("(")?;
        self.print(id)?;
        self.close(")")
    }

    fn with_commas(&mut self, list: &List) -> Option<()> {
        let mut is_first = true;
        for id in self.list(list) {
            let before = self.text.len();
            if !is_first {
                self.put(", ")?;
            }
            let after = self.text.len();
            self.operand(*id, Precedence::Comma, Equal::Parentheses)?;
            if self.text.len() == after {
                // The element was a pack without arguments.
                self.text.truncate(before);
            } else {
                is_first = false;
            }
        }
        Some(())
    }

    fn in_parentheses(&mut self, list: &List) -> Option<()> {
        self.open("(")?;
        self.with_commas(list)?;
        self.close(")")
    }

    /// Prints between `<` and `>`. A bare `>` inside would end the arguments.
    fn in_angles<T>(&mut self, print: impl FnOnce(&mut Self) -> Option<T>) -> Option<()> {
        let parentheses = std::mem::replace(&mut self.parentheses, 0);
        self.put("<")?;
        print(self)?;
        self.put(">")?;
        self.parentheses = parentheses;
        Some(())
    }

    fn requires(&mut self, constraint: Option<Id>) -> Option<()> {
        let Some(constraint) = constraint else {
            return Some(());
        };
        self.put(" requires ")?;
        self.print(constraint)
    }

    fn left(&mut self, id: Id) -> Option<()> {
        self.deeper(|printer| printer.left_of(printer.node(id)))
    }

    fn left_of(&mut self, node: &'p Node<'a>) -> Option<()> {
        match node {
            Node::Name(name) => self.put(name),
            Node::Nested(outer, inner) => {
                self.print(*outer)?;
                self.put("::")?;
                self.print(*inner)
            }
            Node::Friend(outer, inner) => {
                self.print(*outer)?;
                self.put("::friend ")?;
                self.print(*inner)
            }
            Node::Global(name) => {
                self.put("::")?;
                self.print(*name)
            }
            Node::Template(name, arguments) => {
                self.print(*name)?;
                self.print(*arguments)
            }
            Node::Arguments(list) => self.in_angles(|printer| printer.with_commas(list)),
            Node::Tagged(name, tag) => {
                self.print(*name)?;
                self.put("[abi:")?;
                self.put(tag)?;
                self.put("]")
            }
            Node::Standard(class) => self.put(class.name()),
            Node::StandardWhole(class) => self.put(class.whole_name()),
            Node::Constructor(class) => {
                let name = self.base_name(*class)?;
                self.put(name)
            }
            Node::Destructor(class) => {
                let name = self.base_name(*class)?;
                self.put("~")?;
                self.put(name)
            }
            Node::Conversion(type_) => {
                self.put("operator ")?;
                self.print(*type_)
            }
            Node::LiteralOperator(name) => {
                self.put("operator\"\" ")?;
                self.print(*name)
            }
            Node::Unnamed(count) => {
                self.put("'unnamed")?;
                self.put(count)?;
                self.put("'")
            }
            Node::Closure { count, signature } => {
                self.put("'lambda")?;
                self.put(count)?;
                self.put("'")?;
                self.declarator(signature)
            }
            Node::Binding(names) => {
                self.open("[")?;
                self.with_commas(names)?;
                self.close("]")
            }
            Node::Module {
                parent,
                name,
                is_partition,
            } => {
                if let Some(parent) = parent {
                    self.print(*parent)?;
                }
                if parent.is_some() || *is_partition {
                    self.put(if *is_partition { ":" } else { "." })?;
                }
                self.print(*name)
            }
            Node::InModule(name, module) => {
                self.print(*name)?;
                self.put("@")?;
                self.print(*module)
            }
            Node::Encoding(encoding) => self.left_of_encoding(encoding),
            Node::Prefixed(text, of) => {
                self.put(text)?;
                self.print(*of)
            }
            Node::ConstructionTable(base, derived) => {
                self.put("construction vtable for ")?;
                self.print(*base)?;
                self.put("-in-")?;
                self.print(*derived)
            }
            Node::Suffixed(name, suffix) => {
                self.print(*name)?;
                self.put(" (")?;
                self.put(suffix)?;
                self.put(")")
            }
            other => self.left_of_type(other),
        }
    }

    fn left_of_encoding(&mut self, encoding: &'p Encoding) -> Option<()> {
        if let Some(result) = encoding.signature.result {
            self.left(result)?;
            if !self.has_right(result)? {
                self.put(" ")?;
            }
        }
        self.print(encoding.name)
    }

    fn right_of_encoding(&mut self, encoding: &'p Encoding) -> Option<()> {
        self.behind_name(&encoding.signature)?;
        if let Some(attributes) = &encoding.attributes {
            self.put(" [enable_if:")?;
            self.with_commas(attributes)?;
            self.put("]")?;
        }
        self.requires(encoding.requires)
    }

    /// Prints the part behind the name of a function, or in place of the name.
    fn behind_name(&mut self, signature: &'p Signature) -> Option<()> {
        self.in_parentheses(&signature.parameters)?;
        if let Some(result) = signature.result {
            self.right(result)?;
        }
        self.qualifiers(signature.qualifiers)?;
        match signature.reference {
            None => Some(()),
            Some(super::ast::Reference::Left) => self.put(" &"),
            Some(super::ast::Reference::Right) => self.put(" &&"),
        }
    }

    fn declarator(&mut self, closure: &'p Closure) -> Option<()> {
        if !closure.templates.is_empty() {
            self.in_angles(|printer| printer.with_commas(&closure.templates))?;
        }
        self.requires(closure.before)?;
        self.in_parentheses(&closure.parameters)?;
        self.requires(closure.after)
    }

    /// A class's own name, without scope and arguments: the name of its constructors.
    fn base_name(&mut self, class: Id) -> Option<&'p str> {
        self.deeper(|printer| match printer.node(class) {
            Node::Name(name) => Some(*name),
            Node::Nested(_, name)
            | Node::Friend(_, name)
            | Node::Template(name, _)
            | Node::Tagged(name, _)
            | Node::InModule(name, _) => printer.base_name(*name),
            Node::Standard(class) => Some(class.base_name()),
            Node::StandardWhole(class) => Some(class.whole_base_name()),
            _ => Some(""),
        })
    }

    fn made_up(&mut self, kind: ParameterKind, number: u32) -> Option<()> {
        self.put(match kind {
            ParameterKind::Type => "$T",
            ParameterKind::Value => "$N",
            ParameterKind::Template => "$TT",
        })?;
        match number.checked_sub(1) {
            Some(number) => self.put_number(number),
            None => Some(()),
        }
    }
}

// === impl Standard ===

impl Standard {
    fn name(self) -> &'static str {
        match self {
            Self::Allocator => "std::allocator",
            Self::BasicString => "std::basic_string",
            Self::String => "std::string",
            Self::Istream => "std::istream",
            Self::Ostream => "std::ostream",
            Self::Iostream => "std::iostream",
        }
    }

    fn whole_name(self) -> &'static str {
        match self {
            Self::Allocator | Self::BasicString => self.name(),
            Self::String => "std::basic_string<char, std::char_traits<char>, std::allocator<char>>",
            Self::Istream => "std::basic_istream<char, std::char_traits<char>>",
            Self::Ostream => "std::basic_ostream<char, std::char_traits<char>>",
            Self::Iostream => "std::basic_iostream<char, std::char_traits<char>>",
        }
    }

    fn base_name(self) -> &'static str {
        self.name().trim_start_matches("std::")
    }

    fn whole_base_name(self) -> &'static str {
        match self {
            Self::Allocator | Self::BasicString => self.base_name(),
            Self::String => "basic_string",
            Self::Istream => "basic_istream",
            Self::Ostream => "basic_ostream",
            Self::Iostream => "basic_iostream",
        }
    }
}
