//! Writes arbitrary records into a catalog, as a disk that rots or another release may have left it, and
//! reads them as the mirror does. No panic; nothing is given out under a name that it has not, what was
//! said in the future is not believed, and the file keeps its bound.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mirror::blobs::{Algorithm, BlobDigest};
use mirror::hostile::{Records, read_records};

/// What a record is made of, and whether its name is one.
#[derive(Debug, arbitrary::Arbitrary)]
enum Record {
    Tag(String, String, String, u64, u64),
    Manifest(String, String, Vec<u8>),
    /// Under its right name, in a realm or in none.
    Named(Option<[u8; 32]>, bool, String, Vec<u8>),
    /// A manifest that names so many things.
    Naming(u16, String),
    Proof([u8; 32], u64),
    Link(String),
}

fuzz_target!(|input: Vec<Record>| {
    let mut records = Records::default();
    for record in input {
        match record {
            Record::Tag(name, digest, media_type, size, checked) => {
                records.tags.push((name, digest, media_type, size, checked));
            }
            Record::Manifest(name, media_type, bytes) => {
                records.manifests.push((name, media_type, bytes));
            }
            Record::Named(realm, is_long, media_type, bytes) => {
                let algorithm = Algorithm::ALL[usize::from(is_long)];
                let digest = BlobDigest::of(algorithm, &bytes);
                let name = match realm {
                    Some(id) => format!("{}@{digest}", blake3::Hash::from(id)),
                    None => digest.to_string(),
                };
                records.manifests.push((name, media_type, bytes));
            }
            Record::Naming(count, seed) => {
                let layer = |number: u16| {
                    let digest = BlobDigest::of(Algorithm::Sha256, format!("{seed}{number}").as_bytes());
                    format!(r#"{{"digest":"{digest}"}}"#)
                };
                let layers: Vec<_> = (0..count % 1100).map(layer).collect();
                let text = format!(r#"{{"layers":[{}]}}"#, layers.join(","));
                let digest = BlobDigest::of(Algorithm::Sha256, text.as_bytes());
                records.manifests.push((digest.to_string(), seed, text.into_bytes()));
            }
            Record::Proof(key, said) => records.proofs.push((key, said)),
            Record::Link(name) => records.links.push(name),
        }
    }
    let memory = std::path::Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap();
    read_records(dir.path(), &records).unwrap();
});
