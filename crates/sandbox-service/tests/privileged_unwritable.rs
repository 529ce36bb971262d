//! Settings that cannot be written: what was asked for is refused, and nothing has changed.

#![cfg(feature = "privileged")]

use std::fs;

use sandbox::{BaseSpec, Config, ZygoteSpec};
use sandbox_handlers::{Budget, HandlerSpec};
use sandbox_service::Daemon;

/// What the daemon has of each kind: the names of its bases and handlers, and the number of its Zygotes.
fn all(daemon: &Daemon) -> (Vec<String>, Vec<String>, usize) {
    let bases = daemon.bases().into_iter().map(|base| base.name).collect();
    let handlers = daemon.handlers().into_iter().map(|view| view.spec.name);
    (bases, handlers.collect(), daemon.zygotes().len())
}

#[test]
fn what_cannot_be_written_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cgroup = format!("sandbox-unwritable-test/{}", std::process::id());
    let config = Config::new(dir.path().join("run"), &cgroup);
    let packages = dir.path().join("packages");
    let open = || Daemon::open(config.clone(), &packages, Budget::default()).unwrap();
    let base = |name: &str| BaseSpec {
        name: name.to_owned(),
        root: "/".into(),
        hide: vec!["work".to_owned()],
    };
    let code = dir.path().join("code");
    fs::create_dir(&code).unwrap();
    let handler = |name: &str| HandlerSpec::python(name, "first", &code);
    let zygote = |module: &str| ZygoteSpec::new("first", "/usr/bin/python3", &[module]);

    let daemon = open();
    daemon.add_base(base("first")).unwrap();
    daemon.add_handler(handler("one")).unwrap();
    let kept = daemon.add_zygote(zygote("json")).unwrap();
    let before = all(&daemon);
    assert_eq!((before.0.len(), before.1.len(), before.2), (1, 1, 1));

    // Where the next settings are written first.
    let aside = config.run_dir.join("settings.new");
    fs::create_dir(&aside).unwrap();
    let error = daemon.add_base(base("second")).unwrap_err().to_string();
    assert!(error.contains("settings.json"), "{error}");
    daemon.add_handler(handler("two")).unwrap_err();
    daemon.add_zygote(zygote("ssl")).unwrap_err();
    daemon.evict(&kept.id).unwrap_err();
    daemon.remove_handler("one").unwrap_err();
    daemon.remove_base("first").unwrap_err();
    assert_eq!(all(&daemon), before);
    // What changes nothing needs no writing.
    daemon.add_handler(handler("one")).unwrap();

    fs::remove_dir(&aside).unwrap();
    daemon.add_base(base("second")).unwrap();
    daemon.remove_handler("one").unwrap();
    daemon.evict(&kept.id).unwrap();
    drop(daemon);
    let names = ["first", "second"].map(str::to_owned).to_vec();
    assert_eq!(all(&open()), (names, Vec::new(), 0));
    for hierarchy in ["unified", "memory", "cpu", ""] {
        let dir = std::path::Path::new("/sys/fs/cgroup").join(hierarchy);
        let _none = fs::remove_dir(dir.join(&cgroup));
    }
}
