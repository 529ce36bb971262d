//! What the distribution specification says, through the mirror: codes of errors, conditions, ranges
//! and filters. Its conformance suite looks at more; these are the points on which it, or a client,
//! once told the mirror from the registry behind it. And what a hostile registry says: where it leads.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nic;

use std::fs;
use std::path::Path;
use std::process::Command;

use hyper::Method;
use lab::{fails, ok};
use mirror::testing::Fault;
use nic::{Mirror, Site, blob, request};
use serde_json::{Value, json};
use testkit::outside::{REGISTRY, outside};
use testkit::registries::Kind;
use testkit::scripted::{Scripted, Seen, redirect};

/// A digest that nothing has.
const NOTHING: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn code(mirror: &Mirror, path: &str) -> (u16, String) {
    let reply = mirror.get(path, &[]);
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    let code = body["errors"][0]["code"].as_str().unwrap().to_owned();
    (reply.status, code)
}

#[test]
fn privileged_errors_carry_the_codes_of_the_specification() {
    let site = Site::new(Kind::Docker);
    let mirror = site.configured("store", &json!({}));
    for (path, expected) in [
        ("library/deb/manifests/none".to_owned(), "MANIFEST_UNKNOWN"),
        (
            format!("library/deb/manifests/{NOTHING}"),
            "MANIFEST_UNKNOWN",
        ),
        ("library/deb/manifests/.none".to_owned(), "MANIFEST_UNKNOWN"),
        (format!("library/deb/blobs/{NOTHING}"), "BLOB_UNKNOWN"),
        ("library/deb/blobs/sha256:1".to_owned(), "BLOB_UNKNOWN"),
        ("nobody/has/tags/list".to_owned(), "NAME_UNKNOWN"),
        ("other.io/a/manifests/v1".to_owned(), "NAME_UNKNOWN"),
        // This registry has no list for anybody; clients go to the tag in its place.
        (format!("library/deb/referrers/{NOTHING}"), "UNSUPPORTED"),
    ] {
        // The first answer is the registry's; the second is remembered.
        for _ in 0..2 {
            let found = code(&mirror, &format!("/v2/{path}"));
            assert_eq!(found, (404, expected.to_owned()), "{path}");
        }
    }
    let push = request(mirror.clients, "PUT", "/v2/library/deb/manifests/v2", &[]);
    assert_eq!(push.status, 405);
    // What may be there is not said to be unknown: who looks for a signature must not believe that
    // there is none.
    site.proxy.inject("/", Fault::Status(503), 10_000);
    let away = code(&mirror, "/v2/library/deb/manifests/other");
    assert_eq!(away, (404, "UNAVAILABLE".to_owned()));
    let away = code(&mirror, &blob(site.long().0));
    assert_eq!(away, (404, "UNAVAILABLE".to_owned()));
}

/// A client that looks for signatures takes "there is none" only in the specification's words.
#[test]
fn privileged_skopeo_finds_that_there_are_no_signatures() {
    let site = Site::new(Kind::Docker);
    let lookup = site.path("registries.d");
    fs::create_dir(&lookup).unwrap();
    let attachments = "default-docker:\n  use-sigstore-attachments: true\n";
    fs::write(lookup.join("default.yaml"), attachments).unwrap();
    let with_signatures = |mirror: &Mirror, name: &str| {
        let mut skopeo = mirror.skopeo(&site.path(name));
        skopeo.arg("--registries.d").arg(&lookup);
        skopeo
    };
    let mirror = site.mirror("store", &[]);
    ok(&mut with_signatures(&mirror, "signed"));
    let signatures = |seen: &mirror::testing::Seen| seen.path.ends_with(".sig");
    assert!(site.proxy.seen().iter().any(signatures), "it has looked");
    // Nobody knows whether there are any: then the copy is none.
    let mirror = site.mirror("other", &[]);
    site.proxy.inject(".sig", Fault::Status(503), 10_000);
    fails(1, &mut with_signatures(&mirror, "unknown"));
}

#[test]
fn privileged_what_a_client_has_is_not_sent_again() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let (digest, size) = site.long();
    let same = format!("If-None-Match: \"{digest}\"");
    let weak = format!("If-None-Match: \"other\", W/\"{digest}\"");
    let path = blob(digest);
    for condition in [&same, &weak] {
        for method in ["HEAD", "GET"] {
            let reply = request(mirror.clients, method, &path, &[condition]);
            assert_eq!((reply.status, reply.body.len()), (304, 0), "{method}");
            assert_eq!(reply.headers["etag"], format!("\"{digest}\""));
        }
    }
    assert_eq!(site.proxy.requests(&Method::GET, "/blobs/"), 0);
    let other = "If-None-Match: \"other\"";
    let reply = request(mirror.clients, "HEAD", &path, &[other]);
    assert_eq!(reply.headers["content-length"], size.to_string());
    // Who may not have it, or asks for what is not there, learns nothing by it.
    let absent = request(
        mirror.clients,
        "HEAD",
        &blob(NOTHING),
        &["If-None-Match: *"],
    );
    assert_eq!(absent.status, 404);
    let tag = "/v2/library/deb/manifests/v1";
    let etag = mirror.head(tag).headers["etag"].clone();
    for method in ["HEAD", "GET"] {
        let condition = format!("If-None-Match: {etag}");
        let reply = request(mirror.clients, method, tag, &[&condition]);
        assert_eq!(reply.status, 304, "{method}");
    }
}

#[test]
fn privileged_ranges_that_are_none_are_refused() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let (digest, size) = site.long();
    mirror.blob(digest);
    let all = format!("bytes */{size}");
    for range in ["bytes=9-1", "bytes=a-b", "bytes=-", "bytes=--1"] {
        let header = format!("Range: {range}");
        let reply = mirror.get(&blob(digest), &[&header]);
        assert_eq!(reply.status, 416, "{range}");
        assert_eq!(reply.headers["content-range"], all, "{range}");
        // As the registry has it.
        let direct = request(site.proxy.address(), "GET", &blob(digest), &[&header]);
        assert_eq!(direct.status, 416, "{range}");
    }
    // Units that nobody knows are no range.
    let reply = mirror.get(&blob(digest), &["Range: lines=1-2"]);
    assert_eq!((reply.status, reply.body.len() as u64), (200, size));
}

#[test]
fn privileged_a_client_hears_what_the_registry_has_filtered() {
    let registry = Scripted::start(|seen: &Seen| {
        let index = (
            "Content-Type",
            "application/vnd.oci.image.index.v1+json".to_owned(),
        );
        let filters = ("OCI-Filters-Applied", "artifactType".to_owned());
        match seen.path.split_once('?') {
            Some((_, "artifactType=a/b")) => (200, vec![index, filters], "{}"),
            _ => (200, vec![index], "{}"),
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mirror = mirror_of(&registry, &dir.path().join("store"), &[]);
    let list = format!("/v2/library/deb/referrers/{NOTHING}");
    // From the registry, and from what is remembered.
    for _ in 0..2 {
        let reply = mirror.get(&format!("{list}?artifactType=a/b"), &[]);
        assert_eq!(reply.headers["oci-filters-applied"], "artifactType");
        let all = mirror.get(&list, &[]);
        assert_eq!(all.status, 200);
        assert!(!all.headers.contains_key("oci-filters-applied"));
    }
    assert_eq!(registry.seen().len(), 2);
}

/// Starts a mirror of a registry, which may lead to these networks.
fn mirror_of(registry: &Scripted, path: &Path, networks: &[&str]) -> Mirror {
    let config = json!({
        "listen": "127.0.0.1:0", "store": path,
        "admin": format!("unix:{}", path.with_extension("admin").display()),
        "upstreams": [{
            "name": "docker.io", "url": registry.url(""), "redirect_networks": networks,
        }],
    });
    let file = path.with_extension("json");
    fs::write(&file, config.to_string()).unwrap();
    let nicfetch = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    Mirror::start_as(nicfetch, &["--config", file.to_str().unwrap()])
}

/// A registry outside sends those who ask for anything to a service of this machine.
#[test]
fn privileged_no_program_is_led_inside() {
    outside(|_| {
        let victim = Scripted::start(|_: &Seen| (200, vec![], "{}"));
        let there = victim.url("/metrics");
        let registry = Scripted::start_at(&format!("{REGISTRY}:0"), move |_: &Seen| {
            redirect(307, there.clone())
        });
        let dir = tempfile::tempdir().unwrap();
        let mirror = mirror_of(&registry, &dir.path().join("store"), &[]);
        for path in [blob(NOTHING), "/v2/library/deb/manifests/v1".to_owned()] {
            let found = code(&mirror, &path);
            assert_eq!(found, (404, "UNAVAILABLE".to_owned()), "{path}");
        }
        let image = format!("{}/library/deb:v1", registry.address);
        let mut pull = Command::new(env!("CARGO_BIN_EXE_bootimg"));
        let store = dir.path().join("boot images");
        pull.args(["pull", &image, "--plain-http", "--store"])
            .arg(&store);
        let said = fails(1, &mut pull);
        assert!(
            said.contains("127.0.0.1, which is on this machine"),
            "{said}"
        );
        assert!(said.contains("--redirect-network"), "{said}");
        assert!(victim.seen().is_empty(), "{:?}", victim.seen());
        assert!(!registry.seen().is_empty());
        // Where that is meant, it is said.
        let trusting = dir.path().join("trusting");
        let trusting = mirror_of(&registry, &trusting, &["127.0.0.0/8"]);
        let manifest = trusting.get("/v2/library/deb/manifests/v1", &[]);
        assert_eq!((manifest.status, &manifest.body[..]), (200, &b"{}"[..]));
        let said = fails(1, pull.args(["--redirect-network", "127.0.0.0/8"]));
        assert!(!said.contains("on this machine"), "{said}");
        assert!(!victim.seen().is_empty());
    });
}
