//! The position in a symbol, and the names that it contained so far. The grammar is in the files
//! beside this one. [`Parser`] has a method for each production of the grammar, and all of them
//! share this position and these names, so it stays one type.

use super::ast::{Id, List, Node, Qualifiers};

/// The deepest nesting that the parser follows. A level takes a few KiB of stack in a debug build,
/// and a thread may have only 2 MiB.
pub(super) const DEEPEST: u32 = 128;

/// Symbols from this length on, in bytes, begin with the same room for nodes.
const LONG: usize = 256;

/// Reads a symbol from left to right.
#[derive(Debug)]
pub(super) struct Parser<'a> {
    text: &'a str,
    at: usize,
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) lists: Vec<Id>,
    /// The nodes that `S_`, `S0_` and so on refer to.
    pub(super) substitutions: Vec<Id>,
    /// The nodes that `T_`, `T0_` and so on refer to, by the level of the template, the outermost
    /// first. A level without a list belongs to a generic lambda, whose parameters have no names.
    pub(super) templates: Vec<Option<Vec<Id>>>,
    /// The nodes of parameters that were met before their arguments, by [`Node::Forward`].
    pub(super) forward: Vec<Option<Id>>,
    /// True if parameters may come before their arguments: in the type of a conversion operator.
    pub(super) permits_forward: bool,
    /// True if `I` behind a parameter begins its arguments. It is false in the type of a conversion
    /// operator, where the arguments belong to the operator.
    pub(super) takes_arguments: bool,
    /// True in a constraint. It can refer to parameters of every enclosing template, which stand
    /// for themselves.
    pub(super) in_constraint: bool,
    /// The level at which the parameters of a lambda are being read.
    pub(super) lambda_level: Option<usize>,
    /// The number of names made up for declared template parameters, by their kind.
    pub(super) made_up: [u32; 3],
    depth: u32,
}

/// Facts about a function from its name.
#[derive(Debug, Default)]
pub(super) struct NameState {
    /// True for a constructor, a destructor or a conversion, which have no result.
    pub(super) without_result: bool,
    pub(super) ends_with_arguments: bool,
    pub(super) has_explicit_object: bool,
    pub(super) qualifiers: Qualifiers,
    pub(super) reference: Option<super::ast::Reference>,
}

/// The owner of template arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentsOf {
    /// The name of the symbol. From here on, template parameters refer to these arguments.
    Symbol,
    /// Another name, such as the name of a type.
    Part,
}

// === impl ArgumentsOf ===

impl ArgumentsOf {
    /// The owner of arguments in a name. Only the name of the symbol has a state.
    pub(super) fn name(state: Option<&NameState>) -> Self {
        match state {
            Some(_) => Self::Symbol,
            None => Self::Part,
        }
    }
}

// === impl Parser ===

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            // Most nodes take three letters or more.
            nodes: Vec::with_capacity(text.len().min(LONG) / 3),
            lists: Vec::new(),
            substitutions: Vec::new(),
            templates: Vec::new(),
            forward: Vec::new(),
            permits_forward: false,
            takes_arguments: true,
            in_constraint: false,
            lambda_level: None,
            made_up: [0; 3],
            depth: 0,
        }
    }

    /// The length of the symbol, in bytes.
    pub(super) fn length(&self) -> usize {
        self.text.len()
    }

    /// Reads a whole symbol.
    pub(super) fn symbol(&mut self) -> Option<Id> {
        let encoding = self.encoding()?;
        if self.peek() == Some(b'.') {
            let suffix = self.rest();
            self.at = self.text.len();
            return Some(self.add(Node::Suffixed(encoding, suffix)));
        }
        self.is_at_end().then_some(encoding)
    }

    /// Runs `read` one level deeper.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let found = read(self);
        self.depth -= 1;
        found
    }

    pub(super) fn add(&mut self, node: Node<'a>) -> Id {
        let id = u32::try_from(self.nodes.len()).expect("a symbol has a bounded length");
        self.nodes.push(node);
        Id(id)
    }

    pub(super) fn add_list(&mut self, ids: &[Id]) -> List {
        let end =
            |lists: &Vec<Id>| u32::try_from(lists.len()).expect("a symbol has a bounded length");
        let begin = end(&self.lists);
        self.lists.extend_from_slice(ids);
        begin..end(&self.lists)
    }

    pub(super) fn add_substitution(&mut self, id: Id) {
        self.substitutions.push(id);
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    pub(super) fn peek_digit(&self) -> bool {
        self.peek().is_some_and(|byte| byte.is_ascii_digit())
    }

    pub(super) fn starts_with(&self, text: &str) -> bool {
        self.rest().starts_with(text)
    }

    /// Skips this text if it is next.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let is_here = self.starts_with(text);
        if is_here {
            self.at += text.len();
        }
        is_here
    }

    /// Skips this text, or returns `None`: without it there is no name.
    pub(super) fn expect(&mut self, text: &str) -> Option<()> {
        self.eat(text).then_some(())
    }

    /// Skips bytes. The caller has checked that they are there and ASCII.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// The next bytes that satisfy a condition. Only ASCII bytes may satisfy it.
    pub(super) fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.bytes().position(|byte| !is_part(byte));
        let (part, _) = rest.split_at(end.unwrap_or(rest.len()));
        self.at += part.len();
        part
    }

    /// The next digits; may be empty.
    pub(super) fn digits(&mut self) -> &'a str {
        self.take_while(|byte| byte.is_ascii_digit())
    }

    /// The next digits, with an optional `n` before them for a negative number.
    pub(super) fn number(&mut self) -> &'a str {
        let rest = self.rest();
        let sign = usize::from(self.eat("n"));
        let digits = self.digits();
        if digits.is_empty() {
            self.at -= sign;
            return "";
        }
        rest.split_at(sign + digits.len()).0
    }

    /// A number without a sign.
    pub(super) fn positive(&mut self) -> Option<usize> {
        self.digits().parse().ok()
    }

    /// An index whose first value is omitted: `_`, `0_`, `1_` and so on.
    pub(super) fn index(&mut self) -> Option<usize> {
        if self.eat("_") {
            return Some(0);
        }
        let number = self.positive()?;
        self.expect("_")?;
        number.checked_add(1)
    }

    /// An identifier behind its length.
    pub(super) fn identifier(&mut self) -> Option<&'a str> {
        let length = self.positive().filter(|length| *length > 0)?;
        let (name, _) = self.rest().split_at_checked(length)?;
        self.at += length;
        Some(name)
    }

    /// Reads elements up to this end mark.
    pub(super) fn list_until(
        &mut self,
        end: &str,
        mut read: impl FnMut(&mut Self) -> Option<Id>,
    ) -> Option<List> {
        let mut found = Vec::new();
        while !self.eat(end) {
            found.push(read(self)?);
        }
        Some(self.add_list(&found))
    }

    pub(super) fn qualifiers(&mut self) -> Qualifiers {
        Qualifiers {
            is_restrict: self.eat("r"),
            is_volatile: self.eat("V"),
            is_const: self.eat("K"),
        }
    }
}
