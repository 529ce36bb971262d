//! Adding an image for a copy of a source whose blocks the store has already: only metadata is written.
//!
//! The blocks are read once, from the copy, without the lock of the store: others may bind their layers meanwhile.

use crate::backing::Backing;
use crate::data::{self, DataSpace};
use crate::durable::Durability;
use crate::header::{SectionKind, Variant};
use crate::layout::HASH;
use crate::store::places::file_bytes;
use crate::store::segment::blocks_of_file;
use crate::store::{catalog, names};
use crate::writer::assemble::Assembler;
use crate::writer::{copied::rows_of_copy, put_sections};
use crate::{FormatError, Image, ImageId, Store, StoreError, Watch, WriteError, WriteRequest};

impl Store {
    /// Adds an image of `request` that has the blocks of `origin`, an image of this store, under a name that it takes over if
    /// another image has it. `None`, and nothing is changed, if the source of `request` has other blocks or not all, or if `origin` is damaged:
    /// then write the image, and [`add`](Self::add) it. The variant of `request` does not matter.
    ///
    /// It can be made again, so that it becomes durable as those of [`for_derived`](Self::for_derived) do.
    ///
    /// # Errors
    /// If the plan does not fit the tree, there is no room, the name cannot be one, the store is locked for too long, or the
    /// watch cancels.
    pub fn add_copy(
        &self,
        origin: &Image,
        name: &str,
        request: &WriteRequest<'_>,
        watch: Watch<'_>,
    ) -> Result<Option<Image>, StoreError> {
        names::check(name)?;
        let own;
        let origin = match origin.tier() {
            None => origin,
            // What is compared must be what is shared: the store's own blocks, and not their copies on a tier.
            Some(_) => match self.peek_image(&origin.info().id) {
                Ok(image) => {
                    own = image;
                    &own
                }
                Err(_) => return Ok(None),
            },
        };
        let DataSpace::Thin { segments, runs } = &origin.data else {
            return Ok(None);
        };
        let Some(rows) = rows_of_copy(origin, request, watch)? else {
            return Ok(None);
        };
        let in_origin = |error| catalog::located(&self.places.image(&origin.info().id), error);
        let ids = origin.sealed.segments().map_err(in_origin)?;
        let _lock = self.lock()?;
        // Whoever collects garbage may have removed them since they were opened.
        if !ids.iter().all(|id| self.places.segment(id).exists()) {
            return Ok(None);
        }
        let steps = self.steps.with(Durability::Later);
        let write = || -> Result<ImageId, WriteError> {
            // Its own name depends on its content; leftovers are recognized by a name of this kind.
            let like = self.places.image(&origin.info().id);
            let tmp = self.places.tmp();
            let mut out = Assembler::create(&like, Some(&tmp), Variant::Thin, &steps)?;
            out.data_elsewhere(origin.info().data_blocks);
            put_sections(&mut out, request, &rows)?;
            let ids: Vec<[u8; HASH]> = ids.iter().map(|id| id.0).collect();
            out.section(SectionKind::Segments, ids.as_flattened())?;
            out.section(SectionKind::Runs, &data::encode_runs(runs))?;
            out.finish_as(|id| self.places.image(id))
        };
        let id = write()?;
        let added = file_bytes(&self.places.image(&id))?;
        self.name_added(&id, name, added, &steps)?;
        self.open_beside(&id, segments).map(Some)
    }

    /// Opens an image whose segments are open already.
    fn open_beside(&self, id: &ImageId, segments: &[Backing]) -> Result<Image, StoreError> {
        let path = self.places.image(id);
        let in_file = |error| catalog::located(&path, error);
        let sealed = catalog::read_sealed(&path, id)?;
        let with_blocks = segments.iter().map(|file| {
            let len = file.len().map_err(|error| in_file(error.into()))?;
            let damaged = FormatError::Rule {
                what: "segment",
                rule: "its length is wrong",
            };
            let blocks = blocks_of_file(len).ok_or_else(|| in_file(damaged.into()))?;
            Ok((file.clone(), blocks))
        });
        let segments = with_blocks.collect::<Result<Vec<_>, crate::OpenError>>()?;
        Ok(catalog::assemble(sealed, segments, &path)?)
    }
}
