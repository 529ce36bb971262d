//! What a page is asked for: a container image, a boot image of the store, or one in a file.

use anyhow::Context as _;
use bootimg::{ImageId, Stack, Store, StoreError};

/// What a page is about.
#[derive(Debug)]
pub(super) enum Subject {
    /// A container image: a boot image for each layer that boots read.
    Stack(Stack),
    /// A boot image of the store, by itself.
    Stored(ImageId),
    /// A boot image in a file, as it was asked for.
    File(String),
}

impl Subject {
    /// Returns what is called `wanted`.
    ///
    /// # Errors
    /// If there is nothing of that name, or the store cannot be read.
    pub(super) fn find(wanted: &str, store: Option<&Store>) -> anyhow::Result<Self> {
        if let Some(store) = store
            && let Some(stack) = find_stack(store, wanted)?
        {
            return Ok(Self::Stack(stack));
        }
        // Names in the store have no slash; references have some, and come first.
        if wanted.contains('/') {
            return Ok(Self::File(wanted.to_owned()));
        }
        let store = store.context("there is no store (choose one with --store)")?;
        let id = store.resolve(wanted).with_context(|| {
            format!(
                "looking for {wanted} in {} (bootimg ls shows what is there)",
                store.dir().display()
            )
        })?;
        Ok(Self::Stored(id))
    }
}

/// Returns the container image called `wanted`: by its full reference or its digest, or by the end
/// of its reference if only one has it, as people write `nginx:1.25` and `nginx`.
fn find_stack(store: &Store, wanted: &str) -> anyhow::Result<Option<Stack>> {
    let wanted = wanted.strip_prefix("docker://").unwrap_or(wanted);
    match store.find_stack(wanted) {
        Ok(stack) => return Ok(Some(stack)),
        Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let mut found = store.stacks()?;
    found.retain(|stack| is_short_for(wanted, &stack.reference));
    Ok((found.len() == 1).then(|| found.remove(0)))
}

/// Returns whether a reference is this, with a registry and directories before it, and with
/// `latest` behind it if no tag is said.
fn is_short_for(wanted: &str, reference: &str) -> bool {
    let ends = |wanted: &str| {
        let before = reference.strip_suffix(wanted);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    !wanted.is_empty() && (ends(wanted) || ends(&format!("{wanted}:latest")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_the_end_of_a_reference() {
        let full = "docker.io/library/nginx:latest";
        for short in [full, "nginx:latest", "nginx", "library/nginx"] {
            assert!(is_short_for(short, full), "{short}");
        }
        for other in ["", "inx", "nginx:1", "latest", "/nginx:latest"] {
            assert!(!is_short_for(other, full), "{other}");
        }
    }
}
