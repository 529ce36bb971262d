//! The node's API: HTTP/1.1 and JSON on a unix socket. docs/api.md describes every request.
//!
//! One thread runs all sockets. Calls to the node block, so they run on a small number of separate
//! threads. Everything is bounded: connections, the length of heads and bodies, and the time that
//! each may take. A connection carries one request: an open connection takes one of a limited
//! number of places.

mod context;
#[cfg(test)]
mod docs;
mod reply;
mod requests;
mod routes;
mod serve;
mod tally;
#[cfg(test)]
mod tests;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serving::api::ApiThread;

use context::ApiContext;
use node_api::bodies::Pace;
use node_api::control::NodeControl;
pub use serving::api::listen;

/// The running API. Dropping it stops accepting requests and waits, within a deadline, until those
/// in progress have their responses.
#[derive(Debug)]
pub struct Api(#[expect(dead_code, reason = "ends the API when it is dropped")] ApiThread);

impl Api {
    /// Serves clients that connect to `listener` and are admitted: root, and the user of this process,
    /// except the workers of the directory that the listener is in.
    ///
    /// # Errors
    /// If no thread can be started, or the listener cannot be used.
    pub fn serve(listener: UnixListener, node: Arc<dyn NodeControl>) -> anyhow::Result<Self> {
        let admission = host::control::admission(&listener);
        let socket = listener.local_addr().ok();
        let socket = socket.as_ref().and_then(|address| address.as_pathname());
        let run_dir = socket.and_then(Path::parent).map(Path::to_owned);
        let context = ApiContext::new(node, admission).with_pins_of(run_dir);
        Self::serve_to(listener, context)
    }

    fn serve_to(listener: UnixListener, context: ApiContext) -> anyhow::Result<Self> {
        listener
            .set_nonblocking(true)
            .context("preparing the API's socket")?;
        let thread = ApiThread::start("api", Pace::all_callers(), move |closed| {
            serve::take_connections(listener, Arc::new(context), closed)
        });
        thread.map(Self).context("starting the API")
    }
}
