//! The result of asking a worker to serve a mount or a device.

use anyhow::anyhow;
use node_api::control::NodeError;

use super::assignment::Service;
use super::wire::Fault;

/// The result of asking one worker.
pub(crate) enum Asked {
    /// The worker serves it.
    Served,
    /// The worker died or hangs; the handler of its death takes care of it.
    Lost,
    /// The worker refused.
    Refused(Fault, String),
    /// No worker could be found or started.
    NoWorker(anyhow::Error),
    /// It was unmounted or detached meanwhile.
    Over,
}

impl Asked {
    /// Returns how the first try ended. When the worker was lost, other ones are asked, and `wait` is how that ends; `ended`
    /// is what may have happened meanwhile.
    pub(crate) fn first(
        self,
        ended: &str,
        wait: impl FnOnce() -> Service,
    ) -> Result<(), NodeError> {
        match self {
            Self::Served => Ok(()),
            Self::Refused(fault, why) => Err(fault.error(why)),
            Self::NoWorker(error) => Err(NodeError::Unavailable(format!("{error:#}"))),
            Self::Over => Err(NodeError::Conflict(format!("it was {ended} meanwhile"))),
            Self::Lost => match wait() {
                Service::By(_) => Ok(()),
                Service::GivenUp(why) => Err(NodeError::Failed(anyhow!(why))),
                Service::Nobody | Service::Asked(_) => Err(NodeError::Unavailable(
                    "its workers crash repeatedly".to_owned(),
                )),
            },
        }
    }
}
