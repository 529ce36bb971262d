//! All handlers of a program: added, called, and removed.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sandbox::Sandboxes;
use sandbox_packages::Store;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::error::{CallError, Result};
use crate::handler::Handler;
use crate::keeper;
use crate::shared::{HandlerCounts, Shared};
use crate::spec::HandlerSpec;

/// Handlers of one program.
const HANDLERS_MAX: usize = 4096;

/// How often the budget is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The view of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerView {
    /// Its specification.
    #[serde(flatten)]
    pub spec: HandlerSpec,
    /// Its sandboxes.
    pub live: u32,
    /// Those of them that wait for a request.
    pub idle: u32,
    /// Requests that wait for a sandbox.
    pub waiting: u32,
}

/// The handlers of a program. Dropping it ends their sandboxes.
#[derive(Debug)]
pub struct Handlers {
    shared: Arc<Shared>,
    close: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Handlers {
    /// Begins without any, and keeps the budget from now on.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn new(sandboxes: Arc<Sandboxes>, store: Arc<Store>, budget: Budget) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(sandboxes, store, budget));
        let (close, closed) = sync_channel(0);
        let keeping = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sandbox-budget".to_owned());
        let thread = thread.spawn(move || {
            while closed.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                keeper::keep(&keeping);
                keeping.keep_spares();
            }
        })?;
        Ok(Self {
            shared,
            close: Some(close),
            thread: Some(thread),
        })
    }

    /// Adds a handler. None of its code runs before it is called.
    ///
    /// # Errors
    /// If it is invalid, or there is another one of this name.
    pub fn add(&self, spec: HandlerSpec) -> Result<()> {
        spec.check()?;
        if !spec.code.is_dir() {
            let message = format!("{} is no directory with a handler", spec.code.display());
            return Err(CallError::Invalid(message));
        }
        let mut handlers = self.shared.handlers.write();
        if let Some(there) = handlers.get(&spec.name) {
            return match there.spec == spec {
                true => Ok(()),
                false => Err(CallError::Exists(spec.name)),
            };
        }
        if handlers.len() >= HANDLERS_MAX {
            return Err(CallError::Invalid(format!(
                "there are {HANDLERS_MAX} handlers already"
            )));
        }
        handlers.insert(spec.name.clone(), Arc::new(Handler::new(spec)));
        Ok(())
    }

    /// Removes a handler. Requests in progress are completed.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn remove(&self, name: &str) -> Result<()> {
        let removed = self.shared.handlers.write().remove(name);
        let removed = removed.ok_or_else(|| CallError::Unknown(name.to_owned()))?;
        removed.close();
        Ok(())
    }

    /// Returns all handlers.
    pub fn list(&self) -> Vec<HandlerView> {
        let handlers = self.shared.handlers.read();
        let views = handlers.values().map(|handler| {
            let numbers = handler.numbers();
            HandlerView {
                spec: handler.spec.clone(),
                live: numbers.live,
                idle: numbers.idle,
                waiting: numbers.waiting,
            }
        });
        views.collect()
    }

    /// Returns the counters.
    pub fn counts(&self) -> HandlerCounts {
        self.shared.counts()
    }

    /// Has a handler handle an event, and returns its result. Both are JSON.
    ///
    /// # Errors
    /// If there is no such handler, too many requests wait, it does not respond in time, or fails.
    pub fn call(&self, name: &str, event: &[u8]) -> Result<Vec<u8>> {
        let called = self.shared.call(name, event);
        self.shared.count(|counts| match &called {
            Err(CallError::Busy(_)) => counts.busy += 1,
            Err(CallError::Late { .. }) => counts.late += 1,
            Err(CallError::Unknown(_) | CallError::Invalid(_)) | Ok(_) => {}
            Err(_) => counts.failed += 1,
        });
        called
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that keeps the budget ended in a panic");
        }
        for handler in self.shared.handlers.read().values() {
            handler.close();
        }
    }
}
