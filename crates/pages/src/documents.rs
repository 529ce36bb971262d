//! Tests that the documents and the units show command lines that the programs accept, and name all variables that set
//! flags.
//!
//! A line in a block of shell commands has to parse as a whole. In running text, where `yolofs mount` stands for any
//! mount, the subcommands and flags have to exist. What was run for `docs/results` was run by the program of that day,
//! and is left out.

mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::Command;
use clap::error::ErrorKind;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::programs;

/// The definitions of the programs, ready to be looked at and to parse.
static PROGRAMS: LazyLock<Vec<(&str, Command)>> = LazyLock::new(|| {
    let mut all = Vec::from(programs());
    for (_, program) in &mut all {
        program.build();
    }
    all
});

/// Texts that begin with the name of a program, and are no command lines.
const NOT_COMMANDS: &[&str] = &["yolofs boot image store, version 1"];

/// What a document or a unit shows of one program.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    words: Vec<String>,
    /// From 1.
    line: usize,
}

#[test]
fn command_lines_in_blocks_parse() {
    let mut count = 0;
    let mut faults = Vec::new();
    for path in documents() {
        for shown in in_blocks(&read(&path)) {
            count += 1;
            check(&path, &shown, parse, &mut faults);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 100, "only {count} command lines were found");
}

#[test]
fn commands_in_text_have_these_subcommands_and_flags() {
    let mut count = 0;
    let mut faults = Vec::new();
    for path in documents() {
        for shown in in_text(&read(&path)) {
            count += 1;
            check(&path, &shown, exists, &mut faults);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 200, "only {count} commands were found");
}

#[test]
fn units_start_what_the_programs_accept() {
    let mut count = 0;
    let mut faults = Vec::new();
    for path in files(&root().join("packaging"), &["service", "conf"]) {
        for shown in in_unit(&read(&path)) {
            count += 1;
            check(&path, &shown, parse, &mut faults);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 8, "only {count} command lines were found");
}

#[test]
fn variables_that_set_flags_are_documented() {
    let cli = read(&root().join("docs/cli.md"));
    let sandboxes = read(&root().join("docs/sandboxes.md"));
    let mut missing = Vec::new();
    for (name, program) in &*PROGRAMS {
        let page = if *name == "sandbox" { &sandboxes } else { &cli };
        let mut variables = BTreeSet::new();
        collect_variables(program, &mut variables);
        let unknown = variables
            .into_iter()
            .filter(|variable| !page.contains(&format!("`{variable}`")));
        missing.extend(unknown.map(|variable| format!("{name}: {variable}")));
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_no_command_line_of_ours_is_left_out() {
    let page = "```text\nyolofs frob\n```\n```console\n$ docker run yolofs x\nyolofs 0.1.0\nnode2$ yolofs status\n```\n\
        `yolofs` and `yolofs node\n--tiers FILE`\n```sh\n# yolofs frob\nmkdir x && yolofs umount x &\n```\n";
    let words = |shown: Vec<Shown>| -> Vec<_> {
        let named = |shown: Shown| (shown.line, shown.words.join(" "));
        shown.into_iter().map(named).collect()
    };
    assert_eq!(
        words(in_blocks(page)),
        [
            (7, "yolofs status".to_owned()),
            (13, "yolofs umount x".to_owned()),
        ]
    );
    assert_eq!(
        words(in_text(page)),
        [(9, "yolofs node --tiers FILE".to_owned())]
    );
}

#[test]
fn a_command_line_with_a_fault_is_found() {
    let faults = |text: &str, rule: fn(&Command, &[String]) -> Option<String>| {
        let mut faults = Vec::new();
        for words in shell::commands(text) {
            check(Path::new("x"), &Shown { words, line: 1 }, rule, &mut faults);
        }
        faults
    };
    assert!(faults("yolofs mount a b && bootimg ls", parse).is_empty());
    assert_eq!(faults("yolofs mount a b --frob", parse).len(), 1);
    assert_eq!(faults("yolofs mount", parse).len(), 1);
    assert!(faults("yolofs mount --boot", exists).is_empty());
    assert_eq!(faults("yolofs frob", exists).len(), 1);
    assert_eq!(faults("yolofs node --frob x", exists).len(), 1);
    assert!(faults("yolofs pin record -- COMMAND --frob", exists).is_empty());
}

/// Tries one command line on the definition of its program, and adds what is wrong with it.
fn check(
    path: &Path,
    shown: &Shown,
    rule: fn(&Command, &[String]) -> Option<String>,
    faults: &mut Vec<String>,
) {
    let (_, program) = PROGRAMS
        .iter()
        .find(|(name, _)| shown.words[0] == *name)
        .expect("only commands of our programs are taken from documents");
    if let Some(why) = rule(program, &shown.words) {
        let line = shown.words.join(" ");
        faults.push(format!("{}:{}: {line}: {why}", path.display(), shown.line));
    }
}

/// Says why a whole command line is refused.
fn parse(program: &Command, words: &[String]) -> Option<String> {
    let error = program.clone().try_get_matches_from(words).err()?;
    let asked = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
    (!asked.contains(&error.kind())).then(|| error.to_string())
}

/// Says which subcommand or flag of a command line there is not; operands may be placeholders, or missing.
fn exists(program: &Command, words: &[String]) -> Option<String> {
    let mut command = program;
    let mut is_path = true;
    for word in words[1..].iter().take_while(|word| *word != "--") {
        let word = word.trim_start_matches('[').trim_end_matches(']');
        if let Some(flag) = word.strip_prefix("--") {
            let name = flag.split('=').next().unwrap_or(flag);
            let known = command.get_arguments().any(|argument| {
                let names = argument.get_long_and_visible_aliases().unwrap_or_default();
                names.contains(&name)
            });
            if !known && !["help", "version"].contains(&name) {
                return Some(format!("no flag --{name}"));
            }
            is_path = false;
        } else if is_path && command.has_subcommands() {
            match command.find_subcommand(word) {
                Some(found) => command = found,
                None if command.get_positionals().next().is_some() => is_path = false,
                None => return Some(format!("no subcommand {word}")),
            }
        }
    }
    None
}

/// Collects the environment variables that stand for flags of a command, and of those below it.
fn collect_variables(command: &Command, found: &mut BTreeSet<String>) {
    let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
    let variables = shown.filter_map(clap::Arg::get_env);
    found.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    for below in command.get_subcommands() {
        collect_variables(below, found);
    }
}

/// Returns the commands of our programs in the blocks of a document that show a shell.
fn in_blocks(text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut block: Option<Block> = None;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                block = Some(Block {
                    language: language.into_string(),
                    text: String::new(),
                    line: line_at(text, range.start) + 1,
                });
            }
            Event::Text(part) => {
                if let Some(block) = &mut block {
                    block.text.push_str(&part);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                if let Some(block) = block.take() {
                    found.extend(block.commands());
                }
            }
            _ => {}
        }
    }
    found
}

/// A block between lines of three backquotes.
struct Block {
    language: String,
    text: String,
    /// Its first line.
    line: usize,
}

impl Block {
    fn commands(&self) -> Vec<Shown> {
        let console = match self.language.as_str() {
            "sh" => false,
            "console" => true,
            _ => return Vec::new(),
        };
        shell::lines(&self.text, console)
            .into_iter()
            .flat_map(|(at, line)| ours(&line, self.line + at))
            .collect()
    }
}

/// Returns the commands of our programs that stand in the text of a document, in backquotes.
fn in_text(text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        if let Event::Code(code) = event
            && code.contains(' ')
            && !NOT_COMMANDS.contains(&&*code)
        {
            found.extend(ours(&code, line_at(text, range.start)));
        }
    }
    found
}

/// Returns the commands of our programs that a unit of systemd starts.
fn in_unit(text: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some((key, command)) = line.split_once('=')
            && key.starts_with("Exec")
        {
            let command = command.trim_start_matches('-');
            let command = command.strip_prefix("/usr/bin/").unwrap_or(command);
            let mut shown = ours(command, at + 1);
            for shown in &mut shown {
                // `$OPTIONS` is any number of words, and `${SOURCE}` is one.
                let is_one = |word: &String| !word.starts_with('$') || word.starts_with("${");
                shown.words.retain(is_one);
            }
            found.extend(shown);
        }
    }
    found
}

/// Returns the simple commands of a line that call one of our programs.
fn ours(line: &str, at: usize) -> Vec<Shown> {
    let mut commands = shell::commands(line);
    commands.retain(|words| PROGRAMS.iter().any(|(name, _)| words[0] == *name));
    let shown = |words| Shown { words, line: at };
    commands.into_iter().map(shown).collect()
}

fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the documents that say what the programs do now.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut found = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "packaging", "clients"] {
        found.extend(files(&root.join(folder), &["md"]));
    }
    found.retain(|path| !path.starts_with(root.join("docs/results")));
    found
}

/// Returns the files below a folder whose names end in one of `ends`.
fn files(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ends));
            continue;
        }
        let end = path.extension().and_then(|end| end.to_str());
        if end.is_some_and(|end| ends.contains(&end)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()))
}
