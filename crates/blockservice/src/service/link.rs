//! How a client is connected, which decides in which form chunks are sent to it.

use std::time::Duration;

use serving::transport::PeerAddress;

/// How fast the way to a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// As fast as memory (PCIe, one machine): chunks are sent decompressed where they are at hand,
    /// which saves the client the work.
    Fast,
    /// A network: chunks are sent as stored, because bytes cost more than work.
    Slow,
}

impl Link {
    /// Judges a link by what it is, and a network by the time of an exchange over it.
    pub(crate) fn of(peer: &PeerAddress, round_trip: Duration, fast: Duration) -> Self {
        match peer {
            PeerAddress::Address(_) if round_trip > fast => Self::Slow,
            // The others are within one machine.
            _ => Self::Fast,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_judged_by_its_round_trip() {
        let (fast, slow) = (Duration::from_micros(300), Duration::from_micros(301));
        let address = PeerAddress::Address([127, 0, 0, 1].into());
        let of = |peer: &PeerAddress, took| Link::of(peer, took, fast);
        assert_eq!(of(&address, fast), Link::Fast);
        assert_eq!(of(&address, slow), Link::Slow);
        for peer in [PeerAddress::Context(3), PeerAddress::User(0)] {
            assert_eq!(of(&peer, slow), Link::Fast, "{peer:?}");
        }
    }
}
