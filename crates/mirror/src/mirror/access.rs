//! Who may have what, also on a hit.
//!
//! A cache that answers everybody would hand out what its own credentials, or those of another
//! client, once fetched. So each registry has a rule of its own, and every request passes it before
//! the cache is looked at.

use std::net::IpAddr;
use std::sync::Arc;

pub use distribution::{Network, ParseNetworkError};

use super::proof::{Belief, CLIENTS, ProofKey, Said, Whose};
use super::scope::Scope;
use crate::blobs::Realm;
use crate::upstream::{Asker, Login};

/// Who may pull from a registry through the mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever reaches the mirror.
    All,
    /// Clients with certain addresses, each what is listed for it.
    Clients(Vec<ClientRule>),
    /// Whoever the upstream itself lets in: clients send name and password, the mirror tries them.
    Upstream,
}

impl Access {
    /// Returns whose it is what a registry with this rule sends.
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
    /// Where they are.
    pub networks: Vec<Network>,
    /// Which repositories: a name, or the beginning of names with `*` behind it.
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

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) peer: IpAddr,
    pub(super) login: Option<Login>,
}

/// What a rule says about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It may be served; the upstream is asked in this name.
    Yes(Asker),
    No,
    /// The upstream has to be asked whether it lets this client in; if it does not answer, `stale`
    /// says whether it did not long ago.
    Ask {
        asker: Asker,
        stale: bool,
    },
}

/// Who was let in by an upstream, and when.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub(super) said: Arc<Said>,
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
                let grant = ProofKey::new(Whose::of(&asker), scope, None);
                match CLIENTS.belief(self.said.age(&grant)) {
                    Belief::Fresh => Decision::Yes(asker),
                    belief => Decision::Ask {
                        asker,
                        stale: belief == Belief::Old,
                    },
                }
            }
        }
    }

    /// Notes that the upstream let a client in.
    pub(super) fn grant(&self, whose: Whose, scope: &Scope) {
        self.said.note(ProofKey::new(whose, scope, None));
    }

    /// Notes that it does no longer.
    pub(super) fn revoke(&self, whose: Whose, scope: &Scope) {
        self.said.forget(&ProofKey::new(whose, scope, None));
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
            matches!(decision, Decision::Ask { .. })
        };
        assert!(asked(&scope("a")));
        let mine = Whose::of(&Asker::Client(me.login.clone()));
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
        assert!(matches!(decision, Decision::Ask { stale: false, .. }));
        grants.revoke(mine, &scope("a"));
        assert!(asked(&scope("a")));
    }
}
