//! The state that all connections share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::tally::Tally;
use host::admission::Admission;
use node_api::bodies::Pace;
use node_api::control::NodeControl;

/// The state that all connections share.
#[derive(Debug)]
pub(super) struct ApiContext {
    pub(super) node: Arc<dyn NodeControl>,
    pub(super) answers: Tally,
    pub(super) admission: Admission,
    pub(super) callers: [Arc<Semaphore>; Pace::ALL.len()],
}

impl ApiContext {
    pub(super) fn new(node: Arc<dyn NodeControl>, admission: Admission) -> Self {
        Self {
            node,
            answers: Tally::default(),
            admission,
            callers: Pace::ALL.map(|pace| Arc::new(Semaphore::new(pace.callers()))),
        }
    }
}
