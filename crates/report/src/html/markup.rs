//! Writing HTML so that nothing from outside can be markup.
//!
//! Names of elements and attributes are texts of the program (`&'static str`); everything else goes
//! through [`push_escaped`]. There is no other way to write.

/// Longest text, in characters: a page is bounded, whatever a name or a command holds.
const TEXT_MAX: usize = 2000;

/// An attribute: its name and its value.
pub(super) type Attribute<'a> = (&'static str, &'a str);

/// A document, or a part of one, as it is written.
#[derive(Debug, Default)]
pub(super) struct Markup {
    text: String,
}

impl Markup {
    /// Writes an element around what `inside` writes.
    pub(super) fn tag(
        &mut self,
        name: &'static str,
        attributes: &[Attribute<'_>],
        inside: impl FnOnce(&mut Self),
    ) {
        self.start(name, attributes);
        self.text.push('>');
        inside(self);
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push('>');
    }

    /// Writes an element that holds a text only.
    pub(super) fn leaf(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.tag(name, attributes, |inside| inside.text(text));
    }

    /// Writes an element that holds nothing.
    pub(super) fn void(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.start(name, attributes);
        self.text.push_str("/>");
    }

    /// Writes text.
    pub(super) fn text(&mut self, text: &str) {
        push_escaped(&mut self.text, text);
    }

    /// Writes a part of the program, such as its style sheet, as it is.
    pub(super) fn ours(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    /// Returns what was written.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn start(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.text.push('<');
        self.text.push_str(name);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            push_escaped(&mut self.text, value);
            self.text.push('"');
        }
    }
}

fn push_escaped(out: &mut String, text: &str) {
    for (index, c) in text.chars().enumerate() {
        if index == TEXT_MAX {
            out.push('…');
            break;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || turns_text(c) => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
}

/// Returns whether a character changes the direction of those around it: a file can look like
/// another with these.
const fn turns_text(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_is_markup() {
        let mut markup = Markup::default();
        let hostile = "\"'><script>alert(1)</script>&\0\u{202e}";
        markup.leaf("td", &[("title", hostile)], hostile);
        let safe = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;\u{fffd}\u{fffd}";
        assert_eq!(markup.finish(), format!("<td title=\"{safe}\">{safe}</td>"));
    }

    #[test]
    fn texts_are_bounded() {
        let mut markup = Markup::default();
        markup.text(&"ä".repeat(TEXT_MAX));
        markup.text(&"b".repeat(TEXT_MAX + 1));
        let text = markup.finish();
        assert_eq!(text.chars().count(), 2 * TEXT_MAX + 1);
        assert!(text.ends_with("b…"));
    }

    #[test]
    fn elements_nest() {
        let mut markup = Markup::default();
        markup.tag("p", &[], |p| {
            p.text("a");
            p.void("br", &[]);
            p.leaf("b", &[("class", "x"), ("id", "y")], "c");
        });
        let wanted = "<p>a<br/><b class=\"x\" id=\"y\">c</b></p>";
        assert_eq!(markup.finish(), wanted);
    }
}
