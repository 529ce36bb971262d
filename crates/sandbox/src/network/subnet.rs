//! The addresses of a bridge and of the sandboxes on it.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::error::SandboxError;

/// How long a prefix may be: with 29 bits there are five sandboxes, and more than 65 533 no bridge has.
const PREFIXES: std::ops::RangeInclusive<u8> = 16..=29;

/// What the kernel allows on one bridge (`BR_MAX_PORTS`, with the number 0 left out).
const PORTS_MAX: u32 = 1023;

/// Where machines in a cloud find their credentials, and services that are found without being configured.
pub(super) const LINK_LOCAL: (Ipv4Addr, u8) = (Ipv4Addr::new(169, 254, 0, 0), 16);

/// A subnet of IPv4, as `10.213.0.0/22`: its first address is the machine's, each other one a sandbox's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    network: Ipv4Addr,
    prefix: u8,
}

impl Subnet {
    /// Returns the machine's address.
    pub fn gateway(&self) -> Ipv4Addr {
        self.nth(1)
    }

    /// Returns the number of bits that all addresses share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Returns the last address, which means all.
    pub(super) fn broadcast(&self) -> Ipv4Addr {
        self.nth(self.size() - 1)
    }

    /// Returns the addresses of sandboxes.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let subnet = *self;
        // Neither the network's own, the machine's, nor the one that means all.
        let last = (self.size() - 2).min(PORTS_MAX + 1);
        (2..=last).map(move |number| subnet.nth(number))
    }

    fn size(&self) -> u32 {
        1 << (32 - u32::from(self.prefix))
    }

    fn nth(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() + number)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Subnet {
    type Err = SandboxError;

    fn from_str(text: &str) -> Result<Self, SandboxError> {
        let invalid = |problem: &str| {
            SandboxError::Invalid(format!(
                "{text:?} {problem}: a subnet is an address and a length, such as 10.213.0.0/22"
            ))
        };
        let parts = text.split_once('/');
        let parts = parts.and_then(|(network, prefix)| {
            Some((network.parse::<Ipv4Addr>().ok()?, prefix.parse().ok()?))
        });
        let (network, prefix) = parts.ok_or_else(|| invalid("is no subnet of IPv4"))?;
        if !PREFIXES.contains(&prefix) {
            return Err(invalid("has a length that is not from 16 to 29"));
        }
        let subnet = Self { network, prefix };
        if network.to_bits() & (subnet.size() - 1) != 0 {
            return Err(invalid(
                "has an address that is not the first of its subnet",
            ));
        }
        let is_other = network.is_loopback() || network.is_link_local() || network.is_multicast();
        if is_other || network.octets()[0] == 0 || network.octets()[0] >= 240 {
            return Err(invalid("has addresses that no device may have"));
        }
        Ok(subnet)
    }
}

/// The same for the same address at all times: what others know of it stays right.
pub(super) fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    // The first byte says that it was given by an administrator, to one device.
    let [a, b, c, d] = address.octets();
    [0x02, 0x73, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_has_an_address_for_the_machine_and_one_for_each_sandbox() {
        let subnet: Subnet = "10.1.2.8/29".parse().unwrap();
        let all: Vec<_> = subnet.addresses().map(|ip| ip.octets()[3]).collect();
        assert_eq!(all, [10, 11, 12, 13, 14]);
        assert_eq!(subnet.gateway(), Ipv4Addr::new(10, 1, 2, 9));
        assert_eq!(subnet.broadcast(), Ipv4Addr::new(10, 1, 2, 15));
        assert_eq!(subnet.to_string(), "10.1.2.8/29");
        let large: Subnet = "172.16.0.0/16".parse().unwrap();
        let all: Vec<_> = large.addresses().collect();
        assert_eq!(all.len(), 1023);
        assert_eq!(all[1022], Ipv4Addr::new(172, 16, 4, 0));
    }

    #[test]
    fn what_is_no_subnet_is_refused_and_the_message_says_why() {
        for (wrong, why) in [
            ("10.0.0.0", "is no subnet"),
            ("fd00::/64", "is no subnet"),
            ("10.0.0.0/8", "from 16 to 29"),
            ("10.0.0.0/30", "from 16 to 29"),
            ("10.0.0.1/24", "not the first"),
            ("127.0.0.0/16", "no device"),
            ("169.254.0.0/16", "no device"),
            ("224.0.0.0/16", "no device"),
            ("0.0.0.0/16", "no device"),
            ("255.0.0.0/16", "no device"),
        ] {
            let error = wrong.parse::<Subnet>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
