//! The operators of expressions and names, by their two letters. The table does not parse operands;
//! `expressions` does.

use super::ast::Precedence::{self, *};

/// The shape of an operator in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Prefix,
    /// Postfix; prefix with an underscore behind the letters.
    Postfix,
    Binary,
    Subscript,
    Member,
    New,
    NewArray,
    Delete,
    DeleteArray,
    Call,
    ParenthesisedCall,
    /// `(type)(…)`; as a name, `operator type`.
    Conversion,
    Conditional,
    /// Only a name.
    Name,
    NamedCast,
    /// With a type or with an expression as operand: `sizeof (…)`.
    OfType,
    OfExpression,
}

/// An operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operator {
    pub(super) letters: &'static str,
    pub(super) form: Form,
    pub(super) precedence: Precedence,
    /// The name of the function, or the keyword if there is no such function.
    pub(super) name: &'static str,
}

macro_rules! operators {
    ($($letters:literal $form:ident $precedence:ident $name:literal;)*) => {
        [$(Operator { letters: $letters, form: Form::$form, precedence: $precedence, name: $name }),*]
    };
}

static OPERATORS: [Operator; 63] = operators! {
    "aN" Binary Assign "operator&=";
    "aS" Binary Assign "operator=";
    "aa" Binary AndAnd "operator&&";
    "ad" Prefix Unary "operator&";
    "an" Binary And "operator&";
    "at" OfType Unary "alignof ";
    "aw" Name Primary "operator co_await";
    "az" OfExpression Unary "alignof ";
    "cc" NamedCast Postfix "const_cast";
    "cl" Call Postfix "operator()";
    "cm" Binary Comma "operator,";
    "co" Prefix Unary "operator~";
    "cp" ParenthesisedCall Postfix "operator()";
    "cv" Conversion Cast "operator";
    "dV" Binary Assign "operator/=";
    "da" DeleteArray Unary "operator delete[]";
    "dc" NamedCast Postfix "dynamic_cast";
    "de" Prefix Unary "operator*";
    "dl" Delete Unary "operator delete";
    "ds" Member MemberPointer "operator.*";
    "dt" Member Postfix "operator.";
    "dv" Binary Multiplicative "operator/";
    "eO" Binary Assign "operator^=";
    "eo" Binary Xor "operator^";
    "eq" Binary Equality "operator==";
    "ge" Binary Relational "operator>=";
    "gt" Binary Relational "operator>";
    "ix" Subscript Postfix "operator[]";
    "lS" Binary Assign "operator<<=";
    "le" Binary Relational "operator<=";
    "ls" Binary Shift "operator<<";
    "lt" Binary Relational "operator<";
    "mI" Binary Assign "operator-=";
    "mL" Binary Assign "operator*=";
    "mi" Binary Additive "operator-";
    "ml" Binary Multiplicative "operator*";
    "mm" Postfix Postfix "operator--";
    "na" NewArray Unary "operator new[]";
    "ne" Binary Equality "operator!=";
    "ng" Prefix Unary "operator-";
    "nt" Prefix Unary "operator!";
    "nw" New Unary "operator new";
    "oR" Binary Assign "operator|=";
    "oo" Binary OrOr "operator||";
    "or" Binary Or "operator|";
    "pL" Binary Assign "operator+=";
    "pl" Binary Additive "operator+";
    "pm" Member MemberPointer "operator->*";
    "pp" Postfix Postfix "operator++";
    "ps" Prefix Unary "operator+";
    "pt" Member Postfix "operator->";
    "qu" Conditional Conditional "operator?";
    "rM" Binary Assign "operator%=";
    "rS" Binary Assign "operator>>=";
    "rc" NamedCast Postfix "reinterpret_cast";
    "rm" Binary Multiplicative "operator%";
    "rs" Binary Shift "operator>>";
    "sc" NamedCast Postfix "static_cast";
    "ss" Binary Spaceship "operator<=>";
    "st" OfType Unary "sizeof ";
    "sz" OfExpression Unary "sizeof ";
    "te" OfExpression Postfix "typeid ";
    "ti" OfType Postfix "typeid ";
};

// === impl Operator ===

impl Operator {
    /// The operator with these two letters.
    pub(super) fn of(letters: &str) -> Option<&'static Self> {
        let letters = letters.get(..2)?;
        let place = OPERATORS.binary_search_by(|known| known.letters.cmp(letters));
        OPERATORS.get(place.ok()?)
    }

    /// The text of the operator between its operands.
    pub(super) fn symbol(&self) -> &'static str {
        let symbol = self.name.strip_prefix("operator").unwrap_or(self.name);
        symbol.strip_prefix(' ').unwrap_or(symbol)
    }

    /// Whether a function can have this name. `.` and `.*` cannot be defined, and keywords are no
    /// functions.
    pub(super) fn is_function(&self) -> bool {
        match self.form {
            Form::NamedCast | Form::OfType | Form::OfExpression => false,
            Form::Member => self.name.starts_with("operator->"),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_stand_in_order() {
        assert!(OPERATORS.is_sorted_by_key(|operator| operator.letters));
        for operator in &OPERATORS {
            assert_eq!(Operator::of(operator.letters).unwrap().name, operator.name);
        }
    }
}
