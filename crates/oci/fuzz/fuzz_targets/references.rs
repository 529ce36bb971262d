//! Any text as the name of an image: an error, or one that reads as it is written, and whose registry
//! is all that decides where its requests go.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oci::Reference;
use url::Url;

fuzz_target!(|text: &str| {
    let Ok(reference) = text.parse::<Reference>() else {
        return;
    };
    for written in [reference.to_string(), reference.familiar()] {
        assert_eq!(written.parse().as_ref(), Ok(&reference), "{written}");
    }
    let (registry, repository) = (reference.registry(), reference.repository());
    assert!(distribution::is_repository(repository), "{repository}");
    let Ok(url) = Url::parse(&format!("https://{registry}/v2/{repository}/tags/list")) else {
        return; // no host, so no request
    };
    assert_eq!(url.path(), format!("/v2/{repository}/tags/list"));
    assert!(url.username().is_empty() && url.password().is_none(), "{url}");
    assert!(url.query().is_none() && url.fragment().is_none(), "{url}");
});
