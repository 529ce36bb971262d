//! What manifests say of the content of their layers.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use lsmt::FileStorage;
use oci::Descriptor;

use super::ConvertError;
use super::annotations::{CONTENT_ROOT, TARGET_DIGEST};
use crate::ContentRoot;
use crate::error::file;

/// Returns the root of a layer's content, if its manifest says one. An image whose manifest says something else there is
/// used as one without: it is nothing that a read needs.
#[must_use]
pub fn content_of(layer: &Descriptor) -> Option<ContentRoot> {
    let said = layer.annotations.get(CONTENT_ROOT)?;
    if layer.annotations.contains_key(TARGET_DIGEST) {
        // Its data is in another blob.
        return None;
    }
    match said.parse() {
        Ok(root) => Some(root),
        Err(error) => {
            let layer = layer.digest;
            log::warn!("{CONTENT_ROOT} of the layer {layer} is ignored: {error}");
            None
        }
    }
}

/// Computes the root of a blob's content.
pub(super) fn content_of_file(path: &Path) -> Result<ContentRoot, ConvertError> {
    let opened = File::open(path).map_err(file("opening", path))?;
    let content = lsmt::open_content(Arc::new(FileStorage::new(opened)))?;
    Ok(ContentRoot::of(&content).map_err(file("reading", path))?)
}

#[cfg(test)]
mod tests {
    use blocks::Digest;

    use super::*;

    #[test]
    fn what_is_no_root_is_ignored() {
        let root = ContentRoot([7; 32]);
        let of = |said: &str, turbo: bool| {
            let mut layer = Descriptor::new("", Digest([1; 32]), 1);
            let target = turbo.then(|| (TARGET_DIGEST, Digest([2; 32]).to_string()));
            let all = [(CONTENT_ROOT, said.to_owned())].into_iter().chain(target);
            let all = all.map(|(key, value)| (key.to_owned(), value));
            layer.annotations.extend(all);
            content_of(&layer)
        };
        assert_eq!(of(&root.to_string(), false), Some(root));
        for bad in [
            "",
            "blake3:",
            &Digest([7; 32]).to_string(),
            &root.to_string().to_uppercase(),
        ] {
            assert_eq!(of(bad, false), None, "{bad}");
        }
        assert_eq!(of(&root.to_string(), true), None);
        assert_eq!(content_of(&Descriptor::new("", Digest([1; 32]), 1)), None);
    }
}
