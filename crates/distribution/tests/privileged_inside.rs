//! A hostile registry outside that leads to what only this machine reaches: by addresses in all their
//! clothes, by names, and by names that mean something else when they are connected to.

#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use distribution::{Call, CallError, Client, ClientConfig, Destination};
use reqwest::Method;
use reqwest::header::HeaderMap;
use testkit::outside::{METADATA, PRIVATE, REGISTRY, STORAGE, outside};
use testkit::scripted::{Scripted, Seen, bearer, redirect};

/// A registry that leads to where it is told.
struct Hostile {
    server: Scripted,
    to: Arc<Mutex<String>>,
}

impl Hostile {
    fn at(address: &str) -> Self {
        let to: Arc<Mutex<String>> = Arc::default();
        let known = Arc::clone(&to);
        let server = Scripted::start_at(&format!("{address}:0"), move |seen: &Seen| {
            let to = known.lock().unwrap().clone();
            match seen.path.as_str() {
                "/realm" => bearer(&to),
                _ => redirect(307, to),
            }
        });
        Self { server, to }
    }

    fn client(&self, networks: &[&str]) -> Client {
        Client::new(ClientConfig {
            registry: self.server.url("/").parse().unwrap(),
            user_agent: "test",
            token_hosts: Vec::new(),
            networks: networks.iter().map(|one| one.parse().unwrap()).collect(),
            authorities: Vec::new(),
            proxy: None,
            connect: Duration::from_secs(20),
            answer: Duration::from_secs(20),
        })
        .unwrap()
    }

    /// Asks for something, and is led to `to`.
    fn lead(&self, client: &Client, path: &str, to: &str) -> Result<u16, CallError> {
        to.clone_into(&mut self.to.lock().unwrap());
        let call = Call {
            method: Method::GET,
            place: Destination::Ours(self.server.url(path).parse().unwrap()),
            headers: HeaderMap::new(),
            body: &[],
            scope: "repository:a:pull",
            login: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let answer = runtime.unwrap().block_on(client.send(&call));
        answer.map(|answer| answer.status().as_u16())
    }
}

fn is_inside(found: &Result<u16, CallError>) -> bool {
    matches!(found, Err(CallError::Inside(_)))
}

#[test]
fn privileged_a_registry_outside_leads_to_nothing_inside() {
    outside(|names| {
        let victim = Scripted::start_at("[::]:0", |_: &Seen| (200, vec![], "secret"));
        let port = victim.address.port();
        names.mean(&format!(
            "127.0.0.1 loop.example\n{PRIVATE} private.example\n{METADATA} metadata.example\n::1 six.example"
        ));
        let hostile = Hostile::at(REGISTRY);
        let client = hostile.client(&[]);
        for host in [
            "127.0.0.1",
            "localhost",
            "0.0.0.0",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "2130706433",
            PRIVATE,
            METADATA,
            "loop.example",
            "private.example",
            "metadata.example",
            "six.example",
        ] {
            let to = format!("http://{host}:{port}/latest/meta-data/");
            for path in ["/blob", "/realm"] {
                let found = hostile.lead(&client, path, &to);
                assert!(is_inside(&found), "{path} {host}: {found:?}");
            }
        }
        assert!(victim.seen().is_empty(), "{:?}", victim.seen());
        // What is outside, it may lead to; and inside where it is allowed, by the same names.
        let to = |host: &str| format!("http://{host}:{port}/");
        assert_eq!(hostile.lead(&client, "/blob", &to(STORAGE)).unwrap(), 200);
        let allowed = hostile.client(&["10.9.0.0/16"]);
        for host in [PRIVATE, "private.example", "[::ffff:10.9.8.7]"] {
            assert_eq!(hostile.lead(&allowed, "/blob", &to(host)).unwrap(), 200);
        }
        assert!(is_inside(&hostile.lead(
            &allowed,
            "/blob",
            &to("loop.example")
        )));
    });
}

#[test]
fn privileged_a_registry_inside_leads_to_where_it_is() {
    outside(|names| {
        let server = Scripted::start_at("[::]:0", |_: &Seen| (200, vec![], ""));
        let to = |host: &str| format!("http://{host}:{}/", server.address.port());
        names.mean(&format!("{PRIVATE} private.example"));
        let private = Hostile::at(PRIVATE);
        let client = private.client(&[]);
        for host in [STORAGE, PRIVATE, "private.example"] {
            assert_eq!(private.lead(&client, "/blob", &to(host)).unwrap(), 200);
        }
        for host in ["127.0.0.1", METADATA, "localhost"] {
            assert!(
                is_inside(&private.lead(&client, "/blob", &to(host))),
                "{host}"
            );
        }
    });
}

/// The name is judged each time that it is connected to, by what it means then.
#[test]
fn privileged_a_name_that_changes_its_mind_leads_nowhere() {
    outside(|names| {
        let victim = Scripted::start_at("[::]:0", |_: &Seen| (200, vec![], "secret"));
        let hostile = Hostile::at(REGISTRY);
        let client = hostile.client(&[]);
        let to = format!("http://storage.example:{}/", victim.address.port());
        names.mean(&format!("{STORAGE} storage.example"));
        assert_eq!(hostile.lead(&client, "/blob", &to).unwrap(), 200);
        let asked = victim.seen().len();
        for inside in ["127.0.0.1", PRIVATE, METADATA] {
            names.mean(&format!("{inside} storage.example"));
            let found = hostile.lead(&client, "/blob", &to);
            assert!(is_inside(&found), "{inside}: {found:?}");
        }
        assert_eq!(victim.seen().len(), asked);
    });
}
