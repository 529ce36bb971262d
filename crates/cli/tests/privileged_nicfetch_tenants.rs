//! Tenants of one mirror that know each other's digests: each gets what its registry gives it, and
//! nothing else that is here.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nic;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use hyper::Method;
use lab::{ok, until};
use mirror::blobs::{Algorithm, BlobDigest};
use mirror::testing::Fault;
use nic::{Mirror, Reply, Site, connect, read_reply};
use serde_json::{Value, json};
use testkit::layouts;
use testkit::layouts::{LayoutDir, MANIFEST, layer, named};
use testkit::registries::{Kind, Registry, USER};
use testkit::tokens::{Tenant, TokenServer};

/// Whose digests are known to others. Her image is the one that a site has.
const ALICE: Tenant<'_> = (USER, "library/deb");
const EVE: Tenant<'_> = (("eve", "knows digests"), "eve/app");
/// What clients call the registry that both have logins of.
const CORP: &str = "registry.corp:5000";

/// More often than any test asks.
const ALWAYS: u32 = 10_000;

/// A registry with an image of Alice's and one of Eve's, who names Alice's digests in a manifest.
struct Tenants {
    tokens: TokenServer,
    site: Site,
    /// The manifest of Alice's image.
    manifest: String,
}

impl Tenants {
    fn new() -> Self {
        let tokens = TokenServer::start_for(&[ALICE, EVE]);
        let site = Site::of(tokens.registry(), Kind::DockerWithUsers);
        let image = fs::read(site.path("image/index.json")).unwrap();
        let image: Value = serde_json::from_slice(&image).unwrap();
        let manifest = image["manifests"][0]["digest"].as_str().unwrap();
        let manifest = manifest.to_owned();
        let ((name, password), repository) = EVE;
        push(&site, &site.registry, repository, Some((name, password)));
        let tenants = Self {
            tokens,
            site,
            manifest,
        };
        let token = tenants.tokens.token(&EVE, "pull,push");
        let registry = connect(loopback(tenants.site.registry.port));
        tenants.name_alices(registry, &format!("Authorization: Bearer {token}\r\n"));
        tenants
    }

    /// Returns everything of Alice's image, by path behind the repository.
    fn alices(&self) -> Vec<String> {
        let blobs = self.site.blobs.iter();
        let blobs = blobs.map(|(digest, _)| format!("blobs/{digest}"));
        blobs
            .chain([format!("manifests/{}", self.manifest)])
            .collect()
    }

    /// Pushes Eve's manifest once more, as `evil`, with all digests of Alice's in it.
    fn name_alices(&self, registry: TcpStream, login: &str) {
        let image = fs::read(self.site.path("eve/index.json")).unwrap();
        let image: Value = serde_json::from_slice(&image).unwrap();
        let digest = image["manifests"][0]["digest"].as_str().unwrap();
        let path = self.site.path("eve/blobs").join(digest.replace(':', "/"));
        let mut manifest: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let digests = self.site.blobs.iter().map(|(digest, _)| digest);
        let named = digests.chain([&self.manifest]);
        manifest["blobs"] = named
            .map(|digest| json!({"mediaType": layouts::GZIP, "digest": digest, "size": 1}))
            .collect();
        let put = put(registry, login, "/v2/eve/app/manifests/evil", &manifest);
        assert_eq!(put.status, 201, "{}", String::from_utf8_lossy(&put.body));
    }

    /// Starts a mirror of this registry, each of whose clients bring their own login, and of others.
    fn mirror(&self, store: &str, more: &[Value]) -> Mirror {
        let url = format!("http://{}", self.site.proxy.address());
        let corp = json!({"name": CORP, "url": url, "access": "upstream"});
        let upstreams = [&[corp], more].concat();
        let config = json!({
            "listen": "127.0.0.1:0", "store": self.site.path(store),
            "admin": format!("unix:{}", self.site.path(&format!("{store}.admin")).display()),
            "tag_ttl_seconds": 600, "absent_ttl_seconds": 600,
            "upstreams": upstreams,
        });
        let path = self.site.path(&format!("{store}.json"));
        fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        command.env("YOLOFS_LOG", "warn");
        Mirror::start_as(command, &["--config", path.to_str().unwrap()])
    }

    /// Has Alice pull her image, as engines do.
    fn alice_pulls(&self, mirror: &Mirror) {
        let tag = get(mirror, &ALICE, ALICE.1, "manifests/v1");
        assert_eq!(digest_of(&tag), self.manifest);
        for what in self.alices() {
            let reply = get(mirror, &ALICE, ALICE.1, &what);
            assert!(what.ends_with(&digest_of(&reply)), "{what}");
        }
    }

    /// Has Eve try everything of Alice's, which nobody may give her.
    fn eve_gets_nothing(&self, mirror: &Mirror) {
        for what in self.alices() {
            for repository in [EVE.1, ALICE.1] {
                let reply = get(mirror, &EVE, repository, &what);
                assert!(matches!(reply.status, 401 | 404), "{repository} {what}");
            }
        }
    }
}

/// Pushes an image of Eve's own.
fn push(site: &Site, to: &Registry, repository: &str, login: Option<(&str, &str)>) {
    let dir = site.path("eve");
    let layout = LayoutDir(&dir);
    layout.start();
    let manifest = layout.image(&[layer(&[("mine", b"this is Eve's")])], &json!({}));
    layout.index(&[named(manifest, "v1")]);
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--insecure-policy", "--dest-tls-verify=false"]);
    if let Some((name, password)) = login {
        skopeo.args(["--dest-creds", &format!("{name}:{password}")]);
    }
    skopeo.arg(format!("oci:{}:v1", dir.display()));
    ok(skopeo.arg(format!("docker://{}/{repository}:v1", to.host())));
}

fn put(mut to: TcpStream, login: &str, path: &str, manifest: &Value) -> Reply {
    let body = manifest.to_string();
    write!(
        to,
        "PUT {path} HTTP/1.1\r\nHost: registry\r\n{login}Content-Type: {MANIFEST}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    read_reply(to)
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Asks for something of a repository in a tenant's name.
fn get(mirror: &Mirror, tenant: &Tenant<'_>, repository: &str, what: &str) -> Reply {
    let ((name, password), _) = tenant;
    let login = distribution::basic(name, password);
    let path = format!("/v2/{repository}/{what}?ns={CORP}");
    mirror.get(&path, &[&format!("Authorization: {login}")])
}

/// Asks for something that everybody may have.
fn get_open(mirror: &Mirror, registry: &str, repository: &str, what: &str) -> Reply {
    mirror.get(&format!("/v2/{repository}/{what}?ns={registry}"), &[])
}

fn digest_of(reply: &Reply) -> String {
    assert_eq!(reply.status, 200);
    BlobDigest::of(Algorithm::Sha256, &reply.body).to_string()
}

#[test]
fn privileged_a_manifest_that_names_what_is_anothers_opens_nothing() {
    let tenants = Tenants::new();
    let mirror = tenants.mirror("store", &[]);
    tenants.alice_pulls(&mirror);
    // The registry took a manifest with all of it, and serves none of it under that name.
    let evil = get(&mirror, &EVE, EVE.1, "manifests/evil");
    let evil: Value = serde_json::from_slice(&evil.body).unwrap();
    assert_eq!(evil["blobs"].as_array().unwrap().len(), 4);
    tenants.eve_gets_nothing(&mirror);
    // Her own she gets, and who may have it gets all of it still, with no second download.
    let own = evil["layers"][0]["digest"].as_str().unwrap();
    assert_eq!(
        digest_of(&get(&mirror, &EVE, EVE.1, &format!("blobs/{own}"))),
        own
    );
    tenants.alice_pulls(&mirror);
    let (long, size) = tenants.site.long();
    assert_eq!(tenants.site.proxy.body_bytes(long), size);
}

/// The registry that everybody may push to and pull from, beside one that asks for logins.
#[test]
fn privileged_a_manifest_of_an_open_registry_opens_nothing_of_a_private_one() {
    let tenants = Tenants::new();
    let open = Registry::start(Kind::Docker);
    push(&tenants.site, &open, EVE.1, None);
    tenants.name_alices(connect(loopback(open.port)), "");
    let url = format!("http://{}", open.host());
    let upstream = json!({"name": "docker.io", "url": url, "access": "all"});
    let mirror = tenants.mirror("store", &[upstream]);
    tenants.alice_pulls(&mirror);
    let evil = get_open(&mirror, "docker.io", EVE.1, "manifests/evil");
    assert_eq!(evil.status, 200);
    for what in tenants.alices() {
        let reply = get_open(&mirror, "docker.io", EVE.1, &what);
        assert_eq!(reply.status, 404, "{what}");
    }
}

/// A registry that says of everything that it has it, and has nothing.
fn liar() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the test.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || drop(lie(&client)));
        }
    });
    address
}

fn lie(client: &TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(client).lines();
    while let Some(line) = lines.next() {
        let line = line?;
        while !lines.next().transpose()?.unwrap_or_default().is_empty() {}
        let mut client = client;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        client.write_all(head.as_bytes())?;
        if line.starts_with("GET") {
            client.write_all(b"something")?;
        }
    }
    Ok(())
}

#[test]
fn privileged_a_registry_that_lies_gets_nothing_of_another_for_its_clients() {
    let tenants = Tenants::new();
    let url = format!("http://{}", liar());
    let lies = json!({"name": "lies.example", "url": url, "access": "all"});
    let mirror = tenants.mirror("store", &[lies]);
    tenants.alice_pulls(&mirror);
    for what in tenants.alices() {
        let path = format!("/v2/{}/{what}?ns=lies.example", EVE.1);
        // What it says of the length is its own affair.
        let _head = mirror.head(&path);
        let reply = mirror.get(&path, &[]);
        let is_hers = reply.status == 200
            && what.ends_with(&BlobDigest::of(Algorithm::Sha256, &reply.body).to_string());
        assert!(!is_hers, "{what}");
    }
}

/// Returns where a store has a blob that is whole.
fn file_of(store: &Path, digest: &str) -> PathBuf {
    let mut dirs = vec![store.to_owned()];
    let hex = digest.strip_prefix("sha256:").unwrap();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(hex) {
                return path;
            }
            if path.is_dir() {
                dirs.push(path);
            }
        }
    }
    panic!("{digest} is not in {}", store.display());
}

#[test]
fn privileged_what_a_crash_left_is_for_those_whom_the_registry_gives_it() {
    let tenants = Tenants::new();
    let mirror = tenants.mirror("store", &[]);
    tenants.alice_pulls(&mirror);
    mirror.kill();
    // As if it had been killed before the last step: all bytes are there, under the name of a part.
    let (long, size) = tenants.site.long();
    let whole = file_of(&tenants.site.path("store"), long);
    let parts = whole.ancestors().nth(3).unwrap().join("parts");
    let part = parts.join(long.replace(':', "-"));
    fs::rename(whole, &part).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let journal = json!({"size": size, "etag": null, "boot": boot.trim(), "synced": size});
    fs::write(part.with_extension("json"), journal.to_string()).unwrap();
    let mirror = tenants.mirror("store", &[]);
    // What Eve may have is known: she was let in.
    assert_eq!(get(&mirror, &EVE, EVE.1, "manifests/evil").status, 200);
    let before = tenants.site.proxy.requests(&Method::HEAD, long);
    tenants.eve_gets_nothing(&mirror);
    tenants.alice_pulls(&mirror);
    assert!(tenants.site.proxy.requests(&Method::HEAD, long) > before);
    // It was all there.
    assert_eq!(tenants.site.proxy.body_bytes(long), size);
}

/// Who may have an image of another repository is asked about, each blob once, all at once, and no
/// more often.
#[test]
fn privileged_the_blobs_of_a_pull_are_asked_for_together_and_once() {
    let site = Site::new(Kind::Docker);
    site.push("library/other:v1", Kind::Docker);
    let mirror = site.configured("store", &json!({}));
    for what in ["deb", "other", "other"] {
        site.proxy.forget();
        let tag = mirror.get(&format!("/v2/library/{what}/manifests/v1"), &[]);
        assert_eq!(tag.status, 200);
        let asked = || site.proxy.requests(&Method::HEAD, "/blobs/");
        let is_first = what == "other" && site.proxy.requests(&Method::GET, "/v1") == 1;
        if is_first {
            until("all blobs to be asked for", || asked() == site.blobs.len());
        }
        for (digest, _) in &site.blobs {
            let blob = mirror.get(&format!("/v2/library/{what}/blobs/{digest}"), &[]);
            assert_eq!(&digest_of(&blob), digest);
        }
        let expected = if is_first { site.blobs.len() } else { 0 };
        assert_eq!(asked(), expected, "{what}");
    }
    assert_eq!(site.proxy.seen(), [], "nothing is asked for twice");
}

/// What a tenant was given before the registry went away it has still; others do not get it then.
#[test]
fn privileged_without_the_registry_each_has_what_it_was_given() {
    let tenants = Tenants::new();
    let mirror = tenants.mirror("store", &[]);
    tenants.alice_pulls(&mirror);
    assert_eq!(get(&mirror, &EVE, EVE.1, "manifests/evil").status, 200);
    tenants.site.proxy.inject("/", Fault::Status(503), ALWAYS);
    tenants.alice_pulls(&mirror);
    tenants.eve_gets_nothing(&mirror);
}
