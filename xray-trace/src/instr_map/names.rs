//! Readable names: demangling, and a name without its parameters.
//!
//! Symbols come from the traced file, and a few bytes of C++ mangling can stand for gigabytes of text. So both what
//! goes in and what comes out are bounded, and a name over a bound simply stays mangled.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Longest symbol that is demangled.
const LONGEST_MANGLED: usize = 4096;
/// Longest name that demangling may yield.
const LONGEST_DEMANGLED: usize = 32 * 1024;
/// Nesting that is followed. A level takes up to 20 KiB of stack in a debug build, and a thread may have only 2 MiB.
/// Of 91,000 symbols of LLVM's and C++'s libraries, 18 are nested deeper.
const DEEPEST: u32 = 64;
/// Nesting that is followed where the grammar is ambiguous: cpp_demangle tries the possibilities one after the other on
/// each level, so that 80 bytes could keep it busy for hours. At this depth they take milliseconds.
const DEEPEST_AMBIGUOUS: u32 = 40;
/// The same where `new` or `delete` stand in an expression: there are most possibilities, and hardly a real symbol.
const DEEPEST_ALLOCATING: u32 = 16;

/// Text up to a length; more is an error.
struct Bounded {
    text: String,
    longest: usize,
}

/// The readable form of a C++ or Rust symbol, or `None` when it is neither or goes over a bound.
///
/// What was written is taken from `budget`, also when it came to nothing: text is what demangling spends its time on.
pub(super) fn demangle(symbol: &str, budget: &mut usize) -> Option<String> {
    if symbol.len() > LONGEST_MANGLED {
        return None;
    }
    let mut out = Bounded {
        text: String::new(),
        longest: LONGEST_DEMANGLED.min(*budget),
    };
    let complete = write_demangled(symbol, &mut out);
    *budget -= out.text.len();
    complete.map(|()| out.text)
}

fn write_demangled(symbol: &str, out: &mut Bounded) -> Option<()> {
    if symbol.starts_with("_R") || is_legacy_rust(symbol) {
        // The alternate form leaves the hash out.
        write!(out, "{:#}", rustc_demangle::try_demangle(symbol).ok()?).ok()
    } else if symbol.starts_with("_Z") || symbol.starts_with("__Z") {
        let deepest = deepest(symbol);
        let parsing = ParseOptions::default().recursion_limit(deepest);
        let writing = DemangleOptions::default().recursion_limit(deepest);
        let parsed = Symbol::new_with_options(symbol.as_bytes(), &parsing).ok()?;
        parsed.structured_demangle(out, &writing).ok()
    } else {
        None
    }
}

/// How deep a C++ symbol is followed, by what stands outside its identifiers. Expressions, unresolved names and vendor
/// qualifiers are the parts of the grammar that cannot be told apart by the next letter.
fn deepest(symbol: &str) -> u32 {
    let mut rest = symbol.as_bytes();
    let mut before = 0_u8;
    let mut deepest = DEEPEST;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 {
            // `3foo` is an identifier, `S3_` and `T3_` are references.
            let is_reference = before.is_ascii_uppercase() && rest.get(digits) == Some(&b'_');
            let length = if is_reference {
                0
            } else {
                decimal(&rest[..digits])
            };
            before = 0;
            rest = rest
                .get(digits.saturating_add(length)..)
                .unwrap_or_default();
            continue;
        }
        let is_ambiguous = match (byte, after.first()) {
            (b'X' | b'L' | b'U', _)
            | (b'D', Some(b't' | b'T' | b'O' | b'w' | b'v'))
            | (b's', Some(b'r')) => true,
            (b'A', Some(next)) => !next.is_ascii_digit(),
            (b'n', Some(b'w' | b'a')) | (b'd', Some(b'l' | b'a')) if deepest < DEEPEST => {
                return DEEPEST_ALLOCATING;
            }
            _ => false,
        };
        if is_ambiguous {
            deepest = DEEPEST_AMBIGUOUS;
        }
        (before, rest) = (byte, after);
    }
    deepest
}

fn decimal(digits: &[u8]) -> usize {
    digits.iter().fold(0_usize, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(usize::from(digit - b'0'))
    })
}

/// Rust's first mangling is C++'s for a path that ends in a hash: `…17h0123456789abcdefE`.
fn is_legacy_rust(symbol: &str) -> bool {
    let path = symbol.split_once(".llvm.").map_or(symbol, |(path, _)| path);
    path.starts_with("_ZN")
        && path
            .strip_suffix('E')
            .and_then(|path| path.as_bytes().last_chunk::<19>())
            .is_some_and(|last| {
                last.starts_with(b"17h") && last[3..].iter().all(u8::is_ascii_hexdigit)
            })
}

/// The name without a return type: `void ns::max<int>(int)` → `ns::max<int>(int)`. Only C++ templates have one.
pub(super) fn without_return_type(name: &str) -> &str {
    let head = without_parameters(name).len();
    let mut depth = 0_usize;
    let mut start = 0;
    for (at, byte) in name.bytes().enumerate().take(head) {
        match byte {
            b'o' if depth == 0 && is_operator(&name[..head], at) => break,
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    &name[start..]
}

/// The name up to its parameters: `ns::f(int) const` → `ns::f`, `ns::A::operator()(int)` → `ns::A::operator()`. A name
/// that has none stays as it is.
pub(super) fn without_parameters(name: &str) -> &str {
    let whole = name.split_once(" [clone ").map_or(name, |(whole, _)| whole);
    let mut end = whole;
    while let Some(shorter) = [" const", " volatile", " &", " &&", " noexcept"]
        .iter()
        .find_map(|qualifier| end.strip_suffix(qualifier))
    {
        end = shorter;
    }
    if !end.ends_with(')') {
        return whole;
    }
    let mut depth = 0_usize;
    for (at, byte) in end.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let before = &end[..at];
            // `operator()` is a name, and `(anonymous namespace)` alone would leave none.
            return if before.is_empty() || before.ends_with("operator") {
                whole
            } else {
                before
            };
        }
    }
    whole
}

fn is_operator(name: &str, at: usize) -> bool {
    const OPERATOR: &str = "operator";
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let (before, from) = name.as_bytes().split_at(at);
    from.starts_with(OPERATOR.as_bytes())
        && !before.last().is_some_and(is_word)
        && !from.get(OPERATOR.len()).is_some_and(is_word)
}

// === impl Bounded ===

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.longest {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demangle(symbol: &str) -> Option<String> {
        super::demangle(symbol, &mut usize::MAX.clone())
    }

    fn check(symbol: &str, name: &str, bare: &str) {
        let demangled = demangle(symbol).unwrap_or_else(|| symbol.to_owned());
        assert_eq!(demangled, name, "{symbol}");
        assert_eq!(
            without_parameters(without_return_type(&demangled)),
            bare,
            "{symbol}"
        );
    }

    #[test]
    fn symbols_become_names_and_names_lose_their_parameters() {
        for (symbol, name, bare) in [
            ("main", "main", "main"),
            ("_ZN2ns3fooEibc", "ns::foo(int, bool, char)", "ns::foo"),
            ("_ZNK2ns1A1fEv", "ns::A::f() const", "ns::A::f"),
            (
                "_ZN2ns3maxIiEET_S1_S1_",
                "int ns::max<int>(int, int)",
                "ns::max<int>",
            ),
            (
                "_ZNK2ns1AclEi",
                "ns::A::operator()(int) const",
                "ns::A::operator()",
            ),
            (
                "_ZN2ns1AlsEi",
                "ns::A::operator<<(int)",
                "ns::A::operator<<",
            ),
            (
                "_ZN1AcvjEv",
                "A::operator unsigned int()",
                "A::operator unsigned int",
            ),
            (
                "_ZN12_GLOBAL__N_11fEi",
                "(anonymous namespace)::f(int)",
                "(anonymous namespace)::f",
            ),
            ("_Z3fooi.cold", "foo(int) [clone .cold]", "foo"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
                "std::vector<int, std::allocator<int> >::push_back",
            ),
            (
                "_ZN4demo5inner17h0123456789abcdefE",
                "demo::inner",
                "demo::inner",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar", "123foo::bar"),
            (
                "_ZN5alloc3vec16Vec$LT$T$C$A$GT$4push17h0123456789abcdefE.llvm.77",
                "alloc::vec::Vec<T,A>::push",
                "alloc::vec::Vec<T,A>::push",
            ),
            ("_Zwhatever", "_Zwhatever", "_Zwhatever"),
        ] {
            check(symbol, name, bare);
        }
    }

    #[test]
    fn names_of_every_shape_are_cut_without_a_panic() {
        for name in [
            "",
            "(",
            ")",
            "()",
            "((",
            "))",
            "operator",
            "operator()",
            "f(",
            "f)",
            "a (b) const",
            "é(é)",
            "<<<<",
            ">>>>",
            " ",
            "  ()",
            "x operator",
            "(anonymous namespace)",
        ] {
            let bare = without_parameters(without_return_type(name));
            assert!(name.contains(bare), "{name}");
        }
        assert_eq!(without_parameters("A::operator()"), "A::operator()");
    }

    #[test]
    fn a_symbol_that_explodes_when_demangled_stays_mangled() {
        // Each argument is a pair of the one before it: the text doubles with every ten bytes.
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let pairs = digits
            .iter()
            .map(|&digit| format!("S_IS{0}_S{0}_E", char::from(digit)));
        let symbol = pairs.fold(String::from("_Z1fSt4pairIiiE"), |symbol, pair| {
            symbol + &pair
        });
        let mut budget = 10 * LONGEST_DEMANGLED;
        assert_eq!(super::demangle(&symbol, &mut budget), None);
        assert!(budget < 10 * LONGEST_DEMANGLED, "the attempt was paid for");
        assert_eq!(
            demangle(&format!("_Z{}", "1a".repeat(LONGEST_MANGLED))),
            None
        );
        for open in [
            "P", "N", "I", "F", "X", "dt", "J", "St4pairI", "ILU1a", "Xdtnw", "Xnw", "Xdl", "IXL",
            "DpT", "Z1fI", "IsrSt",
        ] {
            for prefix in ["_Z1f", "_Z1fI", "_ZN"] {
                let name = demangle(&format!("{prefix}{}", open.repeat(400)));
                assert!(
                    name.is_none_or(|name| name.len() < LONGEST_DEMANGLED),
                    "{open}"
                );
            }
        }
        assert!(
            demangle(&format!("_RNvC6_123foo{}", "R".repeat(3000))).is_none_or(|n| n.len() < 4096)
        );
    }
}
