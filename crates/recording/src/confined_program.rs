//! Programs that read disk images for us. Whoever made an image, perhaps a guest, may have made it for a defect of theirs,
//! or have named other files in it.

use std::process::{Child, Command};

use anyhow::{Context as _, bail};
use mounting::confinement::BlockAccess;

/// Starts a program of the system with this access to files and no other. A thread of its own confines itself, and so
/// what it starts.
///
/// # Errors
/// If it cannot be confined or started.
pub(crate) fn start(mut program: Command, access: BlockAccess) -> anyhow::Result<Child> {
    let name = program.get_program().to_string_lossy().into_owned();
    let access = BlockAccess {
        program: Some(program.get_program().into()),
        ..access
    };
    let confined = move || {
        access.confine_thread()?;
        program.spawn().context("executing it")
    };
    let thread = std::thread::Builder::new().name("confined".to_owned());
    let started = thread.spawn(confined).context("starting a thread for it")?;
    match started.join() {
        Ok(started) => started.with_context(|| format!("starting {name}")),
        Err(_panicked) => bail!("the thread that starts {name} panicked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Stdio;

    #[test]
    fn a_program_reads_and_writes_what_it_is_given_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["image", "other", "made", "kept"] {
            fs::write(file(name), name).unwrap();
        }
        for (from, to, succeeds) in [
            ("image", "made", true),
            ("other", "made", false),
            ("image", "kept", false),
        ] {
            let mut copy = Command::new("cp");
            copy.args([file(from), file(to)]).stderr(Stdio::null());
            let access = BlockAccess {
                reads: vec![file("image")],
                writes: vec![file("made")],
                ..BlockAccess::default()
            };
            let ended = start(copy, access).unwrap().wait().unwrap();
            assert_eq!(ended.success(), succeeds, "{from} to {to}");
        }
        assert_eq!(fs::read_to_string(file("kept")).unwrap(), "kept");
        // This process is as it was.
        assert_eq!(fs::read_to_string(file("other")).unwrap(), "other");
    }
}
