//! Splits lines of a shell into simple commands, and these into words, as far as documents use a shell: quotes,
//! comments, continued lines, and what separates commands. Variables and patterns stay as they are written.

use std::iter::Peekable;
use std::str::Chars;

/// Returns the command lines of a block, each with the count of lines before it. On a console, only what follows a
/// prompt is one: `$ `, `# `, or a name before them.
pub(super) fn lines(block: &str, console: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut rest = block.lines().enumerate();
    while let Some((at, line)) = rest.next() {
        let command = if console {
            after_prompt(line)
        } else {
            Some(line)
        };
        let Some(line) = command else { continue };
        let mut whole = line.to_owned();
        while let Some(begun) = whole.strip_suffix('\\') {
            let next = rest.next().map_or("", |(_, line)| line.trim_start());
            whole = format!("{begun}{next}");
        }
        found.push((at, whole));
    }
    found
}

fn after_prompt(line: &str) -> Option<&str> {
    let end = line.find(' ')?;
    let (prompt, command) = line.split_at(end);
    let host = prompt.strip_suffix(['$', '#'])?;
    host.bytes()
        .all(|byte| byte.is_ascii_alphanumeric())
        .then(|| command.trim_start())
}

/// Returns the words of each simple command of a line, without variables that are set for it, and without where its
/// output goes.
pub(super) fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut letters = line.chars().peekable();
    while let Some(&letter) = letters.peek() {
        match letter {
            ' ' | '\t' => {
                letters.next();
            }
            '#' => break,
            '>' | '<' => {
                letters.next();
                while letters.next_if(|next| " >&".contains(*next)).is_some() {}
                word(&mut letters);
            }
            '&' | '|' | ';' | '(' | ')' => {
                letters.next();
                found.push(Vec::new());
            }
            _ => {
                let word = word(&mut letters);
                let words = found.last_mut().expect("one is there from the beginning");
                let is_variable = words.is_empty() && word.contains('=');
                let begins_another = word.ends_with('$') && letters.peek() == Some(&'(');
                let is_descriptor = matches!(letters.peek(), Some('>' | '<'));
                if !is_variable && !begins_another && !is_descriptor {
                    words.push(word);
                }
            }
        }
    }
    found.retain(|words| !words.is_empty());
    found
}

/// Takes a word without its quotes.
fn word(letters: &mut Peekable<Chars<'_>>) -> String {
    let mut word = String::new();
    let mut quote = None;
    while let Some(&letter) = letters.peek() {
        if quote.is_none() && " \t&|;()<>".contains(letter) {
            break;
        }
        letters.next();
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None | Some('"'), '\\') => word.extend(letters.next()),
            _ => word.push(letter),
        }
    }
    word
}

#[test]
fn commands_are_split_as_a_shell_does() {
    let words = |line: &str| -> Vec<String> {
        let join = |words: Vec<String>| words.join("·");
        commands(line).into_iter().map(join).collect()
    };
    assert_eq!(words("a b && c|d; e &"), ["a·b", "c", "d", "e"]);
    assert_eq!(words("X=1 a 'b c' \"d'e\" f\\ g"), ["a·b c·d'e·f g"]);
    assert_eq!(words("a b >> out 2>&1 c # d"), ["a·b·c"]);
    assert_eq!(words("id=$(a b) && c $id"), ["a·b", "c·$id"]);
    assert_eq!(words("# a"), [""; 0]);
}

#[test]
fn lines_of_a_console_begin_with_a_prompt() {
    let block = "$ a \\\n    b\nout\nhost# c\n# d\n";
    let expected = [(0, "a b"), (3, "c"), (4, "d")].map(|(at, line)| (at, line.to_owned()));
    assert_eq!(lines(block, true), expected);
}
