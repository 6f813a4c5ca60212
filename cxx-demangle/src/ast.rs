//! The tree of a C++ symbol. `parser` and the grammar files build it, `print` writes its text.
//!
//! Nodes are in one list, and refer to each other by index: substitutions (`S_`) and template
//! parameters (`T_`) let many nodes share one. So the tree is small, however long its text is.

/// The index of a node in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(pub(super) u32);

/// Consecutive nodes in the list of lists.
pub(super) type List = std::ops::Range<u32>;

/// How tightly an expression binds. An operand that binds less tightly needs parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    Primary,
    Postfix,
    Unary,
    Cast,
    MemberPointer,
    Multiplicative,
    Additive,
    Shift,
    Spaceship,
    Relational,
    Equality,
    And,
    Xor,
    Or,
    AndAnd,
    OrOr,
    Conditional,
    Assign,
    Comma,
    Default,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Qualifiers {
    pub(super) is_const: bool,
    pub(super) is_volatile: bool,
    pub(super) is_restrict: bool,
}

/// `&` or `&&`; collapsing two of them gives the first of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reference {
    Left,
    Right,
}

/// The classes of the standard library with a letter of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standard {
    Allocator,
    BasicString,
    String,
    Istream,
    Ostream,
    Iostream,
}

/// The kind of a template parameter that is declared without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterKind {
    Type,
    Value,
    Template,
}

/// The type of a function, or the part of a function's declaration behind its name.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub(super) result: Option<Id>,
    pub(super) parameters: List,
    pub(super) qualifiers: Qualifiers,
    pub(super) reference: Option<Reference>,
}

/// A function as a whole.
#[derive(Clone, Debug)]
pub(super) struct Encoding {
    pub(super) name: Id,
    pub(super) signature: Signature,
    /// The conditions of `enable_if` attributes.
    pub(super) attributes: Option<List>,
    pub(super) requires: Option<Id>,
}

#[derive(Clone, Debug)]
pub(super) enum Node<'a> {
    // Names.
    Name(&'a str),
    /// `outer::inner`.
    Nested(Id, Id),
    /// `outer::friend inner`.
    Friend(Id, Id),
    /// `::name`.
    Global(Id),
    /// `name<arguments>`.
    Template(Id, Id),
    Arguments(List),
    /// `name[abi:tag]`.
    Tagged(Id, &'a str),
    Standard(Standard),
    /// The same with its arguments, for the class of a constructor.
    StandardWhole(Standard),
    Constructor(Id),
    Destructor(Id),
    /// `operator type`.
    Conversion(Id),
    /// `operator"" name`.
    LiteralOperator(Id),
    Unnamed(&'a str),
    Closure {
        count: &'a str,
        signature: Closure,
    },
    /// `[a, b]`.
    Binding(List),
    /// `module` and `partition`.
    Module {
        parent: Option<Id>,
        name: Id,
        is_partition: bool,
    },
    /// `name@module`.
    InModule(Id, Id),
    Encoding(Box<Encoding>),
    /// Text before a node: `vtable for `.
    Prefixed(&'static str, Id),
    /// `construction vtable for base-in-derived`.
    ConstructionTable(Id, Id),
    /// The suffix of a function that the compiler made from another one: `.cold`.
    Suffixed(Id, &'a str),

    // Types.
    Qualified(Id, Qualifiers),
    /// A vendor's qualifier, with its arguments.
    Vendor(Id, &'a str, Option<Id>),
    /// `type complex`.
    Postfixed(Id, &'static str),
    /// `name(type)`.
    Transformed(&'a str, Id),
    BitInt {
        size: Id,
        is_signed: bool,
    },
    Float(&'a str),
    Pointer(Id),
    Reference(Id, Reference),
    MemberPointer {
        class: Id,
        member: Id,
    },
    Array(Id, Option<Id>),
    Function(Signature, Option<Id>),
    Vector(Id, Option<Id>),
    /// `constraint auto`.
    Constrained(Id, &'static str),
    Throw(List),
    ExplicitObject(Id),

    // Template parameters and packs.
    /// A pack, for whose elements an expansion repeats its pattern.
    Pack(List),
    /// Arguments of a pack.
    PackArguments(List),
    Expansion(Id),
    /// A parameter whose arguments come later in the symbol; an index into the parser's `forward`.
    Forward(u32),
    Parameter {
        kind: ParameterKind,
        number: u32,
    },
    TypeDeclaration(Id),
    ConstrainedDeclaration(Id, Id),
    ValueDeclaration(Id, Id),
    TemplateDeclaration {
        name: Id,
        parameters: List,
        requires: Option<Id>,
    },
    PackDeclaration(Id),

    // Expressions.
    /// A number, with its type before or after it.
    Integer {
        type_name: &'static str,
        value: &'a str,
    },
    Enumerator(Id, &'a str),
    StringLiteral(Id),
    LambdaLiteral(Id),
    FloatLiteral {
        digits: &'a str,
        kind: FloatKind,
    },
    Binary {
        left: Id,
        operator: &'static str,
        right: Id,
        precedence: Precedence,
    },
    Prefix(&'static str, Id, Precedence),
    Postfix(Id, &'static str, Precedence),
    Subscript(Id, Id),
    Member(Id, &'static str, Id, Precedence),
    /// `text(expression)`.
    Enclosed(&'static str, Id),
    Call {
        callee: Id,
        arguments: List,
        is_parenthesised: bool,
    },
    Conversions(Id, List),
    NamedCast(&'static str, Id, Id),
    Conditional(Id, Id, Id),
    New {
        places: List,
        created: Id,
        initial: Option<List>,
        is_global: bool,
        is_array: bool,
    },
    Delete {
        target: Id,
        is_global: bool,
        is_array: bool,
    },
    FunctionParameter(&'a str),
    Fold {
        is_left: bool,
        operator: &'static str,
        pack: Id,
        initial: Option<Id>,
    },
    InitialList(Option<Id>, List),
    Braced {
        designator: Id,
        initial: Id,
        is_array: bool,
    },
    BracedRange(Id, Id, Id),
    SizeOfPack(Id),
    SizeOfArguments(List),
    Subobject {
        type_: Id,
        object: Id,
        offset: &'a str,
    },
    Requires(List, List),
    ExpressionRequirement {
        expression: Id,
        is_noexcept: bool,
        constraint: Option<Id>,
    },
    TypeRequirement(Id),
    NestedRequirement(Id),
}

/// The parts that identify a lambda.
#[derive(Clone, Debug)]
pub(super) struct Closure {
    pub(super) templates: List,
    pub(super) before: Option<Id>,
    pub(super) parameters: List,
    pub(super) after: Option<Id>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatKind {
    Float,
    Double,
    LongDouble,
}

// === impl Node ===

impl Node<'_> {
    /// How tightly the text of the node binds.
    pub(super) fn precedence(&self) -> Precedence {
        match self {
            Self::Binary { precedence, .. }
            | Self::Prefix(_, _, precedence)
            | Self::Postfix(_, _, precedence)
            | Self::Member(_, _, _, precedence) => *precedence,
            Self::Subscript(..) | Self::Call { .. } | Self::NamedCast(..) => Precedence::Postfix,
            Self::Conversions(..) => Precedence::Cast,
            Self::Conditional(..) => Precedence::Conditional,
            Self::New { .. } | Self::Delete { .. } => Precedence::Unary,
            _ => Precedence::Primary,
        }
    }
}
