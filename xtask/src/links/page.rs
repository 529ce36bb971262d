//! What a document links to, and which headings others can link to.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{BrokenLink, Event, LinkType, Options, Parser, Tag, TagEnd};

/// A link, or a source file that is named, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) target: String,
    /// From 1.
    pub(super) line: usize,
}

/// The links and the headings of a document.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) links: Vec<Link>,
    /// Source files that are named as `crate/tests/file.rs`.
    pub(super) sources: Vec<Link>,
    /// Lines that look like rows of a table, and are shown as text because no table is there; from 1.
    pub(super) stray_rows: Vec<usize>,
    /// What stands behind `#` in links to its headings.
    pub(super) anchors: BTreeSet<String>,
}

impl Page {
    /// Parses a document of CommonMark with tables.
    pub(super) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let lines = Lines::of(text);
        let mut undefined = Vec::new();
        let mut note = |link: BrokenLink<'_>| {
            // `[live]` alone is text; `[a][b]` and `[a][]` are meant as links.
            if link.link_type != LinkType::Shortcut {
                let target = format!("[{}]", link.reference);
                undefined.push(Link {
                    target,
                    line: lines.at(link.span.start),
                });
            }
            None
        };
        let parser =
            Parser::new_with_broken_link_callback(text, Options::ENABLE_TABLES, Some(&mut note));
        let mut heading: Option<String> = None;
        let mut seen = BTreeMap::new();
        for (event, range) in parser.into_offset_iter() {
            let line = lines.at(range.start);
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link {
                        target: dest_url.into_string(),
                        line,
                    });
                }
                Event::Start(Tag::Paragraph) => {
                    let rows = text[range].lines().enumerate();
                    let rows = rows.filter(|(_, row)| row.starts_with('|'));
                    page.stray_rows.extend(rows.map(|(at, _)| line + at));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    if let Some(title) = heading.take() {
                        page.anchors.insert(anchor(&title, &mut seen));
                    }
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    if is_source(&code) {
                        page.sources.push(Link {
                            target: code.into_string(),
                            line,
                        });
                    }
                }
                Event::Text(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                _ => {}
            }
        }
        page.links.append(&mut undefined);
        page.links.sort_by_key(|link| link.line);
        page
    }
}

/// Whether `code` names a source file of a crate, such as `cli/tests/promises.rs`.
fn is_source(code: &str) -> bool {
    let mut parts = code.split('/');
    let named = |part: &str| {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        !part.is_empty() && part.bytes().all(is_word)
    };
    let is_crate = parts.next().is_some_and(named);
    let in_folder = parts
        .next()
        .is_some_and(|part| part == "src" || part == "tests");
    let is_file = std::path::Path::new(code)
        .extension()
        .is_some_and(|end| end == "rs");
    is_crate && in_folder && is_file && parts.all(named)
}

/// Returns what links to a heading say, as GitHub and mdBook make it; the second of two equal ones
/// ends in `-1`.
fn anchor(title: &str, seen: &mut BTreeMap<String, usize>) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    let plain: String = title.trim().chars().filter(kept).collect();
    let anchor = plain.to_lowercase().replace(' ', "-");
    let count = seen.entry(anchor.clone()).or_insert(0);
    *count += 1;
    match *count {
        1 => anchor,
        again => format!("{anchor}-{}", again - 1),
    }
}

/// Where each line of a document begins.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// The line of the byte `at`, from 1.
    fn at(&self, at: usize) -> usize {
        self.0.partition_point(|begin| *begin <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_become_anchors() {
        let page =
            Page::parse("# Life of a boot\n## 9. The `store`: it's here\n## Life of a boot\n");
        let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
        let expected = ["9-the-store-its-here", "life-of-a-boot", "life-of-a-boot-1"];
        assert_eq!(anchors, expected);
    }

    #[test]
    fn a_source_is_a_file_of_a_crate() {
        assert!(is_source("cli/tests/promises.rs"));
        assert!(is_source("nicfetch/src/mirror/tests.rs"));
        assert!(!is_source("crates/cli/tests"));
        assert!(!is_source("tests/promises.rs"));
        assert!(!is_source("cli/src/<name>.rs"));
        assert!(!is_source("docs/cli.md"));
    }
}
