//! Whole pages: what is on them, that they are bounded, and that nothing breaks them.

use crate::*;

/// An image with something of everything.
fn image() -> ImageReport {
    let layer = |name: &str, touched_bytes| LayerReport {
        name: name.to_owned(),
        boot_image: Some("ab".repeat(32)),
        source_bytes: Some(100 << 20),
        touched_bytes,
        files: 3,
        extents: 12,
        touches: 40,
        own_bytes: 5 << 20,
        shared_bytes: 2 << 20,
    };
    let need = |at_ms, layer, bytes| Need {
        at_ms,
        layer,
        bytes,
    };
    let file = |path: &str, kind, bytes, layer| FileShare {
        path: path.to_owned(),
        layer,
        kind,
        bytes,
        size: 8 << 20,
        first_ms: 30,
    };
    ImageReport {
        name: "docker.io/library/nginx:1.25".to_owned(),
        other_names: vec!["web".to_owned()],
        source: "docker://nginx:1.25".to_owned(),
        digests: vec![NamedDigest {
            of: "manifest".to_owned(),
            digest: "sha256:0123".to_owned(),
        }],
        recording: RecordingReport {
            recorded_at: 1_795_260_480,
            tool: "yolofs 0.1.0".to_owned(),
            command: vec!["nginx".to_owned(), "-g".to_owned()],
            runs: 3,
            ready_ms: vec![120, 130, 110],
        },
        timeline: Timeline::of(&[need(0, 0, 3 << 20), need(70, 1, 2 << 20)], 10),
        content: Content::of(vec![
            file("usr/lib/libc.so.6", FileKind::Library, 3 << 20, 0),
            file("usr/sbin/nginx", FileKind::Program, 2 << 20, 1),
        ]),
        stability: StabilityReport {
            every_run_bytes: 4 << 20,
            most_runs_bytes: 1 << 20,
            few_runs_bytes: 0,
            similarity_ppm: Some(987_000),
        },
        layers: vec![layer("sha256:aaaaaaaaaaaaaaaa", 3 << 20), layer("top", 2 << 20)],
        mounts: vec![MountReport {
            mountpoint: "/mnt/web".to_owned(),
            state: "serving".to_owned(),
            boot_image: Some("web".to_owned()),
            hit_bytes: 3 << 20,
            hits: 7,
            fallthrough_bytes: 1 << 20,
            misses: 2,
            evicted_pages: 1234,
            ..MountReport::default()
        }],
        measured: Measured::parse(
            br#"{"samples": [
            {"image": "nginx", "disk": "idle", "mode": "native-cold", "ready_ms": 900, "disk_reads": 210},
            {"image": "nginx", "disk": "idle", "mode": "yolofs", "ready_ms": 45, "fuse_reads": 0},
            {"image": "nginx", "disk": "idle", "mode": "native-warm", "ready_ms": 36}]}"#,
        )
        .unwrap()
        .into_rest(),
    }
}

fn assert_has(page: &str, texts: &[&str]) {
    for text in texts {
        assert!(page.contains(text), "{text:?} is not on the page:\n{page}");
    }
}

#[test]
fn a_page_says_what_is_known() {
    let page = image().html();
    assert_has(
        &page,
        &[
            "<h1>docker.io/library/nginx:1.25</h1>",
            "sha256:0123",
            "2026-11-21 11:28 UTC",
            "3, ready after 120 ms, 130 ms, 110 ms",
            "20.0×",                     // cold against yolofs
            "yolofs: 45 ms, 1.25× warm", // the lane
            "A boot reads 5.0 MiB of 2 files: 2.5 % of the 200.0 MiB that the image has.",
            "shared libraries",
            "usr/lib/libc.so.6",
            "0 ms to 10 ms: 3.0 MiB in 1 extent",
            "1: aaaaaaaaaaaa",
            "in every run: 4.0 MiB (80.0 %)",
            "98.7 % of their blocks in common",
            "some reads missed",
            "3.0 MiB in 7 runs of blocks",
            "1,234",
        ],
    );
    for id in ["timeline", "reads", "layers", "stability", "misses"] {
        assert_has(
            &page,
            &[
                &format!("<section id=\"{id}\">"),
                &format!("href=\"#{id}\""),
            ],
        );
    }
    // Every picture has words.
    assert_eq!(
        page.matches("role=\"img\"").count(),
        page.matches("class=\"chart\"").count()
    );
}

#[test]
fn equal_data_make_equal_pages() {
    assert_eq!(image().html(), image().html());
    let json = serde_json::to_string(&image()).unwrap();
    let back: ImageReport = serde_json::from_str(&json).unwrap();
    assert_eq!(back, image());
}

#[test]
fn where_nothing_is_known_the_page_says_so() {
    let page = ImageReport::default().html();
    assert_has(
        &page,
        &[
            "No measurement was given",
            "Nothing is read",
            "No content of any file is read",
            "Nothing is known of its layers",
            "One run was recorded",
            "It is not mounted now",
        ],
    );
    let empty = ImageReport {
        layers: vec![LayerReport::default()],
        timeline: Timeline::of(
            &[Need {
                at_ms: 0,
                layer: 0,
                bytes: 0,
            }],
            0,
        ),
        measured: vec![Comparison {
            ways: vec![WayReport::new(ServedFrom::Yolofs)],
            ..Comparison::default()
        }],
        recording: RecordingReport {
            runs: 2,
            ..RecordingReport::default()
        },
        mounts: vec![MountReport::default()],
        ..ImageReport::default()
    };
    let page = empty.html();
    assert_has(&page, &["not recorded", "yolofs: not measured"]);
    for page in [page, NodeReport::default().html()] {
        assert!(!page.contains("NaN") && !page.contains(">inf"), "{page}");
    }
    assert_has(
        &NodeReport::default().html(),
        &["no boot images", "Nothing is mounted"],
    );
}

/// Puts a hostile text wherever the world outside may put one.
fn hostile(text: &str) -> ImageReport {
    let mut image = image();
    let evil = || text.to_owned();
    image.name = evil();
    image.other_names = vec![evil()];
    image.source = evil();
    image.digests = vec![NamedDigest {
        of: evil(),
        digest: evil(),
    }];
    image.recording.tool = evil();
    image.recording.command = vec![evil(), evil()];
    for layer in &mut image.layers {
        layer.name = evil();
    }
    for file in &mut image.content.top_files {
        file.path = evil();
    }
    for directory in &mut image.content.top_directories {
        directory.path = evil();
    }
    for mount in &mut image.mounts {
        (mount.mountpoint, mount.source) = (evil(), evil());
        (mount.state, mount.prewarm) = (evil(), evil());
        mount.requests.insert(evil(), 1);
    }
    for comparison in &mut image.measured {
        (comparison.subject, comparison.condition) = (evil(), evil());
        comparison.ways[0].way = ServedFrom::Other(evil());
    }
    image
}

#[test]
fn no_name_becomes_markup() {
    for text in [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onload='x",
    ] {
        let image = hostile(text);
        let node = NodeReport {
            name: text.to_owned(),
            store: text.to_owned(),
            mounts: image.mounts.clone(),
            measured: image.measured.clone(),
            images: vec![image.clone()],
            ..NodeReport::default()
        };
        for page in [image.html(), node.html()] {
            assert!(!page.contains(text), "{text} is on the page");
            assert_eq!(page.matches("<script>").count(), 1, "{text}");
            assert!(!page.contains("<img"), "{text}");
            assert!(page.contains("&lt;") || page.contains("&#39;"), "{text}");
        }
    }
}

#[test]
fn a_page_is_bounded_whatever_an_image_holds() {
    let mut image = hostile(&"x<".repeat(4000));
    image.layers = vec![image.layers[0].clone(); 1000];
    image.mounts = vec![image.mounts[0].clone(); 1000];
    image.measured = vec![image.measured[0].clone(); 1000];
    image.recording.ready_ms = vec![7; 1000];
    image.other_names = vec!["n".repeat(1000); 1000];
    image.digests = vec![image.digests[0].clone(); 1000];
    let needs: Vec<_> = (0..100_000)
        .map(|n| Need {
            at_ms: n,
            layer: usize::try_from(n % 127).unwrap(),
            bytes: n,
        })
        .collect();
    image.timeline = Timeline::of(&needs, 1);
    let files = (0..100_000).map(|n| FileShare {
        path: format!("{n}/{}", "y<".repeat(2000)),
        layer: 0,
        kind: FileKind::Data,
        bytes: n,
        size: n,
        first_ms: 0,
    });
    image.content = Content::of(files.collect());
    let page = image.html();
    assert!(page.len() < 8 << 20, "{} bytes", page.len());
    assert_has(
        &page,
        &[
            "and 99,960 files more",
            "and 872 layers more",
            "and 900 mounts more",
        ],
    );
    // Of 600 such images nobody has the memory: the lists are cut, the texts stay.
    image.layers.truncate(3);
    image.mounts.truncate(3);
    image.measured.truncate(13);
    image.content.top_files.truncate(9);
    image.content.top_directories.clear();
    let node = NodeReport {
        images: vec![image; 70],
        ..NodeReport::default()
    };
    let page = node.html();
    assert!(page.len() < 32 << 20, "{} bytes", page.len());
    assert_has(&page, &["and 10 images more"]);
}

#[test]
fn a_node_links_its_images() {
    let node = NodeReport {
        name: "node7".to_owned(),
        store_max_bytes: 8 << 30,
        store_bytes: 10 << 20,
        unshared_bytes: 14 << 20,
        boot_images: 4,
        images: vec![image(), image()],
        mounts: image().mounts,
        ..NodeReport::default()
    };
    let page = node.html();
    assert_has(
        &page,
        &[
            "<h1>node7</h1>",
            "<a href=\"#image-1\">docker.io/library/nginx:1.25</a>",
            "<article id=\"image-1\"",
            "takes 10.0 MiB of at most 8.0 GiB",
            "would take 14.0 MiB",
            "75.0 %", // hit ratio
        ],
    );
}
