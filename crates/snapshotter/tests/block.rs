//! Layers of block images: which are not unpacked, and what is stacked on them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_rig;

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use block_rig::{BLOBS, CHAINS, Rig, TARGET, labels, lowers, name, pull};
use blocks::Digest;
use snapshotter::{DeviceForm, Kind, Labels, SnapshotError};

#[test]
fn layers_exist_before_they_are_unpacked_and_are_one_directory() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    let top = snapshotter.stat(&name(1)).unwrap();
    assert_eq!((top.kind, top.parent), (Kind::Committed, Some(name(0))));
    // containerd looks for it by these.
    assert_eq!(top.labels["containerd.io/snapshot.ref"], CHAINS[1]);
    assert_eq!(snapshotter.usage(&name(1)).unwrap().bytes, 0);
    let image = rig.images.dir.to_str().unwrap();
    let mounts = snapshotter
        .prepare("one/8/container", Some(&name(1)), Labels::new())
        .unwrap();
    assert_eq!((mounts[0].fs_type, lowers(&mounts)), ("overlay", image));
    let asked = rig.images.asked.lock().clone();
    let layers: Vec<_> = asked
        .iter()
        .map(|one| (&*one.name, one.layer.blobs.as_deref()))
        .collect();
    assert_eq!(layers, [(&*name(1), Some(BLOBS)), (&*name(0), Some(BLOBS))]);
    let view = snapshotter
        .view("one/9/view", Some(&name(0)), Labels::new())
        .unwrap();
    assert_eq!((view[0].fs_type, &*view[0].source), ("bind", image));
    assert_eq!(view[0].options, ["ro", "rbind"]);
    // It is known after a restart, and what is removed is told of.
    drop(snapshotter);
    let snapshotter = rig.open(false);
    assert_eq!(
        lowers(&snapshotter.mounts("one/8/container").unwrap()),
        image
    );
    for key in ["one/8/container", "one/9/view", &name(1), &name(0)] {
        snapshotter.remove(key).unwrap();
    }
    let removed = [top.id, asked[1].id];
    assert_eq!(*rig.images.removed.lock(), removed);
}

#[test]
fn the_name_that_an_image_is_pulled_by_is_told() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    assert_eq!(*rig.images.pulled.lock(), None);
    let image = [(
        "containerd.io/snapshot/cri.image-ref",
        "registry.test:5000/app:1",
    )];
    drop(snapshotter.prepare("one/2/extract", Some(&name(1)), labels(2, &image)));
    assert_eq!(rig.images.pulled.lock().as_deref(), Some(image[0].1));
}

#[test]
fn what_a_container_wrote_is_a_layer_above() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    let parent = name(1);
    let mounts = snapshotter
        .prepare("one/8/container", Some(&parent), wants("overlayfs"))
        .unwrap();
    assert_eq!(mounts[0].fs_type, "overlay");
    snapshotter
        .commit("one/9/committed", "one/8/container", Labels::new())
        .unwrap();
    let mounts = snapshotter
        .prepare("one/10/next", Some("one/9/committed"), Labels::new())
        .unwrap();
    let id = snapshotter.stat("one/9/committed").unwrap().id;
    let (root, image) = (rig.dir.path().join("root"), rig.images.dir.display());
    assert_eq!(
        lowers(&mounts),
        format!("{}/snapshots/{id}/fs:{image}", root.display())
    );
}

#[test]
fn an_image_that_cannot_be_served_leaves_no_snapshot() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    rig.images.fails.store(true, SeqCst);
    for _ in 0..2 {
        let failed = snapshotter.prepare("one/8/container", Some(&name(1)), Labels::new());
        let failed = failed.unwrap_err();
        let why = failed.source().unwrap().to_string();
        assert_eq!(why, "the registry is away");
        assert!(failed.to_string().contains(CHAINS[1]), "{failed}");
    }
    rig.images.fails.store(false, SeqCst);
    snapshotter
        .prepare("one/8/container", Some(&name(1)), Labels::new())
        .unwrap();
    // One that is there already is refused, and stays.
    rig.images.fails.store(true, SeqCst);
    snapshotter.mounts("one/8/container").unwrap_err();
    assert_eq!(
        snapshotter.stat("one/8/container").unwrap().kind,
        Kind::Active
    );
}

#[test]
fn a_layer_from_an_unknown_place_is_downloaded_and_is_one_file() {
    let rig = Rig::new();
    rig.images.knows.store(false, SeqCst);
    let snapshotter = rig.open(false);
    for (number, parent) in [(0, None), (1, Some(name(0)))] {
        let key = format!("one/{number}/extract");
        // No device of the layers below is needed for that.
        rig.images.fails.store(true, SeqCst);
        let mounts = snapshotter
            .prepare(&key, parent.as_deref(), labels(number, &[]))
            .unwrap();
        assert_eq!((mounts[0].fs_type, &*mounts[0].options[0]), ("bind", "rw"));
        fs::write(
            Path::new(&mounts[0].source).join("overlaybd.commit"),
            "blob",
        )
        .unwrap();
        snapshotter
            .commit(&name(number), &key, labels(number, &[]))
            .unwrap();
    }
    rig.images.fails.store(false, SeqCst);
    snapshotter
        .prepare("one/8/container", Some(&name(1)), Labels::new())
        .unwrap();
    let asked = rig.images.asked.lock();
    assert_eq!(asked.len(), 2);
    for one in &*asked {
        assert_eq!(one.layer.blobs, None);
        assert!(one.dir.join("overlaybd.commit").exists());
    }
}

#[test]
fn layers_that_are_stacked_later_are_shown_read_only_to_containerd_24() {
    let later = [("containerd.io/snapshot/parent-chain-id", CHAINS[0])];
    for is_of_24 in [true, false] {
        let rig = Rig::new();
        let snapshotter = rig.open(is_of_24);
        // The lowest one has no parent to wait for.
        let exists = snapshotter.prepare("one/0/extract", None, labels(0, &[]));
        assert!(matches!(exists, Err(SnapshotError::AlreadyExists { .. })));
        let mounts = snapshotter
            .prepare("one/1/extract", None, labels(1, &later))
            .unwrap();
        let is_read_only = mounts[0].options.iter().any(|option| option == "ro");
        assert_eq!(is_read_only, is_of_24, "{mounts:?}");
        let commit = |parent: &str| {
            snapshotter.commit_on(&name(1), "one/1/extract", Some(parent), labels(1, &later))
        };
        commit(&name(0)).unwrap();
        let layer = snapshotter.stat(&name(1)).unwrap().block.unwrap();
        assert_eq!(layer.blobs.is_some(), is_of_24);
        snapshotter
            .prepare("one/8/container", Some(&name(1)), Labels::new())
            .unwrap();
        assert_eq!(rig.images.asked.lock().len(), 2);
    }
}

/// containerd unpacks the metadata of a turboOCI layer, each layer's without those below, and the data stays elsewhere.
#[test]
fn layers_that_refer_to_others_are_unpacked_and_are_one_directory() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    let target = Digest([9; 32]);
    let turbo = [(TARGET, &*target.to_string())];
    for (number, parent) in [(0, None), (1, Some(name(0)))] {
        let key = format!("one/{number}/extract");
        let labels = labels(number, &turbo);
        let mounts = snapshotter.prepare(&key, parent.as_deref(), labels.clone());
        let [mount] = &*mounts.unwrap() else { panic!() };
        assert_eq!(mount.fs_type, "bind");
        assert!(!mount.options.iter().any(|option| option == "ro"));
        fs::write(Path::new(&mount.source).join("erofs.fs.meta"), "meta").unwrap();
        snapshotter.commit(&name(number), &key, labels).unwrap();
    }
    let container = snapshotter.prepare("one/8/container", Some(&name(1)), Labels::new());
    assert_eq!(
        lowers(&container.unwrap()),
        rig.images.dir.to_str().unwrap()
    );
    let asked = rig.images.asked.lock();
    assert_eq!(asked.len(), 2);
    for layer in asked.iter() {
        assert_eq!(layer.layer.target, Some(target));
        assert_eq!(layer.layer.blobs.as_deref(), Some(BLOBS));
        assert!(layer.dir.join("erofs.fs.meta").exists());
    }
}

#[test]
fn what_is_no_whole_block_image_is_refused() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    let target = Digest([9; 32]).to_string();
    for (label, value, knows) in [
        (TARGET, "sha256:0", true),
        // Its data would be nowhere.
        (TARGET, &target, false),
        (
            "containerd.io/snapshot/overlaybd/acceleration-layer",
            "yes",
            true,
        ),
    ] {
        rig.images.knows.store(knows, SeqCst);
        let refused = snapshotter.prepare("one/0/extract", None, labels(0, &[(label, value)]));
        assert!(
            matches!(refused, Err(SnapshotError::BadBlockLayer { .. })),
            "{refused:?}"
        );
    }
    rig.images.knows.store(true, SeqCst);
    // A layer that is none, and one above it.
    let plain = [(
        "containerd.io/snapshot.ref".to_owned(),
        CHAINS[0].to_owned(),
    )];
    snapshotter
        .prepare("one/0/extract", None, plain.clone().into())
        .unwrap();
    snapshotter
        .commit(&name(0), "one/0/extract", plain.into())
        .unwrap();
    let key = "one/1/extract";
    snapshotter
        .prepare(key, Some(&name(0)), labels(1, &[]))
        .unwrap_err();
    let refused = snapshotter.prepare("one/8/container", Some(&name(1)), Labels::new());
    assert!(
        matches!(refused, Err(SnapshotError::MixedLayers { .. })),
        "{refused:?}"
    );
}

/// The label that overlaybd's snapshotter makes a writable device for.
fn wants(form: &str) -> Labels {
    let label = "containerd.io/snapshot/overlaybd.writable";
    Labels::from([(label.to_owned(), form.to_owned())])
}

#[test]
fn a_container_that_asks_for_it_has_a_device_and_no_overlay() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    for (form, fs_type, source, options) in [
        ("dir", "bind", "/devices/", "rw,rbind"),
        ("dev", "ext4", "/dev/loop", "rw,discard"),
    ] {
        let key = format!("one/8/{form}");
        let mounts = snapshotter.prepare(&key, Some(&name(1)), wants(form));
        let [mount] = &*mounts.unwrap() else { panic!() };
        let found = snapshotter.stat(&key).unwrap();
        assert_eq!(
            (mount.fs_type, &*mount.options.join(",")),
            (fs_type, options)
        );
        assert_eq!(mount.source, format!("{source}{}", found.id));
        assert_eq!(rig.images.asked.lock().len(), 2);
        assert_eq!(snapshotter.usage(&key).unwrap().bytes, 4096);
        // What is only looked at needs none.
        let view = format!("one/9/{form}");
        let mounts = snapshotter
            .view(&view, Some(&name(1)), wants(form))
            .unwrap();
        assert_eq!((mounts[0].fs_type, &*mounts[0].options[0]), ("bind", "ro"));
        snapshotter.remove(&view).unwrap();
        assert!(rig.images.ended.lock().is_empty());
        // Whatever the labels are by then.
        snapshotter.update(&key, Labels::new(), &[]).unwrap();
        assert_eq!(snapshotter.mounts(&key).unwrap()[0], *mount);
        snapshotter.remove(&key).unwrap();
        assert_eq!(std::mem::take(&mut *rig.images.ended.lock()), [found.id]);
    }
}

#[test]
fn a_label_says_how_much_may_be_written_to_a_device() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    let quota = "containerd.io/snapshot/disk_quota";
    for said in [Some("20G"), None] {
        let quota = said.map(|said| (quota.to_owned(), said.to_owned()));
        let labels = wants("dir").into_iter().chain(quota).collect();
        let key = format!("one/8/{said:?}");
        snapshotter.prepare(&key, Some(&name(1)), labels).unwrap();
        assert_eq!(rig.images.quota.lock().as_deref(), said);
    }
}

#[test]
fn what_a_device_has_becomes_one_more_layer() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    let key = "one/8/container";
    snapshotter
        .prepare(key, Some(&name(1)), wants("dir"))
        .unwrap();
    let active = snapshotter.stat(key).unwrap();
    let commit = || snapshotter.commit("one/9/committed", key, Labels::new());
    // One that cannot be committed goes on.
    rig.images.fails.store(true, SeqCst);
    let refused = commit().unwrap_err();
    assert_eq!(refused.source().unwrap().to_string(), "it is mounted");
    assert!(rig.images.ended.lock().is_empty());
    rig.images.fails.store(false, SeqCst);
    snapshotter.mounts(key).unwrap();
    commit().unwrap();
    assert_eq!(*rig.images.ended.lock(), [active.id]);
    // It is known after a restart.
    drop(snapshotter);
    let snapshotter = rig.open(false);
    let layer = snapshotter.stat("one/9/committed").unwrap();
    let blob = &layer.labels["containerd.io/snapshot/overlaybd.localcommitpath"];
    assert_eq!(fs::read(blob).unwrap(), b"blob");
    assert_eq!((layer.id, layer.device), (active.id, None));
    assert!(snapshotter.usage("one/9/committed").unwrap().bytes > 0);
    for (key, labels, fs_type) in [
        ("one/10/read", Labels::new(), "overlay"),
        ("one/11/written", wants("dir"), "bind"),
    ] {
        let mounts = snapshotter.prepare(key, Some("one/9/committed"), labels);
        assert_eq!(mounts.unwrap()[0].fs_type, fs_type);
        let asked = rig.images.asked.lock();
        assert_eq!(asked.len(), 3);
        let top = &asked[0];
        assert_eq!(top.layer.digest, Some(Digest([5; 32])));
        assert_eq!((top.layer.size, &top.layer.blobs), (4, &None));
        assert_eq!(top.dir.join("overlaybd.commit"), Path::new(blob));
    }
    snapshotter.remove("one/10/read").unwrap();
    snapshotter.remove("one/11/written").unwrap();
    snapshotter.remove("one/9/committed").unwrap();
    assert!(rig.images.removed.lock().contains(&layer.id));
}

#[test]
fn a_device_that_cannot_be_had_leaves_no_snapshot() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    pull(&snapshotter);
    rig.images.fails.store(true, SeqCst);
    for number in 1..=2 {
        let failed = snapshotter.prepare("one/8/container", Some(&name(1)), wants("dev"));
        let why = failed.unwrap_err().source().unwrap().to_string();
        assert_eq!(why, "the node is away");
        assert_eq!(
            rig.images.ended.lock().len(),
            number,
            "it may be there in part"
        );
        assert!(snapshotter.stat("one/8/container").is_err());
    }
    rig.images.fails.store(false, SeqCst);
    // Without a block image below, the label says nothing; above a usual layer on one there is no device.
    let mounts = snapshotter.prepare("one/8/plain", None, wants("dev"));
    assert_eq!(mounts.unwrap()[0].fs_type, "bind");
    snapshotter
        .prepare("one/9/usual", Some(&name(1)), Labels::new())
        .unwrap();
    snapshotter
        .commit("one/10/committed", "one/9/usual", Labels::new())
        .unwrap();
    let refused = snapshotter.prepare("one/11/x", Some("one/10/committed"), wants("dir"));
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("convert the whole image"), "{why}");
    let mut mapped = wants("dir");
    for kind in ["uid", "gid"] {
        let label = format!("containerd.io/snapshot/{kind}mapping");
        mapped.insert(label, "0:100000:65536".to_owned());
    }
    let refused = snapshotter.prepare("one/11/x", Some(&name(1)), mapped);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("leave the label out"), "{why}");
}

#[test]
fn containers_have_devices_by_default_if_that_is_set_up() {
    let rig = Rig::new();
    let snapshotter = rig.open(false);
    *rig.images.by_default.lock() = Some(DeviceForm::Dev);
    // Layers that are unpacked have none.
    pull(&snapshotter);
    let mut number = 10;
    let mut prepare = |parent: Option<&str>, labels: Labels| {
        number += 1;
        let key = format!("one/{number}/container");
        let mounts = snapshotter.prepare(&key, parent, labels).unwrap();
        mounts[0].fs_type
    };
    let image = name(1);
    assert_eq!(prepare(Some(&image), Labels::new()), "ext4");
    assert_eq!(prepare(Some(&image), wants("dir")), "bind");
    assert_eq!(prepare(Some(&image), wants("overlayfs")), "overlay");
    let mapping = ["uid", "gid"].map(|kind| {
        let label = format!("containerd.io/snapshot/{kind}mapping");
        (label, "0:100000:65536".to_owned())
    });
    assert_eq!(prepare(Some(&image), mapping.into()), "overlay");
    assert_eq!(prepare(None, Labels::new()), "bind");
    // A usual layer above, as of a committed container.
    snapshotter
        .prepare("one/8/usual", Some(&image), wants("overlayfs"))
        .unwrap();
    snapshotter
        .commit("one/9/committed", "one/8/usual", Labels::new())
        .unwrap();
    assert_eq!(prepare(Some("one/9/committed"), Labels::new()), "overlay");
}
