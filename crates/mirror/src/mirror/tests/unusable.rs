//! A catalog whose file cannot be used.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// As on a disk that fails, or has no room for it.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_catalog_images_cost_requests_and_it_is_used_again_later() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    // Nothing can be made where it leads to.
    symlink("nowhere/catalog", dir.path().join("catalog.redb")).unwrap();
    let layer = vec![7; 3 << 20];
    let digest = registry.put_blob("a/app", &layer);
    registry.put("a/app/manifests/v1", &naming(&[&digest]));
    // A crash left all of the layer: it is confirmed once, though that cannot be noted.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let journal = serde_json::json!({
        "size": layer.len(), "etag": null, "boot": boot.trim(), "synced": 0,
    });
    let part = dir
        .path()
        .join("parts")
        .join(format!("sha256-{}", digest.hex()));
    fs::create_dir(dir.path().join("parts")).unwrap();
    fs::write(&part, &layer).unwrap();
    fs::write(part.with_extension("json"), journal.to_string()).unwrap();
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    let blob = format!("docker.io/a/app/blobs/{digest}");
    for _ in 0..3 {
        let tag = get(&mirror, "docker.io/a/app/manifests/v1", None).await;
        assert_eq!(tag.0, 200);
        let came = timeout(Duration::from_secs(60), get(&mirror, &blob, None)).await;
        let (status, _, body) = came.unwrap();
        assert!(status == 200 && body == layer, "{status}");
    }
    let asked = registry.count("HEAD /v2/a/app/blobs/");
    assert!(asked <= 6, "{asked} requests for three pulls");
    // It is not known which image needs a blob: then each counts as needed.
    let other = registry.put_blob("a/app", b"a layer of another image");
    let path = format!("docker.io/a/app/blobs/{other}");
    assert_eq!(get(&mirror, &path, None).await.0, 200);
    while !mirror.blobs.is_here(&BlobKey::open(other.clone())) || mirror.blobs.growing_count() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(mirror.blobs().collect(Duration::ZERO).blobs, 0);
    // Now there is room.
    fs::create_dir(dir.path().join("nowhere")).unwrap();
    let manifests = || registry.count("GET /v2/a/app/manifests/");
    let is_kept = async {
        loop {
            let before = manifests();
            let tag = get(&mirror, "docker.io/a/app/manifests/v1", None).await;
            assert_eq!(tag.0, 200);
            if manifests() == before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), is_kept).await.unwrap();
}

/// The registry has it: nobody goes without it because the disk fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_the_disk_fails_is_passed_through() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let layer = vec![7; 3 << 20];
    let digest = registry.put_blob("a/app", &layer);
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    let blob = format!("docker.io/a/app/blobs/{digest}");
    let comes = async || {
        let (status, _, body) = get(&mirror, &blob, None).await;
        assert!(status == 200 && body == layer, "{status}");
    };
    let file = dir.path().join("blobs/sha256").join(digest.hex());
    let part = dir
        .path()
        .join("parts")
        .join(format!("sha256-{}", digest.hex()));
    // No part of it can be made.
    symlink(&part, &part).unwrap();
    comes().await;
    assert!(!file.exists());
    fs::remove_file(&part).unwrap();
    comes().await;
    comes().await;
    assert!(file.exists());
    // All of it is there, and cannot be opened.
    fs::remove_file(&file).unwrap();
    symlink(&file, &file).unwrap();
    comes().await;
    comes().await;
}
