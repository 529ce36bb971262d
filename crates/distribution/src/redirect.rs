//! Redirects of responses.

use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{Method, StatusCode, Url};

/// Returns the target at which a request continues after this response; `None` if there is no redirect.
///
/// # Errors
/// If the target is not allowed; the error is the rule that it breaks.
pub(crate) fn next(
    method: &Method,
    from: &Url,
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<Option<Url>, &'static str> {
    let only_asks = matches!(*method, Method::GET | Method::HEAD);
    let leads = match status.as_u16() {
        307 | 308 => true,
        // What pushes something would become another request by these.
        301..=303 => only_asks,
        _ => false,
    };
    let Some(to) = headers.get(LOCATION).filter(|_| leads) else {
        return Ok(None);
    };
    let to = to.to_str().ok().and_then(|to| from.join(to).ok());
    let mut to = to.ok_or("a redirect names no valid URL")?;
    to.set_fragment(None);
    check(from, &to)?;
    Ok(Some(to))
}

/// Checks that a redirect from one target to another is allowed.
pub(crate) fn check(from: &Url, to: &Url) -> Result<(), &'static str> {
    if !matches!(to.scheme(), "http" | "https") || to.host_str().is_none() {
        return Err("a redirect names neither http:// nor https://, or no host");
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err("a redirect has a name or a password in it");
    }
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err("a redirect leads from https:// to http://");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    fn lead(
        method: &Method,
        status: u16,
        to: &'static str,
    ) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, HeaderValue::from_static(to));
        let from = "https://r.io/v2/a/blobs/x".parse().unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        next(method, &from, status, &headers).map(|to| to.map(String::from))
    }

    #[test]
    fn redirects_are_followed_as_they_are_meant() {
        for status in [301, 302, 303, 307, 308] {
            let to = lead(&Method::GET, status, "https://cdn.io/x?sig=1#part");
            assert_eq!(to, Ok(Some("https://cdn.io/x?sig=1".to_owned())));
        }
        let to = lead(&Method::HEAD, 307, "../other");
        assert_eq!(to, Ok(Some("https://r.io/v2/a/other".to_owned())));
        for status in [200, 201, 202, 300, 304, 305, 401] {
            assert_eq!(lead(&Method::GET, status, "https://cdn.io/"), Ok(None));
        }
        // An upload that becomes another request is none.
        assert_eq!(lead(&Method::PUT, 302, "https://cdn.io/"), Ok(None));
        assert!(
            lead(&Method::PUT, 307, "https://cdn.io/")
                .unwrap()
                .is_some()
        );
        let none = next(
            &Method::GET,
            &"https://r.io".parse().unwrap(),
            StatusCode::FOUND,
            &HeaderMap::new(),
        );
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn some_places_are_nowhere_to_go() {
        for bad in [
            "http://cdn.io/",
            "ftp://cdn.io/",
            "file:///etc/passwd",
            "https://admin:admin@cdn.io/",
            "https://admin@cdn.io/",
            "https://[::1",
        ] {
            assert!(lead(&Method::GET, 307, bad).is_err(), "{bad}");
        }
    }
}
