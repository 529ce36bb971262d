//! Lists from the upstream registry: tags of a repository, and referrers of a manifest. They are passed
//! on and cached for a short time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, LINK};
use hyper::{Method, StatusCode};
use parking_lot::Mutex;

use super::documents::Documents;
use super::reply::{Refusal, Reply, Source, document, set};
use super::route::{Route, parameter};
use super::{Granted, Mirror};
use crate::upstream::{UpstreamError, UpstreamRequest};

/// The header by which a registry says that it filtered referrers.
const FILTERS: HeaderName = HeaderName::from_static("oci-filters-applied");

/// The most entries in the cache of lists.
const KEPT_MAX: usize = 1024;
/// The longest list that is cached; longer ones are passed through each time.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// The longest request whose response is cached. Clients choose their requests.
const KEPT_NAME_MAX: usize = 1024;

/// A cached response.
#[derive(Debug, Default)]
pub(super) struct Listings(Mutex<HashMap<String, CachedListing>>);

#[derive(Clone, Debug)]
struct CachedListing {
    until: Instant,
    /// `None` if the registry does not have the list.
    page: Option<Page>,
}

#[derive(Clone, Debug)]
struct Page {
    media_type: String,
    link: Option<String>,
    filters: Option<String>,
    bytes: Bytes,
}

impl Listings {
    /// Returns whether a "not found" of the registry is cached.
    pub(super) fn is_absent(&self, name: &str) -> bool {
        let kept = self.0.lock();
        let entry = kept.get(name);
        entry.is_some_and(|entry| entry.page.is_none() && Instant::now() < entry.until)
    }

    pub(super) fn note_absent(&self, name: String, ttl: Duration) {
        self.keep(name, None, ttl);
    }

    fn keep(&self, name: String, page: Option<Page>, ttl: Duration) {
        if name.len() > KEPT_NAME_MAX {
            return;
        }
        let mut kept = self.0.lock();
        if kept.len() >= KEPT_MAX {
            let now = Instant::now();
            kept.retain(|_, entry| now < entry.until);
        }
        if kept.len() < KEPT_MAX {
            let until = Instant::now() + ttl;
            kept.insert(name, CachedListing { until, page });
        }
    }

    fn find(&self, name: &str) -> Option<CachedListing> {
        self.0.lock().get(name).cloned()
    }
}

impl Mirror {
    /// Handles a request for a list.
    pub(super) async fn listing(
        self: &Arc<Self>,
        granted: &Granted,
        route: &Route,
        query: Option<&str>,
    ) -> Result<(Source, Reply), Refusal> {
        let path = match route {
            Route::Referrers(_, digest) => format!("referrers/{digest}"),
            _ => "tags/list".to_owned(),
        };
        let ns = parameter(query, "ns");
        let what = match without_ns(query) {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        // What is told to one is not told to another.
        let name = granted.named(format_args!("/{what}"));
        let _guard = self.locks.lock(name.clone()).await;
        let kept = self.listings.find(&name);
        if let Some(kept) = kept.as_ref().filter(|kept| Instant::now() < kept.until) {
            let page = kept.page.as_ref();
            let page =
                page.ok_or_else(|| Refusal::absent("the upstream registry does not have it"))?;
            return Ok((Source::Hit, page.reply(ns.as_deref())));
        }
        if !self.config.load.may_fetch() {
            let page = kept.and_then(|kept| kept.page).ok_or_else(Refusal::shed)?;
            return Ok((Source::Stale, page.reply(ns.as_deref())));
        }
        let mut ask = UpstreamRequest::new(Method::GET, &granted.scope.repository, what);
        ask.asker = granted.asker.clone();
        self.counters.asked.inc();
        let answered = match granted.upstream.ask(&ask).await {
            Ok(answer) => Page::take(answer, &self.documents).await,
            Err(error) => Err(error),
        };
        match answered {
            Ok(page) => {
                let bytes = page.bytes.len();
                self.counters.fetched_bytes.inc_by(bytes as u64);
                let reply = page.reply(ns.as_deref());
                if bytes <= KEPT_BYTES_MAX {
                    self.listings.keep(name, Some(page), self.config.tag_ttl);
                }
                Ok((Source::Miss, reply))
            }
            Err(error) if error.is_outage() || matches!(error, UpstreamError::NoMemory) => {
                self.counters.outages.inc();
                let page = kept.and_then(|kept| kept.page);
                let page = page.ok_or_else(|| Refusal::from(error))?;
                Ok((Source::Stale, page.reply(ns.as_deref())))
            }
            Err(error) => {
                if let UpstreamError::NotFound = error {
                    self.listings.note_absent(name, self.config.absent_ttl);
                }
                Err(error.into())
            }
        }
    }
}

impl Page {
    async fn take(answer: reqwest::Response, documents: &Documents) -> Result<Self, UpstreamError> {
        let header = |name| {
            let value: Option<&hyper::header::HeaderValue> = answer.headers().get(name);
            value
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let media_type = header(CONTENT_TYPE).unwrap_or_else(|| "application/json".to_owned());
        let (link, filters) = (header(LINK), header(FILTERS));
        let bytes = documents.body(answer).await?;
        Ok(Self {
            media_type,
            link,
            filters,
            bytes,
        })
    }

    fn reply(&self, ns: Option<&str>) -> Reply {
        let mut reply = document(StatusCode::OK, &self.media_type, self.bytes.clone());
        if let Some(link) = self.link.as_deref().and_then(|link| here(link, ns)) {
            set(&mut reply, LINK, &link);
        }
        if let Some(filters) = &self.filters {
            set(&mut reply, FILTERS, filters);
        }
        reply
    }
}

/// Rewrites the link to the next page for clients of the mirror.
fn here(link: &str, ns: Option<&str>) -> Option<String> {
    let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    let path = match target.split_once("://") {
        Some((_, rest)) => &rest[rest.find('/')?..],
        None => target,
    };
    let more = match (ns, path.contains('?')) {
        (Some(ns), true) => format!("&ns={ns}"),
        (Some(ns), false) => format!("?ns={ns}"),
        (None, _) => String::new(),
    };
    Some(format!("<{path}{more}>{rest}"))
}

/// Returns a query without the parameter that is for the mirror.
fn without_ns(query: Option<&str>) -> Option<String> {
    let pairs = query?.split('&').filter(|pair| !pair.starts_with("ns="));
    let rest: Vec<_> = pairs.filter(|pair| !pair.is_empty()).collect();
    (!rest.is_empty()).then(|| rest.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_mirror() {
        let link = r#"<https://r.io/v2/a/tags/list?n=1&last=x>; rel="next""#;
        let mine = r#"</v2/a/tags/list?n=1&last=x&ns=r.io>; rel="next""#;
        assert_eq!(here(link, Some("r.io")).as_deref(), Some(mine));
        let relative = r#"</v2/a/tags/list>; rel="next""#;
        assert_eq!(here(relative, None).as_deref(), Some(relative));
        assert_eq!(here("nothing", None), None);
    }

    #[test]
    fn the_name_of_the_registry_stays_here() {
        assert_eq!(
            without_ns(Some("n=1&ns=r.io&last=a")).as_deref(),
            Some("n=1&last=a")
        );
        assert_eq!(without_ns(Some("ns=r.io")), None);
        assert_eq!(without_ns(None), None);
    }
}
