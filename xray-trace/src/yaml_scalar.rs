//! Writes texts in the style of LLVM's YAML writer: plain if possible, in single quotes, or escaped
//! in double quotes.

/// The style of a text.
enum Quotes {
    None,
    Single,
    Double,
}

/// Appends a text, quoted in the style of LLVM (19). Also quotes a text with a comma that would end
/// it, where LLVM forgets the quotes, and one that ends in a dash of its own, which some parsers
/// (saphyr-parser 0.3) take for the begin of a list.
pub(crate) fn push(out: &mut Vec<u8>, text: &str) {
    match quotes(text) {
        Quotes::None => out.extend_from_slice(text.as_bytes()),
        Quotes::Single => {
            out.push(b'\'');
            for byte in text.bytes() {
                if byte == b'\'' {
                    out.push(byte);
                }
                out.push(byte);
            }
            out.push(b'\'');
        }
        Quotes::Double => {
            out.push(b'"');
            text.chars().for_each(|char| push_escaped(out, char));
            out.push(b'"');
        }
    }
}

fn quotes(text: &str) -> Quotes {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return Quotes::Single;
    };
    if bytes
        .iter()
        .any(|byte| matches!(byte, 0..=8 | 0x0a..=0x1f | 0x7f..))
    {
        return Quotes::Double;
    }
    let safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-^. \t".contains(byte);
    let single = b" \t-".contains(first)
        || b" \t".contains(last)
        || bytes.ends_with(b" -")
        || bytes.ends_with(b"\t-")
        || !bytes.iter().all(safe)
        || is_other_type(text);
    if single { Quotes::Single } else { Quotes::None }
}

/// Whether a reader would take the text for another type.
fn is_other_type(text: &str) -> bool {
    matches!(
        text,
        "null" | "Null" | "NULL" | "~" | "true" | "True" | "TRUE" | "false" | "False" | "FALSE"
    ) || is_number(text)
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(text, ".nan" | ".NaN" | ".NAN") || matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return true;
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return !digits.is_empty() && digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mantissa_is_one =
        all_digits(whole) && all_digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent_is_one = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && all_digits(digits) && !digits.is_empty()
    });
    mantissa_is_one && exponent_is_one
}

fn push_escaped(out: &mut Vec<u8>, char: char) {
    let short = match char {
        '\\' => r"\\",
        '"' => "\\\"",
        '\0' => r"\0",
        '\x07' => r"\a",
        '\x08' => r"\b",
        '\t' => r"\t",
        '\n' => r"\n",
        '\x0b' => r"\v",
        '\x0c' => r"\f",
        '\r' => r"\r",
        '\x1b' => r"\e",
        '\u{85}' => r"\N",
        '\u{a0}' => r"\_",
        '\u{2028}' => r"\L",
        '\u{2029}' => r"\P",
        _ => "",
    };
    if !short.is_empty() {
        out.extend_from_slice(short.as_bytes());
        return;
    }
    let code = u32::from(char);
    // LLVM's escaper takes DEL for printable.
    if char == '\x7f' || is_printable(char) {
        let mut utf8 = [0; 4];
        out.extend_from_slice(char.encode_utf8(&mut utf8).as_bytes());
    } else {
        let escaped = match code {
            0..=0xff => format!("\\x{code:02X}"),
            0x100..=0xffff => format!("\\u{code:04X}"),
            _ => format!("\\U{code:08X}"),
        };
        out.extend_from_slice(escaped.as_bytes());
    }
}

fn is_printable(char: char) -> bool {
    // A combining character alone would be escaped, so a letter comes before it.
    let mut text = String::from("a");
    text.push(char);
    matches!(char, '\'' | '"') || text.escape_debug().nth(1) == Some(char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let mut out = Vec::new();
        push(&mut out, text);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn texts_are_quoted_as_llvm_does() {
        check("", "''");
        check("main", "main");
        check("a b-c^d.e", "a b-c^d.e");
        check("f(int)", "'f(int)'");
        check("it's", "'it''s'");
        check(" a", "' a'");
        check("a ", "'a '");
        check("-a", "'-a'");
        check("a/b", "'a/b'");
        check("null", "'null'");
        check("True", "'True'");
        check("tRue", "tRue");
        check("a\nb\t\"", "\"a\\nb\\t\\\"\"");
        check("\x01\x7f", "\"\\x01\x7f\"");
        check("ä\u{a0}\u{1f600}\u{e000}", "\"ä\\_\u{1f600}\\uE000\"");
    }

    #[test]
    fn numbers_are_quoted_and_what_only_looks_so_is_not() {
        for number in [
            "3", "-3", "+3.5e-7", ".5", "5.", "0x1f", "0o17", ".nan", "-.inf", "1e9",
        ] {
            check(number, &format!("'{number}'"));
        }
        for text in ["0xg", "0o8", "1e", "e1", "1.2.3", ".", "0x"] {
            check(text, text);
        }
    }

    #[test]
    fn a_comma_does_not_end_a_text() {
        check("a, b", "'a, b'");
    }

    #[test]
    fn a_dash_of_its_own_is_quoted_at_the_end() {
        check("a -", "'a -'");
        check("a\t-", "'a\t-'");
        check("a-", "a-");
        check("a - b", "a - b");
    }
}
