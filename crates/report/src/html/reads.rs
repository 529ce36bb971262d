//! The reads: which files, where, of which kind.

use super::chart::colour;
use super::markup::Markup;
use super::table::{self, Alignment, Column};
use super::{Detail, numbers};
use crate::content::{Content, FileShare};
use crate::image::ImageReport;

/// How many files and directories are shown one by one.
const fn shown(detail: Detail) -> (usize, usize) {
    match detail {
        Detail::Full => (40, 15),
        Detail::Brief => (8, 0),
    }
}

pub(super) fn section(out: &mut Markup, image: &ImageReport, detail: Detail) {
    let content = &image.content;
    if content.files == 0 {
        super::nothing(out, "No content of any file is read.");
        return;
    }
    let (files, directories) = shown(detail);
    if detail == Detail::Full {
        out.leaf("p", &[], &sentence(image));
        kinds(out, content);
    }
    by_file(out, image, files);
    table::more(
        out,
        content.files,
        files.min(content.top_files.len()),
        "file",
    );
    if detail == Detail::Full {
        by_directory(out, content, directories);
        let told = directories.min(content.top_directories.len());
        if content.directories > told as u64 {
            let left = numbers::count(content.directories - told as u64);
            out.leaf(
                "p",
                &[("class", "more")],
                &format!("and {left} more directories"),
            );
        }
    }
}

fn sentence(image: &ImageReport) -> String {
    let content = &image.content;
    let read = numbers::bytes(content.bytes);
    let files = numbers::things(content.files, "file");
    match image.source_bytes() {
        Some(all) => format!(
            "A boot reads {read} of {files}: {} of the {} that the image has.",
            numbers::percent(content.bytes, all),
            numbers::bytes(all)
        ),
        None => format!("A boot reads {read} of {files}."),
    }
}

fn kinds(out: &mut Markup, content: &Content) {
    let columns = [
        Column("Kind", Alignment::Left),
        Column("Read", Alignment::Right),
        Column("Files", Alignment::Right),
        Column("Share of what is read", Alignment::Wide),
    ];
    table::table(out, "By kind, as names tell it", &columns, |out| {
        for kind in &content.kinds {
            table::row(out, |out| {
                table::words(out, kind.kind.plural());
                table::bytes(out, kind.bytes);
                table::count(out, kind.files);
                table::share(out, "all", kind.bytes, content.bytes);
            });
        }
    });
}

fn by_file(out: &mut Markup, image: &ImageReport, shown: usize) {
    let columns = [
        Column("File", Alignment::Wide),
        Column("Read", Alignment::Right),
        Column("Of the file", Alignment::Left),
        Column("First after", Alignment::Right),
        Column("Kind", Alignment::Left),
        Column("Layer", Alignment::Left),
    ];
    // A tree or a disk has one layer, which nobody needs to be told.
    let layered = image.layers.len() > 1;
    let columns = &columns[..columns.len() - usize::from(!layered)];
    table::table(out, "Files by what is read of them", columns, |out| {
        for file in image.content.top_files.iter().take(shown) {
            table::row(out, |out| {
                file_cells(out, file);
                if layered {
                    layer_cell(out, file.layer);
                }
            });
        }
    });
}

fn file_cells(out: &mut Markup, file: &FileShare) {
    table::name(out, &file.path);
    table::bytes(out, file.bytes);
    table::share(out, colour(file.layer), file.bytes, file.size);
    let first = numbers::real(file.first_ms);
    table::number(out, first, &numbers::time(first));
    table::words(out, file.kind.plural());
}

fn layer_cell(out: &mut Markup, layer: usize) {
    let number = (layer as u64).saturating_add(1);
    let value = number.to_string();
    out.tag("td", &[("data-value", &value)], |out| {
        out.leaf("i", &[("class", colour(layer))], "");
        out.text(&value);
    });
}

fn by_directory(out: &mut Markup, content: &Content, shown: usize) {
    let columns = [
        Column("Directory", Alignment::Wide),
        Column("Read", Alignment::Right),
        Column("Files", Alignment::Right),
        Column("Share of what is read", Alignment::Left),
    ];
    table::table(
        out,
        "Directories by what is read in them",
        &columns,
        |out| {
            for directory in content.top_directories.iter().take(shown) {
                table::row(out, |out| {
                    table::name(out, &directory.path);
                    table::bytes(out, directory.bytes);
                    table::count(out, directory.files);
                    table::share(out, "all", directory.bytes, content.bytes);
                });
            }
        },
    );
}
