//! Access control: which client may pull what, also when it is cached.
//!
//! A cache without it would hand out what was fetched with the mirror's own credentials, or with
//! another client's. So each registry has a rule, and each request is checked before the cache is.

use std::net::IpAddr;
use std::sync::Arc;

pub use distribution::{Network, ParseNetworkError};

use super::proof::{CLIENT_LIFETIMES, ClientProofs, Freshness, Principal, ProofKey};
use super::scope::Scope;
use crate::blobs::Realm;
use crate::upstream::{Asker, Login};

/// Who may pull from a registry through the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every client that reaches the mirror.
    All,
    /// Clients by their addresses, each with the repositories that are listed for it.
    Clients(Vec<ClientRule>),
    /// Clients that the registry itself lets in: they send their credentials, and the mirror tries
    /// these at the registry.
    Upstream,
}

impl Access {
    /// Returns the realm of content from a registry with this rule.
    pub(super) fn realm(&self, registry: &str) -> Realm {
        match self {
            Self::All => Realm::Open,
            Self::Clients(_) | Self::Upstream => Realm::of(registry),
        }
    }
}

/// What clients with certain addresses may pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRule {
    /// Their addresses.
    pub networks: Vec<Network>,
    /// Patterns of repositories: a name, or a prefix followed by `*`.
    pub repositories: Vec<String>,
}

impl ClientRule {
    fn allows(&self, peer: IpAddr, repository: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => repository.starts_with(beginning),
            None => repository == pattern,
        };
        self.networks.iter().any(|network| network.contains(peer))
            && self.repositories.iter().any(matches)
    }
}

/// The client of a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) peer: IpAddr,
    pub(super) login: Option<Login>,
}

/// The decision of a rule about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It may be served; requests to the registry use these credentials.
    Yes(Asker),
    No,
    /// The registry has to decide; if it does not respond, `stale` is whether it granted access
    /// not long ago.
    UpstreamRequest {
        asker: Asker,
        stale: bool,
    },
}

/// The grants of access by registries, with their times.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub(super) client_proofs: Arc<ClientProofs>,
}

impl Grants {
    pub(super) fn decide(&self, access: &Access, caller: &Caller, scope: &Scope) -> Decision {
        match access {
            Access::All => Decision::Yes(Asker::Mirror),
            Access::Clients(rules) => {
                let mut rules = rules.iter();
                match rules.any(|rule| rule.allows(caller.peer, &scope.repository)) {
                    true => Decision::Yes(Asker::Mirror),
                    false => Decision::No,
                }
            }
            Access::Upstream => {
                let asker = Asker::Client(caller.login.clone());
                let grant = ProofKey::new(Principal::of(&asker), scope, None);
                match CLIENT_LIFETIMES.freshness(self.client_proofs.age(&grant)) {
                    Freshness::Fresh => Decision::Yes(asker),
                    freshness => Decision::UpstreamRequest {
                        asker,
                        stale: freshness == Freshness::Stale,
                    },
                }
            }
        }
    }

    /// Notes that a registry granted access.
    pub(super) fn grant(&self, principal: Principal, scope: &Scope) {
        self.client_proofs
            .note(ProofKey::new(principal, scope, None));
    }

    /// Notes that a registry denied access.
    pub(super) fn revoke(&self, principal: Principal, scope: &Scope) {
        self.client_proofs
            .forget(&ProofKey::new(principal, scope, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(repository: &str) -> Scope {
        Scope {
            registry: "r.io".to_owned(),
            repository: repository.to_owned(),
        }
    }

    fn caller(peer: &str) -> Caller {
        Caller {
            peer: peer.parse().unwrap(),
            login: None,
        }
    }

    #[test]
    fn networks_hold_both_kinds_of_addresses() {
        let holds = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(holds("10.1.0.0/16", "10.1.255.3"));
        assert!(holds("10.1.0.0/16", "::ffff:10.1.2.3"));
        assert!(!holds("10.1.0.0/16", "10.2.0.1"));
        assert!(holds("fd00::/8", "fd12::1") && !holds("fd00::/8", "fe80::1"));
        assert!(holds("::1", "::1") && !holds("::1", "::2"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "fd00::1"));
        for bad in ["", "10.0.0/8", "10.0.0.0/33", "10.0.0.0/-1", "::/129"] {
            assert_eq!(bad.parse::<Network>(), Err(ParseNetworkError));
        }
    }

    #[test]
    fn clients_get_what_is_listed_for_them() {
        let access = Access::Clients(vec![ClientRule {
            networks: vec!["10.0.0.2".parse().unwrap()],
            repositories: vec!["library/*".to_owned(), "team/app".to_owned()],
        }]);
        let may = |peer: &str, repository: &str| {
            Grants::default().decide(&access, &caller(peer), &scope(repository)) != Decision::No
        };
        assert!(may("10.0.0.2", "library/debian") && may("10.0.0.2", "team/app"));
        assert!(!may("10.0.0.2", "team/app2") && !may("10.0.0.3", "library/debian"));
    }

    #[test]
    fn the_upstream_is_asked_once_for_each_client_and_repository() {
        let grants = Grants::default();
        let me = caller("10.0.0.2");
        let asked = |scope: &Scope| {
            let decision = grants.decide(&Access::Upstream, &me, scope);
            matches!(decision, Decision::UpstreamRequest { .. })
        };
        assert!(asked(&scope("a")));
        let mine = Principal::of(&Asker::Client(me.login.clone()));
        grants.grant(mine, &scope("a"));
        assert!(!asked(&scope("a")) && asked(&scope("b")));
        let other = Caller {
            login: Some(Login {
                username: "eve".to_owned(),
                password: String::new(),
            }),
            ..me.clone()
        };
        let decision = grants.decide(&Access::Upstream, &other, &scope("a"));
        assert!(matches!(
            decision,
            Decision::UpstreamRequest { stale: false, .. }
        ));
        grants.revoke(mine, &scope("a"));
        assert!(asked(&scope("a")));
    }
}
