//! The scanner for filters.

use super::FilterError;

/// A place in a filter, moving to its end.
#[derive(Debug)]
pub(super) struct Scanner<'a> {
    filter: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(filter: &'a str) -> Self {
        Self { filter, at: 0 }
    }

    /// Returns the remaining text, after white space.
    fn rest(&mut self) -> &'a str {
        let rest = &self.filter[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.rest().is_empty()
    }

    pub(super) fn next_is(&mut self, wanted: char) -> bool {
        self.rest().starts_with(wanted)
    }

    /// Steps over `token` if it is next.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Returns an error that says what was expected here.
    pub(super) fn expected(&self, expected: &str) -> FilterError {
        FilterError {
            filter: self.filter.chars().take(80).collect(),
            at: self.at,
            expected: format!("expected {expected}"),
        }
    }

    /// Takes one part of a field's path: a word, or anything in double quotes.
    pub(super) fn field(&mut self) -> Result<String, FilterError> {
        if self.next_is('"') {
            return self.quoted('"');
        }
        let word = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
        if word.is_empty() {
            return Err(self.expected("a field"));
        }
        Ok(word.to_owned())
    }

    /// Takes a value: up to white space or a comma, or anything in double quotes.
    pub(super) fn value(&mut self) -> Result<String, FilterError> {
        if self.next_is('"') {
            return self.quoted('"');
        }
        let word = self.take(|c| c != ',' && !c.is_whitespace() && !c.is_control());
        if word.is_empty() {
            return Err(self.expected("a value"));
        }
        Ok(word.to_owned())
    }

    /// Takes a regular expression: a value, or anything between slashes or bars.
    pub(super) fn pattern(&mut self) -> Result<String, FilterError> {
        match ['/', '|'].into_iter().find(|quote| self.next_is(*quote)) {
            Some(quote) => self.quoted(quote),
            None => self.value(),
        }
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Takes the text between two `quote`s, with Go's escapes.
    fn quoted(&mut self, quote: char) -> Result<String, FilterError> {
        self.at += quote.len_utf8();
        let mut bytes = Vec::new();
        loop {
            let Some(next) = self.next() else {
                return Err(self.expected("the closing quote"));
            };
            match next {
                '\\' => self.escape(quote, &mut bytes)?,
                '\n' => return Err(self.expected("the closing quote")),
                _ if next == quote => break,
                _ => push(&mut bytes, next),
            }
        }
        String::from_utf8(bytes).map_err(|_| self.expected("UTF-8"))
    }

    fn next(&mut self) -> Option<char> {
        let next = self.filter[self.at..].chars().next()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Takes what follows a backslash. Between slashes or bars an escape that Go does not know
    /// belongs to the regular expression: `\d`.
    fn escape(&mut self, quote: char, bytes: &mut Vec<u8>) -> Result<(), FilterError> {
        let Some(next) = self.next() else {
            return Err(self.expected("an escape"));
        };
        match next {
            _ if next == quote || next == '\\' => push(bytes, next),
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            't' => bytes.push(b'\t'),
            'a' => bytes.push(7),
            'f' => bytes.push(12),
            'v' => bytes.push(11),
            'x' => bytes.push(self.byte(2, 16)?),
            'u' => push(bytes, self.scalar(4)?),
            'U' => push(bytes, self.scalar(8)?),
            '0'..='3' => {
                self.at -= 1;
                bytes.push(self.byte(3, 8)?);
            }
            _ if quote != '"' => {
                bytes.push(b'\\');
                push(bytes, next);
            }
            'b' => bytes.push(8),
            _ => return Err(self.expected("an escape of Go before this place")),
        }
        Ok(())
    }

    fn number(&mut self, digits: usize, radix: u32) -> Result<u32, FilterError> {
        let text = self.filter.get(self.at..self.at + digits);
        let number = text
            .filter(|text| text.chars().all(|c| c.is_digit(radix)))
            .and_then(|text| u32::from_str_radix(text, radix).ok())
            .ok_or_else(|| self.expected("the digits of an escape"))?;
        self.at += digits;
        Ok(number)
    }

    fn byte(&mut self, digits: usize, radix: u32) -> Result<u8, FilterError> {
        let number = self.number(digits, radix)?;
        u8::try_from(number).map_err(|_| self.expected("an escape of one byte before this place"))
    }

    fn scalar(&mut self, digits: usize) -> Result<char, FilterError> {
        let number = self.number(digits, 16)?;
        char::from_u32(number).ok_or_else(|| self.expected("a character before this place"))
    }
}

fn push(bytes: &mut Vec<u8>, c: char) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
