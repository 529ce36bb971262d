//! Writes the manual pages and the shell completions of the programs, from the definitions that parse their command
//! lines. It is a program beside xtask so that who checks the sources does not have to build all of them first.

#[cfg(test)]
mod documents;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Command, Parser};
use clap_complete::{Generator as _, Shell};

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes the manual pages and the shell completions of the programs
#[derive(Debug, Parser)]
enum Args {
    /// Write a page for each program and each of its commands
    Man {
        /// Directory to write them to; made if it is not there
        out: PathBuf,
    },
    /// Write the completions of each program for each shell
    Completions {
        /// Directory to write them to; made if it is not there
        out: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse() {
        Args::Man { out } => man(&out),
        Args::Completions { out } => completions(&out),
    }
}

fn programs() -> [(&'static str, Command); 4] {
    [
        ("bootimg", cli::bootimg_command()),
        ("yolofs", cli::yolofs_command()),
        ("nicfetch", cli::nicfetch_command()),
        ("sandbox", sandbox_cli::command()),
    ]
}

fn man(out: &Path) -> anyhow::Result<()> {
    make_dir(out)?;
    for (name, command) in programs() {
        clap_mangen::generate_to(command, out)
            .with_context(|| format!("writing {name}'s pages"))?;
    }
    println!("man pages are in {}", out.display());
    Ok(())
}

fn completions(out: &Path) -> anyhow::Result<()> {
    make_dir(out)?;
    for (name, mut command) in programs() {
        for shell in SHELLS {
            let writing = || format!("writing {name}'s completions for {shell}");
            if name == "sandbox" {
                clap_complete::generate_to(shell, &mut command, name, out).with_context(writing)?;
                continue;
            }
            // These ask the program, which knows the names of images and mounts.
            let script = cli::completion_script(name, shell).with_context(writing)?;
            fs::write(out.join(shell.file_name(name)), script).with_context(writing)?;
        }
    }
    println!("completions are in {}", out.display());
    Ok(())
}

fn make_dir(out: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_its_pages_and_completions() {
        let dir = tempfile::tempdir().unwrap();
        let (pages, scripts) = (dir.path().join("man"), dir.path().join("completions"));
        man(&pages).unwrap();
        completions(&scripts).unwrap();
        for (name, _) in programs() {
            let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
            assert!(page.contains("SYNOPSIS"), "{name}");
            for shell in SHELLS {
                let script = fs::read_to_string(scripts.join(shell.file_name(name))).unwrap();
                assert!(script.contains(name), "{name} {shell}");
            }
        }
        assert!(pages.join("yolofs-mount.1").exists());
    }
}
