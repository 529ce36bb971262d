//! The client before registries that send it elsewhere: what goes with a request, and how far it goes.

#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distribution::{Call, CallError, Client, ClientConfig, Destination, Inside, Login, Zone};
use reqwest::header::HeaderMap;
use reqwest::{Method, Response, Url};
use testkit::scripted::{Answer, Scripted, Seen, bearer, redirect};

/// `me:hunter2` in base64.
const LOGIN: &str = "Basic bWU6aHVudGVyMg==";

fn client(registry: &Scripted) -> Client {
    Client::new(config(registry)).unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

async fn get(client: &Client, url: &str) -> Result<Response, CallError> {
    send(client, Destination::Ours(url.parse().unwrap())).await
}

async fn send(client: &Client, place: Destination) -> Result<Response, CallError> {
    let login = Login {
        username: "me".to_owned(),
        password: "hunter2".to_owned(),
    };
    let call = Call {
        method: Method::GET,
        place,
        headers: HeaderMap::new(),
        body: &[],
        scope: "repository:a:pull",
        login: Some(&login),
    };
    client.send(&call).await
}

fn demand_basic() -> Answer {
    let demand = "Basic realm=\"x\"".to_owned();
    (401, vec![("WWW-Authenticate", demand)], "")
}

fn with_login(server: &Scripted) -> Vec<(String, bool)> {
    let seen = server.seen().into_iter();
    seen.map(|seen| (seen.path.clone(), seen.authorization() == Some(LOGIN)))
        .collect()
}

#[test]
fn a_login_stays_at_the_registry_and_does_not_come_back() {
    let back: Arc<OnceLock<String>> = Arc::default();
    let known = Arc::clone(&back);
    let other = Scripted::start(move |_: &Seen| redirect(302, known.get().unwrap()));
    let elsewhere = other.url("/cdn");
    let registry = Scripted::start(move |seen: &Seen| match seen.path.as_str() {
        "/end" => (200, vec![], "done"),
        _ if seen.authorization().is_none() => demand_basic(),
        "/first" => redirect(307, "/second"),
        _ => redirect(307, elsewhere.clone()),
    });
    back.set(registry.url("/end")).unwrap();
    let answer = run(get(&client(&registry), &registry.url("/first"))).unwrap();
    assert_eq!(answer.url().path(), "/end");
    let asked: Vec<_> = with_login(&registry);
    let expected = [
        ("/first", false),
        ("/first", true),
        ("/second", true),
        ("/end", false),
    ];
    assert_eq!(
        asked,
        expected.map(|(path, login)| (path.to_owned(), login))
    );
    assert_eq!(with_login(&other), [("/cdn".to_owned(), false)]);
}

/// Also at another port, and whatever it demands.
#[test]
fn a_demand_counts_from_the_registry_only() {
    let other = Scripted::start(|_: &Seen| demand_basic());
    let elsewhere = other.url("/cdn");
    let registry = Scripted::start(move |_: &Seen| redirect(307, elsewhere.clone()));
    let answer = run(get(&client(&registry), &registry.url("/a"))).unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    assert_eq!(registry.seen().len(), 1);
    assert_eq!(with_login(&other), [("/cdn".to_owned(), false)]);
}

fn inside(found: Result<Response, CallError>) -> Zone {
    match found {
        Err(CallError::Inside(Inside { zone, .. })) => zone,
        other => panic!("{other:?}"),
    }
}

/// The registry is on loopback, so that loopback is open to it, and the link is not.
#[test]
fn nothing_leads_further_inside() {
    for (host, zone) in [
        ("169.254.169.254", Zone::LinkLocal),
        ("[::ffff:169.254.169.254]", Zone::LinkLocal),
        ("[fe80::1]", Zone::LinkLocal),
        ("2852039166", Zone::LinkLocal), // the first one as one number
        ("0.0.0.0", Zone::Nowhere),
        ("[::]", Zone::Nowhere),
        ("224.0.0.1", Zone::Nowhere),
    ] {
        let there = format!("http://{host}/latest/meta-data/");
        let registry = Scripted::start(move |seen: &Seen| match seen.path.as_str() {
            "/realm" => bearer(&there),
            "/upload" => (202, vec![("Location", there.clone())], ""),
            _ => redirect(307, there.clone()),
        });
        let mut client = client(&registry);
        assert_eq!(
            inside(run(get(&client, &registry.url("/blob")))),
            zone,
            "{host}"
        );
        // An upload is named by an answer.
        let upload = async {
            let answer = get(&client, &registry.url("/upload")).await.unwrap();
            let place = answer.headers()["location"].to_str().unwrap().to_owned();
            send(&client, client.named_by(&answer, &place).unwrap()).await
        };
        assert_eq!(inside(run(upload)), zone, "{host}");
        // A realm that may have the password is still where it is.
        let host = Url::parse(&format!("http://{host}/")).unwrap();
        client = Client::new(ClientConfig {
            token_hosts: vec![host.host_str().unwrap().to_owned()],
            ..config(&registry)
        })
        .unwrap();
        assert_eq!(
            inside(run(get(&client, &registry.url("/realm")))),
            zone,
            "{host}"
        );
    }
}

fn config(registry: &Scripted) -> ClientConfig {
    ClientConfig {
        registry: registry.url("/").parse().unwrap(),
        user_agent: "test",
        token_hosts: Vec::new(),
        networks: Vec::new(),
        authorities: Vec::new(),
        proxy: None,
        connect: Duration::from_secs(20),
        answer: Duration::from_secs(20),
    }
}

#[test]
fn nobody_is_led_in_circles() {
    let registry = Scripted::start(|seen: &Seen| redirect(307, format!("{}x", seen.path)));
    let error = run(get(&client(&registry), &registry.url("/x"))).unwrap_err();
    assert!(matches!(error, CallError::Rule(_)), "{error:?}");
    assert_eq!(registry.seen().len(), 6);
}

/// An upload would be sent once more only to hear what is known.
#[test]
fn a_token_is_renewed_before_the_registry_refuses_the_old_one() {
    let tokens = Scripted::start(|_: &Seen| (200, vec![], r#"{"token":"t","expires_in":1}"#));
    let realm = tokens.url("/token");
    let registry = Scripted::start(move |seen: &Seen| match seen.authorization() {
        Some("Bearer t") => (200, vec![], ""),
        _ => bearer(&realm),
    });
    let client = client(&registry);
    run(async {
        for _ in 0..3 {
            let answer = get(&client, &registry.url("/a")).await.unwrap();
            assert_eq!(answer.status().as_u16(), 200);
        }
    });
    assert_eq!(tokens.seen().len(), 3);
    assert_eq!(registry.seen().len(), 4, "only the first was refused");
    assert_eq!(
        with_login(&tokens).iter().filter(|(_, sent)| *sent).count(),
        3
    );
}
