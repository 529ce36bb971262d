//! `bootimg push`, `pull` and `prewarm --pull` between nodes, over real registries.

// Needs no root, but docker-registry, skopeo, htpasswd, openssl and olareg.
#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

mod fixture;

use std::fs;
use std::io::{Cursor, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use blocks::{Digest, SourceId};
use bootimg::{Stack, Store, StoreConfig, layer_name, place_name};
use fixture::Fixture;
use lab::{json, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci::registry::{Access, RegistryConfig, Repository, Target, Transport};
use oci::{Descriptor, Manifest, Platform, Reference, digest_of};
use serde_json::Value;
use tempfile::TempDir;
use testkit::layouts;
use testkit::layouts::{LayoutDir, layer, named};
use testkit::registries::{Kind, Proxy, Registry, USER};

/// A container image in a layout, which any registry can get.
struct Image {
    dir: TempDir,
    id: Digest,
    layers: Vec<Digest>,
}

impl Image {
    fn new(word: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layout = LayoutDir(dir.path());
        layout.start();
        let layers = ["a", "b", "c"].map(|name| layer(&[(name, word.as_bytes())]));
        let image = named(layout.image(&layers, &serde_json::json!({})), "1");
        let blob = dir.path().join("blobs/sha256");
        let digest: Digest = image["digest"].as_str().unwrap().parse().unwrap();
        let manifest = Manifest::decode(&fs::read(blob.join(digest.hex())).unwrap()).unwrap();
        layout.index(&[image]);
        Self {
            dir,
            id: manifest.config.digest,
            layers: layers.iter().map(|layer| digest_of(layer)).collect(),
        }
    }

    /// Puts it into a registry as `some/app:1`.
    fn push(&self, registry: &Registry, kind: Kind) {
        let from = format!("oci:{}:1", self.dir.path().display());
        let to = format!("docker://{}/some/app:1", registry.host());
        let mut args = vec!["--insecure-policy", "copy", "--dest-tls-verify=false"];
        let login = format!("{}:{}", USER.0, USER.1);
        if kind == Kind::DockerWithUsers {
            args.extend(["--dest-creds", &login]);
        }
        args.extend([from.as_str(), &to]);
        layouts::run("skopeo", &args);
    }
}

fn store(fixture: &Fixture) -> Store {
    Store::open(fixture.path("store"), StoreConfig::default()).unwrap()
}

/// A node where the image was recorded: two of its three layers are needed at boot.
fn node_with(image: &Image, reference: &str) -> Fixture {
    let fixture = Fixture::new();
    for (log, layer) in [("one.log", &image.layers[0]), ("two.log", &image.layers[2])] {
        let name = layer_name(layer);
        let args = ["from-trace", "disk.raw", "--qemu", log, "--name", &name];
        run(&mut fixture.bootimg(&args));
    }
    let stack = Stack {
        reference: reference.to_owned(),
        image: image.id,
        manifest: None,
        layers: image.layers.clone(),
        recorded_at: 1_700_000_000,
        ready_ms: vec![50],
        command: Vec::new(),
    };
    store(&fixture).put_stack(&stack).unwrap();
    fixture
}

fn app(host: &str) -> String {
    format!("{host}/some/app:1")
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// Returns what a command says that must fail with code 1.
fn failing(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
    said
}

fn outcomes(pulled: &Value) -> Vec<&str> {
    let layers = pulled["layers"].as_array().unwrap();
    layers
        .iter()
        .map(|layer| layer["outcome"].as_str().unwrap())
        .collect()
}

fn ids(fixture: &Fixture, image: &Image) -> Vec<Option<String>> {
    let store = store(fixture);
    let id = |layer| store.layer(layer).unwrap().map(|id| id.to_string());
    image.layers.iter().map(id).collect()
}

/// Nobody's login.
fn bootimg(fixture: &Fixture, args: &[&str]) -> Command {
    let mut command = fixture.bootimg(args);
    command.env("DOCKER_CONFIG", fixture.path("docker"));
    command
}

fn travels_between_nodes(kind: Kind, found_by: &str) {
    let registry = Registry::start(kind);
    let image = Image::new("travels");
    image.push(&registry, kind);
    let app = app(&registry.host());
    let here = node_with(&image, &app);
    let foreseen = json(&mut bootimg(&here, &["push", &app, "--dry-run", "--json"]));
    assert_eq!(
        (&foreseen["artifact"], foreseen["layers_without"].as_u64()),
        (&Value::Null, Some(1))
    );
    let pushed = json(&mut bootimg(&here, &["push", &app, "--json"]));
    assert_eq!(pushed["found_by"], found_by);
    assert_eq!(pushed["layers"].as_array().unwrap().len(), 2);
    // Once more, by its ID: nothing is new.
    let again = json(&mut bootimg(
        &here,
        &["push", &image.id.hex()[..12], "--json"],
    ));
    assert_eq!(again["artifact"], pushed["artifact"]);
    assert!(
        again["layers"]
            .as_array()
            .unwrap()
            .iter()
            .all(|layer| layer["present"] == true)
    );
    assert_eq!(
        fs::read_dir(here.path("store"))
            .unwrap()
            .flatten()
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("recording-")
            })
            .count(),
        0
    );

    let there = Fixture::new();
    let pulled = json(&mut bootimg(&there, &["pull", &app, "--json"]));
    assert_eq!(outcomes(&pulled), ["pulled", "pulled"]);
    assert_eq!(ids(&there, &image), ids(&here, &image));
    let stack = store(&there).find_stack(&app).unwrap();
    assert_eq!(
        (stack.layers, stack.image),
        (image.layers.clone(), image.id)
    );
    assert_eq!(
        stack.manifest.map(|digest| digest.to_string()).as_deref(),
        pushed["subject"].as_str()
    );
    assert_eq!(
        fs::read_dir(there.path("store/pulling")).unwrap().count(),
        0
    );
    run(bootimg(&there, &["verify"]).arg(layer_name(&image.layers[0])));
    let again = json(&mut bootimg(&there, &["pull", &app, "--json"]));
    assert_eq!(
        (outcomes(&again), again["fetched_bytes"].as_u64()),
        (vec!["present", "present"], Some(0))
    );
    let warmed = json(&mut bootimg(&there, &["prewarm", &app, "--json"]));
    assert_eq!(warmed.as_array().unwrap().len(), 2);

    let third = Fixture::new();
    let said = failing(&mut bootimg(&third, &["prewarm", &app]));
    assert!(said.contains("--pull"), "{said}");
    let warmed = json(&mut bootimg(&third, &["prewarm", &app, "--pull", "--json"]));
    assert_eq!(warmed.as_array().unwrap().len(), 2);
}

#[test]
fn boot_images_travel_between_nodes_by_the_tag() {
    travels_between_nodes(Kind::Docker, "tag");
}

#[test]
fn boot_images_travel_between_nodes_by_the_referrers_api() {
    travels_between_nodes(Kind::Olareg, "registry");
}

fn with_password(mut command: Command, password: &str) -> Output {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(password.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn logins_come_from_flags_files_and_helpers() {
    let registry = Registry::start(Kind::DockerWithUsers);
    let image = Image::new("logins");
    image.push(&registry, Kind::DockerWithUsers);
    let (app, (name, password)) = (app(&registry.host()), USER);
    let fixture = node_with(&image, &app);
    let said = failing(&mut bootimg(&fixture, &["push", &app]));
    assert!(said.contains("--username"), "{said}");
    let flags = ["push", &app, "--username", name, "--password-stdin"];
    let output = with_password(bootimg(&fixture, &flags), "wrong\n");
    assert_eq!(output.status.code(), Some(1));
    let output = with_password(bootimg(&fixture, &flags), &format!("{password}\n"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let config = fixture.path("docker/config.json");
    fs::create_dir(fixture.path("docker")).unwrap();
    // What `docker login` writes: name:password in base64.
    let auth = "cmVhZGVyOnMzY3JldDp3aXRoOmNvbG9ucw==";
    let auths = format!(
        r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#,
        registry.host()
    );
    fs::write(&config, auths).unwrap();
    run(&mut bootimg(&fixture, &["pull", &app]));

    let helper = fixture.path("docker-credential-test");
    let script = format!(
        "#!/bin/sh\nread -r server\n[ \"$1 $server\" = 'get {}' ] || exit 1\n\
         echo '{{\"Username\":\"{name}\",\"Secret\":\"{password}\"}}'\n",
        registry.host()
    );
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&config, r#"{"credsStore":"test"}"#).unwrap();
    let path = format!(
        "{}:{}",
        helper.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    run(bootimg(&fixture, &["pull", &app]).env("PATH", path));
    fs::write(&config, r#"{"credsStore":"is-not-there"}"#).unwrap();
    let said = failing(&mut bootimg(&fixture, &["pull", &app]));
    assert!(said.contains("docker-credential-is-not-there"), "{said}");
}

#[test]
fn tls_needs_an_authority() {
    let registry = Registry::start(Kind::DockerWithTls);
    let image = Image::new("tls");
    image.push(&registry, Kind::DockerWithTls);
    let app = app(&registry.host());
    let fixture = node_with(&image, &app);
    let ca = registry.ca();
    let ca = ca.to_str().unwrap();
    run(&mut bootimg(&fixture, &["push", &app, "--ca", ca]));
    let there = Fixture::new();
    failing(&mut bootimg(&there, &["pull", &app]));
    run(&mut bootimg(&there, &["pull", &app, "--ca", ca]));
}

#[test]
fn an_interrupted_pull_goes_on_and_ctrl_c_ends_it() {
    let registry = Registry::start(Kind::Docker);
    let image = Image::new("interrupted");
    image.push(&registry, Kind::Docker);
    let direct = app(&registry.host());
    let here = node_with(&image, &direct);
    let pushed = json(&mut bootimg(&here, &["push", &direct, "--json"]));
    let bytes = |what: &Value| {
        what["layers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|layer| layer["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let proxy = Proxy::before(&registry);
    let app = app(&proxy.host());
    let there = Fixture::new();
    proxy.cut_after(100_000);
    failing(&mut bootimg(&there, &["pull", &app]));
    // What came is kept, and nothing half is in the store.
    let kept: u64 = parts(&there)
        .iter()
        .map(|part| fs::metadata(part).unwrap().len())
        .sum();
    assert!(kept > 50_000, "{kept}");
    assert!(store(&there).stacks().unwrap().is_empty());
    proxy.stop_cutting();
    let pulled = json(&mut bootimg(&there, &["pull", &app, "--json"]));
    assert_eq!(pulled["resumed_bytes"].as_u64(), Some(kept));
    assert_eq!(
        pulled["fetched_bytes"].as_u64(),
        Some(bytes(&pushed) - kept)
    );
    assert_eq!(ids(&there, &image), ids(&here, &image));

    proxy.hold();
    let (third, before) = (Fixture::new(), proxy.connections());
    let mut command = bootimg(&third, &["pull", &app]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    until("the pull waits for the registry", || {
        proxy.connections() > before
    });
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
}

fn parts(fixture: &Fixture) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixture.path("store/pulling")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_was_recorded_here_stays() {
    let registry = Registry::start(Kind::Docker);
    let image = Image::new("stays");
    image.push(&registry, Kind::Docker);
    let app = app(&registry.host());
    run(&mut bootimg(&node_with(&image, &app), &["push", &app]));
    let there = Fixture::new();
    // Here the first layer was recorded, with another outcome.
    let layer = &image.layers[0];
    let name = layer_name(layer);
    run(&mut there.bootimg(&[
        "from-trace",
        "disk.raw",
        "--qemu",
        "two.log",
        "--name",
        &name,
    ]));
    let id = store(&there).layer(layer).unwrap().unwrap();
    let place = place_name(layer, SourceId(blocks::ContentId([7; 32])));
    store(&there).name(&id, &place).unwrap();
    let pulled = json(&mut bootimg(&there, &["pull", &app, "--json"]));
    assert_eq!(outcomes(&pulled), ["kept", "pulled"]);
    assert_eq!(store(&there).layer(layer).unwrap(), Some(id));
    let pulled = json(&mut bootimg(&there, &["pull", &app, "--json", "--force"]));
    assert_eq!(outcomes(&pulled), ["pulled", "present"]);
    assert_ne!(store(&there).layer(layer).unwrap(), Some(id));
}

/// Mounts find their recordings by the source: one from elsewhere must not get between.
#[test]
fn what_claims_to_be_of_a_source_that_was_recorded_here_is_refused() {
    let registry = Registry::start(Kind::Docker);
    let image = Image::new("claims");
    image.push(&registry, Kind::Docker);
    let app = app(&registry.host());
    let fixture = node_with(&image, &app);
    run(&mut bootimg(&fixture, &["push", &app]));
    fixture.record("two");
    run(bootimg(&fixture, &["rm"]).arg(layer_name(&image.layers[0])));
    let said = failing(&mut bootimg(&fixture, &["pull", &app]));
    assert!(said.contains("which was recorded here"), "{said}");
    assert_eq!(ids(&fixture, &image)[0], None);
}

#[test]
fn an_image_that_is_another_or_not_there_is_said() {
    let registry = Registry::start(Kind::Docker);
    let image = Image::new("pushed");
    let app = app(&registry.host());
    let fixture = node_with(&image, &app);
    let said = failing(&mut bootimg(&fixture, &["push", &app]));
    assert!(said.contains("push the image first"), "{said}");
    let said = failing(&mut bootimg(&fixture, &["pull", &app]));
    assert!(said.contains("is not in the registry"), "{said}");
    Image::new("another").push(&registry, Kind::Docker);
    let said = failing(&mut bootimg(&fixture, &["push", &app]));
    assert!(said.contains("record it again"), "{said}");
    image.push(&registry, Kind::Docker);
    let said = failing(&mut bootimg(&fixture, &["pull", &app]));
    assert!(said.contains("bootimg push"), "{said}");
    let said = failing(&mut bootimg(&fixture, &["push", "never-recorded"]));
    assert!(said.contains("bootimg record never-recorded"), "{said}");
}

/// Whoever may write to the registry may write anything.
#[test]
fn hostile_artifacts_leave_the_store_as_it_was() {
    let registry = Registry::start(Kind::Docker);
    let image = Image::new("hostile");
    image.push(&registry, Kind::Docker);
    let app = app(&registry.host());
    run(&mut bootimg(&node_with(&image, &app), &["push", &app]));
    let reference: Reference = app.parse().unwrap();
    let config = RegistryConfig {
        transport: Transport::Plain,
        ..RegistryConfig::default()
    };
    let repository = Repository::open(&reference, Access::Push, &config).unwrap();
    let mut go = |_| ControlFlow::Continue(());
    let found = repository.image(&Target::of(&reference), &Platform::host(), &mut go);
    let subject = found.unwrap().unwrap().0.descriptor();
    let artifact_type = "application/vnd.yolofs.bootimage.v1";
    let good = &repository
        .referrers(subject.digest, artifact_type, &mut go)
        .unwrap()[0];
    let good = repository
        .manifest(&Target::Digest(good.digest), &mut go)
        .unwrap()
        .unwrap();
    let good = Manifest::decode(&good.bytes).unwrap();
    let garbage = b"this is no boot image";
    let push = |bytes: &[u8]| {
        let mut go = |_| ControlFlow::Continue(());
        repository
            .push_blob(
                digest_of(bytes),
                bytes.len() as u64,
                Cursor::new(bytes),
                &mut go,
            )
            .unwrap();
    };
    push(garbage);
    let garbled = |layer: &mut Descriptor| {
        (layer.digest, layer.size) = (digest_of(garbage), garbage.len() as u64);
    };
    type Harm<'a> = Box<dyn Fn(&mut Manifest) + 'a>;
    let harms: [(Harm<'_>, &str); 5] = [
        (Box::new(|m| garbled(&mut m.layers[0])), "too short"),
        (
            Box::new(|m| {
                (m.layers[0].digest, m.layers[0].size) = (m.layers[1].digest, m.layers[1].size);
            }),
            "not the announced boot image",
        ),
        (Box::new(|m| m.layers[0].size = 1 << 50), "--max-bytes"),
        (Box::new(|m| garbled(&mut m.config)), "cannot be used"),
        (
            Box::new(|m| m.config.digest = digest_of(b"not there")),
            "404",
        ),
    ];
    for (newer, (harm, why)) in harms.into_iter().enumerate() {
        let mut manifest = good.clone();
        harm(&mut manifest);
        let recorded_at = format!("{}", 2_000_000_000 + newer);
        manifest
            .annotations
            .insert("org.yolofs.recorded-at".to_owned(), recorded_at);
        if repository.push_artifact(&manifest, &mut go).is_err() {
            // This registry looks after its own: then nobody can find it either.
            continue;
        }
        let fixture = Fixture::new();
        let said = failing(&mut bootimg(&fixture, &["pull", &app]));
        assert!(said.contains(why), "{why}: {said}");
        assert!(store(&fixture).stacks().unwrap().is_empty());
        assert_eq!(ids(&fixture, &image), [None, None, None]);
    }
}
