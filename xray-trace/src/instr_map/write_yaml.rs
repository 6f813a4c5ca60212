//! Writes the instrumentation map in YAML, in the bytes of `llvm-xray extract`.
//!
//! ```yaml
//! ---
//! - { id: 1, address: 0x1278, function: 0x1278, kind: function-enter, always-instrument: true, function-name: main, version: 2 }
//! ...
//! ```
//!
//! One line for a sled, addresses in capitals, version 0 left out, and quotes where LLVM's YAML writer puts them. LLVM has no
//! word for typed events (and cannot read a program that has some); here it is `typed-event`.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use super::{FileAddr, InstrMap, MapFunction, Sled, SledKind};

/// Kinds by LLVM's words.
pub(super) const KINDS: [(&str, SledKind); 6] = [
    ("function-enter", SledKind::Entry),
    ("function-exit", SledKind::Exit),
    ("tail-exit", SledKind::TailExit),
    ("log-args-enter", SledKind::EntryWithArgument),
    ("custom-event", SledKind::CustomEvent),
    ("typed-event", SledKind::TypedEvent),
];

/// What an unknown kind is called, before its number.
pub(super) const UNKNOWN: &str = "unknown-";

/// What is written as the name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionNames {
    /// Nothing.
    None,
    /// The symbol; `@(address)` where there is none.
    Symbols,
    /// The name to be read; `@(address)` where there is none.
    Demangled,
}

// === impl SledKind ===

impl fmt::Display for SledKind {
    /// LLVM's word for it in YAML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unknown(number) = self {
            return write!(f, "{UNKNOWN}{number}");
        }
        let word = KINDS.iter().find(|(_, kind)| kind == self);
        f.pad(word.map_or("", |(word, _)| word))
    }
}

// === impl InstrMap ===

impl InstrMap {
    /// Writes the map as `llvm-xray extract` does.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_yaml(&self, names: FunctionNames, out: &mut dyn Write) -> io::Result<()> {
        if self.sleds().is_empty() {
            return out.write_all(b"--- []\n...\n");
        }
        out.write_all(b"---\n")?;
        let mut name = String::new();
        for function in self.functions() {
            name.clear();
            push_scalar(&mut name, &names.of(function));
            for sled in self.sleds_of(function) {
                let Sled {
                    address,
                    function: in_function,
                    kind,
                    always_instrument,
                    version,
                } = sled;
                write!(
                    out,
                    "- {{ id: {}, address: 0x{:X}, function: 0x{:X}, kind: {kind}, always-instrument: {always_instrument}, function-name: {name}",
                    function.id, address.0, in_function.0
                )?;
                if *version != 0 {
                    write!(out, ", version: {version}")?;
                }
                out.write_all(b" }\n")?;
            }
        }
        out.write_all(b"...\n")
    }
}

// === impl FunctionNames ===

impl FunctionNames {
    fn of(self, function: &MapFunction) -> String {
        match (self, &function.symbol) {
            (Self::None, _) => String::new(),
            (Self::Symbols | Self::Demangled, None) => nameless(function.address),
            (Self::Symbols, Some(symbol)) => symbol.clone(),
            (Self::Demangled, Some(_)) => function.name.clone(),
        }
    }
}

/// What LLVM calls a function whose name it does not know.
pub(super) fn nameless(address: FileAddr) -> String {
    format!("@({:x})", address.0)
}

/// Appends a text as a YAML scalar, quoted when and how LLVM quotes it; also where it has a comma, which LLVM forgets.
pub(crate) fn push_scalar(out: &mut String, text: &str) {
    // Writing to a String does not fail.
    if needs_double_quotes(text) {
        out.push('"');
        for character in text.chars() {
            push_escaped(out, character);
        }
        out.push('"');
    } else if needs_quotes(text) {
        let _ = write!(out, "'{}'", text.replace('\'', "''"));
    } else {
        out.push_str(text);
    }
}

fn needs_double_quotes(text: &str) -> bool {
    text.chars()
        .any(|c| (c.is_ascii_control() && c != '\t') || !c.is_ascii())
}

fn push_escaped(out: &mut String, character: char) {
    let short = match character {
        '\\' => "\\\\",
        '"' => "\\\"",
        '\0' => "\\0",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\t' => "\\t",
        '\n' => "\\n",
        '\u{b}' => "\\v",
        '\u{c}' => "\\f",
        '\r' => "\\r",
        '\u{1b}' => "\\e",
        '\u{85}' => "\\N",
        '\u{a0}' => "\\_",
        '\u{2028}' => "\\L",
        '\u{2029}' => "\\P",
        control if control.is_control() => {
            let _ = write!(out, "\\x{:02X}", u32::from(control));
            return;
        }
        printable => {
            out.push(printable);
            return;
        }
    };
    out.push_str(short);
}

fn needs_quotes(text: &str) -> bool {
    let space = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
    let Some(first) = text.chars().next() else {
        return true;
    };
    text.starts_with(space)
        || text.ends_with(space)
        || r#"-?:\,[]{}#&*!|>'"%@`"#.contains(first)
        || !text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-^. \t".contains(c))
        || is_other_type(text)
}

/// Whether the bare text would be a null, a boolean or a number.
fn is_other_type(text: &str) -> bool {
    const WORDS: [&str; 9] = [
        "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE",
    ];
    WORDS.contains(&text) || is_number(text)
}

fn is_number(text: &str) -> bool {
    const NOT_A_NUMBER: [&str; 3] = [".nan", ".NaN", ".NAN"];
    const INFINITE: [&str; 3] = [".inf", ".Inf", ".INF"];
    let digits =
        |digits: &str, base| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    if NOT_A_NUMBER.contains(&text) {
        return true;
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return digits(octal, 8);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return digits(hex, 16);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if INFINITE.contains(&unsigned) {
        return true;
    }
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let exponent_fits = exponent
        .is_none_or(|exponent| digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent), 10));
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction, 10),
        Some((whole, fraction)) => {
            digits(whole, 10) && (fraction.is_empty() || digits(fraction, 10))
        }
        None => digits(mantissa, 10),
    };
    mantissa_fits && exponent_fits
}
