//! Prints expressions. Names and types are printed in the files beside this one.

use super::{Equal, Printer};
use crate::ast::{FloatKind, Id, Node, Precedence};

// === impl Printer ===

impl<'p, 'a> Printer<'p, 'a> {
    pub(super) fn expression(&mut self, node: &'p Node<'a>) -> Option<()> {
        match node {
            Node::Integer { type_name, value } => {
                // Short names of types are printed as suffixes.
                let is_suffix = type_name.len() <= 3;
                if !is_suffix {
                    self.open("(")?;
                    self.put(type_name)?;
                    self.close(")")?;
                }
                self.number(value)?;
                self.put(if is_suffix { type_name } else { "" })
            }
            Node::Enumerator(type_, value) => {
                self.open("(")?;
                self.print(*type_)?;
                self.close(")")?;
                self.number(value)
            }
            Node::StringLiteral(type_) => {
                self.put("\"<")?;
                self.print(*type_)?;
                self.put(">\"")
            }
            Node::LambdaLiteral(closure) => {
                self.put("[]")?;
                if let Node::Closure { signature, .. } = self.node(*closure) {
                    self.declarator(signature)?;
                }
                self.put("{...}")
            }
            Node::FloatLiteral { digits, kind } => {
                let text = float(digits, *kind)?;
                self.put(&text)
            }
            Node::Binary { .. } => self.binary(node),
            Node::Prefix(text, operand, precedence) => {
                self.put(text)?;
                self.operand(*operand, *precedence, Equal::Parentheses)
            }
            Node::Postfix(operand, text, precedence) => {
                self.operand(*operand, *precedence, Equal::Bare)?;
                self.put(text)
            }
            Node::Subscript(base, index) => {
                self.operand(*base, Precedence::Postfix, Equal::Parentheses)?;
                self.open("[")?;
                self.operand(*index, Precedence::Default, Equal::Parentheses)?;
                self.close("]")
            }
            Node::Member(object, text, member, precedence) => {
                self.operand(*object, *precedence, Equal::Bare)?;
                self.put(text)?;
                self.operand(*member, *precedence, Equal::Parentheses)
            }
            Node::Enclosed(text, expression) => {
                self.put(text)?;
                self.open("(")?;
                self.print(*expression)?;
                self.close(")")
            }
            Node::Call {
                callee,
                arguments,
                is_parenthesised,
            } => {
                if *is_parenthesised {
                    self.open("(")?;
                }
                self.print(*callee)?;
                if *is_parenthesised {
                    self.close(")")?;
                }
                self.in_parentheses(arguments)
            }
            Node::Conversions(type_, operands) => {
                self.open("(")?;
                self.print(*type_)?;
                self.close(")")?;
                self.in_parentheses(operands)
            }
            Node::NamedCast(text, type_, operand) => {
                self.put(text)?;
                self.in_angles(|printer| printer.left(*type_))?;
                self.open("(")?;
                self.operand(*operand, Precedence::Default, Equal::Parentheses)?;
                self.close(")")
            }
            Node::Conditional(condition, then, otherwise) => {
                self.operand(*condition, Precedence::Conditional, Equal::Parentheses)?;
                self.put(" ? ")?;
                self.operand(*then, Precedence::Default, Equal::Parentheses)?;
                self.put(" : ")?;
                self.operand(*otherwise, Precedence::Assign, Equal::Bare)
            }
            Node::New { .. } | Node::Delete { .. } => self.allocation(node),
            Node::FunctionParameter(number) => {
                self.put("fp")?;
                self.put(number)
            }
            Node::Fold {
                is_left,
                operator,
                pack,
                initial,
            } => self.fold(*is_left, operator, *pack, *initial),
            other => self.list_or_requirement(other),
        }
    }

    fn list_or_requirement(&mut self, node: &'p Node<'a>) -> Option<()> {
        match node {
            Node::InitialList(type_, values) => {
                if let Some(type_) = type_ {
                    self.print(*type_)?;
                }
                self.put("{")?;
                self.with_commas(values)?;
                self.put("}")
            }
            Node::Braced {
                designator,
                initial,
                is_array,
            } => {
                self.put(if *is_array { "[" } else { "." })?;
                self.print(*designator)?;
                self.put(if *is_array { "]" } else { "" })?;
                self.initial(*initial)
            }
            Node::BracedRange(first, last, initial) => {
                self.put("[")?;
                self.print(*first)?;
                self.put(" ... ")?;
                self.print(*last)?;
                self.put("]")?;
                self.initial(*initial)
            }
            Node::SizeOfPack(pack) => {
                self.put("sizeof...")?;
                self.open("(")?;
                self.expansion(*pack)?;
                self.close(")")
            }
            Node::SizeOfArguments(arguments) => {
                self.put("sizeof...")?;
                self.in_parentheses(arguments)
            }
            Node::Subobject {
                type_,
                object,
                offset,
            } => {
                self.print(*object)?;
                self.put(".<")?;
                self.print(*type_)?;
                self.put(" at offset ")?;
                self.number(if offset.is_empty() { "0" } else { offset })?;
                self.put(">")
            }
            Node::Requires(parameters, requirements) => {
                self.put("requires")?;
                if !parameters.is_empty() {
                    self.put(" ")?;
                    self.in_parentheses(parameters)?;
                }
                self.put(" ")?;
                self.open("{")?;
                for requirement in self.list(requirements) {
                    self.print(*requirement)?;
                }
                self.put(" ")?;
                self.close("}")
            }
            Node::ExpressionRequirement {
                expression,
                is_noexcept,
                constraint,
            } => {
                let is_braced = *is_noexcept || constraint.is_some();
                self.put(if is_braced { " {" } else { " " })?;
                self.print(*expression)?;
                self.put(if is_braced { "}" } else { "" })?;
                self.put(if *is_noexcept { " noexcept" } else { "" })?;
                if let Some(constraint) = constraint {
                    self.put(" -> ")?;
                    self.print(*constraint)?;
                }
                self.put(";")
            }
            Node::TypeRequirement(type_) => {
                self.put(" typename ")?;
                self.print(*type_)?;
                self.put(";")
            }
            Node::NestedRequirement(constraint) => {
                self.put(" requires ")?;
                self.print(*constraint)?;
                self.put(";")
            }
            // Everything else is a name or a type.
            _ => Some(()),
        }
    }

    fn binary(&mut self, node: &'p Node<'a>) -> Option<()> {
        let Node::Binary {
            left,
            operator,
            right,
            precedence,
        } = node
        else {
            return Some(());
        };
        let ends_arguments = self.parentheses == 0 && matches!(*operator, ">" | ">>");
        if ends_arguments {
            self.open("(")?;
        }
        // An assignment groups from right to left, any other operator from left to right.
        let (of_left, equal_left, equal_right) = match precedence {
            Precedence::Assign => (Precedence::OrOr, Equal::Parentheses, Equal::Bare),
            other => (*other, Equal::Bare, Equal::Parentheses),
        };
        self.operand(*left, of_left, equal_left)?;
        if *operator != "," {
            self.put(" ")?;
        }
        self.put(operator)?;
        self.put(" ")?;
        self.operand(*right, *precedence, equal_right)?;
        if ends_arguments {
            self.close(")")?;
        }
        Some(())
    }

    fn allocation(&mut self, node: &'p Node<'a>) -> Option<()> {
        match node {
            Node::New {
                places,
                created,
                initial,
                is_global,
                is_array,
            } => {
                self.put(if *is_global { "::" } else { "" })?;
                self.put(if *is_array { "new[]" } else { "new" })?;
                if !places.is_empty() {
                    self.in_parentheses(places)?;
                }
                self.put(" ")?;
                self.print(*created)?;
                match initial {
                    Some(initial) if !initial.is_empty() => self.in_parentheses(initial),
                    _ => Some(()),
                }
            }
            Node::Delete {
                target,
                is_global,
                is_array,
            } => {
                self.put(if *is_global { "::" } else { "" })?;
                self.put(if *is_array { "delete[] " } else { "delete " })?;
                self.print(*target)
            }
            _ => Some(()),
        }
    }

    fn initial(&mut self, initial: Id) -> Option<()> {
        if !matches!(
            self.node(initial),
            Node::Braced { .. } | Node::BracedRange(..)
        ) {
            self.put(" = ")?;
        }
        self.print(initial)
    }

    fn fold(&mut self, is_left: bool, operator: &str, pack: Id, initial: Option<Id>) -> Option<()> {
        self.open("(")?;
        let first = if is_left { initial } else { Some(pack) };
        let last = if is_left { Some(pack) } else { initial };
        if let Some(first) = first {
            self.fold_operand(first, pack)?;
            self.put(" ")?;
            self.put(operator)?;
            self.put(" ")?;
        }
        self.put("...")?;
        if let Some(last) = last {
            self.put(" ")?;
            self.put(operator)?;
            self.put(" ")?;
            self.fold_operand(last, pack)?;
        }
        self.close(")")
    }

    fn fold_operand(&mut self, operand: Id, pack: Id) -> Option<()> {
        if operand != pack {
            return self.operand(operand, Precedence::Cast, Equal::Bare);
        }
        self.open("(")?;
        self.expansion(pack)?;
        self.close(")")
    }

    fn number(&mut self, value: &str) -> Option<()> {
        match value.strip_prefix('n') {
            Some(value) => {
                self.put("-")?;
                self.put(value)
            }
            None => self.put(value),
        }
    }
}

/// A floating point number as C's `%a` prints it, from its bytes in hex.
fn float(digits: &str, kind: FloatKind) -> Option<String> {
    let bits = u128::from_str_radix(digits, 16).ok()?;
    Some(match kind {
        FloatKind::Float => {
            let value = f64::from(f32::from_bits(u32::try_from(bits).ok()?));
            hex_double(value) + "f"
        }
        FloatKind::Double => hex_double(f64::from_bits(u64::try_from(bits).ok()?)),
        FloatKind::LongDouble => hex_long_double(bits) + "L",
    })
}

fn hex_double(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string().to_lowercase();
    }
    let bits = value.to_bits();
    let fraction = format!("{:013x}", bits & ((1 << 52) - 1));
    let (lead, exponent) = match bits >> 52 & 0x7ff {
        0 if value == 0.0 => (0, 0),
        0 => (0, -1022),
        biased => (
            1,
            i64::from(u32::try_from(biased).unwrap_or_default()) - 1023,
        ),
    };
    hex(value.is_sign_negative(), lead, &fraction, exponent)
}

/// Formats ten bytes: a sign, 15 bits of exponent, and 64 bits whose first four are before the
/// point.
fn hex_long_double(bits: u128) -> String {
    let mantissa = format!("{:016x}", bits & u128::from(u64::MAX));
    let (lead, fraction) = mantissa.split_at(1);
    let lead = u32::from_str_radix(lead, 16).unwrap_or_default();
    let biased = i64::try_from(bits >> 64 & 0x7fff).unwrap_or_default();
    let exponent = match (biased, lead) {
        (0, 0) => 0,
        (biased, _) => biased - 16383 - 3,
    };
    hex(bits >> 79 & 1 == 1, lead, fraction, exponent)
}

fn hex(is_negative: bool, lead: u32, fraction: &str, exponent: i64) -> String {
    let sign = if is_negative { "-" } else { "" };
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}0x{lead:x}{point}{fraction}p{exponent:+}")
}
