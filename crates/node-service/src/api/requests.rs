//! Each request: what it takes, what the node is asked, and what is answered.

use node_api::bodies::BootBody;
use node_api::bodies::PrewarmBody;
use node_api::bodies::UpgradeBody;

use hyper::StatusCode;
use serde::de::DeserializeOwned;

use super::reply::{Answer, Refusal, json, nothing, text};
use super::serve::Desk;
use crate::metrics;

/// A request, as far as it depends on who asks.
#[derive(Debug)]
pub(super) struct Call {
    /// What stands for `{id}`.
    pub(super) id: Option<String>,
    /// Behind the `?`.
    pub(super) query: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Call {
    fn id(&self) -> Result<&str, Refusal> {
        self.id
            .as_deref()
            .ok_or_else(|| Refusal::failed("the path contains no mount id"))
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

pub(super) fn node(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &desk.node.node()))
}

pub(super) fn mounts(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &desk.node.mounts()))
}

pub(super) fn mount(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &desk.node.mount(call.id()?)?))
}

pub(super) fn make(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.no_query()?;
    let made = desk.node.make(call.body()?)?;
    let status = if made.new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(json(status, &made.mount))
}

pub(super) fn unmount(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.no_body()?;
    let lazy = match call.query.as_deref() {
        None | Some("" | "lazy=false") => false,
        Some("lazy=true") => true,
        Some(other) => {
            let message = format!("?{other} is not known here; there is ?lazy=true");
            return Err(Refusal::invalid(message));
        }
    };
    desk.node.unmount(call.id()?, lazy)?;
    Ok(nothing(StatusCode::NO_CONTENT))
}

pub(super) fn prewarm(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.no_query()?;
    let PrewarmBody { budget_bytes } = call.optional_body()?;
    let summary = desk.node.prewarm(call.id()?, budget_bytes)?;
    Ok(json(StatusCode::OK, &summary))
}

pub(super) fn swap(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.no_query()?;
    let BootBody { boot } = call.body()?;
    Ok(json(StatusCode::OK, &desk.node.swap(call.id()?, boot)?))
}

pub(super) fn drain(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    Ok(json(StatusCode::OK, &desk.node.drain()?))
}

pub(super) fn upgrade(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.no_query()?;
    let UpgradeBody { program } = call.body()?;
    if !program.is_absolute() {
        return Err(Refusal::invalid("the program's path must be absolute"));
    }
    Ok(json(StatusCode::OK, &desk.node.upgrade(&program)?))
}

pub(super) fn measured(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    let page = metrics::page(
        desk.node.node(),
        desk.node.mounts(),
        desk.answers.by_status(),
    );
    Ok(text(StatusCode::OK, page))
}

/// Says that the API answers, and asks the node nothing: a node that waits for something is not
/// made better by a restart.
pub(super) fn healthz(_desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    Ok(text(StatusCode::OK, "ok\n"))
}

pub(super) fn readyz(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    call.plain()?;
    if desk.node.node().draining {
        return Err(Refusal::unavailable(
            "the node is being drained: it takes no mounts",
        ));
    }
    Ok(text(StatusCode::OK, "ok\n"))
}
