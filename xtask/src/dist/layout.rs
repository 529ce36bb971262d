//! What goes where.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::call;

/// The programs.
pub(super) const PROGRAMS: [&str; 4] = ["bootimg", "yolofs", "nicfetch", "sandbox"];
/// Programs that engines start, with the command line of another program: they have no pages and no completions.
pub(super) const ENGINE_PROGRAMS: [&str; 1] = ["sandbox-oci"];

/// Where systemd's units of packages are.
const UNITS: &str = "usr/lib/systemd/system";

/// Files of `packaging/`, and where they go.
const FILES: &[(&str, &str)] = &[
    ("yolofs.sysusers", "usr/lib/sysusers.d/yolofs.conf"),
    ("nicfetch.sysusers", "usr/lib/sysusers.d/nicfetch.conf"),
    ("yolofs.tmpfiles", "usr/lib/tmpfiles.d/yolofs.conf"),
    ("snapshotter.env", "etc/yolofs/snapshotter.env"),
    ("apparmor/yolofs-nicfetch", "etc/apparmor.d/yolofs-nicfetch"),
    ("yolofs.toml", "etc/yolofs/yolofs.toml"),
    (
        "prometheus/yolofs-textfile",
        "usr/lib/yolofs/yolofs-textfile",
    ),
    (
        "prometheus/yolofs.rules.yml",
        "usr/share/yolofs/prometheus/yolofs.rules.yml",
    ),
    (
        "grafana/yolofs.json",
        "usr/share/yolofs/grafana/yolofs.json",
    ),
    (
        "containerd/config.toml",
        "usr/share/doc/yolofs/examples/containerd-1.toml",
    ),
    (
        "containerd/config-v3.toml",
        "usr/share/doc/yolofs/examples/containerd-2.toml",
    ),
    (
        "docker/docker-clear.conf",
        "usr/share/doc/yolofs/examples/docker-clear.conf",
    ),
];

/// Directories of `packaging/` whose units are all installed.
pub(super) const UNIT_DIRS: [&str; 4] = [".", "docker", "containerd", "prometheus"];

/// Whose customs a package follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Debian,
    RedHat,
}

/// A file of the package.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// Where it is in the checkout.
    pub(super) from: PathBuf,
    /// Where it goes, below the root.
    pub(super) to: String,
    pub(super) mode: u32,
}

impl Placed {
    /// Returns whether the administrator may change it: an upgrade keeps what was changed.
    pub(super) fn is_configuration(&self) -> bool {
        self.to.starts_with("etc/")
    }

    fn is_page(&self) -> bool {
        self.to.starts_with("usr/share/man/")
    }

    /// Returns where it is in the end: manual pages are packed.
    pub(super) fn packed(&self) -> String {
        let end = if self.is_page() { ".gz" } else { "" };
        format!("{}{end}", self.to)
    }
}

/// All files of the package.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) files: Vec<Placed>,
    /// The checkout's `packaging/`.
    pub(super) packaging: PathBuf,
}

impl Layout {
    pub(super) fn of(
        family: Family,
        root: &Path,
        programs: &Path,
        man: &Path,
        completions: &Path,
    ) -> anyhow::Result<Self> {
        let packaging = root.join("packaging");
        let mut files = Vec::new();
        let mut put = |from: PathBuf, to: String, mode| files.push(Placed { from, to, mode });
        for name in PROGRAMS {
            put(programs.join(name), format!("usr/bin/{name}"), 0o755);
            let shells = [
                (
                    format!("{name}.bash"),
                    format!("bash-completion/completions/{name}"),
                ),
                (
                    format!("{name}.fish"),
                    format!("fish/vendor_completions.d/{name}.fish"),
                ),
                (format!("_{name}"), format!("{}/_{name}", zsh(family))),
            ];
            for (from, to) in shells {
                put(completions.join(from), format!("usr/share/{to}"), 0o644);
            }
        }
        for name in ENGINE_PROGRAMS {
            put(programs.join(name), format!("usr/bin/{name}"), 0o755);
        }
        for page in names(man)? {
            put(man.join(&page), format!("usr/share/man/man1/{page}"), 0o644);
        }
        for dir in UNIT_DIRS {
            let dir = packaging.join(dir);
            for unit in names(&dir)?.into_iter().filter(|name| is_unit(name)) {
                put(dir.join(&unit), format!("{UNITS}/{unit}"), 0o644);
            }
        }
        for (from, to) in FILES {
            let executable = to.ends_with("/yolofs-textfile");
            let mode = if executable { 0o755 } else { 0o644 };
            put(packaging.join(from), (*to).to_owned(), mode);
        }
        for name in ["LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md", "README.md"] {
            put(
                root.join(name),
                format!("usr/share/doc/yolofs/{name}"),
                0o644,
            );
        }
        for file in &files {
            ensure!(file.from.is_file(), "{} is not there", file.from.display());
        }
        Ok(Self { files, packaging })
    }

    /// Copies all files below a directory that stands for the root.
    pub(super) fn stage(&self, root: &Path) -> anyhow::Result<()> {
        for file in &self.files {
            let to = root.join(&file.to);
            let dir = to.parent().context("a file without a directory")?;
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
            let copying = || format!("copying {} to {}", file.from.display(), to.display());
            fs::copy(&file.from, &to).with_context(copying)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(file.mode))
                .with_context(copying)?;
            if file.is_page() {
                call(Command::new("gzip").args(["-9", "-n"]).arg(&to))?;
            }
        }
        Ok(())
    }
}

const fn zsh(family: Family) -> &'static str {
    match family {
        Family::Debian => "zsh/vendor-completions",
        Family::RedHat => "zsh/site-functions",
    }
}

fn is_unit(name: &str) -> bool {
    let kinds = [".service", ".socket", ".timer"];
    kinds.iter().any(|kind| name.ends_with(kind))
}

/// Returns the names in a directory, in order.
fn names(dir: &Path) -> anyhow::Result<Vec<String>> {
    let reading = || format!("reading {}", dir.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(reading)? {
        let name = entry.with_context(reading)?.file_name().into_string();
        names.push(name.ok().with_context(reading)?);
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn every_unit_and_every_file_that_units_name_is_in_the_package() {
        let scratch = tempfile::tempdir().unwrap();
        let (programs, man, completions) = (
            scratch.path().join("p"),
            scratch.path().join("m"),
            scratch.path().join("c"),
        );
        for dir in [&programs, &man, &completions] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(man.join("yolofs.1"), "").unwrap();
        for name in PROGRAMS {
            fs::write(programs.join(name), "").unwrap();
            for file in [
                format!("{name}.bash"),
                format!("{name}.fish"),
                format!("_{name}"),
            ] {
                fs::write(completions.join(file), "").unwrap();
            }
        }
        for name in ENGINE_PROGRAMS {
            fs::write(programs.join(name), "").unwrap();
        }
        let root = workspace::root().unwrap();
        let layout = Layout::of(Family::Debian, &root, &programs, &man, &completions).unwrap();
        let has = |path: &str| layout.files.iter().any(|file| file.to == path);
        let units = layout
            .files
            .iter()
            .filter(|file| file.to.starts_with(UNITS));
        let mut seen = 0;
        for unit in units {
            let text = fs::read_to_string(&unit.from).unwrap();
            let words = text.split([' ', '=', '\n', '-', '!', '+']);
            for program in words.filter(|word| {
                let ours = PROGRAMS.map(|name| format!("/usr/bin/{name}"));
                word.starts_with("/usr/lib/yolofs/")
                    || ours.iter().any(|program| word.starts_with(program))
            }) {
                seen += 1;
                assert!(
                    program
                        .trim_start_matches('/')
                        .starts_with("usr/lib/yolofs/")
                        || has(&program[1..]),
                    "{program}"
                );
            }
        }
        assert!(seen > 3);
        assert!(has("usr/lib/systemd/system/yolofs-snapshotter.service"));
        assert!(has("usr/lib/systemd/system/sandboxd.service"));
        assert!(has("usr/bin/sandbox"));
        // docs/sandbox-oci.md has this path.
        assert!(has("usr/bin/sandbox-oci"));
        let mut places: Vec<_> = layout.files.iter().map(|file| &file.to).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), layout.files.len(), "two files for one place");
    }
}
