//! The files that a start needs, predicted from the command and the image: the program, files that a script
//! names, the loader, the libraries, and what an engine reads before it runs anything.

use std::collections::{HashMap, HashSet, VecDeque};

use super::elf::{self, Needs};
use super::engine::{self, Read};
use super::files::{ImageFiles, Node, head, resolve};

/// Where programs are looked for if the image does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where libraries are looked for, besides what the image configures.
const LIBRARY_DIRECTORIES: &[&str] =
    &["/usr/local/lib", "/lib", "/usr/lib", "/lib64", "/usr/lib64"];
/// What every program may read before it begins.
const CONFIGURATION: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/localtime",
];
/// Files that are found at most: more is no hot set.
const FILES_MAX: usize = 16_384;
/// Bytes of a script that are looked through.
const SCRIPT_MAX: usize = 64 << 10;
/// Words of commands and scripts that are looked for, each once.
const WORDS_MAX: usize = 4096;
/// Files of a server's configuration.
const SETTINGS_MAX: usize = 64;

/// The command of a container, and its environment.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// `NAME=value` each.
    pub env: &'a [String],
    /// The directory it starts in; empty is `/`.
    pub working_dir: &'a str,
}

/// A file that a start needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotFile {
    /// Where it is, without symbolic links.
    pub path: String,
    /// Its length.
    pub len: u64,
    /// The reason.
    pub need: Need,
}

/// What a file is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It is named by the command, or by a script that is.
    Program,
    /// It loads programs, or runs scripts.
    Interpreter,
    /// A program is linked with it.
    Library,
    /// An engine reads it before it runs anything.
    Engine,
    /// Settings.
    Configuration,
}

/// Returns the files that a start needs, in the order in which they were found. It is a prediction
/// from the image's content: it may include others, and files that a program opens by computed
/// names are missing.
#[must_use]
pub fn start_files(files: &dyn ImageFiles, start: &Start) -> Vec<HotFile> {
    let mut search = Search::new(files, start);
    for word in start.command.iter().take(WORDS_MAX) {
        search.named(word);
        // `sh -c "exec nginx"`, and other arguments that are lines.
        if word.contains(char::is_whitespace) {
            search.script(word);
        }
    }
    search.follow();
    for path in CONFIGURATION {
        search.add("/", path, Need::Configuration);
    }
    search.found
}

struct Search<'a> {
    files: &'a dyn ImageFiles,
    path: Vec<&'a str>,
    working_dir: &'a str,
    directories: Vec<String>,
    found: Vec<HotFile>,
    known: HashSet<String>,
    /// Programs, libraries and scripts that are still to be looked into.
    pending: VecDeque<(String, u64)>,
    /// Words that were already looked up.
    words: HashSet<String>,
    /// Where a library was found, by machine and name.
    libraries: HashMap<(u16, String), Option<String>>,
}

impl<'a> Search<'a> {
    fn new(files: &'a dyn ImageFiles, start: &Start<'a>) -> Self {
        let value = |name: &str| {
            let mut values = start.env.iter().filter_map(|pair| pair.split_once('='));
            values.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let mut directories: Vec<String> = Vec::new();
        directories.extend(
            value("LD_LIBRARY_PATH")
                .into_iter()
                .flat_map(|text| text.split(':'))
                .map(str::to_owned),
        );
        directories.extend(configured(files));
        for directory in LIBRARY_DIRECTORIES {
            directories.push((*directory).to_owned());
            // Debian's directories for one architecture each.
            let real = resolve(files, "/", directory).map(|(path, _)| path);
            let names = real.iter().flat_map(|path| files.names(path));
            let multiarch = names.filter(|name| name.contains("-linux-"));
            directories.extend(multiarch.map(|name| format!("{directory}/{name}")));
        }
        Self {
            files,
            path: value("PATH").unwrap_or(PATH).split(':').collect(),
            working_dir: if start.working_dir.is_empty() {
                "/"
            } else {
                start.working_dir
            },
            directories,
            found: Vec::new(),
            known: HashSet::new(),
            pending: VecDeque::new(),
            words: HashSet::new(),
            libraries: HashMap::new(),
        }
    }

    /// Adds a file, if it is one and is new; returns where it really is.
    fn add(&mut self, directory: &str, path: &str, need: Need) -> Option<(String, u64)> {
        let (path, node) = resolve(self.files, directory, path)?;
        let Node::File { len } = node else {
            return None;
        };
        if self.found.len() >= FILES_MAX || !self.known.insert(path.clone()) {
            return None;
        }
        self.found.push(HotFile {
            path: path.clone(),
            len,
            need,
        });
        Some((path, len))
    }

    /// Returns the names in a directory.
    pub(super) fn names(&self, directory: &str) -> Vec<String> {
        let real = resolve(self.files, "/", directory);
        real.map(|(path, _)| self.files.names(&path))
            .unwrap_or_default()
    }

    /// Adds what a word of a command names: a file, or a program that is looked for; and its settings.
    fn named(&mut self, word: &str) {
        let word = word.trim_matches(['"', '\'', ';', '`', '$', '(', ')']);
        let new = || self.words.len() < WORDS_MAX && !self.words.contains(word);
        if word.is_empty() || word.starts_with('-') || !new() {
            return;
        }
        self.words.insert(word.to_owned());
        let place = if word.contains('/') {
            resolve(self.files, self.working_dir, word).map(|(path, _)| path)
        } else {
            let mut places = self.path.iter();
            let found = places.find_map(|directory| {
                let place = format!("{directory}/{word}");
                let (path, node) = resolve(self.files, "/", &place)?;
                matches!(node, Node::File { .. }).then_some(path)
            });
            let beside = || resolve(self.files, self.working_dir, word).map(|(path, _)| path);
            found.or_else(beside)
        };
        let Some(place) = place else { return };
        self.program(&place, Need::Program);
        let name = word.rsplit('/').next().unwrap_or(word);
        if self.known.contains(&place) {
            self.settings(name);
        }
    }

    /// Adds a program or script, with all that it needs.
    fn program(&mut self, path: &str, need: Need) {
        let added = self.add("/", path, need);
        self.pending.extend(added);
    }

    /// Looks into programs and scripts until nothing new is found.
    fn follow(&mut self) {
        while let Some((path, len)) = self.pending.pop_front() {
            if let Some(needs) = elf::needs(self.files, &path, len) {
                self.load(&path, &needs);
                for read in engine::reads(&path) {
                    match read {
                        Read::File(directory, path) => {
                            self.add(&directory, &path, Need::Engine);
                        }
                        Read::Library(path) => self.program(&path, Need::Engine),
                    }
                }
            } else {
                self.interpreted(&path);
            }
        }
    }

    /// Adds what runs a script, and what it names.
    fn interpreted(&mut self, path: &str) {
        let text = head(self.files, path, SCRIPT_MAX);
        let Some(rest) = text.strip_prefix(b"#!") else {
            return;
        };
        let text = String::from_utf8_lossy(rest).into_owned();
        let (first, body) = text.split_once('\n').unwrap_or((&text, ""));
        let mut words = first.split_whitespace();
        if let Some(interpreter) = words.next() {
            self.program(interpreter, Need::Interpreter);
            // `env python3`, `env -S python3 -u`
            words.for_each(|word| self.named(word));
            if interpreter.ends_with("sh") {
                self.script(body);
            }
        }
    }

    /// Adds the programs that the words of a shell's script name.
    fn script(&mut self, text: &str) {
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'));
        let words =
            lines.flat_map(|line| line.split([' ', '\t', ';', '|', '&', '(', ')', '"', '\'']));
        let words: Vec<String> = words
            .filter(|word| !word.is_empty())
            .take(WORDS_MAX)
            .map(str::to_owned)
            .collect();
        for word in words {
            self.named(&word);
        }
    }

    /// Adds the loader and the libraries of a program or library.
    fn load(&mut self, path: &str, needs: &Needs) {
        if let Some(interpreter) = &needs.interpreter {
            self.program(interpreter, Need::Interpreter);
        }
        let origin = path
            .rsplit_once('/')
            .map_or("/", |(directory, _)| directory);
        let own: Vec<String> = needs
            .search
            .iter()
            .flat_map(|text| text.split(':'))
            .map(|text| text.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))
            .collect();
        for library in &needs.libraries {
            if let Some(place) = self.library(library, needs.machine, &own) {
                self.program(&place, Need::Library);
            }
        }
    }

    /// Returns where the library for a machine is that has a name.
    fn library(&mut self, name: &str, machine: u16, own: &[String]) -> Option<String> {
        let fits = |directory: &str| {
            let (path, node) = resolve(self.files, directory, name)?;
            let Node::File { len } = node else {
                return None;
            };
            let needs = elf::needs(self.files, &path, len)?;
            (needs.machine == machine).then_some(path)
        };
        if name.contains('/') {
            return fits("/");
        }
        if let Some(path) = own.iter().find_map(|directory| fits(directory)) {
            return Some(path);
        }
        let key = (machine, name.to_owned());
        if let Some(known) = self.libraries.get(&key) {
            return known.clone();
        }
        let found = self
            .directories
            .iter()
            .find_map(|directory| fits(directory));
        self.libraries.insert(key, found.clone());
        found
    }

    /// Adds the settings that a server has in `/etc`.
    fn settings(&mut self, program: &str) {
        let name = program.trim_end_matches("-server");
        let directory = format!("/etc/{name}");
        if name.is_empty() || name.contains('/') {
            return;
        }
        for file in self.names(&directory).into_iter().take(SETTINGS_MAX) {
            self.add(&directory, &file, Need::Configuration);
        }
        self.add("/etc", &format!("{name}.conf"), Need::Configuration);
    }
}

/// Returns the directories of libraries that `/etc/ld.so.conf` and what it includes name.
fn configured(files: &dyn ImageFiles) -> Vec<String> {
    let included = files.names("/etc/ld.so.conf.d").into_iter();
    let included = included.map(|name| format!("/etc/ld.so.conf.d/{name}"));
    let mut directories = Vec::new();
    for path in std::iter::once("/etc/ld.so.conf".to_owned()).chain(included) {
        let text = head(files, &path, SCRIPT_MAX);
        let text = String::from_utf8_lossy(&text);
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with('/'));
        directories.extend(lines.map(str::to_owned));
    }
    directories
}
