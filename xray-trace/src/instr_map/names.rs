//! Readable names: demangling, and removal of parameters, return types and LLVM's suffixes. The C++
//! demangler itself is the crate `cxx-demangle`.
//!
//! Symbols come from the traced file, and a short mangled C++ name can stand for gigabytes of text.
//! So both the symbol and the name are bounded. A name over a bound stays mangled.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The longest symbol that is demangled, in bytes.
const LONGEST_MANGLED: usize = 4096;
/// The longest demangled name, in bytes.
pub(super) const LONGEST_DEMANGLED: usize = 32 * 1024;

/// A text with a limit on its length. Exceeding it is an error.
struct Bounded {
    text: String,
    longest: usize,
}

/// The readable form of a C++ or Rust symbol. `None` if it is neither, or exceeds a bound.
///
/// The length of the written text is subtracted from `budget`, also after a failure: writing text
/// takes most of the time of demangling.
pub(super) fn demangle(symbol: &str, budget: &mut usize) -> Option<String> {
    if symbol.len() > LONGEST_MANGLED {
        return None;
    }
    let longest = LONGEST_DEMANGLED.min(*budget);
    if let Some((symbol, suffix)) = rust_symbol(symbol) {
        let mut out = Bounded {
            text: String::new(),
            longest,
        };
        // The alternate form omits the hash. A suffix of the compiler is shown in the same way as
        // for C++.
        let symbol = rustc_demangle::try_demangle(symbol).ok()?;
        let complete = match suffix {
            "" => write!(out, "{symbol:#}"),
            suffix => write!(out, "{symbol:#} ({suffix})"),
        };
        *budget -= out.text.len();
        return complete.ok().map(|()| out.text);
    }
    let mut spent = 0;
    let name = cxx_demangle::demangle(symbol, longest, &mut spent);
    *budget = budget.saturating_sub(spent);
    name
}

/// Splits a Rust symbol from the suffix that the compiler appended: `.llvm.77`. Rust's first
/// mangling is C++'s for a path that ends in a hash: `…17h0123456789abcdefE`.
fn rust_symbol(symbol: &str) -> Option<(&str, &str)> {
    if symbol.starts_with("_R") {
        return Some(symbol.split_at(symbol.find('.').unwrap_or(symbol.len())));
    }
    let (_, hash) = symbol.strip_prefix("_ZN")?.rsplit_once("17h")?;
    let (hash, rest) = hash.split_at_checked(16)?;
    let suffix = rest.strip_prefix('E')?;
    let is_whole = suffix.is_empty() || suffix.starts_with('.');
    let is_rust = is_whole && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_rust.then(|| symbol.split_at(symbol.len() - suffix.len()))
}

/// The name without the suffix `.llvm.NUMBER`, which LLVM appends to make local symbols unique:
/// `f(int) (.llvm.77)` → `f(int)`, `f.llvm.77` → `f`, `f(int) (.llvm.77.cold)` → `f(int) (.cold)`.
/// Any other name stays as it is.
#[must_use]
pub fn without_llvm_suffix(name: &str) -> Cow<'_, str> {
    const SUFFIX: &str = ".llvm.";
    let Some((before, number)) = name.rsplit_once(SUFFIX) else {
        return Cow::Borrowed(name);
    };
    let rest = number.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let has_number = rest.len() < number.len();
    let short = match rest {
        "" => Cow::Borrowed(before),
        ")" => match before.strip_suffix(" (") {
            Some(before) => Cow::Borrowed(before),
            None => return Cow::Borrowed(name),
        },
        rest if rest.starts_with('.') => Cow::Owned(format!("{before}{rest}")),
        _ => return Cow::Borrowed(name),
    };
    if has_number && !short.is_empty() {
        short
    } else {
        Cow::Borrowed(name)
    }
}

/// The name without its return type: `void ns::max<int>(int)` → `ns::max<int>(int)`. Only C++
/// templates have one.
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

/// The name without its parameters: `ns::f(int) const` → `ns::f`, `ns::A::operator()(int)` →
/// `ns::A::operator()`. A name without parameters stays as it is.
pub fn without_parameters(name: &str) -> &str {
    let whole = without_trailer(name);
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
            // `operator()` is a name, and removing `(anonymous namespace)` would leave an empty
            // name.
            return if before.is_empty() || before.ends_with("operator") {
                whole
            } else {
                before
            };
        }
    }
    whole
}

/// The name without parts that compilers append: `f(int) (.cold)`, `f<int>(int) requires C<int>`.
fn without_trailer(name: &str) -> &str {
    let name = name.split_once(" (.").map_or(name, |(name, _)| name);
    let mut depth = 0_usize;
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 && name[at..].starts_with(" requires ") => return &name[..at],
            _ => {}
        }
    }
    name
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
            ("_Z3fooi.cold", "foo(int) (.cold)", "foo"),
            (
                "_Z3fooi.constprop.0.isra.1",
                "foo(int) (.constprop.0.isra.1)",
                "foo",
            ),
            (
                "_Z1fIiEvT_Q1CIS0_E",
                "void f<int>(int) requires C<int>",
                "f<int>",
            ),
            (
                "_ZZ4mainENKUlTyT0_E_clIiEEDaS_",
                "auto main::'lambda'<typename $T>(auto)::operator()<int>(auto) const",
                "main::'lambda'<typename $T>(auto)::operator()<int>",
            ),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int>>::push_back(int&&)",
                "std::vector<int, std::allocator<int>>::push_back",
            ),
            (
                "_ZN4demo5inner17h0123456789abcdefE",
                "demo::inner",
                "demo::inner",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar", "123foo::bar"),
            (
                "_RNvC6_123foo3bar.llvm.77",
                "123foo::bar (.llvm.77)",
                "123foo::bar",
            ),
            (
                "_ZN5alloc3vec16Vec$LT$T$C$A$GT$4push17h0123456789abcdefE.llvm.77",
                "alloc::vec::Vec<T,A>::push (.llvm.77)",
                "alloc::vec::Vec<T,A>::push",
            ),
            ("_Zwhatever", "_Zwhatever", "_Zwhatever"),
        ] {
            check(symbol, name, bare);
        }
    }

    #[test]
    fn names_lose_the_suffix_of_llvm_and_no_other() {
        for (name, expected) in [
            ("main", "main"),
            ("receive_batch (.llvm.3344352357844267261)", "receive_batch"),
            ("f(int) (.llvm.77)", "f(int)"),
            ("f.llvm.77", "f"),
            ("_ZL1fi.llvm.77", "_ZL1fi"),
            ("f(int) (.llvm.77.cold)", "f(int) (.cold)"),
            ("f.llvm.77.part.0", "f.part.0"),
            ("f.llvm.", "f.llvm."),
            ("f.llvm.x", "f.llvm.x"),
            ("f.llvm.7x", "f.llvm.7x"),
            ("f (.llvm.)", "f (.llvm.)"),
            ("f(.llvm.7)", "f(.llvm.7)"),
            (".llvm.7", ".llvm.7"),
            (" (.llvm.7)", " (.llvm.7)"),
            ("f(int) (.cold)", "f(int) (.cold)"),
            ("é.llvm.1", "é"),
            ("", ""),
        ] {
            assert_eq!(without_llvm_suffix(name), expected, "{name}");
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
        // Each argument is a pair of the one before it: every ten bytes double the text.
        let pairs = ('0'..='9')
            .chain('A'..='Z')
            .map(|digit| format!("S_IS{digit}_S{digit}_E"));
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
        assert!(
            demangle(&format!("_RNvC6_123foo{}", "R".repeat(3000))).is_none_or(|n| n.len() < 4096)
        );
    }
}
