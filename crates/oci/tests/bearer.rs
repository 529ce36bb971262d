//! A registry that wants tokens, as Docker Hub does.

// Needs no root, but docker-registry and openssl.
#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::io::Cursor;
use std::ops::ControlFlow;

use oci::registry::{Access, Credentials, RegistryConfig, RegistryError, Repository, Transport};
use oci::{Reference, digest_of};
use testkit::registries::{Registry, USER};
use testkit::tokens::TokenServer;

/// The only repository that tokens are good for.
const REPOSITORY: &str = "some/app";

fn go(_done: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn repository(registry: &Registry, name: &str, access: Access, login: Option<&str>) -> Repository {
    let config = RegistryConfig {
        transport: Transport::Plain,
        credentials: login.map(|password| Credentials {
            username: USER.0.to_owned(),
            password: password.to_owned(),
        }),
        ..RegistryConfig::default()
    };
    let reference: Reference = format!("{}/{name}:1", registry.host()).parse().unwrap();
    Repository::open(&reference, access, &config).unwrap()
}

#[test]
fn a_token_is_fetched_for_what_is_to_be_done() {
    let tokens = TokenServer::start(REPOSITORY);
    let registry = tokens.registry();
    let open = |access, login| repository(&registry, REPOSITORY, access, login);
    for (login, hint) in [(None, "docker login"), (Some("guess"), "are wrong")] {
        let error = open(Access::Pull, login).has_blob(digest_of(b"x"), &mut go);
        let error = error.unwrap_err();
        assert!(
            matches!(error, RegistryError::Unauthorized { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(hint), "{error}");
    }
    let writer = open(Access::Push, Some(USER.1));
    writer
        .push_blob(digest_of(b"x"), 1, Cursor::new(b"x"), &mut go)
        .unwrap();
    assert!(writer.has_blob(digest_of(b"x"), &mut go).unwrap());
    let asked = tokens.scopes();
    assert!(
        asked.contains(&"repository:some/app:pull,push".to_owned()),
        "{asked:?}"
    );
    let before = asked.len();
    let reader = open(Access::Pull, Some(USER.1));
    for _ in 0..3 {
        assert!(reader.has_blob(digest_of(b"x"), &mut go).unwrap());
    }
    // One token for all of them, and for no more than is needed.
    assert_eq!(tokens.scopes()[before..], ["repository:some/app:pull"]);
    // Who may only read is told so, and a token for another repository is none.
    let refused = reader.push_blob(digest_of(b"y"), 1, Cursor::new(b"y"), &mut go);
    assert!(refused.is_err());
    let other = repository(&registry, "other/app", Access::Pull, Some(USER.1));
    let error = other.has_blob(digest_of(b"x"), &mut go).unwrap_err();
    assert!(
        matches!(error, RegistryError::Unauthorized { .. }),
        "{error}"
    );
}
