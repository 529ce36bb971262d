//! What libtest says about its tests, read from a program's output.
//!
//! The output of the tests' own children is mixed in, so nothing depends on a line being whole: who failed is
//! in the list at the end, too, and how many passed is in the summary.

use std::collections::BTreeSet;

/// How many tests a program counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// What is known of a program's tests so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    /// Whether libtest speaks; a program may have a `main` of its own.
    pub(crate) is_libtest: bool,
    /// Lines that told of a test: more of them is progress.
    pub(crate) steps: u64,
    /// Those that passed or were skipped.
    pub(crate) done: BTreeSet<String>,
    pub(crate) failed: BTreeSet<String>,
    /// Those that took over a minute, and may be at work still.
    pub(crate) slow: BTreeSet<String>,
    /// The sum of all summaries; none before the first.
    pub(crate) counts: Option<Counts>,
    /// The list of failures that is being read.
    listed: Vec<String>,
}

impl Transcript {
    /// Reads the next line.
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.summary(summary);
        } else if line == "failures:" {
            self.listed.clear();
        } else if let Some(name) = line.strip_prefix("    ") {
            self.listed.push(name.to_owned());
        } else if line.starts_with("running ")
            && (line.ends_with(" tests") || line.ends_with(" test"))
        {
            self.is_libtest = true;
        } else {
            self.test(line);
        }
    }

    fn test(&mut self, line: &str) {
        // What a child wrote may be in front.
        let Some((_, told)) = line.split_once("test ") else {
            return;
        };
        if let Some((name, _)) = told.split_once(" has been running for ") {
            self.slow.insert(name.to_owned());
        } else if let Some((name, result)) = told.split_once(" ...") {
            self.steps += 1;
            let name = name.trim_end_matches(" - should panic").to_owned();
            match result.trim() {
                "FAILED" => self.failed.insert(name),
                "ok" => self.done.insert(name),
                skipped if skipped.starts_with("ignored") => self.done.insert(name),
                _ => false, // of a `main` of its own, or cut in two by other output
            };
        }
    }

    fn summary(&mut self, summary: &str) {
        let count = |word: &str| -> u64 {
            let mut parts = summary.split([';', '.']).map(str::trim);
            parts
                .find_map(|part| part.strip_suffix(word)?.trim().parse().ok())
                .unwrap_or(0)
        };
        let counts = self.counts.get_or_insert_default();
        counts.passed += count("passed");
        counts.failed += count("failed");
        counts.skipped += count("ignored");
        if summary.starts_with("FAILED") {
            self.failed.extend(self.listed.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Transcript {
        let mut transcript = Transcript::default();
        text.lines().for_each(|line| transcript.read(line));
        transcript
    }

    fn names(names: &BTreeSet<String>) -> Vec<&str> {
        names.iter().map(String::as_str).collect()
    }

    #[test]
    fn knows_who_passed_failed_and_was_skipped() {
        let transcript = read(
            "running 4 tests\ntest a::b ... ok\n\
            some child of it: test c - should panic ... ok\n\
            test d ... ignored, needs a moon\ntest e ... FAILED\n\nfailures:\n\n---- e stdout ----\n    indented\n\n\
            failures:\n    e\n\ntest result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; \
            finished in 0.12s\n",
        );
        assert!(transcript.is_libtest);
        assert_eq!(transcript.steps, 4);
        assert_eq!(names(&transcript.done), ["a::b", "c", "d"]);
        assert_eq!(names(&transcript.failed), ["e"]);
        let counts = transcript.counts.unwrap();
        assert_eq!((counts.passed, counts.failed, counts.skipped), (2, 1, 1));
    }

    #[test]
    fn finds_a_failure_whose_line_was_cut() {
        let transcript = read(
            "running 1 test\ntest a ... a child speaks\nFAILED\n\n\
            failures:\n    a\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n",
        );
        assert_eq!(names(&transcript.failed), ["a"]);
    }

    #[test]
    fn knows_what_takes_long_and_does_not_call_it_progress() {
        let transcript =
            read("running 2 tests\ntest a has been running for over 60 seconds\ntest b ... ok\n");
        assert_eq!(names(&transcript.slow), ["a"]);
        assert_eq!(transcript.steps, 1);
        assert_eq!(transcript.counts, None);
    }

    #[test]
    fn adds_up_what_several_summaries_say() {
        let transcript = read(
            "test result: ok. 2 passed; 0 failed; 1 ignored\n\
            test result: ok. 3 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!(transcript.counts.unwrap().passed, 5);
        assert_eq!(transcript.counts.unwrap().skipped, 1);
        assert!(!transcript.is_libtest);
    }

    #[test]
    fn takes_a_program_with_a_main_of_its_own() {
        let transcript = read("test one ...\ntest two ...\ntest result: ok\n");
        assert_eq!(transcript.steps, 2);
        assert_eq!(transcript.counts, Some(Counts::default()));
    }
}
