//! Reading a layer's tar as metadata and contents, without a directory: nothing is written, and
//! root is not needed.
//!
//! The tree is the one that [`unpack`](super::unpack) would make, whiteouts and opaque directories
//! included; the caller stores the contents of files. [`stack`] merges the trees
//! of an image's layers, as overlayfs does.

mod draft;
mod fill;
mod stack;

use std::io::{self, Read};

use blocks::Tree;

use super::decompress::{ProgressReporter, reporting_tar_of};
use super::stream::TarStream;
use super::{Limits, TarError, UnpackError, explain, opening};
use crate::{LayerBlob, Watch};
use fill::Filler;

pub use stack::{Origin, stack};

/// What a layer consists of.
#[derive(Clone, Debug)]
pub struct LayerTree<C> {
    /// Its metadata.
    pub tree: Tree,
    /// What the contents of its regular files became, in the order in which the tree has them.
    pub contents: Vec<C>,
}

/// Reads a layer once. Each regular file's content is passed to `content`, which must read it to its end.
/// The watch receives how much of the blob was read. The diff ID is verified at the end, so after an
/// error the data must be discarded.
///
/// # Errors
/// If the layer is damaged, hostile or larger than `limits`, if `content` fails, or if the watch
/// cancels.
pub fn read_layer<C>(
    layer: &LayerBlob,
    limits: &Limits,
    content: &mut dyn FnMut(&mut dyn Read) -> io::Result<C>,
    watch: Watch<'_>,
) -> Result<LayerTree<C>, UnpackError> {
    read_layer_with_places(layer, limits, &mut |reader, _| content(reader), watch)
}

/// Reads a layer like [`read_layer`]; `content` receives where in the uncompressed tar the content begins, too.
///
/// # Errors
/// As [`read_layer`].
pub fn read_layer_with_places<C>(
    layer: &LayerBlob,
    limits: &Limits,
    content: &mut dyn FnMut(&mut dyn Read, u64) -> io::Result<C>,
    watch: Watch<'_>,
) -> Result<LayerTree<C>, UnpackError> {
    let blob = layer.open().map_err(opening(&layer.place.path))?;
    let short = layer.diff_id.short();
    let at = |name: Option<&[u8]>, source: TarError| explain(&short, name, source);
    let reporter = ProgressReporter::new(watch);
    let tar = reporting_tar_of(blob, layer.diff_id, limits, &reporter);
    let mut tar = TarStream::new(tar.map_err(|error| at(None, error.into()))?);
    let mut filler = Filler::new(*limits);
    while let Some(entry) = tar.next_entry().map_err(|error| at(None, error))? {
        filler
            .add(&entry, &mut || {
                let place = tar.position();
                content(&mut tar.content(), place)
            })
            .map_err(|error| at(Some(&entry.name), error))?;
    }
    let finished = filler.finish();
    let (tree, contents) = finished.map_err(|error| at(None, error.into()))?;
    Ok(LayerTree { tree, contents })
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::digest_of;

    /// A tar of entries: name, kind, target of a link, content.
    fn tar_of(entries: &[(&str, tar::EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, kind, target, content) in entries {
            let mut header = tar::Header::new_ustar();
            // As hostile programs write it: unchecked.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_mode(0o755);
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }

    fn read(tar: &[u8], limits: &Limits) -> Result<LayerTree<Vec<u8>>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), tar).unwrap();
        let layer = LayerBlob::from_file(file.path(), digest_of(tar)).unwrap();
        let mut content = |reader: &mut dyn Read| {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        };
        let go_on = &mut |_| ControlFlow::Continue(());
        let read = read_layer(&layer, limits, &mut content, go_on);
        read.map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        })
    }

    use tar::EntryType::{Directory, Link, Regular, Symlink};

    #[test]
    fn contents_come_in_the_order_of_the_tree_and_links_share_one() {
        let tar = tar_of(&[
            ("z", Regular, "", b"last"),
            ("d/a", Regular, "", b"first"),
            ("d/link", Link, "z", b""),
            ("z2", Regular, "", b"gone"),
            ("z2", Regular, "", b"again"),
            ("way", Symlink, "/d", b""),
            ("way/through", Regular, "", b"x"),
        ]);
        let LayerTree { tree, contents } = read(&tar, &Limits::default()).unwrap();
        let of = |path: &[u8]| tree.resolve(path).unwrap();
        assert_eq!(of(b"d/link"), of(b"z"));
        assert_eq!(tree.inode(of(b"z")).unwrap().attr.nlink, 2);
        assert_eq!(tree.inode(blocks::FileId::ROOT).unwrap().attr.nlink, 3);
        assert_eq!(tree.path(of(b"d/through")).unwrap(), b"d/through");
        // Replaced content goes with the name that it had.
        assert_eq!(contents, [&b"first"[..], b"last", b"x", b"again"]);
    }

    #[test]
    fn contents_are_where_it_is_said() {
        let name = "n".repeat(99);
        let tar = tar_of(&[
            ("a", Regular, "", b"first"),
            ("d", Directory, "", b""),
            (&name, Regular, "", &[7; 1025]),
            ("empty", Regular, "", b""),
            ("last", Regular, "", b"last"),
        ]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &tar).unwrap();
        let layer = LayerBlob::from_file(file.path(), digest_of(&tar)).unwrap();
        let mut content = |reader: &mut dyn Read, place: u64| {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes)?;
            let place = usize::try_from(place).unwrap();
            assert!(tar[place..].starts_with(&bytes));
            Ok(place)
        };
        let go_on = &mut |_| ControlFlow::Continue(());
        let limits = Limits::default();
        let read = read_layer_with_places(&layer, &limits, &mut content, go_on).unwrap();
        assert_eq!(read.contents, [512, 4096, 4608, 2048]);
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let refused = |entries: &[(&str, tar::EntryType, &str, &[u8])], why: &str| {
            let said = read(&tar_of(entries), &Limits::default()).unwrap_err();
            assert!(said.contains(why), "{said}");
        };
        refused(&[("../up", Regular, "", b"")], "a name contains ..");
        refused(&[("a", Link, "b", b"")], "which is not in this layer");
        refused(
            &[("d", Directory, "", b""), ("a", Link, "d", b"")],
            "two names",
        );
        refused(
            &[(".wh...", Regular, "", b"")],
            "names nothing that it could hide",
        );
        refused(
            &[("f", Regular, "", b""), ("f/x", Regular, "", b"")],
            "not a directory",
        );
        refused(
            &[("d/x", Regular, "", b""), ("d", Regular, "", b"")],
            "replaces a directory",
        );
        refused(
            &[("l", Symlink, "l", b""), ("l/x", Regular, "", b"")],
            "form a circle",
        );
        refused(
            &[("l", Symlink, "no", b""), ("l/x", Regular, "", b"")],
            "leads to something else",
        );
        refused(&[("l", Symlink, "", b"")], "has no target");
        let many = tar_of(&[("a", Regular, "", b""), ("b", Regular, "", b"")]);
        let limits = Limits {
            entries: 1,
            ..Limits::default()
        };
        assert!(read(&many, &limits).unwrap_err().contains("more entries"));
    }

    #[test]
    fn layers_show_together_what_none_of_them_hides() {
        let lower = tar_of(&[
            ("a/x", Regular, "", b"1"),
            ("a/y", Regular, "", b"2"),
            ("b/x", Regular, "", b"3"),
            ("c", Regular, "", b"4"),
        ]);
        let upper = tar_of(&[
            ("a/.wh.x", Regular, "", b""),
            ("b/.wh..wh..opq", Regular, "", b""),
            ("b/z", Regular, "", b"5"),
            (".wh.c", Regular, "", b""),
        ]);
        let layers = [lower, upper].map(|tar| read(&tar, &Limits::default()).unwrap());
        let trees: Vec<_> = layers.iter().map(|layer| &layer.tree).collect();
        let (tree, files) = stack(&trees).unwrap();
        let seen: Vec<_> = tree
            .files()
            .map(|(file, _)| tree.path(file).unwrap())
            .collect();
        assert_eq!(seen, [&b""[..], b"a", b"a/y", b"b", b"b/z"]);
        let from: Vec<_> = files.iter().map(|origin| origin.layer).collect();
        assert_eq!(from, [0, 1]);
        assert!(tree.files().all(|(file, _)| tree.xattrs(file).len() == 0));
    }
}
