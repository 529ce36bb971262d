//! Programs that read disk images for us. Whoever made an image, perhaps a guest, may have made it for a defect of theirs,
//! or have named other files in it.

use std::process::{Child, Command};

use anyhow::{Context as _, bail};
use mounting::confinement::BlockAccess;
use nix::sched::{CloneFlags, unshare};

/// Starts a program of the system with this access to files and no other, and with the system calls of reading and writing them. A
/// thread of its own confines itself, and so what it starts.
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
        // What it may have started ends with it then. Who may not do that has few rights to lose.
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWPID) {
            log::debug!(
                "no process namespace for {}: {errno}",
                program.get_program().display()
            );
        }
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

/// A program that does what the author of an image may want, for tests.
#[cfg(all(test, target_arch = "x86_64"))]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
pub(crate) mod hostile {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};

    /// Tells of each deed its error, in the file that it is to write if it may, and else on its output.
    const DEEDS: &str = r#"#!/usr/bin/perl
open(OUT, '>', $ARGV[-1]) or open(OUT, '>&', STDOUT);
sub tell_of { print OUT "$_[0] ", $_[1] ? 'done' : $! + 0, "\n"; }
tell_of('read', open(F, '<', 'SECRET'));
tell_of('write', open(F, '>', 'SECRET'));
tell_of('make', open(F, '>', 'SECRET.new'));
call('remove', 87, 'SECRET');
open(OWN, '<', $ARGV[-2]);
sub call { my ($name, $number, @words) = @_; tell_of($name, syscall($number, @words) >= 0); }
call('mode of an open file', 91, fileno(OWN), 04777);
call('owner of an open file', 93, fileno(OWN), 65534, 65534);
call('socket', 41, 2, 1, 0);
call('named socket', 41, 1, 1, 0);
call('pair', 53, 1, 2, 0, 0);
call('process', 57);
call('signal', 62, getppid(), 0);
call('session', 112);
call('ring', 425, 1, 0);
call('device', 16, fileno(OWN), 0x40086602, 0);
"#;

    /// Makes it in `dir`, with a file that it may not touch.
    pub(crate) fn program(dir: &Path) -> (PathBuf, PathBuf) {
        let (program, secret) = (dir.join("hostile"), dir.join("secret"));
        fs::write(&secret, "secret").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let text = DEEDS.replace("SECRET", secret.to_str().unwrap());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        (program, secret)
    }

    /// Checks what it has told: that all of it failed, as files that it may not open and as calls that do not exist.
    pub(crate) fn assert_harmless(told: &str, secret: &Path) {
        let (denied, unknown) = (nix::libc::EACCES, nix::libc::ENOSYS);
        let files = ["read", "write", "make"].map(|name| (name, denied));
        let calls = [
            "remove",
            "mode of an open file",
            "owner of an open file",
            "socket",
            "named socket",
            "pair",
            "process",
            "signal",
            "session",
            "ring",
            "device",
        ];
        let calls = calls.map(|name| (name, unknown));
        let expected = files.into_iter().chain(calls);
        let expected: String = expected
            .map(|(name, errno)| format!("{name} {errno}\n"))
            .collect();
        assert_eq!(told, expected);
        assert_eq!(fs::read_to_string(secret).unwrap(), "secret");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Stdio;

    /// Runs one call of a program.
    #[cfg(target_arch = "x86_64")]
    fn calls(words: &str) -> std::process::ExitStatus {
        let mut program = Command::new("perl");
        program.args(["-e", &format!("syscall({words}); exit 7")]);
        start(program, BlockAccess::default())
            .unwrap()
            .wait()
            .unwrap()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_program_that_does_what_only_an_attacker_does_is_killed() {
        use std::os::unix::process::ExitStatusExt as _;

        assert_eq!(calls("39").code(), Some(7), "its own number");
        for (name, words) in [
            ("mount", "165, 0, 0, 0, 0, 0"),
            ("ptrace", "101, 0, 0, 0, 0"),
            ("unshare", "272, 0x20000"),
            ("setuid", "105, 0"),
            ("bpf", "321, 0, 0, 0"),
            ("open_tree", "428, 0, 0, 0"),
        ] {
            assert_eq!(calls(words).signal(), Some(nix::libc::SIGSYS), "{name}");
        }
    }

    /// The start takes a call that makes processes, so it can make one that outlives it.
    #[test]
    #[cfg(all(target_arch = "x86_64", feature = "privileged"))]
    fn privileged_what_a_program_starts_ends_with_it() {
        use std::io::Read as _;

        let mut program = Command::new("perl");
        // The child shares the output; its parent goes on when it has ended.
        let script = "$| = 1; if (syscall(56, 0x4011, 0, 0, 0, 0) == 0) { print 'x'; sleep 1000; }";
        program.args(["-e", script]).stdout(Stdio::piped());
        let mut child = start(program, BlockAccess::default()).unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut said = [0];
        out.read_exact(&mut said).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (tell, ended) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || tell.send(out.read(&mut [0]).unwrap()));
        let patience = std::time::Duration::from_secs(60);
        assert_eq!(ended.recv_timeout(patience), Ok(0), "nobody has its output");
        reader.join().unwrap().unwrap();
    }

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
