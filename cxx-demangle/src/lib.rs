//! Demangles C++ symbols with the spelling of LLVM (`llvm-cxxfilt` and `llvm-xray` 19). Rust
//! symbols are not read here.
//!
//! ```
//! let mut spent = 0;
//! let name = cxx_demangle::demangle("_ZN2ns3maxIiEET_S1_S1_", 4096, &mut spent);
//! assert_eq!(name.as_deref(), Some("int ns::max<int>(int, int)"));
//! assert_eq!(cxx_demangle::demangle("main", 4096, &mut spent), None);
//! ```
//!
//! | file | content |
//! |---|---|
//! | `parser` | the position in the symbol, and the names so far |
//! | `encoding`, `names`, `types`, `expressions`, `literals`, `unresolved`, `lambdas`, `special` | the grammar |
//! | `operators` | the letters of operators |
//! | `ast` | the tree |
//! | `print` | the text of the tree |
//!
//! The grammar is that of the Itanium C++ ABI
//! (<https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling>), with the extensions of
//! compilers. The first letters of a part identify the part. So no part is tried twice, and time
//! grows with the symbol's length.
//!
//! The text can be much longer than the symbol, because a symbol can refer to earlier parts of
//! itself. The text is bounded, and so are the steps to it and the depth of parsing and printing. A
//! symbol that exceeds a bound has no name. So symbols may come from strangers.

#![forbid(unsafe_code)]

mod ast;
mod encoding;
mod expressions;
mod lambdas;
mod literals;
mod names;
mod operators;
mod parser;
mod print;
mod special;
mod types;
mod unresolved;

use self::parser::Parser;
use self::print::Printer;

/// The name of a C++ symbol. `None` if `symbol` is no C++ symbol, or if its name is longer than
/// `longest` bytes. `spent` increases by the steps of the printer, also where the answer is `None`.
/// A step takes about as long as writing a few bytes.
///
/// The length of a symbol has no bound here. A caller that reads symbols of strangers bounds it.
pub fn demangle(symbol: &str, longest: usize, spent: &mut usize) -> Option<String> {
    let encoding = ["_Z", "__Z"]
        .into_iter()
        .find_map(|prefix| symbol.strip_prefix(prefix))?;
    let mut parser = Parser::new(encoding);
    let root = parser.symbol()?;
    let mut printer = Printer::new(&parser, longest);
    let complete = printer.print(root);
    *spent += printer.steps();
    complete.map(|()| printer.into_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: usize = 32 * 1024;

    fn named(symbol: &str) -> Option<String> {
        demangle(symbol, LONGEST, &mut 0)
    }

    const ROWS: [(&str, &str); 46] = [
        (
            "_ZNSt4pairIiN3app1AEEC2IiRS1_EEOT_OT0_",
            "std::pair<int, app::A>::pair<int, app::A&>(int&&, app::A&)",
        ),
        (
            "_ZN3app3conITkSt8integraliEET_S1_",
            "int app::con<int>(int)",
        ),
        (
            "_ZN3app4con2ITkSt8copyableiQgtstT_Li2EEES1_S1_",
            "T app::con2<int>(T)",
        ),
        ("_ZN1AcvPT_IiEEv", "A::operator int*<int>()"),
        ("_Z1fIXgtLi1ELi2EEEvv", "void f<(1 > 2)>()"),
        ("_Z1fILf40490fdbEEvv", "void f<0x1.921fb6p+1f>()"),
        (
            "_Z1fILd400921fb54442d18EEvv",
            "void f<0x1.921fb54442d18p+1>()",
        ),
        (
            "_Z1fILd0000000000000001EEvv",
            "void f<0x0.0000000000001p-1022>()",
        ),
        (
            "_Z1fILe4000c90fdaa22168c235EEvv",
            "void f<0xc.90fdaa22168c235p-2L>()",
        ),
        (
            "_Z1fILin5ELj5ELl5ELm5ELx5ELy5ELs5ELb1EEvv",
            "void f<-5, 5u, 5l, 5ul, 5ll, 5ull, (short)5, true>()",
        ),
        (
            "_Z1fIXadsoKcL_ZL1hE0EEEvv",
            "void f<&h.<char const at offset 0>>()",
        ),
        ("_Z1fIXtl1ALi1ELi2EEEEvv", "void f<A{1, 2}>()"),
        ("_Z3fooPU9__private1A", "foo(A __private*)"),
        ("_Z1fDv4_f", "f(float vector[4])"),
        ("_Z1fDB7_", "f(_BitInt(7))"),
        ("_Z1fRA4_A5_i", "f(int (&) [4][5])"),
        ("_Z1fPFRA4_iiE", "f(int (& (*)(int)) [4])"),
        ("_Z1fM1AKFvvE", "f(void (A::*)() const)"),
        ("_Z1fPDOLb1EEFvvE", "f(void (*)() noexcept(true))"),
        ("_Z1fPDwiEFvvE", "f(void (*)() throw(int))"),
        ("_Z1fPKVrPi", "f(int* restrict volatile const*)"),
        (
            "_Z1fIJilEEDTflplfp_EDpT_",
            "decltype((... + (fp...))) f<int, long>(int, long)",
        ),
        (
            "_Z1fIJilEEvDpT_DTsZT_E",
            "void f<int, long>(int, long, decltype(sizeof...(int, long)))",
        ),
        ("_Z1fIJEEvDpOT_", "void f<>()"),
        ("_Z1fUa9enable_ifILb1EEv", "f() [enable_if:true]"),
        ("_Z1fIXquLb1ELi1ELi2EEEvv", "void f<true ? 1 : 2>()"),
        ("_Z1fIXsc1ALi1EEEvv", "void f<static_cast<A>(1)>()"),
        (
            "_Z1fIiEvDTcldtfp_dnT_EE",
            "void f<int>(decltype(fp.~int()))",
        ),
        (
            "_Z1fIiEvDTrqXfp_R1CXfp_NEE",
            "void f<int>(decltype(requires { {fp} -> C; {fp} noexcept; }))",
        ),
        ("_ZZ1fvEs", "f()::string literal"),
        (
            "_ZZ1fvEd_NKUlvE_clEv",
            "f()::'lambda'()::operator()() const",
        ),
        ("_ZN1AUt0_1fEv", "A::'unnamed0'::f()"),
        ("_ZW1M1fv", "f@M()"),
        ("_ZDC1a1bE", "[a, b]"),
        ("_ZThn16_N1A1fEv", "non-virtual thunk to A::f()"),
        ("_ZTv0_n24_N1A1fEv", "virtual thunk to A::f()"),
        ("_ZTch0_h16_N1A1fEv", "covariant return thunk to A::f()"),
        ("_ZTVSd", "vtable for std::iostream"),
        (
            "_ZNSdC1EOSd",
            "std::basic_iostream<char, std::char_traits<char>>::basic_iostream(std::iostream&&)",
        ),
        ("_ZN1Ali3_abEv", "A::operator\"\" _ab()"),
        ("_ZN1A1BC1B5cxx11Ev", "A::B::B[abi:cxx11]()"),
        ("_Z1fIRA3_iEvOT_", "void f<int (&) [3]>(int (&) [3])"),
        ("_ZNK1AltIiEEbT_", "bool A::operator<<int>(int) const"),
        ("_ZN1AF1fEv", "A::friend f()"),
        ("_ZNH1A1fES_", "A::f(this A)"),
        ("_Z1fIiEvT_z", "void f<int>(int, ...)"),
    ];

    /// The names as `llvm-cxxfilt` 19 prints them.
    #[test]
    fn names_are_spelled_as_llvm_spells_them() {
        for (symbol, name) in ROWS {
            assert_eq!(named(symbol).as_deref(), Some(name), "{symbol}");
        }
    }

    #[test]
    fn symbols_that_llvm_cannot_read_have_a_name() {
        for (symbol, name) in [
            // A generic lambda's parameters are those of the name behind it.
            (
                "_ZZ4mainENK4$_12clIiEEDaRT_",
                "auto main::$_12::operator()<int>(int&) const",
            ),
            // GCC's spelling of a member of a class in `std`.
            (
                "_ZSt11make_sharedIN3app1AEJEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES5_E4typeEEDpOT0_",
                "std::shared_ptr<std::enable_if<!std::is_array<app::A>::value, app::A>::type> std::make_shared<app::A>()",
            ),
        ] {
            assert_eq!(named(symbol).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_string_that_is_no_symbol_has_no_name() {
        for symbol in [
            "",
            "main",
            "_Z",
            "__Z",
            "_ZN",
            "_ZNE",
            "_ZE",
            "_Zwhatever",
            "_Z1fS_",
            "_Z1fT_",
            "_Z2f",
            "_Z0v",
            "_Z1fi_",
            "_Z99999999999999999999999f",
            "_ZN1aIiEIiEE",
            "_ZTV",
            "_ZTh_",
            "_Z1fILiEE",
            "_Z1éé",
            "_ZN1AcvT_Ev",
            "_ZC1v",
            "_Z1fSZ_",
            "_ZStSt1a",
            "_ZZ1fv",
        ] {
            assert_eq!(named(symbol), None, "{symbol}");
        }
    }

    #[test]
    fn a_name_longer_than_what_is_wanted_is_none() {
        let mut spent = 0;
        assert_eq!(
            demangle("_Z5abcdei", 10, &mut spent).as_deref(),
            Some("abcde(int)")
        );
        assert_eq!(demangle("_Z5abcdei", 9, &mut spent), None);
        assert!(spent >= 10);
    }

    #[test]
    fn a_symbol_whose_text_explodes_has_no_name() {
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let doubled = |of: &str| {
            let pairs = digits
                .iter()
                .map(|&digit| of.replace('#', &char::from(digit).to_string()));
            pairs.fold(String::from("_Z1fSt4pairIiiE"), |symbol, pair| {
                symbol + &pair
            })
        };
        // Each argument is a pair of the one before it: every ten bytes double the text.
        let symbol = doubled("S_IS#_S#_E");
        let mut spent = 0;
        assert_eq!(demangle(&symbol, LONGEST, &mut spent), None);
        assert!(spent > 0, "the attempt is counted");
        // The same without text: each pack contains the one before it twice, and the first is
        // empty.
        let empty = doubled("JS#_S#_E").replace("St4pairIiiE", "1aIJEE");
        assert_eq!(named(&empty), None);
    }

    #[test]
    fn deep_symbols_fit_the_stack_of_a_thread() {
        // Ill-formed.
        for open in [
            "P", "K", "N", "I", "F", "X", "dt", "J", "St4pairI", "ILU1a", "Xdtnw", "Xnw", "Xdl",
            "IXL", "DpT", "Z1fI", "IsrSt", "A", "M", "Dt", "Ul", "UlTt", "TtTp", "Q", "1aIXrqX",
            "cv", "Ncv", "N1aC1", "U1aI", "Z", "il", "fl", "qu", "ix", "1fILZ", "_Z",
        ] {
            for prefix in ["_Z1f", "_Z1fI", "_ZN", "_Z1fIX", "_Z1fDT"] {
                let name = named(&format!("{prefix}{}", open.repeat(1000)));
                assert!(name.is_none_or(|name| name.len() < LONGEST), "{open}");
            }
        }
        // Deep and well-formed symbols, within and beyond the deepest nesting. The stack of a
        // thread has to suffice.
        for deep in [1, 50, 90, 150, 300] {
            for (open, close) in [
                ("St6vectorI", "E"),
                ("PF", "vE"),
                ("XngXadL", "i1EEE"),
                ("1aIXcl", "EE"),
            ] {
                named(&format!(
                    "_Z1fI{}{}EvT_",
                    open.repeat(deep),
                    close.repeat(deep)
                ));
            }
        }
    }
}
