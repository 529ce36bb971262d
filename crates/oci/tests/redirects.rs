//! Where a registry may lead us, and what goes with the request: a hostile host that a redirect names
//! wants the password of the registry.

#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use oci::registry::{
    Access, Credentials, RegistryConfig, RegistryError, Repository, Target, Transport,
};
use oci::{Reference, digest_of};
use testkit::scripted::{Answer, Scripted, Seen, bearer, redirect};

const PASSWORD: &str = "hunter2";
/// `me:hunter2` in base64.
const LOGIN: &str = "Basic bWU6aHVudGVyMg==";
const TOKEN: &str = r#"{"token":"good"}"#;

fn go(_done: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn config() -> RegistryConfig {
    RegistryConfig {
        transport: Transport::Plain,
        credentials: Some(Credentials {
            username: "me".to_owned(),
            password: PASSWORD.to_owned(),
        }),
        ..RegistryConfig::default()
    }
}

fn open(registry: &Scripted, config: &RegistryConfig) -> Repository {
    let reference: Reference = format!("{}/some/app:1", registry.address).parse().unwrap();
    Repository::open(&reference, Access::Pull, config).unwrap()
}

fn logins(server: &Scripted) -> Vec<Seen> {
    let mut seen = server.seen();
    seen.retain(|seen| seen.authorization().is_some());
    seen
}

/// A 307 to another host, which wants to know who asks: at its own realm, and by name and password.
#[test]
fn a_host_that_a_redirect_names_gets_no_password() {
    for demand in ["bearer", "basic"] {
        let own: Arc<OnceLock<String>> = Arc::default();
        let known = Arc::clone(&own);
        let evil = Scripted::start(move |seen: &Seen| -> Answer {
            match (seen.path.starts_with("/token"), demand) {
                (true, _) => (200, vec![], TOKEN),
                (false, "basic") => (401, vec![("WWW-Authenticate", "Basic realm=x".into())], ""),
                (false, _) => bearer(known.get().unwrap()),
            }
        });
        own.set(evil.url("/token")).unwrap();
        let elsewhere = evil.url("/layer");
        let registry = Scripted::start(move |_: &Seen| redirect(307, elsewhere.clone()));
        let repository = open(&registry, &config());
        let error = repository.has_blob(digest_of(b"x"), &mut go).unwrap_err();
        assert!(error.to_string().contains("401"), "{error}");
        assert!(!error.to_string().contains("password"), "{error}");
        assert!(logins(&evil).is_empty(), "{:?}", logins(&evil));
        assert!(logins(&registry).is_empty(), "the registry did not ask");
        let asked: Vec<_> = evil.seen().into_iter().map(|seen| seen.path).collect();
        assert_eq!(asked, ["/layer"], "its realm is not asked");
    }
}

/// The registry's own demand names a realm of another domain.
#[test]
fn a_realm_elsewhere_gets_no_password_unless_it_is_named() {
    let realm = Scripted::start_at("127.0.0.2:0", |_: &Seen| (200, vec![], TOKEN));
    let demand = realm.url("/token");
    let registry = Scripted::start(move |seen: &Seen| match seen.authorization() {
        Some("Bearer good") => (200, vec![("Content-Type", "a/b".to_owned())], "{}"),
        _ => bearer(&demand),
    });
    let manifest = |config: &RegistryConfig| {
        let repository = open(&registry, config);
        repository.manifest(&Target::Tag("1".to_owned()), &mut go)
    };
    let error = manifest(&config()).unwrap_err();
    assert!(matches!(error, RegistryError::Realm { .. }), "{error}");
    assert!(error.to_string().contains("127.0.0.2"), "{error}");
    assert!(realm.seen().is_empty());
    // Nothing is lost if nothing is sent.
    let nobody = RegistryConfig {
        credentials: None,
        ..config()
    };
    assert!(manifest(&nobody).unwrap().is_some());
    assert!(logins(&realm).is_empty());
    let trusting = RegistryConfig {
        token_hosts: vec!["127.0.0.2".to_owned()],
        ..config()
    };
    assert!(manifest(&trusting).unwrap().is_some());
    assert_eq!(logins(&realm)[0].authorization(), Some(LOGIN));
}
