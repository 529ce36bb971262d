//! The mirror before registries that say what a test has them say.

mod apart;
mod connections;
mod queue;
mod unusable;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::Instant;

use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::catalog::Manifest;
use super::route::Version;
use super::*;
use crate::blobs::{Algorithm, BlobDigest, BlobKey};
use crate::upstream::UpstreamConfig;
use chunks::PolicyKind;
use serving::load::Level;

/// A registry that has what is at these paths, for who brings this `Authorization`.
#[derive(Debug)]
struct Registry {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    has: Mutex<BTreeMap<String, Bytes>>,
    /// What it was asked, `METHOD PATH`.
    asked: Mutex<Vec<String>>,
    /// Whether it sends bodies without saying how long they are, each when so many were asked for.
    chunked: Mutex<Option<Arc<Barrier>>>,
    /// What holds back the second half of a body, if something does.
    held: Mutex<Option<Arc<Barrier>>>,
}

impl Registry {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let serving = Arc::clone(&shared);
        // It ends with the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || drop(shared.converse(&client)));
            }
        });
        Self { address, shared }
    }

    fn put(&self, path: &str, body: &[u8]) -> BlobDigest {
        let body = Bytes::copy_from_slice(body);
        let digest = BlobDigest::of(Algorithm::Sha256, &body);
        let mut has = self.shared.has.lock();
        has.insert(format!("/v2/{path}"), body.clone());
        let (repository, kind) = path.rsplit_once('/').unwrap();
        let by_digest = match repository.ends_with("/manifests") {
            true => format!("/v2/{repository}/{digest}"),
            false => format!("/v2/{repository}/{kind}"),
        };
        has.insert(by_digest, body);
        digest
    }

    fn put_blob(&self, repository: &str, body: &[u8]) -> BlobDigest {
        let digest = BlobDigest::of(Algorithm::Sha256, body);
        self.put(&format!("{repository}/blobs/{digest}"), body)
    }

    fn upstream(&self, name: &str) -> Arc<Upstream> {
        let config = UpstreamConfig {
            redirect_networks: Vec::new(),
            name: name.to_owned(),
            url: format!("http://{}", self.address),
            login: None,
            token_hosts: Vec::new(),
            authorities: Vec::new(),
        };
        Arc::new(Upstream::new(config).unwrap())
    }

    fn count(&self, beginning: &str) -> usize {
        let asked = self.shared.asked.lock();
        asked
            .iter()
            .filter(|line| line.starts_with(beginning))
            .count()
    }
}

impl Shared {
    fn converse(&self, mut client: &TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(client).lines();
        while let Some(line) = lines.next() {
            let line = line?;
            while !lines.next().transpose()?.unwrap_or_default().is_empty() {}
            let asked = line.strip_suffix(" HTTP/1.1").unwrap_or(&line).to_owned();
            self.asked.lock().push(asked.clone());
            let (method, path) = asked.split_once(' ').unwrap();
            let body = self.has.lock().get(path).cloned();
            let Some(body) = body else {
                client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            };
            let digest = BlobDigest::of(Algorithm::Sha256, &body);
            write!(
                client,
                "HTTP/1.1 200 OK\r\nContent-Type: application/x\r\nDocker-Content-Digest: {digest}\r\n"
            )?;
            let gate = self.chunked.lock().clone();
            match gate.filter(|_| method == "GET") {
                Some(gate) => {
                    write!(client, "Transfer-Encoding: chunked\r\n\r\n1\r\n")?;
                    client.write_all(&body[..1])?;
                    gate.wait();
                    write!(client, "\r\n{:x}\r\n", body.len() - 1)?;
                    client.write_all(&body[1..])?;
                    client.write_all(b"\r\n0\r\n\r\n")?;
                }
                None => {
                    write!(client, "Content-Length: {}\r\n\r\n", body.len())?;
                    if method == "GET" {
                        let (first, second) = body.split_at(body.len() / 2);
                        client.write_all(first)?;
                        let held = self.held.lock().clone();
                        held.map(|held| held.wait());
                        client.write_all(second)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn mirror(dir: &Path, registries: Vec<(Arc<Upstream>, Access)>) -> Arc<Mirror> {
    let config = MirrorConfig {
        tag_ttl: Duration::ZERO,
        absent_ttl: Duration::from_secs(600),
        blobs: BlobConfig {
            budget: 1 << 30,
            hold_back: 1 << 20,
            policy: PolicyKind::Lru,
        },
        load: Arc::default(),
        fetch_rate: None,
    };
    Mirror::open(dir, config, registries).unwrap()
}

/// Asks as a client of this machine does, and returns status, source and body.
async fn get(mirror: &Arc<Mirror>, path: &str, login: Option<&str>) -> (u16, Source, Bytes) {
    let mut request = Request::get(format!("/v2/{path}"));
    if let Some(login) = login {
        request = request.header(AUTHORIZATION, distribution::basic(login, "password"));
    }
    let request = request.body(()).unwrap();
    let peer = [127, 0, 0, 1].into();
    let (_, source, reply) = mirror.answer(peer, &request).await;
    let status = reply.status().as_u16();
    let body = reply.into_body().collect().await;
    (
        status,
        source,
        body.map(|body| body.to_bytes()).unwrap_or_default(),
    )
}

fn naming(digests: &[&BlobDigest]) -> Vec<u8> {
    let layers: Vec<_> = digests
        .iter()
        .map(|digest| format!(r#"{{"digest":"{digest}"}}"#))
        .collect();
    format!(r#"{{"layers":[{}]}}"#, layers.join(",")).into_bytes()
}

/// Blocks are made of images of open registries: not of what a manifest there names of others.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_not_whole_with_what_is_anothers() {
    let (dir, private, open) = (
        tempfile::tempdir().unwrap(),
        Registry::start(),
        Registry::start(),
    );
    let secret = private.put_blob("alice/app", b"a secret layer");
    let own = open.put_blob("eve/app", b"a layer of Eve's");
    open.put("eve/app/manifests/evil", &naming(&[&own, &secret]));
    open.put("eve/app/manifests/good", &naming(&[&own]));
    let registries = vec![
        (private.upstream("r.corp"), Access::Upstream),
        (open.upstream("docker.io"), Access::All),
    ];
    let mirror = mirror(dir.path(), registries);
    let path = format!("r.corp/alice/app/blobs/{secret}");
    assert_eq!(get(&mirror, &path, Some("alice")).await.0, 200);
    for what in ["manifests/evil", "manifests/good", &format!("blobs/{own}")] {
        assert_eq!(
            get(&mirror, &format!("docker.io/eve/app/{what}"), None)
                .await
                .0,
            200
        );
    }
    let names: Vec<_> = mirror
        .whole_images()
        .into_iter()
        .map(|image| image.name)
        .collect();
    assert_eq!(names, ["docker.io/eve/app:good"]);
}

/// Who comes while a blob grows for somebody else is asked about before it gets any of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_grows_for_one_is_not_for_another() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let secret = registry.put_blob("alice/app", &vec![7; 3 << 20]);
    registry.put("eve/app/manifests/v1", &naming(&[&secret]));
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("r.corp"), Access::Upstream)],
    );
    assert_eq!(
        get(&mirror, "r.corp/eve/app/manifests/v1", Some("eve"))
            .await
            .0,
        200
    );
    let asks = (0..20).map(|number| {
        let (mirror, secret) = (Arc::clone(&mirror), secret.clone());
        tokio::spawn(async move {
            let (who, status) = [("alice", 200), ("eve", 404)][number % 2];
            let path = format!("r.corp/{who}/app/blobs/{secret}");
            assert_eq!(get(&mirror, &path, Some(who)).await.0, status, "{who}");
        })
    });
    for ask in asks.collect::<Vec<_>>() {
        ask.await.unwrap();
    }
    // Whoever is first, and however often: it is here now, once.
    assert!(mirror.blobs.is_here(&BlobKey {
        realm: Realm::of("r.corp"),
        digest: secret,
    }));
}

/// The same, with the blob half here.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_half_here_for_one_is_not_for_another() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let secret = registry.put_blob("alice/app", &vec![7; 3 << 20]);
    registry.put("eve/app/manifests/v1", b"{}");
    let rules = vec![(registry.upstream("r.corp"), Access::Upstream)];
    let mirror = mirror(dir.path(), rules);
    let tag = "r.corp/eve/app/manifests/v1";
    assert_eq!(get(&mirror, tag, Some("eve")).await.0, 200);
    let held = Arc::new(Barrier::new(2));
    *registry.shared.held.lock() = Some(Arc::clone(&held));
    let (asking, path) = (
        Arc::clone(&mirror),
        format!("r.corp/alice/app/blobs/{secret}"),
    );
    let hers = tokio::spawn(async move { get(&asking, &path, Some("alice")).await.0 });
    let key = BlobKey {
        realm: Realm::of("r.corp"),
        digest: secret.clone(),
    };
    while !mirror.blobs.is_here(&key) {
        tokio::task::yield_now().await;
    }
    let path = format!("r.corp/eve/app/blobs/{secret}");
    let eves = tokio::spawn(async move { get(&mirror, &path, Some("eve")).await.0 });
    // If she waits for the second half, the mirror asks for it once more after a while; and then both of
    // those who hold it back let each other go.
    let asked = format!("GET /v2/alice/app/blobs/{secret}");
    while !eves.is_finished() && registry.count(&asked) < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    if registry.count(&asked) < 2 {
        tokio::task::spawn_blocking(move || held.wait())
            .await
            .unwrap();
    }
    assert_eq!(
        timeout(Duration::from_secs(60), eves)
            .await
            .unwrap()
            .unwrap(),
        404
    );
    assert_eq!(hers.await.unwrap(), 200);
}

/// An answer that does not say how long it is takes what it has, and not what it may have.
#[tokio::test(flavor = "multi_thread")]
async fn many_short_answers_of_unknown_length_are_served_at_once() {
    const AT_ONCE: usize = 40;
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    *registry.shared.chunked.lock() = Some(Arc::new(Barrier::new(AT_ONCE)));
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    let asks: Vec<_> = (0..AT_ONCE)
        .map(|number| {
            registry.put(
                &format!("a/manifests/v{number}"),
                format!("{{\"n\":{number}}}").as_bytes(),
            );
            let mirror = Arc::clone(&mirror);
            tokio::spawn(async move {
                get(&mirror, &format!("a/manifests/v{number}"), None)
                    .await
                    .0
            })
        })
        .collect();
    for ask in asks {
        assert_eq!(ask.await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_unknown_length_have_the_bound_of_others() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    *registry.shared.chunked.lock() = Some(Arc::new(Barrier::new(1)));
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    let long = " ".repeat(4 << 20) + "{}";
    registry.put("a/manifests/long", long.as_bytes());
    registry.put(
        "a/manifests/longer",
        (" ".repeat(5 << 20) + "{}").as_bytes(),
    );
    let held: Vec<_> = (0..15)
        .map(|_| mirror.documents.copy(&long.as_bytes()[..4 << 20]))
        .collect();
    assert!(held.iter().all(Option::is_some));
    // There is room for less than 4 MiB and 2 bytes.
    let more = mirror.documents.copy(&long.as_bytes()[..1 << 20]);
    assert_eq!(get(&mirror, "a/manifests/long", None).await.0, 404);
    drop(more);
    drop(held);
    let (status, _, body) = get(&mirror, "a/manifests/long", None).await;
    assert_eq!((status, body.len()), (200, long.len()));
    assert_eq!(get(&mirror, "a/manifests/longer", None).await.0, 404);
    drop(body);
    let all: Vec<_> = (0..16)
        .map(|_| mirror.documents.copy(&long.as_bytes()[..4 << 20]))
        .collect();
    assert!(all.iter().all(Option::is_some), "all room is given back");
}

/// A new version for which there is no memory is no reason to have none.
#[tokio::test(flavor = "multi_thread")]
async fn without_memory_for_the_new_the_old_is_served() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    registry.put("a/manifests/v1", b"{}");
    registry.put("a/tags/list", b"[]");
    for path in ["a/manifests/v1", "a/tags/list"] {
        assert_eq!(get(&mirror, path, None).await.0, 200);
    }
    let long = vec![b' '; 4 << 20];
    registry.put("a/manifests/v1", &long);
    registry.put("a/tags/list", &long);
    let held: Vec<_> = (0..16).map(|_| mirror.documents.copy(&long)).collect();
    for (path, old) in [("a/manifests/v1", "{}"), ("a/tags/list", "[]")] {
        let (status, source, body) = get(&mirror, path, None).await;
        assert_eq!(
            (status, source, &body[..]),
            (200, Source::Stale, old.as_bytes()),
            "{path}"
        );
    }
    drop(held);
    assert_eq!(get(&mirror, "a/manifests/v1", None).await.2, long);
}

/// What the registry said is believed for a while, and for longer while it is away.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_is_asked_for_again_after_a_while() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let mirror = mirror(
        dir.path(),
        vec![(registry.upstream("docker.io"), Access::All)],
    );
    let blob = registry.put_blob("a", b"a layer");
    let path = format!("a/blobs/{blob}");
    let head = format!("HEAD /v2/{path}");
    for _ in 0..3 {
        assert_eq!(get(&mirror, &path, None).await.0, 200);
    }
    assert_eq!(registry.count(&head), 0);
    let upstream = Arc::clone(mirror.upstreams.named("docker.io").unwrap());
    let scope = Scope {
        registry: "docker.io".to_owned(),
        repository: "a".to_owned(),
    };
    let key = proof::ProofKey::new(Principal::Mirror, &scope, Some(&blob));
    let said = |ago: Duration| mirror.catalog.put_proof_of(&key, ago);
    // An hour later it is asked, once.
    said(Duration::from_secs(3600));
    for _ in 0..3 {
        assert_eq!(get(&mirror, &path, None).await.1, Source::Hit);
    }
    assert_eq!(registry.count(&head), 1);
    // When it is away, what it said long ago is good enough; not for ever.
    upstream.note_outage();
    said(Duration::from_secs(29 * 24 * 3600));
    let (status, source, _) = get(&mirror, &path, None).await;
    assert_eq!((status, source), (200, Source::Stale));
    said(Duration::from_secs(31 * 24 * 3600));
    registry.shared.has.lock().clear();
    assert_eq!(get(&mirror, &path, None).await.0, 404);
    // And when it is there, its word counts: it was removed.
    said(Duration::from_secs(3601));
    assert_eq!(get(&mirror, &path, None).await.0, 404);
    let asked = registry.count(&head);
    assert_eq!(get(&mirror, &path, None).await.0, 404);
    assert_eq!(registry.count(&head), asked, "that is believed, too");
}

/// A manifest that is here for one registry is not for another that says that it has it.
#[tokio::test(flavor = "multi_thread")]
async fn manifests_of_one_registry_are_not_anothers() {
    let (dir, private, open) = (
        tempfile::tempdir().unwrap(),
        Registry::start(),
        Registry::start(),
    );
    let secret = private.put("alice/app/manifests/v1", b"{\"secret\":1}");
    // It says that it has it, and sends something else.
    let path = format!("/v2/eve/app/manifests/{secret}");
    open.shared
        .has
        .lock()
        .insert(path, Bytes::from_static(b"{}"));
    let registries = vec![
        (private.upstream("r.corp"), Access::Upstream),
        (open.upstream("docker.io"), Access::All),
    ];
    let mirror = mirror(dir.path(), registries);
    let hers = get(&mirror, "r.corp/alice/app/manifests/v1", Some("alice")).await;
    assert_eq!(hers.0, 200);
    let key = BlobKey::open(secret.clone());
    assert!(!mirror.catalog.has(&key));
    let stolen = get(
        &mirror,
        &format!("docker.io/eve/app/manifests/{secret}"),
        None,
    )
    .await;
    assert_eq!(stolen.0, 404);
    // The operator's programs find it by its digest.
    assert_eq!(mirror.document(&secret.to_string()), Some(hers.2));
    let version = Version::Digest(secret);
    let done = mirror
        .prewarm("r.corp", "alice/app", version, "amd64")
        .await;
    assert_eq!(done.map(|(done, _)| done.blobs).ok(), Some(0));
    let manifest = Manifest {
        media_type: "application/x".to_owned(),
        bytes: Bytes::new(),
    };
    mirror.catalog.put_manifest(&key, &manifest);
    assert_eq!(mirror.catalog.document(&key), None);
}

#[test]
fn conditions_as_the_standard_has_them() {
    let etag = "\"sha256:1\"";
    let holds = |conditions: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for condition in conditions {
            let value = HeaderValue::from_static(condition);
            headers.append(hyper::header::IF_NONE_MATCH, value);
        }
        has_it(&headers, etag)
    };
    assert!(holds(&["\"sha256:1\""]));
    assert!(holds(&["\"a\", \"sha256:1\""]));
    assert!(holds(&["\"a\"", "W/\"sha256:1\""]));
    assert!(holds(&["*"]));
    assert!(!holds(&[]));
    assert!(!holds(&["\"sha256:2\"", "sha256:1", ""]));
}

/// Under pressure nobody is asked, so who was never given something is not given it now, though it is here.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_here_and_not_proved_is_not_given_while_nothing_may_be_asked() {
    let (dir, registry) = (tempfile::tempdir().unwrap(), Registry::start());
    let blob = registry.put_blob("alice/app", b"a layer");
    registry.put_blob("bob/app", b"a layer");
    registry.put("bob/app/manifests/v1", b"{}");
    let rules = vec![(registry.upstream("r.corp"), Access::Upstream)];
    let mirror = mirror(dir.path(), rules);
    let ask = |who: &'static str| {
        let (mirror, path) = (&mirror, format!("r.corp/{who}/app/blobs/{blob}"));
        async move { get(mirror, &path, Some(who)).await }
    };
    let head = format!("HEAD /v2/bob/app/blobs/{blob}");
    let tag = "r.corp/bob/app/manifests/v1";
    assert_eq!(get(&mirror, tag, Some("bob")).await.0, 200);
    assert_eq!(ask("alice").await.0, 200);
    let load = &mirror.config.load;
    load.set(Level::Shedding, Some("a test".to_owned()));
    let shed = load.report().shed;
    let (status, _, said) = ask("bob").await;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(status, 404);
    assert!(said.contains("TOOMANYREQUESTS"), "{said}");
    assert_eq!(registry.count(&head), 0, "nobody was asked");
    assert!(load.report().shed > shed, "and it is counted");
    // Who was given it has it.
    assert_eq!(ask("alice").await.0, 200);
    load.set(Level::Normal, None);
    assert_eq!(ask("bob").await.0, 200);
    assert_eq!(registry.count(&head), 1);
}
