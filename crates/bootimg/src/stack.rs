//! Container images: which layers they stack. docs/bootimg-format.md, section 9.1.

use blocks::{Digest, SourceId};
use serde::{Deserialize, Serialize};

/// Version of the document that describes a stack.
const VERSION: u32 = 1;
/// Most bytes of such a document: the largest that keeps the limits below has some 60 KiB.
pub(crate) const DOCUMENT_MAX: u64 = 256 << 10;
/// Most layers: Docker stops at 127, containerd at what fits the options of a mount.
const LAYERS_MAX: usize = 512;
/// Most bytes of a reference: a registry's name, a path of 255 bytes, a tag and a digest.
const REFERENCE_MAX: usize = 1024;
/// Most runs whose times are kept.
const RUNS_MAX: usize = 1024;
/// Most bytes that the words of the command may have together.
const COMMAND_MAX: usize = 16 << 10;

/// The description of a container image whose boot was recorded. Its blocks are in the boot images
/// of its layers, one each, which all images with that layer share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// The full reference of the image: `docker.io/library/nginx:1.25`.
    pub reference: String,
    /// The digest of its configuration, which determines its content: Docker's image ID.
    pub image: Digest,
    /// The digest of its manifest, by which registries know it, if its engine reported it.
    pub manifest: Option<Digest>,
    /// The diff IDs of its layers, the lowest first.
    pub layers: Vec<Digest>,
    /// When it was recorded last, in seconds since 1970.
    pub recorded_at: i64,
    /// Milliseconds from the start to readiness, of each run of that recording.
    pub ready_ms: Vec<u64>,
    /// The command that was recorded, if it was not the image's own.
    pub command: Vec<String>,
}

/// Why a document describes no stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// It is not what a stack looks like.
    #[error("not the description of a container image")]
    Json(#[from] serde_json::Error),
    /// It is of a later version.
    #[error("the description has version {version}; this program knows version {VERSION}")]
    Version {
        /// Its version.
        version: u32,
    },
    /// Something in it breaks a limit.
    #[error("the description of a container image has {what}")]
    Limit {
        /// The error, as a noun.
        what: &'static str,
    },
}

#[derive(Serialize, Deserialize)]
struct Document<S> {
    version: u32,
    #[serde(flatten)]
    stack: S,
}

impl Stack {
    /// Returns the document that describes it.
    ///
    /// # Errors
    /// If something in it breaks a limit.
    pub fn encode(&self) -> Result<Vec<u8>, StackError> {
        self.check()?;
        let (version, stack) = (VERSION, self);
        Ok(serde_json::to_vec_pretty(&Document { version, stack })?)
    }

    /// Decodes a document, which is untrusted.
    ///
    /// # Errors
    /// If it is invalid, of a later version, or exceeds a limit.
    pub fn decode(document: &[u8]) -> Result<Self, StackError> {
        if document.len() as u64 > DOCUMENT_MAX {
            let what = "more than 256 KiB";
            return Err(StackError::Limit { what });
        }
        // The version first: a later one may have other fields.
        let only_version: Document<serde::de::IgnoredAny> = serde_json::from_slice(document)?;
        if only_version.version != VERSION {
            let version = only_version.version;
            return Err(StackError::Version { version });
        }
        let document: Document<Self> = serde_json::from_slice(document)?;
        document.stack.check()?;
        Ok(document.stack)
    }

    fn check(&self) -> Result<(), StackError> {
        let what = if !is_reference(&self.reference) {
            "a name that is empty, too long, or not plain text"
        } else if self.layers.is_empty() || self.layers.len() > LAYERS_MAX {
            "no layers, or more than 512"
        } else if self.ready_ms.len() > RUNS_MAX {
            "more than 1024 runs"
        } else if self.command.iter().map(String::len).sum::<usize>() > COMMAND_MAX
            || self.command.len() > COMMAND_MAX
        {
            "a command of more than 16 KiB"
        } else {
            return Ok(());
        };
        Err(StackError::Limit { what })
    }
}

fn is_reference(text: &str) -> bool {
    (1..=REFERENCE_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the name in a store of the boot image of a layer, wherever it was recorded: the
/// layer's diff ID.
#[must_use]
pub fn layer_name(layer: &Digest) -> String {
    layer.to_string()
}

/// Returns the name in a store of the boot image of a layer that is bound to one place, such as
/// a directory of Docker's.
#[must_use]
pub fn place_name(layer: &Digest, place: SourceId) -> String {
    let SourceId(place) = place;
    format!("{layer}@{}", place.short())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(reference: &str, layers: &[u8]) -> Stack {
        Stack {
            reference: reference.to_owned(),
            image: Digest([layers.first().copied().unwrap_or_default(); 32]),
            manifest: Some(Digest([9; 32])),
            layers: layers.iter().map(|byte| Digest([*byte; 32])).collect(),
            recorded_at: 1_700_000_000,
            ready_ms: vec![812],
            command: vec!["nginx".to_owned()],
        }
    }

    #[test]
    fn a_document_is_read_back() {
        let stack = stack("docker.io/library/nginx:1.25", &[1, 2, 3]);
        assert_eq!(Stack::decode(&stack.encode().unwrap()).unwrap(), stack);
    }

    #[test]
    fn what_breaks_a_limit_is_neither_written_nor_read() {
        let good = stack("nginx", &[1]);
        let many = |len: usize| vec![Digest([0; 32]); len];
        let bad = [
            Stack {
                reference: String::new(),
                ..good.clone()
            },
            Stack {
                reference: "a b".to_owned(),
                ..good.clone()
            },
            Stack {
                reference: "a\nb".to_owned(),
                ..good.clone()
            },
            Stack {
                reference: "x".repeat(REFERENCE_MAX + 1),
                ..good.clone()
            },
            Stack {
                layers: Vec::new(),
                ..good.clone()
            },
            Stack {
                layers: many(LAYERS_MAX + 1),
                ..good.clone()
            },
            Stack {
                ready_ms: vec![0; RUNS_MAX + 1],
                ..good.clone()
            },
            Stack {
                command: vec!["x".repeat(COMMAND_MAX + 1)],
                ..good.clone()
            },
            Stack {
                command: vec![String::new(); COMMAND_MAX + 1],
                ..good
            },
        ];
        for stack in bad {
            assert!(matches!(stack.encode(), Err(StackError::Limit { .. })));
            let version = VERSION;
            let document = serde_json::to_vec(&Document { version, stack }).unwrap();
            assert!(Stack::decode(&document).is_err());
        }
        let largest = Stack {
            layers: many(LAYERS_MAX),
            ..stack("nginx", &[1])
        };
        assert!((largest.encode().unwrap().len() as u64) < DOCUMENT_MAX);
    }

    #[test]
    fn other_versions_and_other_documents_are_named() {
        let stack = stack("nginx", &[1]);
        let later = serde_json::json!({"version": 2, "what": "else"}).to_string();
        let error = Stack::decode(later.as_bytes()).unwrap_err();
        assert!(
            matches!(error, StackError::Version { version: 2 }),
            "{error}"
        );
        let bytes = stack.encode().unwrap();
        for cut in 0..bytes.len() {
            assert!(Stack::decode(&bytes[..cut]).is_err());
        }
        assert!(Stack::decode(&vec![b' '; 300 << 10]).is_err());
    }
}
