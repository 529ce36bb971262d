//! The state that all connections share.

use std::path::PathBuf;
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
    /// The directory with the socket of the process that locks pages of the host's own files.
    pub(super) run_dir: Option<PathBuf>,
}

impl ApiContext {
    pub(super) fn new(node: Arc<dyn NodeControl>, admission: Admission) -> Self {
        Self {
            node,
            answers: Tally::default(),
            admission,
            callers: Pace::ALL.map(|pace| Arc::new(Semaphore::new(pace.callers()))),
            run_dir: None,
        }
    }

    /// Has the metrics say what the process locks whose socket is in `run_dir`.
    pub(super) fn with_pins_of(self, run_dir: Option<PathBuf>) -> Self {
        Self { run_dir, ..self }
    }
}
