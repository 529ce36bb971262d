//! Expressions of licenses, as crates have them (SPDX).

/// Returns whether an expression can be fulfilled with the allowed licenses. `A/B` is an older form of `A OR B`.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest, allowed) && rest.is_empty()
}

fn either(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut is_met = both(words, allowed);
    while take(words, "OR") {
        is_met |= both(words, allowed);
    }
    is_met
}

fn both(words: &mut &[&str], allowed: &[String]) -> bool {
    let mut is_met = one(words, allowed);
    while take(words, "AND") {
        is_met &= one(words, allowed);
    }
    is_met
}

fn one(words: &mut &[&str], allowed: &[String]) -> bool {
    if take(words, "(") {
        return either(words, allowed) && take(words, ")");
    }
    let Some((license, rest)) = words.split_first() else {
        return false;
    };
    *words = rest;
    let mut term = (*license).to_owned();
    if take(words, "WITH")
        && let Some((exception, rest)) = words.split_first()
    {
        *words = rest;
        term += &format!(" WITH {exception}");
    }
    allowed.contains(&term)
}

fn take(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_as_spdx_says() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(ToOwned::to_owned);
        for (expression, is_met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("MIT AND ISC", true),
            ("MIT AND (GPL-3.0 OR ISC)", true),
            ("MIT OR GPL-3.0 AND GPL-2.0", true),
            ("(MIT OR GPL-3.0) AND GPL-2.0", false),
            ("Apache-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT GPL-3.0", false),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), is_met, "{expression}");
        }
    }
}
