//! An image in a folder: its writable layer is exchanged while the device is in use.
//!
//! The file `stack` lists the files of the image. Each operation makes its new files, syncs
//! them, and then replaces `stack` by one rename: a crash leaves the old image or the new one, and
//! unreferenced files, which are removed when the image is opened.

mod collect;
mod collector;
mod manifest;
mod pace;

use std::sync::Arc;

use parking_lot::Mutex;

pub use collect::Collected;
pub use collector::{Collector, CollectorOptions};
pub use pace::Pace;

use crate::blob::{open_blob, open_blob_within};
use crate::budget::SegmentBudget;
use crate::commit::{BlobOptions, write_blob};
use crate::error::{Doing, LsmtError, Result};
use crate::image::{Image, Layers};
use crate::layer::{Layer, LayerInfo};
use crate::stack::Stack;
use crate::storage::{Folder, ReadAt};
use crate::upper::{NewUpper, Upper, UpperFiles};
use crate::uuid::Uuid;
use manifest::{Form, LayerFile, Manifest, StoreError};

/// An image in a folder, over layers that are elsewhere.
pub struct LiveImage {
    folder: Arc<dyn Folder>,
    /// The layers that are elsewhere, from the bottom.
    base: Vec<Arc<Layer>>,
    image: Image,
    /// Held by the operation under way.
    state: Mutex<State>,
}

struct State {
    manifest: Manifest,
    /// The layers of the folder, from the bottom.
    own: Vec<Arc<Layer>>,
}

impl std::fmt::Debug for LiveImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveImage")
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

impl LiveImage {
    /// Makes a new image in an empty folder, over layers given from the bottom to the top.
    ///
    /// # Errors
    ///
    /// Fails if an image exists already, and as the storage does.
    pub fn create(folder: Arc<dyn Folder>, base: Vec<Arc<Layer>>, new: &NewUpper) -> Result<Self> {
        if folder
            .names()
            .doing("list the folder")?
            .iter()
            .any(|name| name == manifest::NAME)
        {
            return crate::error::rule("folder", "it has an image already");
        }
        let manifest = Manifest {
            next: 1,
            upper: 0,
            layers: Vec::new(),
        };
        drop(create_upper(&*folder, 0, new)?);
        folder.sync().doing("sync the folder")?;
        manifest.store(&*folder).map_err(StoreError::into_inner)?;
        Self::open(folder, base)
    }

    /// Opens an image, over the same layers as before.
    ///
    /// # Errors
    ///
    /// Fails if there is none, if it is damaged, and as the storage does.
    pub fn open(folder: Arc<dyn Folder>, base: Vec<Arc<Layer>>) -> Result<Self> {
        let manifest = Manifest::load(&*folder)?;
        manifest.remove_others(&*folder)?;
        let mut own = Vec::new();
        let budget = SegmentBudget::default();
        for layer in &base {
            budget.take(layer.segment_count())?;
        }
        for file in &manifest.layers {
            let blob: Arc<dyn ReadAt> = folder.open(&file.name()).doing("open a layer")?;
            own.push(Arc::new(open_blob_within(blob, &budget)?));
        }
        let upper = Upper::open(open_files(&*folder, manifest.upper)?)?;
        let stack = Stack::of_shared(base.iter().chain(&own).cloned().collect())?;
        Ok(Self {
            folder,
            base,
            image: Image::open(stack, Some(upper))?,
            state: Mutex::new(State { manifest, own }),
        })
    }

    /// Returns the device.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Makes the device larger.
    ///
    /// # Errors
    ///
    /// Fails if it would become smaller, or another operation is running, and as the storage does.
    pub fn grow(&self, virtual_size: u64) -> Result<()> {
        let _state = self.begin()?;
        self.image.upper()?.grow(virtual_size)
    }

    /// Returns how many layers the folder has below the writable one.
    ///
    /// # Errors
    ///
    /// Fails if an operation is running.
    pub fn own_layers(&self) -> Result<usize> {
        Ok(self.begin()?.own.len())
    }

    /// Returns the names of the blobs that the image in a folder has below its writable layer, from the bottom. The image
    /// may be in use.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or one of these layers was sealed in place, and is not a blob yet.
    pub fn blobs_in(folder: &dyn Folder) -> Result<Vec<String>> {
        let layers = Manifest::load(folder)?.layers;
        let what = "a layer that was sealed where it is, and not committed,";
        match layers.iter().all(|layer| layer.form == Form::Blob) {
            true => Ok(layers.iter().map(|layer| layer.name()).collect()),
            false => Err(LsmtError::Unsupported { what }),
        }
    }

    fn begin(&self) -> Result<parking_lot::MutexGuard<'_, State>> {
        let what = "operation";
        self.state.try_lock().ok_or(LsmtError::Busy { what })
    }

    /// Seals the writable layer in place, and continues with a new one on top of it: a snapshot, for
    /// which writes wait only while the index is written.
    ///
    /// # Errors
    ///
    /// Fails if another operation is running, if there are 255 layers, and as the storage does; unless the
    /// last step failed, the image stays as before.
    pub fn restack(&self, uuid: Uuid) -> Result<()> {
        let mut state = self.begin()?;
        self.restack_begun(&mut state, uuid)
    }

    fn restack_begun(&self, state: &mut State, uuid: Uuid) -> Result<()> {
        let old = self.image.upper()?;
        let new = NewUpper {
            kind: old.kind(),
            virtual_size: old.virtual_size(),
            uuid,
            parent: old.info().uuid,
        };
        let mut manifest = state.manifest.clone();
        let number = manifest.take_number();
        let upper = create_upper(&*self.folder, number, &new)?;
        self.folder.sync().doing("sync the folder")?;
        let form = Form::SealedInPlace;
        manifest.layers.push(LayerFile {
            number: manifest.upper,
            form,
        });
        manifest.upper = number;

        let stopped = old.stop()?;
        old.seal_in_place()?;
        let sealed = Arc::new(Layer::open(Arc::new(old.data()))?);
        let own = state
            .own
            .iter()
            .chain([&sealed])
            .cloned()
            .collect::<Vec<_>>();
        let stack = Stack::of_shared(self.base.iter().chain(&own).cloned().collect())?;
        self.store(&manifest, &old)?;
        old.retire();
        self.image.replace(Layers {
            stack: Arc::new(stack),
            upper: Some(Arc::new(upper)),
        });
        drop(stopped);
        *state = State { manifest, own };
        Ok(())
    }

    /// Replaces `stack`. If it is unknown whether that has happened, nothing more may be written to the
    /// layer that may have been replaced.
    fn store(&self, manifest: &Manifest, old: &Upper) -> Result<()> {
        manifest.store(&*self.folder).map_err(|error| {
            if matches!(error, StoreError::Unknown(_)) {
                old.poison();
            }
            error.into_inner()
        })
    }

    /// Seals the writable layer and writes it as a blob in the background of the device: the paper's
    /// "stack-and-commit". The blob replaces the sealed layer. Layers that were sealed before a crash are
    /// written, too. Returns the names of the blobs in the folder.
    ///
    /// # Errors
    ///
    /// As [`Self::restack`]; sealed layers stay sealed, and are written the next time.
    pub fn stack_and_commit(
        &self,
        uuid: Uuid,
        message: &[u8],
        options: BlobOptions,
        pace: &Pace,
    ) -> Result<Vec<String>> {
        let mut state = self.begin()?;
        self.restack_begun(&mut state, uuid)?;
        let mut names = Vec::new();
        for place in 0..state.own.len() {
            if state.manifest.layers[place].form == Form::SealedInPlace {
                names.push(self.commit_layer(&mut state, place, message, options, pace)?);
            }
        }
        Ok(names)
    }

    fn commit_layer(
        &self,
        state: &mut State,
        place: usize,
        message: &[u8],
        options: BlobOptions,
        pace: &Pace,
    ) -> Result<String> {
        let mut manifest = state.manifest.clone();
        let sealed = state.own[place].clone();
        let file = LayerFile {
            number: manifest.take_number(),
            form: Form::Blob,
        };
        let blob = self.folder.create(&file.name()).doing("make a layer")?;
        let info = LayerInfo {
            message: message.to_vec(),
            ..sealed.info().clone()
        };
        let segments: Vec<_> = sealed.segments().collect();
        write_blob(
            &*blob,
            options,
            &info,
            &segments,
            &mut |segment, skip, buffer| {
                pace.spend(buffer.len() as u64)?;
                sealed.read_segment(segment, skip, buffer)
            },
        )?;
        blob.sync().doing("sync a layer")?;
        self.folder.sync().doing("sync the folder")?;

        let old = std::mem::replace(&mut manifest.layers[place], file);
        let mut own = state.own.clone();
        own[place] = Arc::new(open_blob(Arc::new(blob))?);
        let stack = Stack::of_shared(self.base.iter().chain(&own).cloned().collect())?;
        let upper = self.image.upper()?;
        self.store(&manifest, &upper)?;
        self.image.replace(Layers {
            stack: Arc::new(stack),
            upper: Some(upper),
        });
        *state = State { manifest, own };
        // If it stays, it is removed when the image is opened.
        self.folder.remove(&old.name()).doing("remove a layer")?;
        Ok(file.name())
    }
}

fn file_names(number: u64) -> [String; 3] {
    ["data", "index", "journal"].map(|part| format!("upper.{number}.{part}"))
}

fn create_files(folder: &dyn Folder, number: u64) -> Result<UpperFiles> {
    let [data, index, journal] = file_names(number);
    let create = |name: &str| folder.create(name).doing("make a writable layer");
    Ok(UpperFiles {
        data: create(&data)?,
        index: create(&index)?,
        journal: Some(create(&journal)?),
    })
}

fn create_upper(folder: &dyn Folder, number: u64, new: &NewUpper) -> Result<Upper> {
    Upper::create(create_files(folder, number)?, new)
}

fn open_files(folder: &dyn Folder, number: u64) -> Result<UpperFiles> {
    let [data, index, journal] = file_names(number);
    let open = |name: &str| folder.open(name).doing("open the writable layer");
    // A journal is never synced: it may be lost, and nothing with it.
    let journal = folder.open(&journal).or_else(|_| folder.create(&journal));
    Ok(UpperFiles {
        data: open(&data)?,
        index: open(&index)?,
        journal: Some(journal.doing("open the journal")?),
    })
}
