//! A line of an image's history as the Dockerfile's command that it was.

/// What a command did to the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    /// Files came from outside: `ADD`, `COPY`. The text has the sources and the target.
    Files(&'a str),
    /// A shell executed this command.
    Run(&'a str),
    /// A whole system came from outside, without a Dockerfile.
    Rootfs,
    /// A tool that builds images of applications, without a Dockerfile.
    Application,
    /// Only the configuration changed.
    Setting(&'a str),
    /// The history does not show it.
    Unknown,
}

/// How tools that make base images sign, as the beginning of the line.
const ROOTFS_TOOLS: &[&str] = &[
    "# debian.sh",
    "# debuerreotype",
    "Imported from",
    "apko",
    "mmdebstrap",
];

/// How tools that put an application into an image sign, as a part of the line.
const APPLICATION_TOOLS: &[&str] = &[
    "bazel build",
    "buildpacks",
    "jib-",
    "ko build",
    "kaniko",
    "nixpkgs",
];

/// Commands that only change the configuration.
const SETTINGS: &[&str] = &[
    "ARG",
    "CMD",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

impl<'a> Command<'a> {
    /// Reads a line; every line is something.
    pub(super) fn of(line: &'a str) -> Self {
        let line = line.trim();
        if ROOTFS_TOOLS.iter().any(|tool| line.starts_with(tool)) {
            return Self::Rootfs;
        }
        // BuildKit's and the older builder's ways to write the same.
        let line = line.strip_suffix("# buildkit").unwrap_or(line).trim_end();
        if let Some(rest) = shell(line) {
            return match rest.strip_prefix("#(nop)") {
                Some(command) => Self::written(command.trim_start()),
                None => Self::Run(rest),
            };
        }
        match Self::written(line) {
            Self::Unknown if APPLICATION_TOOLS.iter().any(|tool| line.contains(tool)) => {
                Self::Application
            }
            command => command,
        }
    }

    /// Reads a command as it is in a Dockerfile.
    fn written(line: &'a str) -> Self {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "ADD" | "COPY" => Self::Files(rest),
            "RUN" => Self::Run(shell(without_arguments(rest)).unwrap_or(rest)),
            _ if SETTINGS.contains(&word) => Self::Setting(line),
            _ => Self::Unknown,
        }
    }
}

/// Returns the command that a shell gets, if the line is one that starts a shell.
fn shell(line: &str) -> Option<&str> {
    let line = without_arguments(line);
    let (program, rest) = line.split_once(char::is_whitespace)?;
    let name = program.rsplit('/').next()?;
    if !program.starts_with('/') || !matches!(name, "sh" | "bash" | "ash" | "dash") {
        return None;
    }
    // `-c`, `-o pipefail -c`, `-exc`: what follows the first word that ends in c.
    let (flags, script) = rest.split_once("c ")?;
    let flags_only = flags
        .split_whitespace()
        .all(|flag| flag.starts_with('-') || flag == "pipefail");
    flags_only.then(|| script.trim())
}

/// Strips `|2 NAME=value OTHER=value`, the build arguments of a command. Values may have blanks,
/// which nobody marks: so all up to the shell is stripped.
fn without_arguments(line: &str) -> &str {
    if !line.starts_with('|') {
        return line;
    }
    let shell = line.find(" /bin/").map(|at| &line[at + 1..]);
    shell.unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_that_builders_write_are_the_commands_they_were() {
        for (line, want) in [
            (
                "/bin/sh -c #(nop) ADD file:0123 in / ",
                Command::Files("file:0123 in /"),
            ),
            (
                "/bin/sh -c #(nop)  CMD [\"bash\"]",
                Command::Setting("CMD [\"bash\"]"),
            ),
            ("/bin/sh -c apt-get update", Command::Run("apt-get update")),
            (
                "RUN /bin/sh -c pip install x # buildkit",
                Command::Run("pip install x"),
            ),
            (
                "RUN |2 A=b c C=d /bin/sh -c make install # buildkit",
                Command::Run("make install"),
            ),
            ("|1 A=b /bin/sh -c make", Command::Run("make")),
            (
                "/bin/bash -o pipefail -c curl x | tar x",
                Command::Run("curl x | tar x"),
            ),
            ("RUN pip install x", Command::Run("pip install x")),
            ("COPY . /app # buildkit", Command::Files(". /app")),
            (
                "ADD rootfs.tar.xz / # buildkit",
                Command::Files("rootfs.tar.xz /"),
            ),
            ("ENV A=b", Command::Setting("ENV A=b")),
            (
                "# debian.sh --arch 'amd64' out/ 'bookworm'",
                Command::Rootfs,
            ),
            ("Imported from -", Command::Rootfs),
            ("bazel build ...", Command::Application),
            ("jib-maven-plugin:3.3.1", Command::Application),
            ("ko build ko://example.com/x", Command::Application),
            ("", Command::Unknown),
            ("   ", Command::Unknown),
            ("something of nobody", Command::Unknown),
            ("/bin/sh", Command::Unknown),
        ] {
            assert_eq!(Command::of(line), want, "{line}");
        }
    }
}
