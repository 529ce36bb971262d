//! Text that others wrote, for a terminal: what that would obey instead of showing it is written out.
//!
//! Names of files, labels and commands come from boot images and registries, and messages from servers. A
//! terminal obeys what is in them: it changes its title, moves its cursor over the lines before, or shows one
//! file's name as another's.

use std::borrow::Cow;

/// Returns a text with the characters that a terminal would obey written out (`\u{1b}`). Line breaks and tabs stay.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |letter: char| is_obeyed(letter) && !matches!(letter, '\n' | '\t');
    written_out(text, obeyed, |letter| letter.escape_unicode().to_string())
}

/// Returns a text in one line: line breaks and tabs are written out, too.
#[must_use]
pub fn printable_line(text: &str) -> Cow<'_, str> {
    written_out(text, is_obeyed, |letter| match letter {
        '\n' | '\r' | '\t' => letter.escape_default().to_string(),
        _ => letter.escape_unicode().to_string(),
    })
}

/// Returns a JSON document with the same content and no character that a terminal would obey. Only strings can have
/// one, besides line breaks between values.
#[must_use]
pub fn printable_json(document: &str) -> Cow<'_, str> {
    let obeyed = |letter: char| is_obeyed(letter) && !letter.is_ascii_whitespace();
    written_out(document, obeyed, |letter| {
        format!("\\u{:04x}", u32::from(letter))
    })
}

/// Controls, and those that change the direction of what is beside them. All are below U+10000.
const fn is_obeyed(letter: char) -> bool {
    matches!(letter, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}')
        || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn written_out(
    text: &str,
    is_obeyed: impl Fn(char) -> bool,
    write: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_obeyed(letter) {
            shown.push_str(&write(letter));
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let hostile = "a\u{1b}[2J\u{9b}31m\r\u{7}\u{202e}b\n\tü";
        let shown = printable(hostile);
        assert_eq!(shown, "a\\u{1b}[2J\\u{9b}31m\\u{d}\\u{7}\\u{202e}b\n\tü");
        let line = printable_line("one\nwarn: two\r\t\u{1b}");
        assert_eq!(line, "one\\nwarn: two\\r\\t\\u{1b}");
    }

    #[test]
    fn what_is_harmless_is_not_copied() {
        let text = "été: 20 °C, 日本, \u{200f}א\n\tb";
        assert!(matches!(printable(text), Cow::Borrowed(_)));
    }

    #[test]
    fn a_json_document_means_the_same() {
        let document = "{\n  \"name\": \"a\u{7f}\u{9b}\u{2066}b\"\n}";
        let shown = printable_json(document);
        assert_eq!(shown, "{\n  \"name\": \"a\\u007f\\u009b\\u2066b\"\n}");
    }
}
