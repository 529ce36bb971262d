//! `yolofs setup` and `yolofs doctor` beside real engines: what setup writes is what they start with.

#![cfg(feature = "privileged")]
#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod node;
mod setup;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use lab::{Lab, fails, json, ok, output};
use setup::{Engine, verdicts};

/// What a distribution ships: settings of its own, and nothing imported.
const PLAIN: &str = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";

#[test]
fn privileged_containerd_runs_from_what_setup_wrote() {
    let lab = Lab::new();
    let mut engine = Engine::debian(&lab, PLAIN);
    let before = fs::read_to_string(engine.config()).unwrap();

    // It says what it would do, and does nothing.
    let plan = json(&mut engine.setup(&["containerd", "--json"]));
    assert_eq!(plan["changes"].as_array().unwrap().len(), 2, "{plan}");
    let told = ok(&mut engine.setup(&["containerd"]));
    for expected in [
        "+ imports = ",
        "+ [proxy_plugins.yolofs]",
        "nothing is changed without --yes",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert_eq!(fs::read_to_string(engine.config()).unwrap(), before);
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-proxy"], "advice", "{verdict:?}");

    ok(&mut engine.setup(&["containerd", "--yes"]));
    let again = json(&mut engine.setup(&["containerd", "--json"]));
    assert_eq!(
        again["changes"],
        serde_json::json!([]),
        "it has nothing to do twice"
    );
    // Nobody answers there yet.
    fails(4, &mut engine.doctor());
    engine.start_snapshotter();
    engine.restart();
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-snapshotter"], "fine", "{verdict:?}");
    engine.runs_a_container();

    let undone = ok(&mut engine.setup(&["--undo"]));
    assert_eq!(undone.matches("as it was").count(), 2, "{undone}");
    assert_eq!(fs::read_to_string(engine.config()).unwrap(), before);
    assert!(!engine.config().with_file_name("conf.d").exists());
    engine.restart();
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-proxy"], "advice", "{verdict:?}");
}

/// The settings of pods that are there stay: containerd 1.6 takes a plugin's table from one file only.
#[test]
fn privileged_pods_of_containerd_1_keep_their_settings() {
    let lab = Lab::new();
    let pods =
        "[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"test.local/pause:9\"\n";
    let engine = Engine::debian(&lab, &format!("version = 2\n{pods}"));
    ok(&mut engine.setup(&["kubernetes", "--yes"]));
    let config = engine.config().display().to_string();
    let dump = ok(Command::new("containerd").args(["--config", &config, "config", "dump"]));
    for expected in [
        "sandbox_image = \"test.local/pause:9\"",
        "snapshotter = \"yolofs\"",
    ] {
        assert!(dump.contains(expected), "{expected}: {dump}");
    }
    let one_for_all = fails(1, &mut engine.setup(&["kubernetes", "--runtime-class"]));
    assert!(
        one_for_all.contains("one snapshotter for all pods"),
        "{one_for_all}"
    );
}

#[test]
fn privileged_setup_refuses_what_it_cannot_do_without_harm() {
    let lab = Lab::new();
    let engine = Engine::debian(&lab, PLAIN);
    fs::write(lab.path("other.toml"), "version = 2\n").unwrap();
    let import = format!("version = 2\nimports = [{:?}]\n", lab.path("other.toml"));
    fs::write(engine.config(), import).unwrap();
    let said = fails(1, &mut engine.setup(&["containerd", "--yes"]));
    assert!(
        said.contains("imports other files and no drop-ins: add"),
        "{said}"
    );
    // What this containerd does not know is not advised: it migrates nothing.
    fs::write(engine.config(), "# Old.\nroot = \"/nonexistent\"\n").unwrap();
    let said = fails(1, &mut engine.setup(&["containerd", "--yes"]));
    assert!(said.contains("put `version = 2` at its top"), "{said}");
    fs::write(engine.config(), "version = 2\n[broken\n").unwrap();
    let said = fails(1, &mut engine.setup(&["containerd", "--yes"]));
    assert!(said.contains("is no TOML"), "{said}");
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-config"], "fault", "{verdict:?}");
    assert!(!engine.config().with_file_name("conf.d").exists());
}

/// `containerd config default` writes an empty list of imports, and people begin with that.
#[test]
fn privileged_an_empty_list_of_imports_is_filled_and_comments_stay() {
    let lab = Lab::new();
    let head = format!("# Ours.\nimports = []\n# Theirs.\n{PLAIN}");
    let engine = Engine::debian(&lab, &head);
    let before = fs::read_to_string(engine.config()).unwrap();
    let told = ok(&mut engine.setup(&["containerd"]));
    assert!(
        told.contains("    - imports = []\n    + imports = [\""),
        "{told}"
    );
    ok(&mut engine.setup(&["containerd", "--yes"]));
    let after = fs::read_to_string(engine.config()).unwrap();
    let kept = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("imports"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(kept(&after), kept(&before));
    ok(&mut engine.setup(&["--undo"]));
    assert_eq!(fs::read_to_string(engine.config()).unwrap(), before);
}

/// What Docker's packages install for containerd has no version, and comments.
#[test]
fn privileged_what_dockers_packages_install_is_set_up_as_it_is() {
    let lab = Lab::new();
    let head = "# As Docker's packages have it.\n\
                disabled_plugins = [\"cri\", \"io.containerd.nri.v1.nri\"]\n\n#oom_score = 0\n";
    let mut engine = Engine::today(&lab, head, "");
    let before = fs::read_to_string(engine.config()).unwrap();
    ok(&mut engine.setup(&["containerd", "--yes"]));
    let after = fs::read_to_string(engine.config()).unwrap();
    assert!(after.ends_with(&before), "{after}");
    engine.start_snapshotter();
    engine.restart();
    let verdict = verdicts(&engine.doctor());
    for check in ["snapshotter", "unpack"] {
        assert_eq!(
            verdict[&format!("containerd-{check}")],
            "fine",
            "{verdict:?}"
        );
    }
    engine.runs_a_container();
    ok(&mut engine.setup(&["--undo"]));
    assert_eq!(fs::read_to_string(engine.config()).unwrap(), before);
}

/// Docker's layers are served in place, so nothing of Docker's own changes.
#[test]
fn privileged_docker_keeps_its_configuration() {
    let lab = Lab::new();
    let engine = Engine::debian(&lab, PLAIN);
    let daemon = lab.path("daemon.json");
    let data = lab.make_dir("docker");
    fs::write(&daemon, format!("{{\"data-root\": {data:?}}}\n")).unwrap();
    let docker = ["docker", "--docker-config", daemon.to_str().unwrap()];
    ok(engine.setup(&docker).arg("--yes"));
    // The record has the former content of files that may be secret.
    let record = fs::metadata(lab.path("etc/setup.json")).unwrap();
    assert_eq!(record.permissions().mode() & 0o777, 0o600);
    let env = fs::read_to_string(lab.path("etc/docker.env")).unwrap();
    assert!(
        env.ends_with(&format!("DATA_ROOT={}\n", data.display())),
        "{env}"
    );
    assert!(lab.path("units/docker.service.d/yolofs.conf").exists());
    assert!(ok(&mut engine.setup(&docker)).contains("all files are as they should be"));
    ok(&mut engine.setup(&["--undo"]));
    assert!(!lab.path("units/docker.service.d").exists());
}

/// What containerd of today is told here: its defaults are the machine's sockets and directories.
const ALONE: &str = "[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n";

#[test]
fn privileged_containerd_of_today_runs_from_what_setup_wrote() {
    let lab = Lab::new();
    let mut engine = Engine::today(&lab, "version = 3\n", ALONE);
    // Mirrors that somebody wrote down, and that pulls of pods ignore.
    fs::create_dir_all(engine.config().with_file_name("certs.d/test.local")).unwrap();
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-mirrors"], "fault", "{verdict:?}");
    assert_eq!(verdict["containerd-proxy"], "advice", "{verdict:?}");

    ok(&mut engine.setup(&["kubernetes", "--yes"]));
    engine.start_snapshotter();
    engine.restart();
    let verdict = verdicts(&engine.doctor());
    for check in ["snapshotter", "unpack", "used"] {
        assert_eq!(
            verdict[&format!("containerd-{check}")],
            "fine",
            "{verdict:?}"
        );
    }
    assert!(!verdict.contains_key("containerd-mirrors"), "{verdict:?}");
    assert!(
        !verdict.contains_key("containerd-image-disk"),
        "{verdict:?}"
    );
    // Where the kubelet looks is where this snapshotter keeps images.
    let drop_in = engine.config().with_file_name("conf.d/yolofs.toml");
    let written = fs::read_to_string(&drop_in).unwrap();
    let root = written
        .lines()
        .find(|line| line.starts_with("root = "))
        .unwrap();
    fs::write(&drop_in, written.replace(root, "root = \"/elsewhere\"")).unwrap();
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-image-disk"], "advice", "{verdict:?}");
    fs::write(&drop_in, written).unwrap();
    engine.restart();
    engine.runs_a_container();
    let again = json(&mut engine.setup(&["kubernetes", "--json"]));
    assert_eq!(again["changes"], serde_json::json!([]), "{again}");
    // What is set up for others takes nothing away from pods.
    let others = json(&mut engine.setup(&["containerd", "--json"]));
    assert_eq!(others["changes"], serde_json::json!([]), "{others}");
    let said = others["notes"].to_string();
    assert!(said.contains("pods stay on yolofs"), "{said}");

    // Other pods stay where they are, if only one RuntimeClass is to use it.
    ok(&mut engine.setup(&["kubernetes", "--runtime-class", "--yes"]));
    engine.restart();
    let dump = engine.dump();
    assert!(
        dump.contains("[plugins.'io.containerd.cri.v1.images'.runtime_platforms.yolofs]"),
        "{dump}"
    );
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-used"], "fine", "{verdict:?}");
    ok(&mut engine.setup(&["--undo"]));
    assert!(!engine.dump().contains("snapshotter = 'yolofs'"));
}

/// A file for containerd 1 loses its snapshotter when containerd 2 reads it, without a word.
#[test]
fn privileged_the_doctor_tells_what_containerd_of_today_drops() {
    let lab = Lab::new();
    let engine = Engine::today(&lab, "version = 3\n", ALONE);
    let old = "[proxy_plugins.yolofs]\n  type = \"snapshot\"\n  address = \"/run/none.sock\"\n\
               [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"yolofs\"\n";
    fs::write(engine.config(), format!("version = 2\n{old}")).unwrap();
    let verdict = verdicts(&engine.doctor());
    for check in ["snapshotter", "version", "unpack"] {
        assert_eq!(
            verdict[&format!("containerd-{check}")],
            "fault",
            "{verdict:?}"
        );
    }
    assert_eq!(verdict["containerd-image-disk"], "advice", "{verdict:?}");
    // A drop-in that nothing imports is ignored, whatever containerd's own dump says of its imports.
    fs::create_dir(engine.config().with_file_name("conf.d")).unwrap();
    fs::write(
        engine.config().with_file_name("conf.d/yolofs.toml"),
        "version = 3\n",
    )
    .unwrap();
    let verdict = verdicts(&engine.doctor());
    assert_eq!(verdict["containerd-imports"], "fault", "{verdict:?}");
    // What is asked for in the old words is made to hold.
    ok(&mut engine.setup(&["kubernetes", "--yes"]));
    let verdict = verdicts(&engine.doctor());
    assert!(!verdict.contains_key("containerd-version"), "{verdict:?}");
    assert_eq!(verdict["containerd-unpack"], "fine", "{verdict:?}");
}

#[test]
fn privileged_docker_of_today_keeps_its_layers_in_yolofs_after_setup() {
    let lab = Lab::new();
    let mut engine = Engine::today(&lab, "version = 3\n", ALONE);
    engine.start_docker("{\"live-restore\": true}\n");
    let daemon = lab.path("engine/daemon.json").display().to_string();
    let docker = ["docker", "--docker-config", &daemon];
    // Its layers may stay where they are; then so does its configuration.
    let stay = json(engine.setup(&docker).args(["--in-place", "--json"]));
    let files = stay["changes"].as_array().unwrap().iter();
    let files: Vec<_> = files.map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(files.len(), 2, "{stay}");
    assert!(!files.contains(&daemon.as_str()), "{stay}");
    let plan = json(engine.setup(&docker).arg("--json"));
    assert_eq!(plan["changes"].as_array().unwrap().len(), 3, "{plan}");
    ok(engine.setup(&docker).arg("--yes"));
    engine.start_snapshotter();
    engine.restart();
    engine.start_docker_again();
    assert_eq!(
        engine.docker(&["info", "--format", "{{.Driver}}"]),
        "yolofs"
    );
    assert_eq!(
        engine.docker(&["info", "--format", "{{.LiveRestoreEnabled}}"]),
        "true"
    );
    let archive = node::archive(&lab, 4096);
    engine.docker(&["load", "--input", archive.to_str().unwrap()]);
    let run = [
        "run",
        "--rm",
        "--network=none",
        node::IMAGE,
        "cat",
        "/srv/greeting",
    ];
    assert_eq!(engine.docker(&run), "hello");
    let again = json(engine.setup(&docker).arg("--json"));
    assert_eq!(again["changes"], serde_json::json!([]), "{again}");
    engine.docker(&["rmi", node::IMAGE]);
    ok(&mut engine.setup(&["--undo"]));
    assert_eq!(
        fs::read_to_string(daemon).unwrap(),
        "{\"live-restore\": true}\n"
    );
}

/// Runs what a node's pod installs yolofs with. Of what it asks of the host, only our program is run: the rest, which
/// concerns the machine's packages and services, is written down.
fn install_on_node(lab: &Lab, engine: &Engine<'_>) -> (Output, String) {
    let bin = lab.make_dir("stand-ins");
    let log = lab.path("asked");
    let put = |name: &str, script: String| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let yolofs = env!("CARGO_BIN_EXE_yolofs");
    let config = engine.config().display().to_string();
    put(
        "nsenter",
        format!(
            "while [ \"$1\" != -- ]; do shift; done\nshift\n[ \"$1\" = yolofs ] && exec \"$@\"\n\
             echo \"$@\" >>{}",
            log.display()
        ),
    );
    put(
        "yolofs",
        format!(
            "[ \"$1\" = doctor ] && exec {yolofs} \"$@\" --containerd-config {config}\nexec {yolofs} \"$@\""
        ),
    );
    let _of_the_run_before = fs::remove_file(&log);
    let setup = engine.setup(&[]);
    let words = setup.get_args().skip(1).map(|word| word.to_str().unwrap());
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/on-node.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg("install");
    command.env("YOLOFS_SETUP", words.collect::<Vec<_>>().join(" "));
    let path = std::env::var("PATH").unwrap();
    let output = output(command.env("PATH", format!("{}:{path}", bin.display())));
    (output, fs::read_to_string(&log).unwrap_or_default())
}

#[test]
fn privileged_a_node_that_is_set_up_again_restarts_containerd_if_that_was_not_done() {
    const RESTART: &str = "systemctl restart containerd";
    let lab = Lab::new();
    let mut engine = Engine::debian(&lab, "version = 2\n");
    // Twice: the first may have been ended before the restart.
    for _ in 0..2 {
        let (output, asked) = install_on_node(&lab, &engine);
        assert!(output.status.success(), "{output:?}");
        assert!(asked.contains(RESTART), "{asked}");
        let verdict = verdicts(&engine.doctor());
        assert_eq!(verdict["containerd-restart"], "fault", "{verdict:?}");
    }
    engine.restart();
    let (output, asked) = install_on_node(&lab, &engine);
    assert!(output.status.success(), "{output:?}");
    assert!(!asked.contains(RESTART), "{asked}");
    assert!(!verdicts(&engine.doctor()).contains_key("containerd-restart"));
    let plan = json(&mut engine.setup(&["kubernetes", "--json"]));
    assert!(!plan["then"].to_string().contains(RESTART), "{plan}");
    // What cannot be set up is not installed.
    fs::write(engine.config(), "version = 2\n[broken\n").unwrap();
    let (output, asked) = install_on_node(&lab, &engine);
    assert!(!output.status.success(), "{asked}");
}
