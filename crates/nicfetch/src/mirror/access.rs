//! Who may have what, also on a hit.
//!
//! A cache that answers everybody would hand out what its own credentials, or those of another
//! client, once fetched. So each registry has a rule of its own, and every request passes it before
//! the cache is looked at.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub use distribution::{Network, ParseNetworkError};
use parking_lot::Mutex;

use super::catalog::Scope;
use crate::upstream::{Asker, Login};

/// How long a client that the upstream let in is let in without asking again.
const GRANT: Duration = Duration::from_secs(300);
/// How long if the upstream does not answer.
const GRANT_IN_OUTAGE: Duration = Duration::from_secs(3600);
/// Grants that are kept.
const GRANTS_MAX: usize = 16_384;

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
pub(super) struct Grants(Mutex<HashMap<(Scope, Option<Login>), Instant>>);

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
                let grants = self.0.lock();
                let granted = grants.get(&(scope.clone(), caller.login.clone()));
                match granted.map(Instant::elapsed) {
                    Some(age) if age < GRANT => Decision::Yes(asker),
                    age => Decision::Ask {
                        asker,
                        stale: age.is_some_and(|age| age < GRANT_IN_OUTAGE),
                    },
                }
            }
        }
    }

    /// Notes that the upstream let a client in.
    pub(super) fn grant(&self, caller: &Caller, scope: &Scope) {
        let mut grants = self.0.lock();
        grants.retain(|_, granted| granted.elapsed() < GRANT_IN_OUTAGE);
        if grants.len() < GRANTS_MAX {
            grants.insert((scope.clone(), caller.login.clone()), Instant::now());
        }
    }

    /// Notes that it does no longer.
    pub(super) fn revoke(&self, caller: &Caller, scope: &Scope) {
        self.0.lock().remove(&(scope.clone(), caller.login.clone()));
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
        grants.grant(&me, &scope("a"));
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
        grants.revoke(&me, &scope("a"));
        assert!(asked(&scope("a")));
    }
}
