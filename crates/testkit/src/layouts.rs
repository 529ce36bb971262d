//! Images made in a moment: layers as tars, and layouts of them.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The media type of a layer.
pub const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// The media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Returns a tar with these files.
pub fn layer(files: &[(&str, &[u8])]) -> Vec<u8> {
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

/// Returns the bytes compressed.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A layout that is being written.
#[derive(Debug)]
pub struct LayoutDir<'a>(pub &'a Path);

impl LayoutDir<'_> {
    /// Makes the directory of a layout, without images.
    pub fn start(&self) {
        fs::create_dir_all(self.0.join("blobs/sha256")).unwrap();
        fs::write(
            self.0.join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .unwrap();
    }

    /// Writes a blob, and returns its descriptor.
    pub fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = digest_of(bytes);
        let name = digest.trim_start_matches("sha256:");
        fs::write(self.0.join("blobs/sha256").join(name), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    /// Writes an image of these tars, and returns the descriptor of its manifest.
    pub fn image(&self, layers: &[Vec<u8>], run: &Value) -> Value {
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest_of(layer)).collect();
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

    /// Writes the index of all images.
    pub fn index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.0.join("index.json"), index.to_string()).unwrap();
    }
}

fn digest_of(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes);
    let hex: String = hex.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Returns the descriptor with a name.
pub fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

/// Runs a program to its end, which must be a good one.
pub fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
}
