//! How often the API answered what.

use std::collections::BTreeMap;

use hyper::StatusCode;
use parking_lot::Mutex;

/// Responses by status. The API uses a dozen, so the map stays small whatever is requested.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<BTreeMap<u16, u64>>);

impl Tally {
    pub(super) fn count(&self, status: StatusCode) {
        *self.0.lock().entry(status.as_u16()).or_default() += 1;
    }

    pub(super) fn by_status(&self) -> BTreeMap<u16, u64> {
        self.0.lock().clone()
    }
}
