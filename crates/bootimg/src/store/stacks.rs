//! Container images in a store: which layers they stack, and the boot images of these.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;

use blocks::{Digest, SourceId};

use crate::durable::TempFile;
use crate::reader::open_regular;
use crate::stack::{DOCUMENT_MAX, StackError, layer_name, place_name};
use crate::store::{names, reading};
use crate::{ImageId, Stack, Store, StoreError};

/// Fewest hexadecimal digits of an image's digest that name it: what people see in lists.
const DIGITS_MIN: usize = 12;

impl Store {
    /// Stores the description of a container image; an earlier one of its reference is replaced.
    ///
    /// # Errors
    /// If it exceeds a limit, or the store cannot be changed.
    pub fn put_stack(&self, stack: &Stack) -> Result<(), StoreError> {
        let path = self.places.stack(&stack.reference);
        let stacking = |source| StoreError::Stack {
            path: path.clone(),
            source,
        };
        let document = stack.encode().map_err(stacking)?;
        let _lock = self.lock()?;
        let keep = || {
            let mut file = TempFile::create(&path, Some(&self.places.tmp()), &self.steps)?;
            file.write(&document)?;
            file.keep(&path)
        };
        keep().map_err(|error| StoreError::io(&path, "writing", error))
    }

    /// Returns all container images, by reference. Damaged descriptions are logged and left out.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn stacks(&self) -> Result<Vec<Stack>, StoreError> {
        Ok(self.read_stacks()?.0)
    }

    /// Returns all container images, by reference, and whether there are others of another release.
    fn read_stacks(&self) -> Result<(Vec<Stack>, bool), StoreError> {
        let mut stacks = Vec::new();
        let mut foreign = false;
        for path in self.places.stacks()? {
            match read(&path) {
                Ok(Some(stack)) => stacks.push(stack),
                Ok(None) => {}
                Err(StoreError::Stack { path, source }) => {
                    log::warn!("{}: {source}", path.display());
                    foreign |= matches!(source, StackError::Version { .. });
                }
                Err(error) => return Err(error),
            }
        }
        stacks.sort_unstable_by(|a, b| a.reference.cmp(&b.reference));
        Ok((stacks, foreign))
    }

    /// Returns the container image with this reference, this digest of its configuration, or
    /// the only one whose digest starts with these 12 or more hexadecimal digits.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn find_stack(&self, what: &str) -> Result<Stack, StoreError> {
        let by_reference = self.places.stack(what);
        if let Some(stack) = read(&by_reference)?.filter(|stack| stack.reference == what) {
            return Ok(stack);
        }
        let digits = what.strip_prefix("sha256:").unwrap_or(what);
        let mut found = self.stacks()?;
        found.retain(|stack| digits.len() >= DIGITS_MIN && stack.image.hex().starts_with(digits));
        let images: BTreeSet<_> = found.iter().map(|stack| stack.image).collect();
        let what = what.to_owned();
        match (images.len(), found.pop()) {
            // One image may go by several references: what it stacks is the same.
            (1, Some(stack)) => Ok(stack),
            (0, _) | (_, None) => Err(StoreError::NotFound { what }),
            (count, _) => Err(StoreError::Ambiguous { what, count }),
        }
    }

    /// Removes a container image, and the boot images of layers that no other image has; none of these, if there is an
    /// image of another release, whose layers are unknown. Returns these layers. Their blocks are freed by the next [`gc`](Self::gc).
    ///
    /// # Errors
    /// If there is none with this reference, or the store cannot be changed.
    pub fn remove_stack(&self, reference: &str) -> Result<Vec<Digest>, StoreError> {
        let _lock = self.lock()?;
        let (mut stacks, foreign) = self.read_stacks()?;
        let at = stacks.iter().position(|stack| stack.reference == reference);
        let Some(at) = at else {
            let what = reference.to_owned();
            return Err(StoreError::NotFound { what });
        };
        let gone = stacks.swap_remove(at);
        let path = self.places.stack(reference);
        self.places.remove(&path, &self.steps)?;
        if foreign {
            log::warn!(
                "the boot images of its layers stay: images of another release may have them"
            );
            return Ok(Vec::new());
        }
        let used: BTreeSet<_> = stacks.iter().flat_map(|stack| &stack.layers).collect();
        let layers: BTreeSet<_> = gone.layers.into_iter().collect();
        let unused = layers.into_iter().filter(|layer| !used.contains(layer));
        let unused: Vec<_> = unused.collect();
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.places.names()?.into_iter().partition(|(name, _)| {
                let layer = name.split('@').next().and_then(|text| text.parse().ok());
                layer.is_some_and(|layer| unused.contains(&layer))
            });
        for (name, _) in &gone {
            self.places.remove_name(name, &self.steps)?;
        }
        let kept: BTreeSet<_> = kept.into_iter().filter_map(|(_, id)| id).collect();
        let kept = &kept | &self.places.pins()?.into_iter().collect();
        let nameless: BTreeSet<_> = gone.into_iter().filter_map(|(_, id)| id).collect();
        for id in nameless.difference(&kept) {
            self.places.remove_image(id, &self.steps)?;
        }
        Ok(unused)
    }

    /// Returns the boot image of a layer that was recorded last, wherever that was.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn layer(&self, layer: &Digest) -> Result<Option<ImageId>, StoreError> {
        self.places.named(&layer_name(layer))
    }

    /// Returns the boot image of a layer that is bound to this place.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn layer_at(&self, layer: &Digest, place: SourceId) -> Result<Option<ImageId>, StoreError> {
        self.places.named(&place_name(layer, place))
    }

    /// Adds a name to an image, and removes it from the image that has it, which is removed if it
    /// has no other name and is not pinned.
    ///
    /// # Errors
    /// If there is no such image, the name is not allowed, or the store cannot be changed.
    pub fn name(&self, id: &ImageId, name: &str) -> Result<(), StoreError> {
        names::check(name)?;
        let _lock = self.lock()?;
        self.places.must_have(id)?;
        let had = self.places.named(name)?;
        self.places.set_name(name, id, &self.steps)?;
        self.replaced(had, id)?;
        Ok(())
    }
}

/// Reads a description; `None` if there is none.
fn read(path: &Path) -> Result<Option<Stack>, StoreError> {
    let mut document = Vec::new();
    let file = match open_regular(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(reading(path))?,
    };
    // One byte more than may be, so that decoding sees that it is too much.
    file.take(DOCUMENT_MAX + 1)
        .read_to_end(&mut document)
        .map_err(reading(path))?;
    Stack::decode(&document)
        .map(Some)
        .map_err(|source| StoreError::Stack {
            path: path.to_owned(),
            source,
        })
}
