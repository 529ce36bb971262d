//! What the daemon does about handlers.

use sandbox_handlers::{CallError, HandlerSpec, HandlerView, Result};

use crate::Daemon;
use crate::daemon::undone;

impl Daemon {
    /// Adds a handler, now and for the next start.
    ///
    /// # Errors
    /// If it makes no sense, there is another one of its name, or the settings cannot be written; then it is not there.
    pub fn add_handler(&self, spec: HandlerSpec) -> Result<()> {
        self.handlers.add(spec.clone())?;
        let name = spec.name.clone();
        let kept = self.settings.change(|settings| {
            if !settings.handlers.contains(&spec) {
                settings.handlers.retain(|other| other.name != spec.name);
                settings.handlers.push(spec);
            }
        });
        kept.map_err(|source| {
            undone(&name, &self.handlers.remove(&name));
            CallError::Settings { name, source }
        })
    }

    /// Removes a handler.
    ///
    /// # Errors
    /// If there is none of this name, or the settings cannot be written; then it is there.
    pub fn remove_handler(&self, name: &str) -> Result<()> {
        // First: one that is still in the settings would be back at the next start.
        let removed = self
            .settings
            .change(|settings| settings.handlers.retain(|other| other.name != name));
        removed.map_err(|source| CallError::Settings {
            name: name.to_owned(),
            source,
        })?;
        self.handlers.remove(name)
    }

    /// Returns the handlers.
    pub fn handlers(&self) -> Vec<HandlerView> {
        self.handlers.list()
    }

    /// Has a handler handle an event.
    ///
    /// # Errors
    /// As [`sandbox_handlers::Handlers::call`].
    pub fn call_handler(&self, name: &str, event: &[u8]) -> Result<Vec<u8>> {
        self.handlers.call(name, event)
    }
}
