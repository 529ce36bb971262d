//! The mirror before a real registry: what it fetches, what it survives, and who gets what. Gates
//! are requests and bytes of bodies, as the proxy between mirror and registry has counted them.

#![cfg(feature = "privileged")]

mod nic;

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use hyper::Method;
use lab::containerd::ContainerdRig;
use lab::dockerd::Dockerd;
use lab::{Lab, fails, json, ok, output, until};
use mirror::testing::Fault;
use nic::{Site, blob, connect, ended, read_reply};
use serde_json::json as value;
use testkit::registries::{Kind, USER};
use testkit::tokens::TokenServer;

/// More often than any test asks.
const ALWAYS: u32 = 10_000;

#[test]
fn privileged_any_number_of_clients_costs_one_download() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let (digest, size) = site.long();
    let head = mirror.head(&blob(digest));
    assert_eq!(head.status, 200);
    assert_eq!(head.headers["content-length"], size.to_string());
    let manifest = mirror.head("/v2/library/deb/manifests/v1");
    assert_eq!(manifest.status, 200);
    assert_eq!(site.proxy.body_bytes("/v2/"), 0, "a HEAD downloads nothing");
    // Slow enough that all of them come while it grows.
    site.proxy.shape(Duration::ZERO, Some(12 << 20));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| mirror.blob(digest));
        }
    });
    assert_eq!(site.proxy.body_bytes("/blobs/"), size);
    assert_eq!(site.proxy.requests(&Method::GET, "/blobs/"), 1);
    mirror.blob(digest);
    assert_eq!(site.proxy.body_bytes("/blobs/"), size);
    assert_eq!(mirror.metric("nicfetch_mirror_fetched_bytes_total"), size);
    assert_eq!(mirror.metric("nicfetch_mirror_sent_bytes_total"), size * 9);
}

#[test]
fn privileged_a_client_that_goes_away_stops_nothing() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let (digest, size) = site.long();
    site.proxy.shape(Duration::ZERO, Some(12 << 20));
    let mut client = connect(mirror.clients);
    write!(client, "GET {} HTTP/1.1\r\nHost: m\r\n\r\n", blob(digest)).unwrap();
    until("the fill to begin", || site.proxy.body_bytes("/blobs/") > 0);
    drop(client);
    until("the fill to end", || {
        mirror.metric("nicfetch_mirror_stored_blobs") == 1
    });
    mirror.blob(digest);
    assert_eq!(site.proxy.body_bytes("/blobs/"), size);
}

/// Each fault alone, before a cold cache and the client that bears least.
#[test]
fn privileged_no_single_fault_reaches_a_client() {
    let site = Site::new(Kind::Docker);
    let (digest, size) = site.long();
    let long = blob(digest);
    let manifests = "/manifests/";
    let faults = [
        ("cut", long.as_str(), Fault::Cut(size / 2)),
        ("cut-at-once", &long, Fault::Cut(0)),
        ("cut-at-the-end", &long, Fault::Cut(size - 1)),
        ("blob-500", &long, Fault::Status(500)),
        ("blob-503", &long, Fault::Status(503)),
        ("blob-429", &long, Fault::Status(429)),
        ("blob-late", &long, Fault::Delay(Duration::from_secs(1))),
        ("manifest-500", manifests, Fault::Status(500)),
        ("manifest-429", manifests, Fault::Status(429)),
        ("manifest-cut", manifests, Fault::Cut(10)),
        ("manifest-flip", manifests, Fault::Flip(10)),
        ("small-flip", "/blobs/", Fault::Flip(20)),
    ];
    for (name, path, fault) in faults {
        let mirror = site.mirror(name, &["--hold-back", "1G"]);
        site.proxy.inject(path, fault, 1);
        ok(&mut mirror.skopeo(&site.path(&format!("{name}-image"))));
        site.proxy.heal();
    }
    // A registry that knows no ranges sends again what was there.
    let mirror = site.mirror("no-range", &[]);
    site.proxy.inject(&long, Fault::Cut(size / 2), 1);
    site.proxy.inject(&long, Fault::NoRange, 1);
    ok(&mut mirror.skopeo(&site.path("no-range-image")));
    // Held back to its end, a wrong blob is fetched again before anybody has seen it.
    let mirror = site.mirror("flip", &["--hold-back", "1G"]);
    site.proxy.inject(&long, Fault::Flip(size / 2), 1);
    ok(&mut mirror.skopeo(&site.path("flip-image")));
    assert_eq!(mirror.metric("nicfetch_mirror_mismatches_total"), 1);
}

#[test]
fn privileged_a_wrong_blob_is_never_whole_for_anybody() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &["--hold-back", "64K"]);
    let (digest, size) = site.long();
    site.proxy.inject(&blob(digest), Fault::Flip(1000), 1);
    let reply = mirror.get(&blob(digest), &[]);
    assert_eq!(reply.status, 200);
    assert!(!reply.is_whole(), "the connection is cut");
    assert!(reply.body.len() as u64 <= size - (64 << 10));
    mirror.blob(digest);
    assert_eq!(
        site.proxy.body_bytes("/blobs/"),
        2 * size,
        "nothing of it was kept"
    );
}

#[test]
fn privileged_a_download_goes_on_after_a_crash() {
    let site = Site::new(Kind::Docker);
    let (digest, size) = site.long();
    let mirror = site.mirror("store", &[]);
    // So slow that it is not over before we look.
    site.proxy.shape(Duration::ZERO, Some(512 << 10));
    let mut client = connect(mirror.clients);
    write!(client, "GET {} HTTP/1.1\r\nHost: m\r\n\r\n", blob(digest)).unwrap();
    let part = site
        .path("store/mirror/parts")
        .join(digest.replace(':', "-"));
    let there = || std::fs::metadata(&part).map_or(0, |part| part.len());
    until("some of it to be on disk", || there() > 256 << 10);
    mirror.kill();
    let kept = there();
    site.proxy.shape(Duration::ZERO, None);
    let mirror = site.mirror("store", &[]);
    mirror.blob(digest);
    let seen = site.proxy.seen();
    let last = seen
        .iter()
        .rfind(|seen| seen.path.contains(digest))
        .unwrap();
    assert_eq!(last.body_bytes, size - kept);
}

#[test]
fn privileged_an_upstream_that_is_silent_is_not_missed() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &["--tag-ttl", "0"]);
    ok(&mut mirror.skopeo(&site.path("first")));
    site.proxy.inject("/", Fault::Silence, ALWAYS);
    let tag = "/v2/library/deb/manifests/v1";
    let reply = mirror.get(tag, &[]);
    assert_eq!(reply.status, 200);
    assert!(reply.headers["warning"].starts_with("110"));
    ok(&mut mirror.skopeo(&site.path("second")));
    // It starts without the upstream, too.
    drop(mirror);
    let mirror = site.mirror("store", &["--tag-ttl", "0"]);
    assert_eq!(
        mirror.head(tag).headers["warning"],
        "110 - \"Response is Stale\""
    );
    ok(&mut mirror.skopeo(&site.path("third")));
    until("the status to tell", || {
        let _stale = mirror.head(tag);
        let status = json(&mut mirror.ask(&["status", "--json"]));
        status["upstreams"][0]["out"] == true
    });
    // What is not here is refused within the deadlines, and not waited for.
    assert_eq!(
        mirror.get("/v2/library/other/manifests/v1", &[]).status,
        404
    );
    site.proxy.heal();
    until("the upstream to be asked again", || {
        !mirror.head(tag).headers.contains_key("warning")
    });
}

#[test]
fn privileged_ranges_are_served_before_the_blob_is_here() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let (digest, size) = site.long();
    site.proxy.shape(Duration::ZERO, Some(1 << 20));
    let (first, last) = (size - 5000, size - 4001);
    let range = format!("Range: bytes={first}-{last}");
    let early = mirror.get(&blob(digest), &[&range]);
    assert_eq!((early.status, early.body.len()), (206, 1000));
    let content_range = format!("bytes {first}-{last}/{size}");
    assert_eq!(early.headers["content-range"], content_range);
    // The same, and parts of it, cost nothing more, however many ask.
    let part = format!("Range: bytes={}-{last}", first + 100);
    thread::scope(|scope| {
        for _ in 0..8 {
            let (mirror, range, part, early) = (&mirror, &range, &part, &early);
            scope.spawn(move || {
                assert_eq!(mirror.get(&blob(digest), &[range]).body, early.body);
                assert_eq!(mirror.get(&blob(digest), &[part]).body, early.body[100..]);
            });
        }
    });
    site.proxy.shape(Duration::ZERO, None);
    let whole = mirror.blob(digest);
    let expected = &whole[usize::try_from(first).unwrap()..=usize::try_from(last).unwrap()];
    assert_eq!(early.body, expected);
    // Pieces of 4 KiB are fetched.
    let apart = (last / 4096 + 1) * 4096 - first / 4096 * 4096;
    let apart = apart.min(size - first / 4096 * 4096);
    assert_eq!(site.proxy.body_bytes("/blobs/"), size + apart);
    let late = mirror.get(&blob(digest), &[&range]);
    assert_eq!((late.status, late.body), (206, early.body));
    let suffix = mirror.get(&blob(digest), &["Range: bytes=-10"]);
    assert_eq!(
        (suffix.status, &suffix.body[..]),
        (206, &whole[whole.len() - 10..])
    );
    let beyond = mirror.get(&blob(digest), &[&format!("Range: bytes={size}-")]);
    assert_eq!(beyond.status, 416);
    assert_eq!(beyond.headers["content-range"], format!("bytes */{size}"));
    let several = mirror.get(&blob(digest), &["Range: bytes=0-1,5-6"]);
    assert_eq!(several.status, 400);
    let other = ["Range: bytes=0-1", "If-Range: \"another\""];
    assert_eq!(mirror.get(&blob(digest), &other).status, 200);
}

#[test]
fn privileged_a_hit_is_for_those_who_could_have_missed() {
    let site = Site::new(Kind::DockerWithUsers);
    site.push("library/other:v1", Kind::DockerWithUsers);
    let mirror = site.configured("ask", &value!({"access": "upstream"}));
    let (name, password) = USER;
    let login = |password: &str| {
        let value = distribution::basic(name, password);
        format!("Authorization: {value}")
    };
    let tag = "/v2/library/deb/manifests/v1";
    let anonymous = mirror.get(tag, &[]);
    assert_eq!(anonymous.status, 401);
    assert!(anonymous.headers["www-authenticate"].starts_with("Basic"));
    let (digest, size) = site.long();
    assert_eq!(mirror.get(tag, &[&login(password)]).status, 200);
    let mine = mirror.get(&blob(digest), &[&login(password)]);
    assert_eq!((mine.status, mine.body.len() as u64), (200, size));
    for headers in [vec![], vec![login("wrong")]] {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        assert_eq!(mirror.get(tag, &headers).status, 401);
        assert_eq!(mirror.get(&blob(digest), &headers).status, 401);
    }
    // The same blob in another repository is asked for, and not fetched again.
    let other = format!("/v2/library/other/blobs/{digest}");
    assert_eq!(mirror.get(&other, &[&login(password)]).status, 200);
    let nowhere = format!("/v2/library/nowhere/blobs/{digest}");
    assert_eq!(mirror.get(&nowhere, &[&login(password)]).status, 404);
    assert_eq!(site.proxy.body_bytes(digest), size);
    assert!(mirror.metric("nicfetch_mirror_denied_total") >= 5);
}

#[test]
fn privileged_clients_get_what_is_listed_for_them() {
    let site = Site::new(Kind::DockerWithUsers);
    let login = site.path("login");
    std::fs::write(
        &login,
        value!({"username": USER.0, "password": USER.1}).to_string(),
    )
    .unwrap();
    ok(std::process::Command::new("chmod").arg("600").arg(&login));
    let access = value!({"clients": [{"from": ["127.0.0.1"], "repositories": ["library/deb"]}]});
    let upstream = value!({"credentials": login, "access": access});
    let mirror = site.configured("listed", &upstream);
    mirror.blob(site.long().0);
    let asked = site.proxy.seen().len();
    assert_eq!(
        mirror.get("/v2/library/other/manifests/v1", &[]).status,
        404
    );
    assert_eq!(
        site.proxy.seen().len(),
        asked,
        "nobody asks for what is not allowed"
    );
    // One address may have six connections, and is told so when it opens another.
    let idle: Vec<_> = (0..6).map(|_| connect(mirror.clients)).collect();
    until("the six to be counted", || {
        let mut more = connect(mirror.clients);
        let _sent = more.write_all(b"GET /v2/ HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
        let mut head = [0; 12];
        let read = std::io::Read::read_exact(&mut more, &mut head);
        read.is_ok() && head.ends_with(b" 503")
    });
    drop(idle);
}

/// Docker Hub and most others want tokens, and know nobody by name and password but who gives them
/// out.
#[test]
fn privileged_a_registry_that_wants_tokens_gets_them() {
    let tokens = TokenServer::start("library/deb");
    let site = Site::of(tokens.registry(), Kind::DockerWithUsers);
    let (name, password) = USER;
    let with_password = |store: &str, password: &str| {
        let login = site.path(&format!("{store}.login"));
        let text = value!({"username": name, "password": password}).to_string();
        fs::write(&login, text).unwrap();
        fs::set_permissions(&login, Permissions::from_mode(0o600)).unwrap();
        site.configured(store, &value!({"credentials": login, "access": "all"}))
    };
    let tag = "/v2/library/deb/manifests/v1";
    let before = tokens.scopes().len();
    let mirror = with_password("ours", password);
    assert_eq!(mirror.get(tag, &[]).status, 200);
    site.blobs
        .iter()
        .for_each(|(digest, _)| drop(mirror.blob(digest)));
    // One token for all of it, and for no more than is needed.
    assert_eq!(tokens.scopes()[before..], ["repository:library/deb:pull"]);
    let elsewhere = mirror.get("/v2/library/other/manifests/v1", &[]);
    assert_eq!(elsewhere.status, 404);
    drop(mirror);
    let mirror = with_password("guessed", "guess");
    assert_eq!(mirror.get(tag, &[]).status, 404);
    assert_eq!(mirror.get(&blob(site.long().0), &[]).status, 404);
    drop(mirror);
    // Clients that bring their own: the token is theirs, and no other client's.
    let mirror = site.configured("theirs", &value!({"access": "upstream"}));
    let login = |password: &str| format!("Authorization: {}", distribution::basic(name, password));
    assert_eq!(mirror.get(tag, &[&login(password)]).status, 200);
    let mine = mirror.get(&blob(site.long().0), &[&login(password)]);
    assert_eq!((mine.status, mine.body.len() as u64), (200, site.long().1));
    for headers in [vec![], vec![login("guess")]] {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        assert_eq!(mirror.get(tag, &headers).status, 401);
        assert_eq!(mirror.get(&blob(site.long().0), &headers).status, 401);
    }
}

#[test]
fn privileged_registries_are_a_closed_world() {
    let site = Site::new(Kind::Docker);
    let mirror = site.configured("store", &value!({}));
    let base = mirror.get("/v2/", &[]);
    assert_eq!((base.status, &base.body[..]), (200, &b"{}"[..]));
    assert_eq!(
        base.headers["docker-distribution-api-version"],
        "registry/2.0"
    );
    assert!(
        site.proxy.seen().is_empty(),
        "the upstream is not asked whether it is one"
    );
    let elsewhere = format!("/v2/library/deb/manifests/v1?ns={}", site.registry.host());
    assert_eq!(mirror.get(&elsewhere, &[]).status, 404);
    let by_path = format!("/v2/{}/library/deb/manifests/v1", site.registry.host());
    assert_eq!(mirror.get(&by_path, &[]).status, 404);
    assert!(site.proxy.seen().is_empty());
    for path in [
        "/v2/library/deb/manifests/v1?ns=docker.io",
        "/v2/library/deb/manifests/v1?ns=registry-1.docker.io",
        "/v2/docker.io/library/deb/manifests/v1",
    ] {
        assert_eq!(mirror.get(path, &[]).status, 200, "{path}");
    }
    assert_eq!(
        mirror.get("/v2/?ns=docker.io", &[]).headers["oci-namespace"],
        "docker.io"
    );
    assert_eq!(site.proxy.requests(&Method::GET, "/manifests/"), 1);
    let tags = mirror.get("/v2/library/deb/tags/list", &[]);
    assert_eq!(tags.status, 200);
    assert!(String::from_utf8(tags.body).unwrap().contains("v1"));
    // Debian's registry has no referrers API; that is asked once.
    let referrers = format!("/v2/library/deb/referrers/{}", site.long().0);
    assert_eq!(mirror.get(&referrers, &[]).status, 404);
    assert_eq!(mirror.get(&referrers, &[]).status, 404);
    assert_eq!(site.proxy.requests(&Method::GET, "/referrers/"), 1);
    assert_eq!(
        mirror.get("/v2/library/deb/manifests/absent", &[]).status,
        404
    );
    assert_eq!(
        mirror.get("/v2/library/deb/manifests/absent", &[]).status,
        404
    );
    assert_eq!(site.proxy.requests(&Method::GET, "/manifests/absent"), 1);
    let only_html = mirror.get("/v2/library/deb/manifests/v1", &["Accept: text/html"]);
    assert_eq!(only_html.status, 404);
}

#[test]
fn privileged_the_budget_holds_and_what_is_too_long_passes_through() {
    let site = Site::new(Kind::Docker);
    let (digest, size) = site.long();
    let mirror = site.mirror("store", &["--size", "1M"]);
    assert!(size > 1 << 20);
    mirror.blob(digest);
    mirror.blob(&site.blobs[1].0);
    let blobs = &json(&mut mirror.ask(&["ls", "--json"]))["blobs"];
    assert_eq!(blobs.as_array().unwrap().len(), 1, "{blobs}");
    assert!(mirror.metric("nicfetch_mirror_stored_bytes") <= 1 << 20);
    site.proxy.inject(digest, Fault::Flip(10), ALWAYS);
    let wrong = mirror.get(&blob(digest), &[]);
    assert!(!wrong.is_whole(), "also what is not kept is verified");
}

#[test]
fn privileged_it_ends_when_it_has_answered() {
    let site = Site::new(Kind::Docker);
    let (digest, size) = site.long();
    let mut mirror = site.mirror("store", &[]);
    site.proxy.shape(Duration::ZERO, Some(6 << 20));
    let mut client = connect(mirror.clients);
    write!(client, "GET {} HTTP/1.1\r\nHost: m\r\n\r\n", blob(digest)).unwrap();
    until("the answer to begin", || site.proxy.body_bytes(digest) > 0);
    mirror.terminate();
    let reply = read_reply(client);
    assert_eq!(reply.body.len() as u64, size);
    assert_eq!(ended(&mut mirror), Some(0));
}

#[test]
fn privileged_an_operator_brings_and_removes() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let health = nic::operate(&mirror.admin, "GET", "/healthz", &[]);
    let ready = nic::operate(&mirror.admin, "GET", "/readyz", &[]);
    assert_eq!((health.status, ready.status), (200, 200));
    let done = json(&mut mirror.ask(&["prewarm", nic::IMAGE, "--json"]));
    assert_eq!(done["fetched_bytes"], site.bytes(), "{done}");
    let again = json(&mut mirror.ask(&["prewarm", nic::IMAGE, "--json"]));
    assert_eq!(again["fetched_bytes"], 0, "{again}");
    ok(&mut mirror.skopeo(&site.path("image-copy")));
    assert_eq!(site.proxy.body_bytes("/blobs/"), site.bytes());
    let removed = json(&mut mirror.ask(&["gc", "--json"]));
    assert_eq!(removed["blobs"], 0, "images need all of it");
    let browser = ["Origin: https://example.org"];
    assert_eq!(
        nic::operate(&mirror.admin, "POST", "/v1/gc", &browser).status,
        400
    );
    let absent = fails(1, &mut mirror.ask(&["prewarm", "library/absent"]));
    assert!(absent.contains("does not have it"), "{absent}");
    let taken = site.path("store");
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    second.args(["serve", "--upstream", "http://127.0.0.1:1", "--store"]);
    let second = output(second.arg(taken).args(["--listen", "127.0.0.1:0"]));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("another process"), "{said}");
}

/// Asks for the status at a socket, and prints what is answered.
const ASK: &str = r#"
    my $socket = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "connecting: $!";
    print $socket "GET /v1/status HTTP/1.1\r\nHost: me\r\nConnection: close\r\n\r\n";
    print while <$socket>;
"#;

#[test]
fn privileged_only_the_operator_operates() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let socket = Path::new(mirror.admin.strip_prefix("unix:").unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(socket), 0o600);
    json(&mut mirror.ask(&["status", "--json"]));
    // Others do not come in where somebody opened the door, either.
    fs::set_permissions(site.path("."), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(socket, Permissions::from_mode(0o666)).unwrap();
    let asked_by = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--clear-groups", "--"]);
        command
            .args(["perl", "-MIO::Socket::UNIX", "-e", ASK])
            .arg(socket);
        String::from_utf8(output(&mut command).stdout).unwrap()
    };
    assert!(asked_by("0").starts_with("HTTP/1.1 200"));
    let refused = asked_by("4321");
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(refused.contains("user 4321 may not"), "{refused}");
}

#[test]
fn privileged_over_a_port_the_operator_shows_a_token() {
    let site = Site::new(Kind::Docker);
    let token = site.path("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let upstream = format!("http://{}", site.proxy.address());
    let mut unguarded = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    unguarded.args(["serve", "--upstream", &upstream, "--admin", "127.0.0.1:0"]);
    let why = fails(1, &mut unguarded);
    assert!(why.contains("--token-file"), "{why}");
    let file = token.to_str().unwrap();
    let words = value!({"admin": "127.0.0.1:0", "token_file": token});
    let mirror = site.with_words("store", &words);
    let address = mirror.admin.parse().unwrap();
    let get = |path: &str, headers: &[&str]| nic::request(address, "GET", path, headers);
    assert_eq!(get("/readyz", &[]).status, 200);
    let refused = get("/metrics", &["Authorization: Bearer guess"]);
    assert_eq!(refused.status, 401);
    assert!(refused.headers["www-authenticate"].starts_with("Bearer"));
    let shown = ["Authorization: Bearer 0123456789abcdef0123456789abcdef"];
    assert_eq!(get("/metrics", &shown).status, 200);
    let why = fails(1, &mut mirror.ask(&["gc"]));
    assert!(why.contains("--token-file"), "{why}");
    json(&mut mirror.ask(&["gc", "--json", "--token-file", file]));
}

/// Three engines that were told of the mirror as their manuals say.
#[test]
fn privileged_engines_pull_through_it_and_fetch_nothing_twice() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let lab = Lab::new();
    let url = format!("http://{}", mirror.clients);
    let docker = Dockerd::start(&lab, &["--registry-mirror", &url]);
    docker.run(&["pull", "deb:v1"]);
    assert_eq!(site.proxy.body_bytes("/blobs/"), site.bytes());
    let hosts = lab.make_dir("hosts/docker.io");
    let toml = format!(
        "server = \"https://registry-1.docker.io\"\n\
         [host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    std::fs::write(hosts.join("hosts.toml"), toml).unwrap();
    let hosts = lab.path("hosts");
    let containerd = ContainerdRig::start(&lab);
    containerd.ctr(&[
        "images",
        "pull",
        "--hosts-dir",
        hosts.to_str().unwrap(),
        nic::IMAGE,
    ]);
    ok(&mut mirror.skopeo(&site.path("image-copy")));
    assert_eq!(site.proxy.body_bytes("/blobs/"), site.bytes());
    let repo_digests = docker.run(&[
        "image",
        "inspect",
        "-f",
        "{{index .RepoDigests 0}}",
        "deb:v1",
    ]);
    let manifest =
        mirror.head("/v2/library/deb/manifests/v1").headers["docker-content-digest"].clone();
    assert!(
        repo_digests.ends_with(&manifest),
        "{repo_digests} {manifest}"
    );
}
