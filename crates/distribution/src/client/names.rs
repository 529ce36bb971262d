//! What names mean where a registry leads: judged by the addresses that are then connected to.
//!
//! A name that is looked up once to be judged, and again to be connected to, may mean something else
//! the second time. So it is looked up once, here, and only what may be reached is handed on.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::net::lookup_host;

use crate::{Inside, Reach};

/// Resolves names of targets that a response names.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) reach: Reach,
    /// The proxy's name, which comes from the configuration, and not from a registry.
    pub(super) proxy: Option<String>,
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let is_proxy = self.proxy.as_ref() == Some(&host);
        let reach = (!is_proxy).then(|| self.reach.clone());
        Box::pin(async move {
            let found: Vec<_> = lookup_host((host.as_str(), 0)).await?.collect();
            let open = match reach {
                Some(reach) => reachable(&reach, &host, found)?,
                None => found,
            };
            Ok(Box::new(open.into_iter()) as Addrs)
        })
    }
}

/// Leaves the addresses of a host that may be reached.
fn reachable(
    reach: &Reach,
    host: &str,
    mut found: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, Inside> {
    let mut refused = None;
    found.retain(|address| match reach.check(host, address.ip()) {
        Ok(()) => true,
        Err(inside) => {
            refused = Some(inside);
            false
        }
    });
    match refused {
        Some(inside) if found.is_empty() => Err(inside),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zone;

    #[test]
    fn of_a_names_addresses_only_those_outside_are_left() {
        let reach = Reach::from(Zone::Public, Vec::new());
        let left = |found: &[&str]| {
            let found = found.iter().map(|one| one.parse().unwrap()).collect();
            let left = reachable(&reach, "evil.example", found);
            left.map(|left| left.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let mixed = ["127.0.0.1:0", "1.1.1.1:0", "[::1]:0", "10.0.0.1:0"];
        assert_eq!(left(&mixed), Ok(vec!["1.1.1.1:0".to_owned()]));
        let inside = left(&["[::ffff:10.0.0.1]:0"]).unwrap_err();
        assert_eq!(
            (inside.host.as_str(), inside.zone),
            ("evil.example", Zone::Private)
        );
        assert_eq!(left(&[]), Ok(vec![]));
    }
}
