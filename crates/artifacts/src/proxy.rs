//! The proxy for a registry, by the environment.

use std::env;

/// Returns the proxy for a registry, as programs agree to read it from the environment.
#[must_use]
pub fn proxy_for(registry: &str) -> Option<String> {
    let variable = |names: [&str; 2]| names.iter().find_map(|name| env::var(name).ok());
    let proxy = variable(["https_proxy", "HTTPS_PROXY"]).filter(|proxy| !proxy.is_empty())?;
    let direct = variable(["no_proxy", "NO_PROXY"]).unwrap_or_default();
    let host = registry.split(':').next().unwrap_or(registry);
    let is_direct = direct
        .split(',')
        .map(str::trim)
        .any(|entry| is_covered(entry, host));
    (!is_direct).then_some(proxy)
}

/// Returns whether an entry of `NO_PROXY` names a host: `example.com` and `.example.com` name that host and those
/// below it, `*` names all.
#[must_use]
pub fn is_covered(entry: &str, host: &str) -> bool {
    let domain = entry.trim_start_matches('.');
    entry == "*"
        || host == domain
        || (!domain.is_empty()
            && host
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_proxy() {
        for (entry, host) in [
            ("*", "a"),
            ("a.io", "a.io"),
            (".a.io", "b.a.io"),
            ("a.io", "b.a.io"),
        ] {
            assert!(is_covered(entry, host), "{entry} {host}");
        }
        for (entry, host) in [
            ("", "a.io"),
            ("a.io", "ba.io"),
            ("b.a.io", "a.io"),
            (".", "a.io"),
        ] {
            assert!(!is_covered(entry, host), "{entry} {host}");
        }
    }
}
