//! The file `stack`: of which files the image consists.

use crate::crc;
use crate::error::{Doing, LsmtError, Result, rule};
use crate::index::LAYERS_MAX;
use crate::num::{put, size, u32_at, u64_at, wide};
use crate::storage::{Folder, read_vec};

pub(super) const NAME: &str = "stack";
const NEW_NAME: &str = "stack.new";
const MAGIC: &[u8; 8] = b"YLOSTACK";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
const BYTES_MAX: usize = HEADER_BYTES + LAYERS_MAX * ENTRY_BYTES + 4;

/// How a layer of the folder came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Sealed in place: the data of a writable layer.
    SealedInPlace,
    /// Committed.
    Blob,
}

/// A layer of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerFile {
    pub(super) number: u64,
    pub(super) form: Form,
}

impl LayerFile {
    pub(super) fn name(self) -> String {
        match self.form {
            Form::SealedInPlace => format!("upper.{}.data", self.number),
            Form::Blob => format!("layer.{}", self.number),
        }
    }
}

/// Of which files an image consists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The next unused number.
    pub(super) next: u64,
    /// The number of the writable layer.
    pub(super) upper: u64,
    /// The layers below it, from the bottom.
    pub(super) layers: Vec<LayerFile>,
}

/// Whether the old file is still there for certain.
#[derive(Debug)]
pub(super) enum StoreError {
    /// It is.
    Before(LsmtError),
    /// The file may be the old one or the new one.
    Unknown(LsmtError),
}

impl StoreError {
    pub(super) fn into_inner(self) -> LsmtError {
        match self {
            Self::Before(error) | Self::Unknown(error) => error,
        }
    }
}

impl Manifest {
    pub(super) fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    pub(super) fn load(folder: &dyn Folder) -> Result<Self> {
        let file = folder.open(NAME).doing("open the stack file")?;
        let bytes = file.size().doing("get the size of the stack file")?;
        crate::error::at_most("size of the stack file", bytes, wide(BYTES_MAX))?;
        Self::decode(&read_vec(&*file, 0, bytes, "read the stack file")?)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        if !bytes.starts_with(MAGIC) {
            return Err(LsmtError::Magic { kind: "stack file" });
        }
        let count = size(u64::from(u32_at(bytes, 12)));
        if u32_at(bytes, 8) != VERSION {
            let what = "this version of a stack file";
            return Err(LsmtError::Unsupported { what });
        }
        let end = HEADER_BYTES + count.min(LAYERS_MAX + 1) * ENTRY_BYTES;
        if count > LAYERS_MAX || bytes.len() != end + 4 {
            return rule("stack file", "its length is not what its header says");
        }
        if crc::standard(&bytes[..end]) != u32_at(bytes, end) {
            let part = "stack file";
            return Err(LsmtError::Checksum { part, at: 0 });
        }
        let layers = bytes[HEADER_BYTES..end]
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| {
                let form = match u32_at(entry, 8) {
                    0 => Form::SealedInPlace,
                    1 => Form::Blob,
                    _ => return rule("stack file", "a layer is of an unknown form"),
                };
                Ok(LayerFile {
                    number: u64_at(entry, 0),
                    form,
                })
            });
        Ok(Self {
            next: u64_at(bytes, 16),
            upper: u64_at(bytes, 24),
            layers: layers.collect::<Result<_>>()?,
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        let count = u32::try_from(self.layers.len()).unwrap_or(u32::MAX);
        put(&mut bytes, 12, &count.to_le_bytes());
        put(&mut bytes, 16, &self.next.to_le_bytes());
        put(&mut bytes, 24, &self.upper.to_le_bytes());
        for layer in &self.layers {
            let form: u32 = match layer.form {
                Form::SealedInPlace => 0,
                Form::Blob => 1,
            };
            bytes.extend(layer.number.to_le_bytes());
            bytes.extend(form.to_le_bytes());
            bytes.extend([0; 4]);
        }
        let sum = crc::standard(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Replaces the file.
    pub(super) fn store(&self, folder: &dyn Folder) -> Result<(), StoreError> {
        let write = || {
            let file = folder.create(NEW_NAME).doing("make the stack file")?;
            file.write_at(&self.encode(), 0)
                .doing("write the stack file")?;
            file.sync().doing("sync the stack file")
        };
        write().map_err(StoreError::Before)?;
        let renamed = folder
            .rename(NEW_NAME, NAME)
            .doing("replace the stack file");
        let renamed = renamed.and_then(|()| folder.sync().doing("sync the folder"));
        renamed.map_err(StoreError::Unknown)
    }

    /// Removes files with names of ours that are not part of the image.
    pub(super) fn remove_others(&self, folder: &dyn Folder) -> Result<()> {
        let mut wanted: Vec<_> = self.layers.iter().map(|layer| layer.name()).collect();
        wanted.extend(super::file_names(self.upper));
        wanted.push(NAME.to_owned());
        for name in folder.names().doing("list the folder")? {
            let ours = name == NEW_NAME || is_numbered(&name);
            if ours && !wanted.contains(&name) {
                folder.remove(&name).doing("remove what a crash left")?;
            }
        }
        Ok(())
    }
}

/// Returns whether a name is one that images give.
fn is_numbered(name: &str) -> bool {
    let number = match name.strip_prefix("layer.") {
        Some(number) => number,
        None => {
            let Some((number, part)) = name
                .strip_prefix("upper.")
                .and_then(|rest| rest.split_once('.'))
            else {
                return false;
            };
            if !matches!(part, "data" | "index" | "journal") {
                return false;
            }
            number
        }
    };
    number.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_written_and_refused_when_damaged() {
        let layer = |number, form| LayerFile { number, form };
        let manifest = Manifest {
            next: 9,
            upper: 8,
            layers: vec![layer(3, Form::Blob), layer(7, Form::SealedInPlace)],
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Manifest::decode(&damaged).is_err(), "{at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn only_names_of_ours_are_removed() {
        for name in ["layer.1", "upper.12.data", "upper.0.journal"] {
            assert!(is_numbered(name), "{name}");
        }
        for name in ["layer.x", "upper.1.raw", "upper.data", "config.v1.json"] {
            assert!(!is_numbered(name), "{name}");
        }
    }
}
