//! What every page has: style, script, the way through it.

use super::markup::Markup;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Nothing may be loaded, and nothing run or styled but what has these hashes: if a name from
/// outside ever became markup, the browser would refuse it. A test compares the hashes.
const POLICY: &str = "default-src 'none'; \
    style-src 'sha256-Cffhl1OZXFZaJ/734WlukJqFDG7qdROQ4VZwKs9sdZg='; \
    script-src 'sha256-BFdrHVM9Zl4zjNwvx3krH2AIWDDLBjKS5vSqFqRsIZ8='";

/// A part of a page, with a heading and an anchor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub(super) id: &'static str,
    title: &'static str,
}

impl Section {
    /// Returns a section.
    pub(super) const fn new(id: &'static str, title: &'static str) -> Self {
        Self { id, title }
    }
}

/// Writes a page. A section of `write` without an id comes before all others.
pub(super) fn page(
    title: &str,
    kind: &str,
    sections: &[Section],
    write: impl Fn(&mut Markup, Section),
) -> String {
    let mut out = Markup::default();
    out.ours("<!DOCTYPE html>\n");
    out.tag("html", &[("lang", "en")], |out| {
        out.tag("head", &[], |out| head(out, title, kind));
        out.tag("body", &[], |out| {
            out.tag("header", &[], |out| {
                out.leaf("p", &[("class", "kind")], kind);
                out.leaf("h1", &[], title);
                out.tag("nav", &[("aria-label", "Sections")], |out| {
                    for section in sections {
                        let link = format!("#{}", section.id);
                        out.leaf("a", &[("href", &link)], section.title);
                    }
                });
            });
            out.tag("main", &[], |out| {
                write(out, Section::new("", ""));
                for section in sections {
                    out.tag("section", &[("id", section.id)], |out| {
                        out.leaf("h2", &[], section.title);
                        write(out, *section);
                    });
                }
            });
            out.tag("script", &[], |out| out.ours(SCRIPT));
        });
    });
    out.finish() + "\n"
}

fn head(out: &mut Markup, title: &str, kind: &str) {
    out.void("meta", &[("charset", "utf-8")]);
    let policy = [
        ("http-equiv", "Content-Security-Policy"),
        ("content", POLICY),
    ];
    out.void("meta", &policy);
    let narrow = [
        ("name", "viewport"),
        ("content", "width=device-width, initial-scale=1"),
    ];
    out.void("meta", &narrow);
    out.void(
        "meta",
        &[("name", "color-scheme"), ("content", "light dark")],
    );
    out.leaf("title", &[], &format!("{title}: {kind}"));
    out.tag("style", &[], |out| out.ours(STYLE));
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// Base64, as RFC 4648 defines it, of a hash: 32 bytes are ten groups of three and two left.
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..=group.len() {
                let six = bits >> (18 - 6 * digit) & 63;
                text.push(char::from(DIGITS[usize::try_from(six).unwrap()]));
            }
        }
        text + &"=".repeat((3 - bytes.len() % 3) % 3)
    }

    #[test]
    fn the_browser_is_told_the_hashes_of_what_is_ours() {
        assert_eq!(base64(b"Ma"), "TWE=");
        for text in [STYLE, SCRIPT] {
            let hash = format!("'sha256-{}'", base64(&Sha256::digest(text)));
            assert!(POLICY.contains(&hash), "the policy needs {hash}");
        }
    }
}
