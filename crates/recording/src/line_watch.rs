//! Looking for a line in output that comes in pieces.

use regex::bytes::Regex;

/// The longest line that is looked at; what is longer is matched in pieces.
const LINE_MAX: usize = 64 << 10;
/// How much of the end of the output is remembered, for the message of a failure.
const TAIL_MAX: usize = 2 << 10;

/// Output, up to now.
#[derive(Debug, Default)]
pub struct LineWatch {
    /// What came since the last line end.
    line: Vec<u8>,
    tail: Vec<u8>,
}

impl LineWatch {
    /// Takes the next piece of output, and returns whether it completes a line that matches. A prompt is a
    /// line without an end: the part after the last newline counts, too.
    pub fn sees(&mut self, piece: &[u8], wanted: Option<&Regex>) -> bool {
        self.tail.extend_from_slice(piece);
        let surplus = self.tail.len().saturating_sub(TAIL_MAX);
        self.tail.drain(..surplus);
        let Some(wanted) = wanted else { return false };
        self.line.extend_from_slice(piece);
        let mut lines = self.line.split(|byte| *byte == b'\n');
        let matched = lines.any(|line| wanted.is_match(line));
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            self.line.drain(..=end);
        }
        if self.line.len() > LINE_MAX {
            self.line.clear();
        }
        matched
    }

    /// Returns the last lines of the output, if there was any.
    pub fn last_lines(&self, count: usize) -> Option<String> {
        let text = String::from_utf8_lossy(&self.tail);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let last = &lines[lines.len().saturating_sub(count)..];
        (!last.is_empty()).then(|| last.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_line_are_matched_together() {
        let wanted = Regex::new("ready to serve").unwrap();
        let sees = |pieces: &[&str]| {
            let mut watch = LineWatch::default();
            let mut seen = pieces.iter().map(|piece| piece.as_bytes());
            seen.any(|piece| watch.sees(piece, Some(&wanted)))
        };
        assert!(!sees(&["noise\nready "]));
        assert!(sees(&["noise\nready ", "to serve"]));
        assert!(!sees(&["ready\nto serve\n"]));
    }

    #[test]
    fn the_end_is_remembered() {
        let mut watch = LineWatch::default();
        assert_eq!(watch.last_lines(2), None);
        watch.sees(&vec![b'x'; 10 << 10], None);
        watch.sees(b"\none\ntwo\nthree\n", None);
        assert_eq!(watch.last_lines(2).as_deref(), Some("two\nthree"));
        assert!(watch.tail.len() <= TAIL_MAX);
    }
}
