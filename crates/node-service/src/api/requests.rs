//! The handlers of requests: parameters, the call to the node, and the response.

use node_api::bodies::BootBody;
use node_api::bodies::PrewarmBody;
use node_api::bodies::ResizeBody;
use node_api::bodies::UpgradeBody;
use node_api::control::WhenInUse;

use std::time::Duration;

use hyper::StatusCode;
use pinning::talk::{PinStatus, Request, ask_within};
use serde::de::DeserializeOwned;

use super::context::ApiContext;
use super::reply::{HttpResponse, Refusal, json, nothing, text};
use crate::metrics;

/// How long a page of metrics waits for the process that locks pages, which responds without reading anything.
const PINS_DEADLINE: Duration = Duration::from_millis(500);

/// The parts of a request that its client chooses.
#[derive(Debug)]
pub(super) struct Call {
    /// The value of `{id}`.
    pub(super) id: Option<String>,
    /// The query string.
    pub(super) query: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Call {
    fn id(&self) -> Result<&str, Refusal> {
        self.id
            .as_deref()
            .ok_or_else(|| Refusal::failed("the path contains no id"))
    }

    /// Reads the body; fields that are not known are refused by each type.
    fn body<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Refusal::invalid(format!("the body is not what it should be: {error}"))
        })
    }

    /// Like [`Self::body`]; no body says the same as `{}`.
    fn optional_body<T: DeserializeOwned + Default>(&self) -> Result<T, Refusal> {
        if self.body.is_empty() {
            return Ok(T::default());
        }
        self.body()
    }

    fn no_body(&self) -> Result<(), Refusal> {
        if self.body.is_empty() {
            return Ok(());
        }
        Err(Refusal::invalid("this request takes no body"))
    }

    fn no_query(&self) -> Result<(), Refusal> {
        match self.query.as_deref() {
            None | Some("") => Ok(()),
            Some(query) => Err(Refusal::invalid(format!("this request takes no ?{query}"))),
        }
    }

    fn plain(&self) -> Result<(), Refusal> {
        self.no_query()?;
        self.no_body()
    }
}

pub(super) fn node(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &context.node.node()))
}

pub(super) fn mounts(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &context.node.mounts()))
}

pub(super) fn mount(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &context.node.mount(call.id()?)?))
}

pub(super) fn make(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_query()?;
    let made = context.node.make(call.body()?)?;
    let status = if made.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json(status, &made.mount))
}

pub(super) fn unmount(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_body()?;
    let when_in_use = match call.query.as_deref() {
        None | Some("" | "lazy=false") => WhenInUse::Refuse,
        Some("lazy=true") => WhenInUse::Detach,
        Some(other) => {
            let message = format!("?{other} is not known here; there is ?lazy=true");
            return Err(Refusal::invalid(message));
        }
    };
    context.node.unmount(call.id()?, when_in_use)?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) fn prewarm(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_query()?;
    let PrewarmBody { budget_bytes } = call.optional_body()?;
    let summary = context.node.prewarm(call.id()?, budget_bytes)?;
    Ok(json(StatusCode::OK, &summary))
}

pub(super) fn swap(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_query()?;
    let BootBody { boot } = call.body()?;
    Ok(json(StatusCode::OK, &context.node.swap(call.id()?, boot)?))
}

pub(super) fn devices(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &context.node.devices()))
}

pub(super) fn attach(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_query()?;
    let attached = context.node.attach(call.body()?)?;
    let status = match attached.new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok(json(status, &attached.device))
}

pub(super) fn detach(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    context.node.detach(call.id()?)?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) fn resize(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_query()?;
    let ResizeBody { size } = call.body()?;
    let device = context.node.resize(call.id()?, size)?;
    Ok(json(StatusCode::OK, &device))
}

pub(super) fn keep_plan(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &context.node.keep_plan(call.id()?)?))
}

pub(super) fn drain(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &context.node.drain()?))
}

pub(super) fn upgrade(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.no_query()?;
    let UpgradeBody { program } = call.body()?;
    if !program.is_absolute() {
        return Err(Refusal::invalid("the program's path must be absolute"));
    }
    Ok(json(StatusCode::OK, &context.node.upgrade(&program)?))
}

pub(super) fn measured(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    let page = metrics::page(
        context.node.node(),
        context.node.mounts(),
        context.node.devices(),
        pins(context),
        context.answers.by_status(),
    );
    Ok(text(StatusCode::OK, page))
}

/// Returns what the process says that locks pages of the host's own files, if there is one and it responds at once.
fn pins(context: &ApiContext) -> Option<PinStatus> {
    let run_dir = context.run_dir.as_deref()?;
    let said = ask_within(run_dir, &Request::Figures, PINS_DEADLINE);
    said.unwrap_or_else(|error| {
        log::debug!("no figures of pinned pages: {error:#}");
        None
    })
}

/// Responds that the API works, without a call to the node: a restart does not help a node that
/// waits for something.
pub(super) fn healthz(_desk: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    Ok(text(StatusCode::OK, "ok\n"))
}

pub(super) fn readyz(context: &ApiContext, call: &Call) -> Result<HttpResponse, Refusal> {
    call.plain()?;
    if context.node.node().draining {
        return Err(Refusal::unavailable(
            "the node is being drained: it takes no mounts",
        ));
    }
    Ok(text(StatusCode::OK, "ok\n"))
}
