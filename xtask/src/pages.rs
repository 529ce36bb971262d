//! Man pages and shell completions, from the same definitions that parse the command lines.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::{Generator as _, Shell};

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

fn programs() -> [(&'static str, Command); 4] {
    [
        ("bootimg", cli::bootimg_command()),
        ("yolofs", cli::yolofs_command()),
        ("nicfetch", cli::nicfetch_command()),
        ("sandbox", sandbox_cli::command()),
    ]
}

/// Writes a man page for each program and each of its commands.
pub(crate) fn man(out: &Path) -> anyhow::Result<()> {
    make_dir(out)?;
    for (name, command) in programs() {
        clap_mangen::generate_to(command, out)
            .with_context(|| format!("writing {name}'s pages"))?;
    }
    println!("man pages are in {}", out.display());
    Ok(())
}

/// Writes the completions of each program for each shell.
pub(crate) fn completions(out: &Path) -> anyhow::Result<()> {
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
