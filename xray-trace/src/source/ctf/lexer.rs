//! The words of CTF's metadata language, TSDL: <https://diamon.org/ctf/v1.8.3/#specC>.

/// A word of the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or a keyword.
    Name(String),
    Number(i128),
    Text(String),
    /// `{`, `}`, `[`, `]`, `<`, `>`, `(`, `)`, `;`, `,`, `=`, `:`, `.`, `*`, `-`, `+`, or one of
    /// those below.
    Mark(char),
    /// `:=`
    Assign,
    /// `->`
    Arrow,
    /// `...`
    Range,
}

/// Reads words one after the other.
#[derive(Debug)]
pub(super) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
}

// === impl Lexer ===

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// The line of the next word, from 1.
    pub(super) fn line(&self) -> u64 {
        let before = self.text.get(..self.at).unwrap_or(self.text);
        1 + before.iter().filter(|&&byte| byte == b'\n').count() as u64
    }

    /// The next word; `None` at the end.
    ///
    /// # Errors
    ///
    /// A character that no word begins with, or a comment or text without an end.
    pub(super) fn next(&mut self) -> Result<Option<Token>, String> {
        self.pass_blank()?;
        let Some(&first) = self.text.get(self.at) else {
            return Ok(None);
        };
        if first.is_ascii_alphabetic() || first == b'_' {
            let is_more = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            return Ok(Some(Token::Name(self.take(is_more))));
        }
        if first.is_ascii_digit() {
            return self.number().map(Some);
        }
        if first == b'"' {
            return self.quoted().map(Token::Text).map(Some);
        }
        let rest = self.text.get(self.at..).unwrap_or_default();
        let (token, length) = match rest {
            [b':', b'=', ..] => (Token::Assign, 2),
            [b'-', b'>', ..] => (Token::Arrow, 2),
            [b'.', b'.', b'.', ..] => (Token::Range, 3),
            [mark, ..] if b"{}[]<>();,=:.*-+".contains(mark) => (Token::Mark((*mark).into()), 1),
            _ => return Err(format!("the character {:?}", char::from(first))),
        };
        self.at += length;
        Ok(Some(token))
    }

    fn pass_blank(&mut self) -> Result<(), String> {
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let length = match rest {
                [b'/', b'*', inside @ ..] => {
                    let end = inside.windows(2).position(|pair| pair == b"*/");
                    4 + end.ok_or("a comment without an end")?
                }
                [b'/', b'/', ..] => rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
                [blank, ..] if blank.is_ascii_whitespace() => 1,
                _ => return Ok(()),
            };
            self.at += length;
        }
    }

    /// The bytes as long as `is_more` is true. They are ASCII.
    fn take(&mut self, is_more: impl Fn(&u8) -> bool) -> String {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().take_while(|byte| is_more(byte)).count();
        self.at += length;
        rest.iter()
            .take(length)
            .map(|&byte| char::from(byte))
            .collect()
    }

    fn number(&mut self) -> Result<Token, String> {
        let word = self.take(u8::is_ascii_alphanumeric);
        let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
        let number = match digits.as_bytes() {
            [b'0', b'x' | b'X', ..] => i128::from_str_radix(&digits[2..], 16),
            [b'0', b'b' | b'B', ..] => i128::from_str_radix(&digits[2..], 2),
            [b'0', _, ..] => i128::from_str_radix(digits, 8),
            _ => digits.parse(),
        };
        let number = number.map_err(|_| format!("the number '{word}'"))?;
        Ok(Token::Number(number))
    }

    /// The next byte of a text.
    fn byte(&mut self) -> Result<u8, String> {
        let byte = self.text.get(self.at).copied();
        self.at += 1;
        byte.ok_or_else(|| "a text without an end".to_owned())
    }

    /// A text with the escape sequences of C. Bytes that are not UTF-8 become `U+FFFD`.
    fn quoted(&mut self) -> Result<String, String> {
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            match self.byte()? {
                b'"' => break,
                b'\\' => {
                    let escaped = match self.byte()? {
                        b'n' => b'\n',
                        b't' => b'\t',
                        b'r' => b'\r',
                        first @ b'0'..=b'7' => self.octal(first),
                        other => other,
                    };
                    bytes.push(escaped);
                }
                byte => bytes.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The byte of an octal escape sequence with this first digit.
    fn octal(&mut self, first: u8) -> u8 {
        let mut number = u32::from(first - b'0');
        for _ in 0..2 {
            let Some(digit @ b'0'..=b'7') = self.text.get(self.at) else {
                break;
            };
            number = number * 8 + u32::from(digit - b'0');
            self.at += 1;
        }
        u8::try_from(number).unwrap_or(b'?')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Result<Vec<Token>, String> {
        let mut lexer = Lexer::new(text.as_bytes());
        let mut tokens = Vec::new();
        while let Some(token) = lexer.next()? {
            tokens.push(token);
        }
        Ok(tokens)
    }

    #[test]
    fn words_are_names_numbers_texts_and_marks() {
        let name = |name: &str| Token::Name(name.to_owned());
        let found = tokens("/* a */ x := 0x1f; // b\n 010 -> \"a\\\"\\101\\n\" 1 ... 5u").unwrap();
        let expected = [
            name("x"),
            Token::Assign,
            Token::Number(31),
            Token::Mark(';'),
            Token::Number(8),
            Token::Arrow,
            Token::Text("a\"A\n".to_owned()),
            Token::Number(1),
            Token::Range,
            Token::Number(5),
        ];
        assert_eq!(found, expected);
        for wrong in ["/* a", "\"a", "\"a\\", "0x", "@"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
    }
}
