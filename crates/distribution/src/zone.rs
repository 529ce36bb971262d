//! The addresses that a remote server may direct this machine to.
//!
//! A registry names the locations of its blobs, uploads and token service. A
//! hostile one names addresses that only this machine reaches: its own services, its link, the
//! networks behind it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Network;

/// Where an address is, as seen from a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// Public addresses.
    Public,
    /// A private network, or behind a provider's translator.
    Private,
    /// The local link: neighbours, and a cloud's metadata service.
    LinkLocal,
    /// This machine.
    Loopback,
    /// Not the address of a host, or with another meaning than it seems.
    Nowhere,
}

impl Zone {
    /// Returns the zone of an address. An IPv4 address in IPv6 notation is treated as
    /// IPv4.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => inner(address).map_or_else(|| Self::of_v6(address), Self::of_v4),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [127, ..] => Self::Loopback,
            [169, 254, ..] => Self::LinkLocal,
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Self::Private,
            // Shared between a provider's customers (RFC 6598); for protocols (6890); for benchmarks
            // (2544).
            [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18..=19, ..] => Self::Private,
            // "This host" connects to the machine itself; groups and reserved ones to nobody.
            [0 | 224..=255, ..] => Self::Nowhere,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        match address.segments() {
            [0, 0, 0, 0, 0, 0, 0, 0] => Self::Nowhere,
            [0, 0, 0, 0, 0, 0, 0, 1] => Self::Loopback,
            [0xfe80..=0xfebf, ..] => Self::LinkLocal,
            // Unique local; what was site-local; a translator's own prefix (RFC 8215).
            [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Self::Private,
            [0xff00..=0xffff, ..] => Self::Nowhere,
            _ => Self::Public,
        }
    }
}

/// Returns the IPv4 address that an IPv6 address represents: mapped, compatible, through a
/// translator (64:ff9b::/96) or a tunnel (2002::/16).
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // `::` and `::1` are what they are.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => Some(of(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Private => "in a private network",
            Self::LinkLocal => "on the local link",
            Self::Loopback => "on this machine",
            Self::Nowhere => "no address of a host",
        })
    }
}

/// The addresses that a server may direct to.
#[derive(Clone, Debug)]
pub struct Reach {
    from: Zone,
    networks: Vec<Network>,
}

/// A server directs to a zone further inside than its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it redirects to {host}, which is {zone}, and must not")]
pub struct Inside {
    /// The named host.
    pub host: String,
    /// Its zone.
    pub zone: Zone,
}

impl Reach {
    /// Returns the reach of a server in a zone: public addresses and its own zone,
    /// from this machine also its private networks, and `networks` in any case.
    #[must_use]
    pub const fn from(zone: Zone, networks: Vec<Network>) -> Self {
        Self {
            from: zone,
            networks,
        }
    }

    /// Checks the address that a host has.
    ///
    /// # Errors
    /// If it is too far inside.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), Inside> {
        let zone = Zone::of(address);
        let is_open = match zone {
            Zone::Public => true,
            Zone::Nowhere => false,
            _ if self.networks.iter().any(|one| one.contains(address)) => true,
            Zone::Private => matches!(self.from, Zone::Private | Zone::Loopback),
            Zone::LinkLocal | Zone::Loopback => zone == self.from,
        };
        let host = || host.to_owned();
        is_open
            .then_some(())
            .ok_or_else(|| Inside { host: host(), zone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(text: &str) -> Zone {
        Zone::of(text.parse().unwrap())
    }

    #[test]
    fn addresses_are_where_they_lead_to() {
        for (expected, addresses) in [
            (
                Zone::Loopback,
                "127.0.0.1 127.9.9.9 ::1 ::ffff:127.0.0.1 ::127.0.0.1",
            ),
            (
                Zone::LinkLocal,
                "169.254.169.254 fe80::1 febf::1 ::ffff:169.254.169.254",
            ),
            (Zone::LinkLocal, "64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1"),
            (
                Zone::Private,
                "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1",
            ),
            (
                Zone::Private,
                "100.64.0.1 100.100.100.200 192.0.0.192 198.19.0.1",
            ),
            (
                Zone::Private,
                "fc00::1 fd00:ec2::254 fec0::1 64:ff9b:1::1 ::ffff:10.0.0.1",
            ),
            (
                Zone::Nowhere,
                "0.0.0.0 0.1.2.3 :: 224.0.0.1 240.0.0.1 255.255.255.255",
            ),
            (Zone::Nowhere, "ff02::1 ::ffff:0.0.0.0 ::ffff:224.0.0.1"),
            (
                Zone::Public,
                "1.1.1.1 172.15.0.1 172.32.0.1 100.63.0.1 100.128.0.1 192.0.1.1",
            ),
            (
                Zone::Public,
                "2606:4700::1111 ::ffff:1.1.1.1 64:ff9b::101:101 fbff::1",
            ),
        ] {
            for address in addresses.split(' ') {
                assert_eq!(zone(address), expected, "{address}");
            }
        }
    }

    #[test]
    fn nobody_leads_further_inside_than_they_are() {
        let all = ["1.1.1.1", "10.0.0.1", "169.254.0.1", "127.0.0.1", "0.0.0.0"];
        for (from, open) in [
            (Zone::Public, [true, false, false, false, false]),
            (Zone::Private, [true, true, false, false, false]),
            (Zone::LinkLocal, [true, false, true, false, false]),
            (Zone::Loopback, [true, true, false, true, false]),
            (Zone::Nowhere, [true, false, false, false, false]),
        ] {
            let reach = Reach::from(from, Vec::new());
            let found = all.map(|one| reach.check("host", one.parse().unwrap()).is_ok());
            assert_eq!(found, open, "{from:?}");
        }
    }

    #[test]
    fn what_is_configured_is_open_to_all() {
        let networks = vec!["10.2.0.0/16".parse().unwrap(), "0.0.0.0/8".parse().unwrap()];
        let reach = Reach::from(Zone::Public, networks);
        let open = |address: &str| reach.check("storage", address.parse().unwrap());
        assert!(open("10.2.3.4").is_ok() && open("::ffff:10.2.3.4").is_ok());
        let inside = open("10.3.0.1").unwrap_err();
        assert!(
            inside
                .to_string()
                .contains("storage, which is in a private network")
        );
        assert!(open("0.0.0.0").is_err(), "that is no address of a host");
    }
}
