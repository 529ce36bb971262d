//! A call of a handler, from its queue to its response.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use sandbox::{SandboxError, Sandboxes};
use sandbox_packages::Store;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::error::{CallError, Result};
use crate::handler::{Handler, Place};
use crate::instance::{Instance, MESSAGE_MAX_BYTES, Reply};
use crate::spares::Spares;
use crate::spec::{HandlerSpec, Runtime};

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerCounts {
    /// Requests that found a sandbox with the handler in it.
    pub hits: u64,
    /// Microseconds that these took, together.
    pub hit_micros: u64,
    /// Requests that started a sandbox.
    pub starts: u64,
    /// Those of them that used one that was started ahead.
    pub spares: u64,
    /// Sandboxes that are started and not used yet.
    pub spares_ready: u64,
    /// Microseconds that the requests that started one took, together.
    pub start_micros: u64,
    /// Requests that were refused because too many waited.
    pub busy: u64,
    /// Requests that timed out.
    pub late: u64,
    /// Requests whose handler failed.
    pub failed: u64,
    /// Bytes that Zygotes and frozen sandboxes took for themselves when this was last looked at.
    pub kept_bytes: u64,
    /// Frozen sandboxes that were ended for the budget.
    pub evicted_instances: u64,
    /// Zygotes that were evicted.
    pub evicted_zygotes: u64,
    /// Packages that were evicted.
    pub evicted_packages: u64,
}

/// What calls and the thread that keeps the budget share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) store: Arc<Store>,
    pub(crate) handlers: RwLock<BTreeMap<String, Arc<Handler>>>,
    pub(crate) budget: Budget,
    spares: Spares,
    counts: Mutex<HandlerCounts>,
}

impl Shared {
    pub(crate) fn new(sandboxes: Arc<Sandboxes>, store: Arc<Store>, budget: Budget) -> Self {
        Self {
            sandboxes,
            store,
            budget,
            handlers: RwLock::default(),
            spares: Spares::default(),
            counts: Mutex::default(),
        }
    }

    pub(crate) fn counts(&self) -> HandlerCounts {
        *self.counts.lock()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut HandlerCounts)) {
        change(&mut self.counts.lock());
    }

    /// Has a spare for each handler that can use one.
    pub(crate) fn keep_spares(&self) {
        let specs: Vec<HandlerSpec> = {
            let handlers = self.handlers.read();
            let specs = handlers.values().map(|handler| &handler.spec);
            specs
                .filter(|spec| spec.runtime == Runtime::Node)
                .cloned()
                .collect()
        };
        self.spares.keep_for(&specs);
        let ready = |spares: &Spares| u64::try_from(spares.count()).unwrap_or(0);
        for spec in &specs {
            if let Err(error) = self.spares.fill(&self.sandboxes, spec) {
                log::warn!("no sandbox is started ahead for {}: {error}", spec.name);
            }
        }
        self.count(|counts| counts.spares_ready = ready(&self.spares));
    }

    pub(crate) fn call(&self, name: &str, event: &[u8]) -> Result<Vec<u8>> {
        let began = Instant::now();
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(event);
        if event.len() > MESSAGE_MAX_BYTES - 64 {
            return Err(CallError::Invalid(format!(
                "an event has at most {MESSAGE_MAX_BYTES} bytes"
            )));
        }
        is_json.map_err(|error| CallError::Invalid(format!("an event is JSON: {error}")))?;
        let handler = self.handlers.read().get(name).cloned();
        let handler = handler.ok_or_else(|| CallError::Unknown(name.to_owned()))?;
        let deadline = began + handler.spec.timeout();
        let (mut instance, is_hit) = self.place(&handler, deadline)?;
        match instance.ask(event, deadline) {
            Ok(reply) => {
                handler.keep(*instance);
                let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.count(|counts| match is_hit {
                    true => {
                        counts.hits += 1;
                        counts.hit_micros += micros;
                    }
                    false => {
                        counts.starts += 1;
                        counts.start_micros += micros;
                    }
                });
                value_of(name, reply)
            }
            Err(error) => {
                let error = explain(&handler.spec, &instance, &error);
                drop(instance);
                handler.leave();
                Err(error)
            }
        }
    }

    /// Waits for a sandbox that has loaded the handler, or starts one. Returns whether it was there.
    fn place(&self, handler: &Handler, deadline: Instant) -> Result<(Box<Instance>, bool)> {
        let place = handler.enter(deadline)?;
        if let Place::Instance(mut instance) = place
            && instance.lives()
        {
            match instance.thaw() {
                Ok(()) => return Ok((instance, true)),
                Err(error) => log::debug!("a sandbox of {} has gone: {error}", handler.spec.name),
            }
        }
        // In the place of one that has gone, or in a new one.
        let began = Instant::now();
        let started = self.start(&handler.spec, deadline);
        match started {
            Ok(instance) => {
                handler.started_in(began.elapsed().as_secs_f64() * 1000.0);
                Ok((Box::new(instance), false))
            }
            Err(error) => {
                handler.leave();
                Err(error)
            }
        }
    }

    fn start(&self, spec: &HandlerSpec, deadline: Instant) -> Result<Instance> {
        let in_sandbox = |source: SandboxError| CallError::Sandbox {
            name: spec.name.clone(),
            source,
        };
        let spare = match spec.runtime {
            Runtime::Node => self.spares.take(&self.sandboxes, spec),
            Runtime::Python => None,
        };
        if spare.is_some() {
            self.count(|counts| counts.spares += 1);
        }
        let mut instance = match spare {
            Some(spare) => spare,
            None => {
                // Claimed until the sandbox is there.
                let (packages, _claim) = match spec.requires.is_empty() {
                    true => Default::default(),
                    false => {
                        let found = self.store.packages_of(&spec.base, &spec.requires);
                        let (packages, claim) = found.map_err(|source| CallError::Packages {
                            name: spec.name.clone(),
                            source,
                        })?;
                        (packages, Some(claim))
                    }
                };
                let store = self.store.dir_of(&spec.base);
                let request = spec.request(packages, Some(store));
                Instance::start(&self.sandboxes, request).map_err(in_sandbox)?
            }
        };
        match instance.load(deadline) {
            Ok(Reply {
                error: None,
                modules,
                ..
            }) => {
                self.sandboxes.note_imports(&instance.sandbox, modules);
                Ok(instance)
            }
            Ok(reply) => Err(value_of(&spec.name, reply)
                .err()
                .unwrap_or_else(|| CallError::Unknown(spec.name.clone()))),
            Err(error) => Err(explain(spec, &instance, &error)),
        }
    }
}

fn value_of(name: &str, reply: Reply) -> Result<Vec<u8>> {
    let failed = |said: String| CallError::Failed {
        name: name.to_owned(),
        said,
    };
    match reply.error {
        Some(said) => Err(failed(said)),
        None => serde_json::to_vec(&reply.value).map_err(|error| failed(error.to_string())),
    }
}

/// Says why a sandbox did not answer.
fn explain(spec: &HandlerSpec, instance: &Instance, error: &io::Error) -> CallError {
    let name = spec.name.clone();
    if error.kind() == io::ErrorKind::TimedOut {
        let patience = spec.timeout();
        return CallError::Late { name, patience };
    }
    // It most likely ended: then there is a reason.
    let exit = match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => instance.sandbox.wait(Duration::from_secs(1)),
        _ => None,
    };
    let how = exit.map_or_else(
        || error.to_string(),
        |exit| format!("its sandbox ended: {exit:?}"),
    );
    let said = format!("{how} {}", instance.last_words()).trim().to_owned();
    CallError::Failed { name, said }
}
