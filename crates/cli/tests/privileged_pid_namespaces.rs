//! Recorders in PID namespaces of their own, where each is process 1, with one run directory.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lab::{Lab, noise, ok, until};

/// A recorder that goes on when it is told to. It ends with its namespace when it is dropped.
struct Recorder {
    child: Child,
    go: PathBuf,
}

impl Recorder {
    /// Starts one as the first process of a namespace, and waits until its command runs.
    fn start(lab: &Lab, source: &Path, name: &str, flags: &[&str]) -> Self {
        let (ready, go) = (
            lab.path(&format!("{name}-runs")),
            lab.path(&format!("{name}-goes")),
        );
        let script = format!(
            "touch {}; until [ -e {} ]; do sleep 0.05; done; cat $YOLOFS_MNT/file",
            ready.display(),
            go.display()
        );
        let bootimg = lab.bootimg();
        let mut command = Command::new("unshare");
        let set = bootimg.get_envs();
        command.envs(set.filter_map(|(name, value)| Some((name, value?))));
        command
            .args(["--pid", "--fork", "--kill-child"])
            .args(flags);
        command.arg(bootimg.get_program()).arg("record").arg(source);
        command.args(["--no-chroot", "--name", name, "--", "sh", "-c", &script]);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        until("the command to run", || ready.exists());
        Self { child, go }
    }

    /// Lets it come to its end.
    fn finish(&mut self) {
        fs::write(&self.go, "").unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _gone = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// The directories of recorders, dead or alive.
fn places(lab: &Lab) -> Vec<PathBuf> {
    let entries = fs::read_dir(lab.run_dir()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_place = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("record-")
    };
    paths.filter(is_place).collect()
}

#[test]
fn privileged_recorders_of_other_pid_namespaces_are_left_alone() {
    let lab = Lab::new();
    let source = lab.make_dir("source");
    fs::write(source.join("file"), noise(1, 300_000)).unwrap();
    let record = |name: &str| {
        let mut record = lab.bootimg();
        let record = record
            .arg("record")
            .arg(&source)
            .args(["--no-chroot", "--name", name]);
        ok(record.args(["--", "sh", "-c", "cat $YOLOFS_MNT/file >/dev/null"]));
    };
    // Each is process 1 of its namespace. One sees so in its own /proc, the others in none.
    let mut alive = Recorder::start(&lab, &source, "alive", &["--mount-proc"]);
    let mut twin = Recorder::start(&lab, &source, "twin", &[]);
    let mut killed = Recorder::start(&lab, &source, "killed", &[]);
    assert_eq!(places(&lab).len(), 3, "no two are one");
    // From outside, and from another namespace: whoever comes next clears the dead.
    record("neighbour");
    assert_eq!(places(&lab).len(), 3, "none is dead");
    killed.kill();
    let mut next = Recorder::start(&lab, &source, "next", &["--mount-proc"]);
    assert_eq!(places(&lab).len(), 3, "one was dead, and one has come");
    for recorder in [&mut twin, &mut alive, &mut next] {
        recorder.finish();
    }
    assert!(places(&lab).is_empty(), "{:?}", places(&lab));
    for name in ["alive", "twin", "next", "neighbour"] {
        ok(lab
            .bootimg()
            .args(["verify", name, "--against"])
            .arg(&source));
    }
}
