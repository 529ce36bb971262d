//! Classifies a layer by the command that made it.

use super::command::Command;
use crate::lass::Placement;

/// The content of a layer. Of a layer with several kinds of content, the last of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Hardly any: users, links, settings.
    Meta,
    /// It is not known.
    Unknown,
    /// A distribution's base system.
    Base,
    /// Libraries and tools that the distribution gives.
    SystemDependency,
    /// What runs the application: an interpreter, a virtual machine.
    Engine,
    /// The application, or a server that is the application.
    Application,
}

impl Class {
    /// Returns where layers of this class go: base and dependencies are large, and little of them
    /// is hot; of the engine and the application much is.
    #[must_use]
    pub const fn place(self) -> Placement {
        match self {
            Self::Engine | Self::Application => Placement::Fast,
            Self::Meta | Self::Unknown | Self::Base | Self::SystemDependency => Placement::Slow,
        }
    }
}

/// One step of an image's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The command, as the builder wrote it.
    pub created_by: &'a str,
    /// Whether it made a layer.
    pub layer: MadeLayer,
}

/// Whether a step made a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeLayer {
    /// It did.
    Yes,
    /// It changed the configuration only.
    No,
}

/// Words in the name of a package that is an engine, or runs a command that makes one.
const ENGINES: &[&str] = &[
    "dotnet", "elixir", "erlang", "golang", "jdk", "jre", "julia", "luajit", "mono", "node",
    "nodejs", "openjdk", "perl", "php", "pypy", "python", "python2", "python3", "ruby", "rbenv",
];

/// Variables by which official images name the engine that a command builds.
const ENGINE_VARIABLES: &[&str] = &[
    "DOTNET_VERSION",
    "GOLANG_VERSION",
    "GRAALVM_VERSION",
    "JAVA_HOME",
    "JAVA_VERSION",
    "JULIA_VERSION",
    "NODE_VERSION",
    "OTP_VERSION",
    "PERL_VERSION",
    "PHP_VERSION",
    "PYPY_VERSION",
    "PYTHON_VERSION",
    "RUBY_VERSION",
];

/// Programs that install or build an application, with the word that makes them do it; none, if
/// they do nothing else.
const BUILDERS: &[(&str, &[&str])] = &[
    ("bundle", &["install"]),
    ("cargo", &["build", "install"]),
    ("composer", &["install", "create-project"]),
    ("dotnet", &["publish", "restore", "build"]),
    ("gem", &["install"]),
    ("go", &["build", "install"]),
    ("gradle", &[]),
    ("mvn", &[]),
    ("npm", &["ci", "install", "i", "run"]),
    ("pip", &["install"]),
    ("pip3", &["install"]),
    ("pnpm", &["install", "i"]),
    ("poetry", &["install"]),
    ("uv", &["sync", "pip"]),
    ("yarn", &[]),
];

/// Package managers, with the word that makes them install.
const PACKAGERS: &[(&str, &[&str])] = &[
    ("apk", &["add"]),
    ("apt", &["install"]),
    ("apt-get", &["install"]),
    ("dnf", &["install"]),
    ("dpkg", &["-i", "--install"]),
    ("microdnf", &["install"]),
    ("pacman", &["-S", "-Sy", "-Syu"]),
    ("yum", &["install"]),
    ("zypper", &["install", "in"]),
];

/// Classifies the `layers` layers of an image, the lowest first, from its history. `command` is
/// what its containers run: a package named in it is the application.
///
/// Where the history does not have one step for each layer, as in images that were squashed, all are
/// unknown.
#[must_use]
pub fn classify(history: &[Step], layers: usize, command: &[String]) -> Vec<Class> {
    let made = history.iter().filter(|step| step.layer == MadeLayer::Yes);
    let programs: Vec<&str> = command
        .iter()
        .filter_map(|word| word.rsplit('/').next())
        .filter(|word| !word.is_empty())
        .collect();
    let classes: Vec<Class> = made
        .enumerate()
        .map(|(layer, step)| of_command(Command::of(step.created_by), layer, &programs))
        .collect();
    match classes.len() == layers {
        true => classes,
        false => vec![Class::Unknown; layers],
    }
}

fn of_command(command: Command, layer: usize, programs: &[&str]) -> Class {
    match command {
        Command::Rootfs => Class::Base,
        // Images from scratch put a system into the lowest layer, or nothing but an application.
        Command::Files(files) if layer == 0 && target(files) == "/" => Class::Base,
        Command::Files(files) if words(files).any(is_engine) => Class::Engine,
        Command::Files(_) | Command::Application => Class::Application,
        Command::Run(script) => of_script(script, programs),
        Command::Setting(_) => Class::Meta,
        Command::Unknown => Class::Unknown,
    }
}

/// Returns where `ADD` and `COPY` put things: the last word.
fn target(files: &str) -> &str {
    files.split_whitespace().next_back().unwrap_or_default()
}

/// Returns the class of the highest command in a script.
fn of_script(script: &str, programs: &[&str]) -> Class {
    let builds_engine = ENGINE_VARIABLES
        .iter()
        .any(|variable| script.contains(variable));
    let commands = script.split(['&', ';', '|', '\n', '(', ')', '{', '}']);
    let highest = commands.map(|command| of_simple(command, programs)).max();
    let highest = highest.unwrap_or(Class::Meta);
    if builds_engine {
        highest.max(Class::Engine)
    } else {
        highest
    }
}

/// Returns the class of one command of a script.
fn of_simple(command: &str, programs: &[&str]) -> Class {
    // Words that come before the command itself.
    let prefix = |word: &&str| {
        matches!(
            *word,
            "then" | "do" | "else" | "exec" | "sudo" | "!" | "if" | "env"
        ) || word.contains('=')
    };
    let mut words = command.split_whitespace().skip_while(prefix).peekable();
    let Some(first) = words.next() else {
        return Class::Meta;
    };
    let name = first.rsplit('/').next().unwrap_or(first);
    let rest: Vec<&str> = words.collect();
    if name.starts_with("python") && rest.first() == Some(&"-m") {
        return of_simple(&rest[1..].join(" "), programs);
    }
    let does = |table: &[(&str, &[&str])]| {
        let entry = table.iter().find(|(tool, _)| *tool == name);
        entry.is_some_and(|(_, verbs)| {
            verbs.is_empty() || rest.iter().any(|word| verbs.contains(word))
        })
    };
    if does(BUILDERS) {
        return Class::Application;
    }
    if does(PACKAGERS) {
        let class = |word: &&str| of_package(word, programs);
        return rest
            .iter()
            .map(class)
            .max()
            .unwrap_or(Class::Meta)
            .max(Class::SystemDependency);
    }
    if name == "make" && rest.contains(&"install") {
        return Class::Application;
    }
    Class::Meta
}

fn of_package(word: &str, programs: &[&str]) -> Class {
    // `name=version`, `name/suite`, quoted.
    let name = word.trim_matches(['"', '\'']);
    let name = name.split(['=', '/', '<', '>']).next().unwrap_or(name);
    if name.starts_with('-') || name.is_empty() {
        return Class::Meta;
    }
    // `nginx`, `nginx-light`
    let named = |program: &&str| {
        let rest = name.strip_prefix(program);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    if programs.iter().any(named) {
        return Class::Application;
    }
    // What is only there to build with is no engine: its layer is seldom kept.
    let development = name.starts_with("lib") || name.ends_with("-dev") || name.ends_with("-devel");
    if !development && words(name).any(is_engine) {
        return Class::Engine;
    }
    Class::SystemDependency
}

/// Returns the words of a name or a line, as runs of letters and digits.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
}

/// Returns whether a word names an engine, with or without a version behind it.
fn is_engine(word: &str) -> bool {
    let bare = word.trim_end_matches(|c: char| c.is_ascii_digit());
    ENGINES.contains(&word) || ENGINES.contains(&bare)
}
