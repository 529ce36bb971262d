//! Disk images that are converted before they can be served: those that QEMU reads and we do not.

mod readable;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;

use host::interrupt::Interrupt;
use mounting::confinement::BlockAccess;

use crate::confined_program;
use readable::{Readable, dir_of, path_of};

/// How often is looked whether the conversion is done, or given up.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What converts.
const QEMU_IMG: &str = "qemu-img";

/// A disk image that was made of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// The image that was converted.
    pub from: PathBuf,
    /// What format that has.
    pub format: &'static str,
    /// The raw image beside it, which is recorded, and is to be served.
    pub to: PathBuf,
}

/// Formats by their first bytes, and where these are.
const FORMATS: [(&str, u64, &[u8]); 4] = [
    ("vmdk", 0, b"KDMV"),
    ("vmdk", 0, b"# Disk Descriptor"),
    ("vhdx", 0, b"vhdxfile"),
    ("vdi", 0x40, &[0x7f, 0x10, 0xda, 0xbe]),
];

/// Converts a disk image to a raw one beside it, if it has one of the formats for that. An image that was converted
/// before and not changed since is not converted again.
///
/// # Errors
/// If it cannot be read or converted, or Ctrl-C was pressed.
pub fn convert(image: &Path, interrupt: &Interrupt) -> anyhow::Result<Option<Converted>> {
    let format = format_of(image).with_context(|| format!("reading {}", image.display()))?;
    let Some(format) = format else {
        return Ok(None);
    };
    let mut to = image.as_os_str().to_owned();
    to.push(".raw");
    let to = PathBuf::from(to);
    let converted = Converted {
        from: image.to_owned(),
        format,
        to,
    };
    if !is_current(&converted)? {
        run(QEMU_IMG, &converted, interrupt)
            .with_context(|| format!("converting {} to a raw image", image.display()))?;
    }
    Ok(Some(converted))
}

/// Returns the format of an image, if it is one to convert.
fn format_of(image: &Path) -> io::Result<Option<&'static str>> {
    let file = File::open(image)?;
    for (format, at, magic) in FORMATS {
        let mut found = vec![0; magic.len()];
        let read = file.read_exact_at(&mut found, at);
        if read.is_ok() && found == magic {
            return Ok(Some(format));
        }
    }
    Ok(None)
}

/// Returns whether the raw image is there, and newer than the other.
fn is_current(converted: &Converted) -> anyhow::Result<bool> {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let from = modified(&converted.from)?;
    match modified(&converted.to) {
        Ok(to) => {
            ensure!(
                to >= from,
                "{} is older than {}, which it would be made of: remove or rename it",
                converted.to.display(),
                converted.from.display()
            );
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("looking at {}", converted.to.display())),
    }
}

/// Converts into a file of another name, which gets its own when it is whole.
fn run(program: &str, converted: &Converted, interrupt: &Interrupt) -> anyhow::Result<()> {
    let readable = Readable::of(&converted.from).context("looking at it")?;
    let part = tempfile::Builder::new()
        .prefix(".yolofs-convert-")
        .tempfile_in(dir_of(&converted.to))
        .context("making a file for it")?;
    let access = BlockAccess {
        reads: readable.paths(),
        writes: vec![path_of(part.as_file())],
        ..BlockAccess::default()
    };
    let mut program = Command::new(program);
    program
        .args(["convert", "-f", converted.format, "-O", "raw"])
        .args([&converted.from, part.path()])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // The author of an image chose which files it names.
    let mut child =
        confined_program::start(program, access).context("in Debian's package qemu-utils")?;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for qemu-img")? {
            break status;
        }
        if let Err(stop) = interrupt.check() {
            // It may have ended by itself.
            let _gone = child.kill();
            child.wait().context("ending qemu-img")?;
            return Err(stop);
        }
        std::thread::sleep(LOOK_EVERY);
    };
    if !status.success() {
        bail!(
            "qemu-img failed ({status}); it says why above. It may read the image, and files of the same owner \
             beside it that all may read who may read the image"
        );
    }
    part.as_file()
        .sync_all()
        .context("writing it to the disk")?;
    part.as_file()
        .set_permissions(readable.image().permissions())?;
    part.persist_noclobber(&converted.to)
        .with_context(|| format!("naming it {}", converted.to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::confined_program::hostile;

    #[test]
    fn images_are_converted_once_and_never_over_others() {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..1_u32 << 20).flat_map(u32::to_le_bytes).collect();
        std::fs::write(dir.path().join("plain"), &content).unwrap();
        let interrupt = Interrupt::unarmed().unwrap();
        assert_eq!(
            convert(&dir.path().join("plain"), &interrupt).unwrap(),
            None
        );
        for format in ["vmdk", "vhdx", "vdi"] {
            let image = dir.path().join("disk").with_extension(format);
            let raw = dir.path().join(format!("disk.{format}.raw"));
            let made = Command::new("qemu-img")
                .args(["convert", "-q", "-f", "raw", "-O", format])
                .args([&dir.path().join("plain"), &image])
                .status();
            assert!(made.unwrap().success());
            let converted = convert(&image, &interrupt).unwrap().unwrap();
            assert_eq!((converted.format, &converted.to), (format, &raw));
            assert!(std::fs::read(&raw).unwrap() == content, "{format}");
            let made_at = raw.metadata().unwrap().modified().unwrap();
            convert(&image, &interrupt).unwrap();
            assert_eq!(raw.metadata().unwrap().modified().unwrap(), made_at);
            let old = File::options().write(true).open(&raw).unwrap();
            old.set_modified(std::time::UNIX_EPOCH).unwrap();
            let refused = convert(&image, &interrupt).unwrap_err();
            assert!(refused.to_string().contains("older"), "{refused}");
        }
    }

    /// As if an image had made `qemu-img` do what its author wants.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_program_that_converts_reads_the_image_and_writes_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let (program, secret) = hostile::program(dir.path());
        let from = dir.path().join("disk.vmdk");
        std::fs::write(&from, "image").unwrap();
        let converted = Converted {
            to: dir.path().join("disk.vmdk.raw"),
            format: "vmdk",
            from,
        };
        let interrupt = Interrupt::unarmed().unwrap();
        run(program.to_str().unwrap(), &converted, &interrupt).unwrap();
        let told = std::fs::read_to_string(&converted.to).unwrap();
        hostile::assert_harmless(&told, &secret);
        assert_eq!(std::fs::read_to_string(&converted.from).unwrap(), "image");
    }

    /// A vmdk in pieces, of which this one holds the first bytes.
    fn in_pieces(dir: &Path, name: &str, piece: &str) -> PathBuf {
        let image = dir.join(name);
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n\
             createType=\"monolithicFlat\"\nRW 16 FLAT \"{piece}\" 0\n\
             ddb.geometry.cylinders = \"1\"\nddb.adapterType = \"ide\"\n"
        );
        std::fs::write(&image, text).unwrap();
        image
    }

    /// The author of a vmdk names files of the machine, to find their content in the raw image.
    #[test]
    fn an_image_does_not_name_what_its_readers_may_not_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let interrupt = Interrupt::unarmed().unwrap();
        let mode = |file: &Path, mode| {
            std::fs::set_permissions(file, PermissionsExt::from_mode(mode)).unwrap();
        };
        let secret = elsewhere.path().join("secret");
        let beside = |name: &str| dir.path().join(name);
        for file in [&secret, &beside("extent"), &beside("private")] {
            std::fs::write(file, [b's'; 8192]).unwrap();
            mode(file, 0o644);
        }
        mode(&beside("private"), 0o600);
        symlink(&secret, beside("link")).unwrap();
        let whole = secret.to_str().unwrap();
        let name = elsewhere.path().file_name().unwrap().to_str().unwrap();
        for piece in [whole, &format!("../{name}/secret"), "link", "private"] {
            let image = in_pieces(dir.path(), "bad.vmdk", piece);
            mode(&image, 0o644);
            let refused = convert(&image, &interrupt).unwrap_err();
            assert!(
                format!("{refused:#}").contains("qemu-img failed"),
                "{piece}: {refused:#}"
            );
            assert!(!beside("bad.vmdk.raw").exists(), "{piece}");
        }
        let image = in_pieces(dir.path(), "good.vmdk", "extent");
        mode(&image, 0o644);
        convert(&image, &interrupt).unwrap();
        assert_eq!(
            std::fs::read(beside("good.vmdk.raw")).unwrap(),
            [b's'; 8192]
        );
        // Who may read no more than that file may be given it.
        let image = in_pieces(dir.path(), "own.vmdk", "private");
        mode(&image, 0o600);
        convert(&image, &interrupt).unwrap();
        let made = beside("own.vmdk.raw").metadata().unwrap();
        assert_eq!(made.permissions().mode() & 0o777, 0o600);
    }
}
