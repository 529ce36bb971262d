//! Users of the machine who want to be root by what lies in layers, to have root write where they point,
//! or to read what they may not: as user 65534, without any group.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::dockerd::Dockerd;
use lab::{Lab, busybox_root, fails, ok, output, until};
use node::{IMAGE, Node, pack};

const NOBODY: u32 = 65534;
/// A program of an image that says who it runs as, and runs as root.
const WHO: &str = "bin/who";

/// A lab that other users get into.
fn open_lab() -> Lab {
    let lab = Lab::new();
    chmod(&lab.path("."), 0o755);
    lab
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

/// Runs a program as the attacker. He executes it himself: setpriv has root's capabilities until it has
/// executed something.
fn by_nobody(program: impl AsRef<OsStr>, args: &[&OsStr]) -> Output {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .args(["/bin/sh", "-c", "exec \"$0\" \"$@\""])
        .arg(program)
        .args(args);
    output(&mut command)
}

/// Returns whether the attacker may read a file, or list a directory.
fn nobody_reads(path: &Path) -> bool {
    let reads = |program| by_nobody(program, &[path.as_os_str()]).status.success();
    reads("/bin/cat") || path.is_dir() && reads("/bin/ls")
}

/// Returns what [`WHO`] says to the attacker who executes it in a place, if he can.
fn who_there(place: &Path) -> Option<String> {
    let said = by_nobody(place.join(WHO), &[OsStr::new("-u")]);
    let said = said.status.success().then_some(said.stdout)?;
    Some(String::from_utf8(said).unwrap().trim().to_owned())
}

/// Makes a root that has [`WHO`] and `setpriv`, and what they are linked with.
fn root_with_who(root: &Path) {
    busybox_root(root);
    for (program, to) in [("/usr/bin/id", WHO), ("/usr/bin/setpriv", "bin/setpriv")] {
        let linked = ok(Command::new("ldd").arg(program));
        let words = linked.split_whitespace();
        for library in words.filter(|word| word.starts_with('/')) {
            let to = root.join(&library[1..]);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
        fs::copy(program, root.join(to)).unwrap();
    }
    chmod(&root.join(WHO), 0o4755);
}

/// Returns the directories `depth` below another.
fn below(dir: &Path, depth: usize) -> Vec<PathBuf> {
    if depth == 0 {
        return vec![dir.to_owned()];
    }
    let entries = fs::read_dir(dir).into_iter().flatten();
    let entries = entries.map(|entry| entry.unwrap().path());
    entries.flat_map(|path| below(&path, depth - 1)).collect()
}

/// Asserts that there is [`WHO`] in one of these places, and that nobody becomes root by it.
fn assert_makes_nobody_root(places: &[PathBuf]) {
    let places = places.iter().filter(|place| place.join(WHO).exists());
    let places: Vec<_> = places.collect();
    assert!(!places.is_empty());
    for place in places {
        assert_eq!(mode(&place.join(WHO)), 0o4755, "the image's own mode");
        assert_eq!(who_there(place), None, "{}", place.display());
    }
}

/// CVE-2021-41103, of containerd itself.
#[test]
fn privileged_layers_of_the_snapshotter_and_first_boots_make_no_user_root() {
    let lab = open_lab();
    // What an earlier release left.
    let root = lab.make_dir("node/root");
    for dir in ["", "served", "recorded"] {
        chmod(&lab.make_dir(&format!("node/root/{dir}")), 0o755);
    }
    chmod(&lab.path("node"), 0o755);
    let node = Node::start(&lab, &["--auto-record", "--until", "exit"]);
    let image = lab.make_dir("image");
    root_with_who(&image.join("base"));
    let archive = pack(&image, IMAGE, &["/bin/sh"], &["base"]);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    assert_makes_nobody_root(&[root.join("snapshots/1/fs")]);

    let script = "/bin/who -u; while [ ! -e /end ]; do sleep 0.05; done";
    node.ctr(&["run", "-d", IMAGE, "first", "/bin/sh", "-c", script]);
    until("it to be recorded", || {
        node.first_boot("first").0 == "recording"
    });
    assert_makes_nobody_root(&below(&root.join("recorded"), 2));
    let end = [
        "tasks",
        "exec",
        "--exec-id",
        "x",
        "first",
        "/bin/busybox",
        "touch",
        "/end",
    ];
    node.ctr(&end);
    until("the layer to be served", || node.served() == 1);
    assert_makes_nobody_root(&below(&root.join("served"), 1));
    for dir in ["", "snapshots", "staged", "served", "recorded"] {
        assert_eq!(mode(&root.join(dir)), 0o700, "{dir}");
    }

    // It is root's to its containers, whoever runs in them, and in user namespaces, too.
    let by_user = "/bin/setpriv --reuid=1000 --regid=1000 --clear-groups -- sh -c '/bin/who -u'";
    assert_eq!(node.run(&["--allow-new-privs"], "user", by_user), "0");
    assert_eq!(node.run(&[], "kept", by_user), "1000");
    let maps = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];
    let remapped = node.run(
        &maps,
        "remapped",
        "/bin/who -u; read -r _ to _ </proc/self/uid_map; echo $to",
    );
    assert_eq!(remapped, "0\n100000");
    node.ctr(&["tasks", "rm", "-f", "first"]);
    node.ctr(&["containers", "rm", "first"]);
}

/// A Docker that is older than CVE-2021-41091 lets everybody into its directory.
#[test]
fn privileged_layers_of_docker_make_no_user_root_even_where_all_may_enter() {
    let lab = open_lab();
    let docker = Dockerd::start(&lab, &[]);
    let data = docker.data_root();
    chmod(&lab.path("docker"), 0o755);
    let context = lab.make_dir("context");
    docker.import_base(&lab);
    root_with_who(&context.join("root"));
    let file = "FROM base\nCOPY root /\nRUN chmod 4755 /bin/who\n";
    fs::write(context.join("Dockerfile"), file).unwrap();
    docker.build_in(&context, "app");
    docker.record(&lab, "app");
    let places: Vec<PathBuf> = docker
        .layers("app")
        .into_iter()
        .map(|(_, dir)| dir)
        .collect();

    // As it made its directories: nobody gets in.
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    assert_eq!(docker.mounts().len(), places.len());
    for place in &places {
        assert_eq!(who_there(place), None);
    }
    let run = ["run", "--rm", "--user", "1000", "app", "/bin/who", "-u"];
    assert_eq!(docker.run(&run), "0");
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));

    for dir in [&data, &data.join("overlay2")] {
        chmod(dir, 0o755);
    }
    for place in &places {
        chmod(place.parent().unwrap(), 0o755);
    }
    let top = places.last().unwrap();
    assert_eq!(who_there(top).as_deref(), Some("0"), "Docker's own hole");
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    assert_eq!(docker.mounts().len(), places.len());
    assert_eq!(who_there(top).as_deref(), Some("65534"));
    assert_eq!(docker.run(&run), "0", "containers decide for themselves");
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}

/// The directory was `/var/tmp/yolofs-record-<image>`, whoever had made it, and links in it were followed.
#[test]
fn privileged_recording_an_archive_writes_nothing_where_another_user_points() {
    let lab = open_lab();
    let dir = lab.make_dir("image");
    busybox_root(&dir.join("base"));
    fs::write(dir.join("base/etc/passwd"), "toor::0:0::/:/bin/sh\n").unwrap();
    let archive = pack(&dir, IMAGE, &["/bin/sh"], &["base"]);
    let config = ok(Command::new("sha256sum").arg(dir.join("config.json")));
    let image = config.split(' ').next().unwrap();
    let victim = lab.make_dir("victim");
    fs::create_dir(victim.join("etc")).unwrap();
    fs::write(victim.join("etc/passwd"), "root\n").unwrap();
    let untouched = || {
        assert_eq!(fs::read(victim.join("etc/passwd")).unwrap(), b"root\n");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
    };

    let record = |scratch: &Path| {
        let mut command = lab.bootimg();
        command
            .arg("record")
            .arg(format!("docker-archive:{}", archive.display()))
            .arg("--scratch")
            .arg(scratch)
            .args(["--until", "exit", "--", "cat", "/etc/config"]);
        command
    };
    // Names that the attacker can tell beforehand, in a place where everybody may make directories.
    let scratch = lab.make_dir("scratch");
    chmod(&scratch, 0o1777);
    let mut traps = Vec::new();
    for digits in [12, 32, 64] {
        let trap = scratch.join(format!("yolofs-record-{}", &image[..digits]));
        fs::create_dir_all(trap.join("layers")).unwrap();
        symlink(&victim, trap.join("layers/0")).unwrap();
        symlink(&victim, trap.join("root")).unwrap();
        for path in [&trap, &trap.join("layers")] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        traps.push(trap);
    }
    ok(&mut record(&scratch));
    untouched();
    for trap in &traps {
        assert!(trap.join("layers/0").is_symlink(), "not ours to remove");
    }
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), traps.len());

    // A place in which he may exchange whatever is made.
    let his = lab.make_dir("his");
    chown(&his, Some(NOBODY), Some(NOBODY)).unwrap();
    let everybodys = lab.make_dir("everybodys");
    chmod(&everybodys, 0o777);
    for (place, said) in [(&his, "belongs to user 65534"), (&everybodys, "may rename")] {
        let below = place.join("below");
        fs::create_dir(&below).unwrap();
        for place in [place, &below] {
            let why = fails(1, &mut record(place));
            assert!(why.contains(said), "{why}");
            assert!(why.contains("--scratch"), "{why}");
        }
        assert_eq!(fs::read_dir(&below).unwrap().count(), 0);
    }
    // What a killed recorder left goes with the next, and what one that lives has stays.
    let number = "0123456789abcdef".repeat(2);
    let dead = scratch.join(format!("yolofs-record-{number}"));
    let alive = scratch.join(format!("yolofs-record-{}", "f".repeat(32)));
    for left in [&dead, &alive] {
        fs::create_dir_all(left.join("layers/0/bin")).unwrap();
        chmod(left, 0o700);
    }
    let lock = fs::File::open(&alive).unwrap();
    lock.try_lock().unwrap();
    ok(&mut record(&scratch));
    assert!(!dead.exists() && alive.exists());
    untouched();
}

/// A trace, or a report, is written aside first.
#[test]
fn privileged_no_link_of_another_user_is_written_through() {
    let lab = open_lab();
    let source = lab.make_dir("source");
    fs::write(source.join("file"), "x").unwrap();
    let (place, victim) = (lab.make_dir("place"), lab.path("victim"));
    fs::write(&victim, "root\n").unwrap();
    chown(&place, Some(NOBODY), Some(NOBODY)).unwrap();
    let trace = place.join("boot.trace");
    symlink(&victim, place.join("boot.trace.part")).unwrap();
    let mountpoint = lab.mount(&source, "mnt", &["--record", trace.to_str().unwrap()]);
    fs::read(mountpoint.join("file")).unwrap();
    lab.umount(&mountpoint);
    until("the trace", || trace.is_file());
    assert_eq!(fs::read(&victim).unwrap(), b"root\n");
    assert_eq!(mode(&trace), 0o600);
}

/// It was mode 0755, and has contents of files that only root may read.
#[test]
fn privileged_a_store_is_read_by_its_owner_and_a_group_only() {
    let lab = open_lab();
    let source = lab.make_dir("source");
    fs::write(source.join("secret"), "for root only\n").unwrap();
    chmod(&source.join("secret"), 0o600);
    let record = |name: &str, flags: &[&str]| {
        let mut command = lab.bootimg();
        command.args(["record", "--no-chroot", "--name", name]);
        command.args(flags).arg(&source);
        ok(command.args(["--", "sh", "-c", "cat $YOLOFS_MNT/secret"]));
    };
    let files = || -> Vec<PathBuf> {
        let all = ok(Command::new("find").arg(lab.store()).args(["-type", "f"]));
        let mut all: Vec<PathBuf> = all.lines().map(PathBuf::from).collect();
        all.push(lab.store());
        all
    };
    record("one", &[]);
    assert!(files().len() > 3);
    for file in files() {
        assert!(!nobody_reads(&file), "{}", file.display());
    }
    let out = lab.path("one.bimg");
    ok(lab.bootimg().args(["export", "one"]).arg(&out));
    assert!(!nobody_reads(&out), "an export has the same content");

    // What an earlier release made is closed by the first command, also one that only looks.
    ok(Command::new("chmod").args(["-R", "a+rX"]).arg(lab.store()));
    assert!(files().iter().all(|file| nobody_reads(file)));
    ok(lab.bootimg().arg("ls"));
    for file in files() {
        assert!(!nobody_reads(&file), "{}", file.display());
    }

    // A group, asked for once.
    let group = NOBODY.to_string();
    record("two", &["--store-group", &group]);
    record("three", &[]);
    for file in files() {
        assert!(nobody_reads(&file), "{}", file.display());
        let of = file.metadata().unwrap();
        assert_eq!(
            (of.uid(), of.gid(), of.mode() & 0o027),
            (0, NOBODY, 0),
            "{}",
            file.display()
        );
    }
    let store = lab.store();
    let listed = by_nobody(
        env!("CARGO_BIN_EXE_bootimg"),
        &["ls".as_ref(), "--store".as_ref(), store.as_os_str()],
    );
    let said = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(said.contains("three"), "{listed:?}");
    let why = fails(
        2,
        lab.bootimg().args(["ls", "--store-group", "no-such-group"]),
    );
    assert!(why.contains("there is no group"), "{why}");
}

/// Where root's commands find a run directory, they believe what is in it.
#[test]
fn privileged_a_run_directory_of_another_user_is_refused() {
    let lab = open_lab();
    let his = lab.make_dir("his");
    chown(&his, Some(NOBODY), Some(NOBODY)).unwrap();
    let everybodys = lab.make_dir("everybodys");
    chmod(&everybodys, 0o1777);
    for dir in [his, everybodys] {
        let mut status = lab.yolofs();
        let why = fails(1, status.arg("status").arg("--run-dir").arg(&dir));
        assert!(why.contains("belongs to another user"), "{why}");
    }
}
