//! What the daemon does about handlers.

use sandbox_handlers::{HandlerSpec, HandlerView, Result};

use crate::Daemon;

impl Daemon {
    /// Adds a handler, now and for the next start.
    ///
    /// # Errors
    /// If it makes no sense, or there is another one of its name.
    pub fn add_handler(&self, spec: HandlerSpec) -> Result<()> {
        self.handlers.add(spec.clone())?;
        self.change_settings(|settings| {
            settings.handlers.retain(|other| other.name != spec.name);
            settings.handlers.push(spec);
        });
        Ok(())
    }

    /// Removes a handler.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn remove_handler(&self, name: &str) -> Result<()> {
        self.handlers.remove(name)?;
        self.change_settings(|settings| settings.handlers.retain(|other| other.name != name));
        Ok(())
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
