//! How a client is connected, which decides in which form chunks are sent to it.

use std::time::Duration;

use serving::transport::PeerAddress;

/// The way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Within one machine (PCIe, a socket): as fast as memory.
    Memory,
    /// A network with a short round trip.
    Near,
    /// A network with a long round trip, or whose rate is limited.
    Far,
}

/// The form in which chunks are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Decompressed where they are at hand, which saves the client the work.
    Raw,
    /// As stored, because bytes cost more than work.
    Stored,
}

impl Link {
    /// Classifies a link by its kind, and a network by the round trip of an exchange.
    pub(crate) fn of(peer: &PeerAddress, round_trip: Duration, fast: Duration) -> Self {
        match peer {
            PeerAddress::Address(_) if round_trip > fast => Self::Far,
            PeerAddress::Address(_) => Self::Near,
            PeerAddress::Context(_) | PeerAddress::User(_) | PeerAddress::Unknown => Self::Memory,
        }
    }

    /// Returns the form of the next chunk, on a link whose measured rate is `rate` bytes per second, where a
    /// network below `raw_rate` gets chunks as stored.
    pub(crate) fn form(self, rate: Option<u64>, raw_rate: u64) -> Form {
        match self {
            Self::Memory => Form::Raw,
            Self::Near if rate.is_none_or(|rate| rate >= raw_rate) => Form::Raw,
            Self::Near | Self::Far => Form::Stored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_judged_by_its_round_trip_and_its_rate() {
        let (fast, slow) = (Duration::from_micros(300), Duration::from_micros(301));
        let address = PeerAddress::Address([127, 0, 0, 1].into());
        let form =
            |peer: &PeerAddress, took, rate| Link::of(peer, took, fast).form(rate, 64_000_000);
        let (quick, crawling) = (Some(1 << 30), Some(3_000_000));
        assert_eq!(form(&address, fast, None), Form::Raw);
        assert_eq!(form(&address, fast, quick), Form::Raw);
        assert_eq!(form(&address, fast, crawling), Form::Stored);
        assert_eq!(form(&address, slow, quick), Form::Stored);
        for peer in [PeerAddress::Context(3), PeerAddress::User(0)] {
            assert_eq!(form(&peer, slow, crawling), Form::Raw, "{peer:?}");
        }
    }
}
