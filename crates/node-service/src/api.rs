//! The node's API: HTTP/1.1 and JSON on a unix socket. docs/api.md describes every request.
//!
//! One thread runs all sockets. What the node is asked blocks, so it is asked on threads of their
//! own, of which there are few. Everything is bounded: connections, the length of heads and bodies,
//! and the time that each may take. A connection carries one request: whoever holds a connection
//! open holds a place, and places are few.

mod context;
#[cfg(test)]
mod docs;
mod listen;
mod reply;
mod requests;
mod routes;
mod serve;
mod tally;
#[cfg(test)]
mod tests;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::sync::oneshot;

use context::ApiContext;
pub use listen::listen;
use node_api::bodies::Pace;
use node_api::control::NodeControl;

/// The running API. Dropping it takes no more requests and waits, within a deadline, until those
/// that were taken have their answers.
#[derive(Debug)]
pub struct Api {
    close: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("api-call")
            .max_blocking_threads(Pace::all_callers())
            .build()
            .context("starting the API")?;
        let (close, closed) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("api".to_owned())
            .spawn(move || {
                runtime.block_on(serve::take_connections(listener, Arc::new(context), closed));
                // A call of the node that hangs must not keep us.
                runtime.shutdown_background();
            })
            .context("starting the API's thread")?;
        Ok(Self {
            close: Some(close),
            thread: Some(thread),
        })
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the API ended in a panic");
        }
    }
}
