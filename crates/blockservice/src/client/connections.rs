//! The connections of a client: two to each service, one for demand, one for streams and everything else.

use std::sync::Arc;

use serving::transport::Address;

use super::connection::Connection;
use super::place::{Lane, Place};

/// Connections to each service.
const LANES: usize = 2;

/// All connections of a client, in the order of its services.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<[Arc<Connection>]>);

impl Connections {
    /// Returns the connections to services at these addresses, as `make` makes them.
    pub(super) fn new(addresses: &[Address], make: impl Fn(Place) -> Arc<Connection>) -> Self {
        let place = |number: usize| {
            let (service, lane) = (number / LANES, number % LANES);
            let lane = [Lane::Demand, Lane::Background][lane];
            make(Place {
                number,
                service,
                lane,
                address: addresses[service].clone(),
            })
        };
        Self((0..addresses.len() * LANES).map(place).collect())
    }

    /// Returns how many services there are.
    pub(super) fn services(&self) -> usize {
        self.0.len() / LANES
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Arc<Connection>> {
        self.0.iter()
    }

    /// Returns both connections to a service.
    pub(super) fn of(&self, service: usize) -> &[Arc<Connection>] {
        &self.0[service * LANES..][..LANES]
    }

    /// Returns the connection of this number.
    pub(super) fn get(&self, number: usize) -> &Arc<Connection> {
        &self.0[number]
    }

    pub(super) fn demand(&self, service: usize) -> &Arc<Connection> {
        &self.of(service)[0]
    }

    pub(super) fn background(&self, service: usize) -> &Arc<Connection> {
        &self.of(service)[1]
    }

    /// Returns the connection for what is asked of any service: that of the first one that responds.
    pub(super) fn asked(&self) -> &Arc<Connection> {
        let responds = |service: &usize| self.demand(*service).responds();
        let service = (0..self.services()).find(responds).unwrap_or(0);
        self.demand(service)
    }
}
