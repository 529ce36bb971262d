//! The service over a real socket, as far as that needs no mount.

mod node;

use std::fs;

use containerd_client::services::v1::snapshots::Kind;
use node::{Node, assert_code, labels};
use snapshotter::{Config, FaultyLowers, PlainLowers, SnapshotError, Snapshotter, service};
use tonic::Code;

#[test]
fn goes_from_active_to_committed_to_removed() {
    let node = Node::start();
    let mounts = node.prepare("a", "", &[("l", "1")]).unwrap();
    assert_eq!(mounts[0].r#type, "bind");
    assert_eq!(mounts[0].options, ["rw", "rbind"]);
    assert_eq!(node.mounts("a").unwrap(), mounts);
    let active = node.stat("a").unwrap();
    assert_eq!((active.kind(), active.parent.as_str()), (Kind::Active, ""));
    assert_eq!(active.labels, labels(&[("l", "1")]));
    assert_eq!(active.created_at, active.updated_at);

    node.commit("layer", "a", &[("m", "2")]).unwrap();
    assert_code(node.stat("a"), Code::NotFound);
    let committed = node.stat("layer").unwrap();
    assert_eq!(committed.kind(), Kind::Committed);
    assert_eq!(
        committed.labels,
        labels(&[("m", "2")]),
        "labels are not inherited"
    );
    assert_code(node.mounts("layer"), Code::FailedPrecondition);

    let over = node.prepare("b", "layer", &[]).unwrap();
    assert_eq!(over[0].r#type, "overlay");
    let view = node.view("v", "layer", &[]).unwrap();
    assert_eq!(
        (view[0].r#type.as_str(), view[0].options[0].as_str()),
        ("bind", "ro")
    );
    let words = assert_code(node.remove("layer"), Code::FailedPrecondition);
    assert!(words.contains("cannot remove"), "{words}");
    node.remove("v").unwrap();
    node.remove("b").unwrap();
    node.remove("layer").unwrap();
    node.cleanup();
    assert!(node.directories().is_empty());
}

#[test]
fn answers_what_cannot_be_done_with_containerds_codes() {
    let node = Node::start();
    node.prepare("a", "", &[]).unwrap();
    assert_code(node.prepare("a", "", &[]), Code::AlreadyExists);
    assert_code(node.view("a", "", &[]), Code::AlreadyExists);
    assert_code(node.prepare("b", "none", &[]), Code::NotFound);
    assert_code(node.prepare("b", "a", &[]), Code::InvalidArgument);
    assert_code(node.prepare("", "", &[]), Code::InvalidArgument);
    assert_code(node.commit("c", "none", &[]), Code::NotFound);
    node.view("v", "", &[]).unwrap();
    assert_code(node.commit("c", "v", &[]), Code::FailedPrecondition);
    node.commit("c", "a", &[]).unwrap();
    node.prepare("a", "c", &[]).unwrap();
    assert_code(node.commit("c", "a", &[]), Code::AlreadyExists);
    for key in ["none", ""] {
        assert_code(node.stat(key), Code::NotFound);
        assert_code(node.mounts(key), Code::NotFound);
        assert_code(node.usage(key), Code::NotFound);
        assert_code(node.remove(key), Code::NotFound);
    }
    assert_code(node.list(&["name=="]), Code::InvalidArgument);
    node.cleanup();
    assert_eq!(
        node.directories().len(),
        3,
        "failures leave nothing: c, v and a"
    );
}

#[test]
fn a_removed_key_can_be_used_again() {
    let node = Node::start();
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("c", "tmp", &[]).unwrap();
    node.prepare("reuse", "c", &[]).unwrap();
    node.remove("reuse").unwrap();
    node.view("reuse", "c", &[]).unwrap();
    node.remove("reuse").unwrap();
    node.prepare("reuse", "", &[]).unwrap();
    node.remove("c").unwrap();
    node.commit("c", "reuse", &[]).unwrap();
}

#[test]
fn updates_labels_by_paths() {
    let node = Node::start();
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("c", "tmp", &[]).unwrap();
    node.prepare("active", "c", &[]).unwrap();
    node.view("view", "c", &[]).unwrap();
    for key in ["c", "active", "view"] {
        let before = node.stat(key).unwrap();
        let mut wanted = before.clone();
        wanted.parent = "nonsense".to_owned();
        wanted.labels = labels(&[("l1", "v1"), ("l2", "v2"), ("l3", "v3")]);
        let after = node.update(wanted.clone(), &[]).unwrap();
        assert_eq!((&after.parent, after.kind), (&before.parent, before.kind));
        assert_eq!(after.created_at, before.created_at);
        assert_ne!(after.updated_at, before.updated_at);
        assert_eq!(after.labels, wanted.labels);
        wanted.labels = labels(&[("l1", "new"), ("l4", "v4")]);
        let after = node
            .update(wanted.clone(), &["labels.l1", "labels.l2"])
            .unwrap();
        assert_eq!(after.labels, labels(&[("l1", "new"), ("l3", "v3")]));
        let after = node.update(wanted.clone(), &["labels"]).unwrap();
        assert_eq!(after.labels, wanted.labels);
        assert_eq!(node.stat(key).unwrap(), after);
        for path in ["parent", "kind", "created", "label"] {
            assert_code(node.update(wanted.clone(), &[path]), Code::InvalidArgument);
            let both = node.update(wanted.clone(), &["labels", path]);
            assert_code(both, Code::InvalidArgument);
        }
    }
}

#[test]
fn walks_by_filters() {
    let node = Node::start();
    node.prepare("a-np", "", &[]).unwrap();
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("p", "tmp", &[]).unwrap();
    node.prepare("a", "p", &[]).unwrap();
    node.view("v", "p", &[]).unwrap();
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("p-l", "tmp", &[("l.x", "1")]).unwrap();
    node.prepare("a-l", "p-l", &[("l.x", "2")]).unwrap();
    let cases: [(&[&str], &[&str]); 9] = [
        (&[], &["a", "a-l", "a-np", "p", "p-l", "v"]),
        (&["kind==active"], &["a", "a-l", "a-np"]),
        (&["kind==view"], &["v"]),
        (&["kind==committed"], &["p", "p-l"]),
        (&["name==p", "name==a-np"], &["a-np", "p"]),
        (&["parent==p"], &["a", "v"]),
        (&["parent!=\"\",kind==active"], &["a", "a-l"]),
        (&["labels.\"l.x\""], &["a-l", "p-l"]),
        (&["name~=/^a-/,labels.l.x==2"], &["a-l"]),
    ];
    for (filters, expected) in cases {
        let found = node.list(filters).unwrap();
        let names: Vec<&str> = found.iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, expected, "{filters:?}");
        for info in &found {
            assert_eq!(node.stat(&info.name).unwrap(), *info);
        }
    }
}

#[test]
fn tells_what_a_snapshot_takes() {
    let node = Node::start();
    let mounts = node.prepare("a", "", &[]).unwrap();
    let (empty, _) = node.usage("a").unwrap();
    let root = std::path::Path::new(&mounts[0].source);
    fs::write(root.join("file"), vec![7; 1 << 20]).unwrap();
    fs::hard_link(root.join("file"), root.join("name")).unwrap();
    fs::File::open(root.join("file"))
        .unwrap()
        .sync_all()
        .unwrap();
    let active = node.usage("a").unwrap();
    assert_eq!(active.0, empty + 1);
    assert!((1 << 20..2 << 20).contains(&active.1), "{active:?}");
    node.commit("c", "a", &[]).unwrap();
    assert_eq!(node.usage("c").unwrap(), active);
    node.view("v", "c", &[]).unwrap();
    assert_eq!(node.usage("v").unwrap(), (0, 0));
}

#[test]
fn a_restart_finds_everything_and_deletes_what_has_no_record() {
    let mut node = Node::start();
    node.prepare("tmp", "", &[("l", "1")]).unwrap();
    node.commit("c", "tmp", &[("l", "2")]).unwrap();
    let mounts = node.prepare("a", "c", &[]).unwrap();
    let before = node.list(&[]).unwrap();
    node.stop();
    for garbage in ["77/fs/x/y", "12/work", "not-ours"] {
        fs::create_dir_all(node.root().join("snapshots").join(garbage)).unwrap();
    }
    node.serve(None, PlainLowers);
    assert_eq!(node.list(&[]).unwrap(), before);
    assert_eq!(node.mounts("a").unwrap(), mounts);
    assert_eq!(node.directories(), ["1", "2", "not-ours"]);
    node.prepare("b", "c", &[]).unwrap();
    let next = node.directories();
    assert!(next.contains(&"78".to_owned()), "no number twice: {next:?}");
}

#[test]
fn a_lost_directory_is_said_and_hinders_nothing_else() {
    let mut node = Node::start();
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("c", "tmp", &[]).unwrap();
    node.prepare("a", "c", &[]).unwrap();
    node.prepare("b", "", &[]).unwrap();
    node.stop();
    fs::remove_dir_all(node.root().join("snapshots/1")).unwrap();
    node.serve(None, PlainLowers);
    let words = assert_code(node.mounts("a"), Code::FailedPrecondition);
    assert!(words.contains("lost"), "{words}");
    assert_code(node.prepare("x", "c", &[]), Code::FailedPrecondition);
    node.mounts("b").unwrap();
    node.remove("a").unwrap();
    node.remove("c").unwrap();
}

#[test]
fn bad_lowers_cost_nothing_but_speed() {
    let mut node = Node::stopped();
    node.serve(None, FaultyLowers);
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("c", "tmp", &[]).unwrap();
    let mounts = node.prepare("a", "c", &[]).unwrap();
    let lower = format!("lowerdir={}/snapshots/1/fs", node.root().display());
    assert!(mounts[0].options.contains(&lower), "{mounts:?}");
}

#[test]
fn a_root_has_one_owner() {
    let node = Node::start();
    let config = Config {
        root: node.root(),
        upper: None,
        layers: None,
        unpacker: None,
        blocks: None,
    };
    let second = Snapshotter::open(config, PlainLowers);
    assert!(
        matches!(second, Err(SnapshotError::Catalog { .. })),
        "{second:?}"
    );
}

#[test]
fn many_clients_at_once_lose_nothing() {
    let node = Node::start();
    node.prepare("tmp", "", &[]).unwrap();
    node.commit("base", "tmp", &[]).unwrap();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let node = &node;
            scope.spawn(move || {
                for round in 0..10 {
                    let key = format!("{client}-{round}");
                    node.prepare(&key, "base", &[]).unwrap();
                    node.mounts(&key).unwrap();
                    if round % 2 == 0 {
                        node.commit(&format!("layer-{key}"), &key, &[]).unwrap();
                    } else {
                        node.remove(&key).unwrap();
                        node.cleanup();
                    }
                }
            });
        }
    });
    assert_eq!(node.list(&["kind==committed"]).unwrap().len(), 41);
    node.cleanup();
    assert_eq!(node.directories().len(), 41);
}

/// A path that was mistyped costs nobody a file, and a second snapshotter not the first its clients.
#[test]
fn listens_where_nobody_does_and_no_other_file_is() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _in = runtime.enter();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let refused = service::listen(&file).unwrap_err();
    assert!(matches!(refused, SnapshotError::Io { path, .. } if path == file));
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let socket = dir.path().join("socket");
    let first = service::listen(&socket).unwrap();
    service::listen(&socket).unwrap_err();
    drop(first);
    service::listen(&socket).unwrap();
}
