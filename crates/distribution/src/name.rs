//! What images and their versions may be called.

/// Bytes of a tag; the specification's limit.
const TAG_MAX: usize = 128;

/// Returns whether this is the name of a repository: components of lower-case letters and digits,
/// separated by `/`.
#[must_use]
pub fn is_repository(text: &str) -> bool {
    text.split('/').all(is_component)
}

/// Letters and digits, with separators only between them: one dot, one or two underscores, or
/// any number of dashes.
fn is_component(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |run: &str| matches!(run, "" | "." | "_" | "__") || run.chars().all(|c| c == '-');
    part.starts_with(is_word) && part.ends_with(is_word) && part.split(is_word).all(is_separator)
}

/// Returns whether this is a tag.
#[must_use]
pub fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.len() <= TAG_MAX
        && text.starts_with(is_word)
        && text.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_specification_allows() {
        for good in ["a", "library/debian", "a__b/c-----d.e", "0/1"] {
            assert!(is_repository(good), "{good}");
        }
        for bad in [
            "", "/", "a/", "A", "a..b", "a___b", "../a", "a/./b", "a b", "é",
        ] {
            assert!(!is_repository(bad), "{bad}");
        }
    }

    #[test]
    fn tags_are_short_words() {
        assert!(is_tag("v1.2-rc_3") && is_tag(&"b".repeat(128)));
        for bad in ["", "-b", ".b", "b/c", "é", &"b".repeat(129)] {
            assert!(!is_tag(bad), "{bad}");
        }
    }
}
