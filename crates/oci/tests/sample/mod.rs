//! Images made in a moment: layers as tars, and layouts of them.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use blocks::Digest;
use oci::digest_of;
use serde_json::{Value, json};

pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Returns a tar with these files.
pub(crate) fn layer(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        tar.append_data(&mut header, name, *content).unwrap();
    }
    tar.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A layout that is being written.
pub(crate) struct LayoutDir<'a>(pub(crate) &'a Path);

impl LayoutDir<'_> {
    pub(crate) fn start(&self) {
        fs::create_dir_all(self.0.join("blobs/sha256")).unwrap();
        fs::write(
            self.0.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .unwrap();
    }

    /// Writes a blob, and returns its descriptor.
    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest_of(bytes);
        fs::write(self.0.join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    /// Writes an image of these tars, and returns the descriptor of its manifest.
    pub(crate) fn image(&self, layers: &[Vec<u8>], run: &Value) -> Value {
        let diff_ids: Vec<Digest> = layers.iter().map(|layer| digest_of(layer)).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": run,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config_type = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(config_type, config.to_string().as_bytes()),
            "layers": layers.iter().map(|tar| self.blob(GZIP, &gzip(tar))).collect::<Vec<_>>(),
        });
        self.blob(MANIFEST, manifest.to_string().as_bytes())
    }

    pub(crate) fn index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.0.join("index.json"), index.to_string()).unwrap();
    }
}

/// Returns the descriptor with a name.
pub(crate) fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

/// Runs a program to its end, which must be a good one.
pub(crate) fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
}
