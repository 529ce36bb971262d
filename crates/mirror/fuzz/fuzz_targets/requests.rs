//! Reads arbitrary text as what clients and registries send to the mirror: paths, ranges,
//! credentials, challenges, tokens, documents. No panic, and no range beyond the blob.

#![no_main]

use distribution::{Challenge, Token, basic, is_repository, is_tag, parse_basic};
use libfuzzer_sys::fuzz_target;
use mirror::blobs::BlobDigest;
use mirror::hostile::{content_range_in, names_in, range_in, repository_in};

fuzz_target!(|input: (u64, &str, &[u8])| {
    let (size, text, bytes) = input;
    for path in [text.to_owned(), format!("/v2/{text}"), format!("/v2/{text}/tags/list")] {
        if let Some(repository) = repository_in(&path) {
            // It becomes a part of a URL and of keys.
            assert!(!repository.is_empty() && !repository.contains(['?', '#', '%', ' ', '\0']));
            assert!(repository.split('/').all(|part| !matches!(part, "" | "." | "..")));
        }
    }
    for header in [text.to_owned(), format!("bytes={text}")] {
        if let Some((start, end)) = range_in(&header, size) {
            assert!(start <= end && end <= size, "{start}-{end} of {size}");
        }
    }
    for header in [text.to_owned(), format!("bytes {text}")] {
        let _read = content_range_in(&header);
    }
    let _chosen = Challenge::choose([text, "Bearer realm=\"x\""].into_iter());
    let _chosen = Challenge::choose([format!("Bearer {text}").as_str()].into_iter());
    let _token = Token::parse(bytes).map(|token| token.header());
    if let Some((name, password)) = parse_basic(text) {
        assert!(parse_basic(&basic(&name, &password)) == Some((name, password)));
    }
    if let Ok(digest) = text.parse::<BlobDigest>() {
        // It becomes the name of a file.
        assert!(digest.hex().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    let _names = (is_repository(text), is_tag(text), names_in(bytes, text));
});
