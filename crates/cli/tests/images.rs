//! Every verb of the store, through the program, as a user without root meets them.

mod fixture;

use std::fs;

use serde_json::Value;

use fixture::{DISK_LEN, Fixture, damage, files_below};
use lab::{fails, json, noise, ok, output};

#[test]
fn from_trace_says_what_it_kept() {
    let fixture = Fixture::new();
    let kept = fixture.record("one");
    assert_eq!(kept["name"], "one");
    assert_eq!(kept["file"], Value::Null);
    assert_eq!(kept["files"], 1);
    assert_eq!(kept["blocks"], 49);
    assert_eq!(kept["bytes"], 49 * 4096);
    assert_eq!(kept["source_bytes"], DISK_LEN);
    assert_eq!(kept["dropped"], Value::Array(Vec::new()));
    let args = [
        "from-trace",
        "disk.raw",
        "--qemu",
        "one.log",
        "--qemu",
        "two.log",
    ];
    let both = json(fixture.bootimg(&args).arg("--json"));
    assert_eq!(both["blocks"], 49 + 16);
    // 16 of 65 blocks were read by both.
    let jaccard = both["similarity"]["jaccard_mean"].as_f64().unwrap();
    assert!((jaccard - 16.0 / 65.0).abs() < 1e-9, "{jaccard}");
    // Without a name it is called like its source.
    assert!(both["name"].as_str().unwrap().ends_with("disk.raw"));
}

#[test]
fn recording_the_same_again_changes_nothing() {
    let fixture = Fixture::new();
    let first = fixture.record("one");
    let files = fixture.snapshot().len();
    let again = fixture.record("one");
    for field in ["name", "files", "blocks", "bytes", "touches"] {
        assert_eq!(again[field], first[field], "{field}");
    }
    // The newer recording takes the place of the older one.
    assert_eq!(fixture.names(), ["one"]);
    assert_eq!(fixture.list()[0]["id"], again["id"]);
    assert_eq!(fixture.snapshot().len(), files);
}

#[test]
fn ls_lists_what_is_there() {
    let fixture = Fixture::new();
    assert_eq!(
        json(&mut fixture.bootimg(&["ls", "--json"])),
        Value::Array(Vec::new())
    );
    let (one, two) = (fixture.record("one"), fixture.record("two"));
    let images = fixture.list();
    assert_eq!(images.len(), 2);
    for (image, kept) in images.iter().zip([&one, &two]) {
        for field in ["id", "name", "blocks", "bytes"] {
            assert_eq!(image[field], kept[field], "{field}");
        }
        assert_eq!(image["runs"], 1);
        assert_eq!(image["pinned"], false);
        assert!(image["own_bytes"].as_u64().unwrap() > 0);
        assert!(image["recorded_at"].as_i64().unwrap() > 1_700_000_000);
        assert!(image["unused_secs"].as_u64().unwrap() < 3600);
        let source = image["source"].as_str().unwrap();
        assert!(
            source.starts_with("disk:/") && source.ends_with("/disk.raw"),
            "{source}"
        );
    }
    let text = ok(&mut fixture.bootimg(&["ls"]));
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.starts_with("NAME "), "{text}");
    // One content under two names is one boot image.
    ok(&mut fixture.bootimg(&["export", "one", "one.img"]));
    ok(&mut fixture.bootimg(&["import", "one.img", "--name", "again"]));
    assert_eq!(
        fixture.list()[0]["names"],
        serde_json::json!(["again", "one"])
    );
    assert!(ok(&mut fixture.bootimg(&["ls"])).contains("again, one "));
}

#[test]
fn inspect_shows_and_draws() {
    let fixture = Fixture::with_images();
    let args = ["inspect", "one", "--json", "--plot", "one.svg"];
    let shown = json(&mut fixture.bootimg(&args));
    assert_eq!(shown["blocks"], 49);
    assert_eq!(shown["data_blocks"], 49);
    assert_eq!(shown["zero_blocks"], 0);
    assert_eq!(shown["source_bytes"], DISK_LEN);
    assert_eq!(shown["runs"], 1);
    let file = serde_json::json!({
        "path": "disk.raw", "size": DISK_LEN, "blocks": 49, "first_ms": 0, "core_blocks": 49
    });
    assert_eq!(shown["files"], serde_json::json!([file]));
    let svg = fs::read_to_string(fixture.path("one.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("disk.raw"));
    // By id, by the start of the id, and as a file it is the same.
    let id = shown["id"].as_str().unwrap();
    ok(&mut fixture.bootimg(&["export", "one", "one.img"]));
    for wanted in [id, &id[..12], "./one.img"] {
        let same = json(&mut fixture.bootimg(&["inspect", wanted, "--json"]));
        assert_eq!(
            (&same["id"], &same["files"]),
            (&shown["id"], &shown["files"])
        );
    }
    let text = ok(&mut fixture.bootimg(&["inspect", "one"]));
    assert!(text.contains("49 different blocks"), "{text}");
    assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
}

#[test]
fn verify_compares_with_the_source() {
    let fixture = Fixture::with_images();
    let args = ["verify", "one", "--against", "disk.raw", "--json"];
    let good = json(&mut fixture.bootimg(&args));
    assert_eq!(good["bytes"], 49 * 4096);
    assert_eq!(good["damaged"], Value::Array(Vec::new()));
    assert_eq!(good["against"]["blocks_same"], 49);
    fs::write(fixture.path("disk.raw"), noise(2, DISK_LEN)).unwrap();
    let stale = output(&mut fixture.bootimg(&args));
    assert_eq!(stale.status.code(), Some(4));
    let stale: Value = serde_json::from_slice(&stale.stdout).unwrap();
    assert_eq!(stale["against"]["blocks_same"], 0);
    let why = stale["against"]["stale"][0].as_str().unwrap();
    assert!(why.starts_with("disk.raw: "), "{why}");
    // Alone it is as good as it was.
    ok(&mut fixture.bootimg(&["verify", "one"]));
}

#[test]
fn verify_finds_damage_and_ends_with_4() {
    let fixture = Fixture::with_images();
    ok(&mut fixture.bootimg(&["export", "one", "one.img", "--variant", "mapped"]));
    ok(&mut fixture.bootimg(&["verify", "./one.img"]));
    damage(&fixture.path("one.img"));
    let found = output(&mut fixture.bootimg(&["verify", "./one.img", "--json"]));
    assert_eq!(found.status.code(), Some(4));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let damaged = found["damaged"].to_string();
    assert!(damaged.contains("disk.raw: blocks"), "{damaged}");
    // A damaged image does not get into a store.
    let why = fails(
        1,
        &mut fixture.bootimg(&["import", "./one.img", "--name", "bad"]),
    );
    assert!(why.contains("damaged"), "{why}");
    // Cut off, it cannot even be opened: that is damage all the same.
    let len = fs::metadata(fixture.path("one.img")).unwrap().len();
    let file = fs::File::options()
        .write(true)
        .open(fixture.path("one.img"))
        .unwrap();
    file.set_len(len - 4096).unwrap();
    fails(4, &mut fixture.bootimg(&["verify", "./one.img"]));
    assert_eq!(fixture.names(), ["one", "two"]);
}

#[test]
fn damage_in_the_store_is_found_by_verify_and_by_prewarm() {
    let fixture = Fixture::new();
    fixture.record("one");
    for segment in files_below(&fixture.path("store/segments")) {
        damage(&segment);
    }
    fails(4, &mut fixture.bootimg(&["verify", "one"]));
    let warmed = output(&mut fixture.bootimg(&["prewarm", "one", "--json"]));
    assert_eq!(warmed.status.code(), Some(4));
    let warmed: Value = serde_json::from_slice(&warmed.stdout).unwrap();
    assert!(warmed[0]["damaged"].as_u64().unwrap() > 0);
    // To record again is what heals it, as the messages say: even within the same second, when
    // it is the same image to the last bit.
    fixture.record("one");
    ok(&mut fixture.bootimg(&["verify", "one"]));
}

#[test]
fn prewarm_loads_what_fits() {
    let fixture = Fixture::with_images();
    let all = json(&mut fixture.bootimg(&["prewarm", "--all", "--json"]));
    assert_eq!(all.as_array().unwrap().len(), 2);
    for one in all.as_array().unwrap() {
        assert_eq!(one["loaded_bytes"], one["bytes"]);
        assert_eq!(
            (&one["damaged"], &one["over_budget"]),
            (&0.into(), &false.into())
        );
        assert_eq!(one["mounts"], Value::Array(Vec::new()));
    }
    let args = ["prewarm", "--all", "--budget", "150K", "--json"];
    let some = json(&mut fixture.bootimg(&args));
    let loaded = |image: &&Value| image["over_budget"] == false;
    let loaded: Vec<_> = some.as_array().unwrap().iter().filter(loaded).collect();
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0]["name"], "two");
}

#[test]
fn merge_joins_images_and_can_be_repeated() {
    let fixture = Fixture::with_images();
    let args = ["merge", "one", "two", "--name", "both", "--json"];
    let merged = json(&mut fixture.bootimg(&args));
    assert_eq!(merged["name"], "both");
    assert_eq!(merged["new_bytes"], 0, "the store has all blocks already");
    assert_eq!(merged["shared_bytes"], 65 * 4096);
    let shown = json(&mut fixture.bootimg(&["inspect", "both", "--json"]));
    assert_eq!((&shown["runs"], &shown["blocks"]), (&2.into(), &65.into()));
    assert_eq!(shown["files"][0]["core_blocks"], 16);
    assert_eq!(json(&mut fixture.bootimg(&args))["id"], merged["id"]);
    assert_eq!(fixture.names(), ["both", "one", "two"]);
    ok(&mut fixture.bootimg(&["verify", "both", "--against", "disk.raw"]));
}

#[test]
fn merge_refuses_images_of_different_sources() {
    let fixture = Fixture::with_images();
    fs::write(fixture.path("other.raw"), noise(3, DISK_LEN)).unwrap();
    let args = [
        "from-trace",
        "other.raw",
        "--qemu",
        "one.log",
        "--name",
        "other",
    ];
    ok(&mut fixture.bootimg(&args));
    let why = fails(
        1,
        &mut fixture.bootimg(&["merge", "one", "other", "--name", "x"]),
    );
    assert!(why.contains("different sources"), "{why}");
    assert_eq!(fixture.names(), ["one", "other", "two"]);
}

#[test]
fn images_travel_in_both_variants() {
    let fixture = Fixture::with_images();
    let original = json(&mut fixture.bootimg(&["inspect", "one", "--json"]));
    for variant in ["packed", "mapped"] {
        let (file, store) = (format!("{variant}.img"), fixture.path(variant));
        let args = ["export", "one", &file, "--variant", variant];
        ok(&mut fixture.bootimg(&args));
        let first = fs::read(fixture.path(&file)).unwrap();
        ok(&mut fixture.bootimg(&args));
        assert!(
            fs::read(fixture.path(&file)).unwrap() == first,
            "the same bytes every time"
        );
        let there = |args: &[&str]| {
            let mut command = fixture.bootimg(args);
            command.env("YOLOFS_STORE", &store);
            command
        };
        let added = json(&mut there(&["import", &file, "--name", "far", "--json"]));
        assert_eq!(added["id"], original["id"]);
        assert_eq!(
            (&added["name"], &added["new_bytes"]),
            (&"far".into(), &(49 * 4096).into())
        );
        let again = json(&mut there(&["import", &file, "--name", "far", "--json"]));
        assert_eq!(
            (&again["id"], &again["new_bytes"]),
            (&added["id"], &0.into())
        );
        let far = json(&mut there(&["inspect", "far", "--json"]));
        for field in [
            "files",
            "extents",
            "ready_ms",
            "recorded_at",
            "source_id",
            "tool",
        ] {
            assert_eq!(far[field], original[field], "{field}");
        }
        ok(&mut there(&["verify", "far", "--against", "disk.raw"]));
    }
}

#[test]
fn rm_removes_what_was_named_and_nothing_after_a_typo() {
    let fixture = Fixture::with_images();
    let before = fixture.snapshot();
    let args = ["rm", "--dry-run", "--json", "one", "two"];
    let would = json(&mut fixture.bootimg(&args));
    assert_eq!(
        (&would[0]["name"], &would[1]["name"]),
        (&"one".into(), &"two".into())
    );
    assert_eq!(fixture.snapshot(), before);
    let why = fails(1, &mut fixture.bootimg(&["rm", "one", "twoo"]));
    assert!(why.contains("twoo") && why.contains("bootimg ls"), "{why}");
    assert_eq!(fixture.snapshot(), before);
    let text = ok(&mut fixture.bootimg(&["rm", "one"]));
    assert!(text.starts_with("removed one ("), "{text}");
    assert_eq!(fixture.names(), ["two"]);
    fails(1, &mut fixture.bootimg(&["rm", "one"]));
    ok(&mut fixture.bootimg(&["verify", "two", "--against", "disk.raw"]));
}

#[test]
fn gc_collects_what_it_announced() {
    let fixture = Fixture::with_images();
    ok(&mut fixture.bootimg(&["rm", "one"]));
    let before = fixture.snapshot();
    let would = json(&mut fixture.bootimg(&["gc", "--dry-run", "--json"]));
    assert_eq!(would["dry_run"], true);
    assert_eq!(fixture.snapshot(), before, "a dry run changes nothing");
    let did = json(&mut fixture.bootimg(&["gc", "--json"]));
    assert_eq!(did["dry_run"], false);
    for field in [
        "evicted",
        "lost",
        "segments_removed",
        "segments_repacked",
        "segments_unread",
        "other_release",
        "segments_other_release",
        "bytes_after",
    ] {
        assert_eq!(did[field], would[field], "{field}");
    }
    assert!(
        did["bytes_after"].as_u64() < did["bytes_before"].as_u64(),
        "{did}"
    );
    let again = json(&mut fixture.bootimg(&["gc", "--json"]));
    assert_eq!(again["bytes_before"], again["bytes_after"]);
    ok(&mut fixture.bootimg(&["verify", "two", "--against", "disk.raw"]));
}

/// After a downgrade, boot images have a version that is not known.
#[test]
fn a_boot_image_of_another_release_is_kept_named_and_removed_by_its_id() {
    let fixture = Fixture::with_images();
    let id = json(&mut fixture.bootimg(&["inspect", "one", "--json"]))["id"].clone();
    let id = id.as_str().unwrap();
    let file = files_below(&fixture.path("store/images"))
        .into_iter()
        .find(|path| path.to_string_lossy().contains(id));
    let file = file.unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] += 1; // the version
    fs::write(&file, bytes).unwrap();
    let kept = json(&mut fixture.bootimg(&["gc", "--json"]));
    assert_eq!(kept["other_release"], serde_json::json!([id]));
    assert_eq!(kept["lost"], serde_json::json!([]));
    assert!(file.exists());
    let told = ok(&mut fixture.bootimg(&["gc"]));
    assert!(
        told.contains("1 boot image and 0 segments of another release"),
        "{told}"
    );
    let removed = json(&mut fixture.bootimg(&["rm", &id[..12], "--json"]));
    assert_eq!(removed, serde_json::json!([{ "id": id }]));
    let after = json(&mut fixture.bootimg(&["gc", "--json"]));
    assert_eq!(after["other_release"], serde_json::json!([]));
    assert!(after["bytes_after"].as_u64() < kept["bytes_after"].as_u64());
    ok(&mut fixture.bootimg(&["verify", "two", "--against", "disk.raw"]));
}

#[test]
fn gc_makes_room_but_not_of_what_is_pinned() {
    let fixture = Fixture::with_images();
    ok(&mut fixture.bootimg(&["pin", "one"]));
    ok(&mut fixture.bootimg(&["pin", "one"])); // twice is fine
    assert_eq!(fixture.list()[0]["pinned"], true);
    let small = ["gc", "--store-max", "4K", "--json"];
    let two = fixture.list()[1]["id"].clone();
    let would = json(fixture.bootimg(&small).arg("--dry-run"));
    assert_eq!(would["evicted"], Value::Array(vec![two]));
    assert_eq!(fixture.names(), ["one", "two"]);
    let did = json(&mut fixture.bootimg(&small));
    assert_eq!(did["evicted"], would["evicted"]);
    assert_eq!(fixture.names(), ["one"]);
    ok(&mut fixture.bootimg(&["verify", "one"]));
    ok(&mut fixture.bootimg(&["unpin", "one"]));
    ok(&mut fixture.bootimg(&["unpin", "one"]));
    assert_eq!(fixture.list()[0]["pinned"], false);
    ok(&mut fixture.bootimg(&small));
    assert_eq!(fixture.names(), [""; 0]);
}
