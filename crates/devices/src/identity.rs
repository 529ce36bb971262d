//! What tells an image from others.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use blocks::{BlockDevice, DeviceAccess};

/// The file in the directory of an image that says which layers it has.
const CONFIG: &str = "config.v1.json";

/// Returns words that stay the same as long as the image at a path has the same content, or is changed through `device`
/// only: a server that follows another one serves the same device with the same words.
///
/// An image with a writable layer is its path: a commit turns what was written into a layer, and changes no content. Of
/// one that is only read, they have its layers, too.
///
/// # Errors
/// If the path or the configuration of the image cannot be read.
///
/// ```
/// use blocks::testing::MemDevice;
///
/// let dir = tempfile::tempdir()?;
/// let config = dir.path().join("config.v1.json");
/// std::fs::write(&config, r#"{"lowers": [{"file": "a"}]}"#)?;
/// let device = MemDevice::read_only(&[0; 512], 512);
/// let before = devices::identity(dir.path(), &device)?;
/// assert_eq!(before, devices::identity(&config, &device)?);
/// std::fs::write(&config, r#"{"lowers": [{"file": "b"}]}"#)?;
/// assert_ne!(before, devices::identity(dir.path(), &device)?);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn identity(image: &Path, device: &dyn BlockDevice) -> anyhow::Result<String> {
    let found = image.canonicalize();
    let found = found.with_context(|| format!("finding {}", image.display()))?;
    let config = found.join(CONFIG);
    let config = if found.is_dir() {
        config
    } else {
        found.clone()
    };
    if !config.ends_with(CONFIG) || device.info().access == DeviceAccess::ReadWrite {
        return Ok(found.display().to_string());
    }
    let layers = fs::read_to_string(&config);
    let layers = layers.with_context(|| format!("reading {}", config.display()))?;
    Ok(format!("{}\n{layers}", config.display()))
}
