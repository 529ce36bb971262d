//! Splitting options into words, as a shell does: for `--run-args`.

use anyhow::bail;

/// Splits at spaces, except in quotes and behind backslashes. Nothing is expanded.
///
/// # Errors
/// If a quote is not closed, or a backslash is the end.
pub(crate) fn split(text: &str) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match c {
            '\'' | '"' => quoted(c, &mut chars, word)?,
            '\\' => match chars.next() {
                Some(next) => word.push(next),
                None => bail!("{text:?} ends with a backslash"),
            },
            plain => word.push(plain),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Takes what is in quotes; in double ones a backslash takes the meaning of `"` and `\`.
fn quoted(quote: char, chars: &mut std::str::Chars<'_>, word: &mut String) -> anyhow::Result<()> {
    while let Some(c) = chars.next() {
        match (quote, c) {
            (_, c) if c == quote => return Ok(()),
            ('"', '\\') => match chars.next() {
                Some(next @ ('"' | '\\')) => word.push(next),
                Some(next) => word.extend(['\\', next]),
                None => break,
            },
            _ => word.push(c),
        }
    }
    bail!("an opening {quote} has no closing one")
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn as_a_shell_would() {
        for (text, words) in [
            ("", &[][..]),
            ("  -e  A=b ", &["-e", "A=b"]),
            (
                "-e 'A=b c' -v \"/x y\":/z",
                &["-e", "A=b c", "-v", "/x y:/z"],
            ),
            (r#"a\ b "c\"d\e" '\'"#, &["a b", r#"c"d\e"#, r"\"]),
            ("'' \"\"", &["", ""]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        for bad in ["'a", "\"a", "a\\", "\"a\\"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }
}
