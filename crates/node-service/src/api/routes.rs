//! The table of routes, and the look-up of a request in it.

use node_api::bodies::Pace;

use hyper::Method;

use super::context::ApiContext;
use super::reply::{HttpResponse, Refusal};
use super::requests::{self, Call};

/// One kind of request.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    /// `{id}` stands for the id of a mount, or the name of a device.
    pub(super) path: &'static str,
    pub(super) pace: Pace,
    pub(super) answer: fn(&ApiContext, &Call) -> Result<HttpResponse, Refusal>,
}

const fn route(
    method: Method,
    path: &'static str,
    pace: Pace,
    answer: fn(&ApiContext, &Call) -> Result<HttpResponse, Refusal>,
) -> Route {
    Route {
        method,
        path,
        pace,
        answer,
    }
}

/// All routes.
pub(super) static ROUTES: &[Route] = &[
    route(Method::GET, "/v1/node", Pace::Look, requests::node),
    route(Method::GET, "/v1/mounts", Pace::Look, requests::mounts),
    route(Method::POST, "/v1/mounts", Pace::Change, requests::make),
    route(Method::GET, "/v1/mounts/{id}", Pace::Look, requests::mount),
    route(
        Method::DELETE,
        "/v1/mounts/{id}",
        Pace::Change,
        requests::unmount,
    ),
    route(
        Method::POST,
        "/v1/mounts/{id}/prewarm",
        Pace::Load,
        requests::prewarm,
    ),
    route(
        Method::PUT,
        "/v1/mounts/{id}/boot",
        Pace::Change,
        requests::swap,
    ),
    route(Method::GET, "/v1/devices", Pace::Look, requests::devices),
    route(Method::POST, "/v1/devices", Pace::Change, requests::attach),
    route(
        Method::DELETE,
        "/v1/devices/{id}",
        Pace::Change,
        requests::detach,
    ),
    route(
        Method::PUT,
        "/v1/devices/{id}/size",
        Pace::Change,
        requests::resize,
    ),
    route(
        Method::POST,
        "/v1/devices/{id}/plan",
        Pace::Change,
        requests::keep_plan,
    ),
    route(Method::POST, "/v1/drain", Pace::Change, requests::drain),
    route(Method::POST, "/v1/upgrade", Pace::Change, requests::upgrade),
    route(Method::GET, "/metrics", Pace::Look, requests::measured),
    route(Method::GET, "/healthz", Pace::Look, requests::healthz),
    route(Method::GET, "/readyz", Pace::Look, requests::readyz),
];

/// Finds the route of a request, and the id in its path.
pub(super) fn find(
    method: &Method,
    path: &str,
) -> Result<(&'static Route, Option<String>), Refusal> {
    let mut others = Vec::new();
    for route in ROUTES {
        let Some(id) = matches(route.path, path) else {
            continue;
        };
        if route.method == *method {
            return Ok((route, id.map(ToOwned::to_owned)));
        }
        others.push(route.method.as_str());
    }
    if others.is_empty() {
        return Err(Refusal::no_path(path));
    }
    Err(Refusal::no_method(method.as_str(), others.join(", ")))
}

/// Returns what `{id}` matches in `path`, if it has the pattern at all.
fn matches<'p>(pattern: &str, path: &'p str) -> Option<Option<&'p str>> {
    let mut id = None;
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(id),
            (Some("{id}"), Some(part)) if !part.is_empty() => id = Some(part),
            (Some(name), Some(part)) if name == part => {}
            _ => return None,
        }
    }
}
