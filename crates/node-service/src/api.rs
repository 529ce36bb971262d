//! The node's API: HTTP/1.1 and JSON on a unix socket. docs/api.md describes every request.
//!
//! One thread runs all sockets. What the node is asked blocks, so it is asked on threads of their
//! own, of which there are few. Everything is bounded: connections, the length of heads and bodies,
//! and the time that each may take. A connection carries one request: whoever holds a connection
//! open holds a place, and places are few.

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
use std::sync::Arc;

use anyhow::Context as _;
use serving::api::ApiThread;

use context::ApiContext;
use node_api::bodies::Pace;
use node_api::control::NodeControl;
pub use serving::api::listen;

/// The running API. Dropping it takes no more requests and waits, within a deadline, until those
/// that were taken have their answers.
#[derive(Debug)]
pub struct Api(#[expect(dead_code, reason = "ends the API when it is dropped")] ApiThread);

impl Api {
    /// Answers whoever connects to `listener` and may ask: root, and the user of this process, but
    /// for the workers of the directory that the listener is in.
    ///
    /// # Errors
    /// If the system gives no thread, or the listener cannot be used.
    pub fn serve(listener: UnixListener, node: Arc<dyn NodeControl>) -> anyhow::Result<Self> {
        let admission = host::control::admission(&listener);
        Self::serve_to(listener, ApiContext::new(node, admission))
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
