//! Parsing networks.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Addresses that begin with the same bits: `10.0.0.0/8`, `fd00::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    bits: u32,
}

/// The text is not an address, with or without a number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a network is an address and a number of bits, as in 10.1.0.0/16")]
pub struct ParseNetworkError;

impl FromStr for Network {
    type Err = ParseNetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ParseNetworkError)?;
        let (most, before) = match address {
            IpAddr::V4(_) => (32, 96),
            IpAddr::V6(_) => (128, 0),
        };
        let bits = bits
            .map_or(Ok(most), str::parse)
            .map_err(|_| ParseNetworkError)?;
        if bits > most {
            return Err(ParseNetworkError);
        }
        Ok(Self {
            address: wide(address),
            bits: bits + before,
        })
    }
}

impl Network {
    /// Returns whether an address is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let differing = self.address ^ wide(address);
        differing.leading_zeros() >= self.bits
    }
}

/// As an address of version 6, whatever it was: that means the same.
impl Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from_bits(self.address), self.bits)
    }
}

/// An address of either kind as one of version 6: a socket that takes both shows them so.
fn wide(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
