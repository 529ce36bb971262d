//! Sandboxes that are started before they are requested, and get their code with a request: for runtimes that
//! cannot fork.
//!
//! A spare has run nothing but the runner. It is used for one handler, once.

use std::sync::Arc;

use parking_lot::Mutex;
use sandbox::{SandboxError, Sandboxes};

use crate::instance::Instance;
use crate::spec::HandlerSpec;

/// Kinds of spares that are kept, one of each.
const SPARES_MAX: usize = 16;

/// The spares that are ready.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<(HandlerSpec, Instance)>>);

/// What two handlers must have in common so that a spare of one is one of the other.
fn kind(spec: &HandlerSpec) -> HandlerSpec {
    HandlerSpec {
        instances_max: 1,
        queue_max: 0,
        timeout_ms: 0,
        code: "/".into(),
        name: String::new(),
        ..spec.clone()
    }
}

impl Spares {
    /// Takes one for a handler, and mounts the handler's code in it.
    pub(crate) fn take(&self, sandboxes: &Sandboxes, spec: &HandlerSpec) -> Option<Instance> {
        let kind = kind(spec);
        let spare = {
            let mut spares = self.0.lock();
            let place = spares
                .iter()
                .position(|(of, spare)| *of == kind && spare.lives())?;
            spares.swap_remove(place).1
        };
        match sandboxes.mount_code(&spare.sandbox, &spec.code) {
            Ok(()) => Some(spare),
            Err(error) => {
                log::warn!("a spare sandbox cannot be used for {}: {error}", spec.name);
                None
            }
        }
    }

    /// Starts one for the next request of a handler like this one, if there is none.
    pub(crate) fn fill(
        &self,
        sandboxes: &Arc<Sandboxes>,
        spec: &HandlerSpec,
    ) -> Result<(), SandboxError> {
        let kind = kind(spec);
        if self
            .0
            .lock()
            .iter()
            .any(|(of, spare)| *of == kind && spare.lives())
        {
            return Ok(());
        }
        let mut request = spec.request(sandbox::Packages::new(), None);
        request.code = None;
        let spare = Instance::start(sandboxes, request)?;
        let mut spares = self.0.lock();
        spares.retain(|(_, spare)| spare.lives());
        if spares.len() >= SPARES_MAX {
            spares.remove(0);
        }
        spares.push((kind, spare));
        Ok(())
    }

    /// Ends those of removed handlers.
    pub(crate) fn keep_for(&self, specs: &[HandlerSpec]) {
        let kinds: Vec<_> = specs.iter().map(kind).collect();
        let mut spares = self.0.lock();
        spares.retain(|(of, spare)| kinds.contains(of) && spare.lives());
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}
