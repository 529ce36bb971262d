//! The page of a node: its store, and its images.

use super::chart::{self, Bar};
use super::markup::Markup;
use super::table::{self, Alignment, Column};
use super::{Detail, facts, numbers, reads, timeline, ways};
use crate::image::ImageReport;
use crate::measured::median;
use crate::mount::MountReport;
use crate::node::NodeReport;
use crate::sum::sum;

/// Most images in the table.
const LISTED: usize = 500;
/// Most images with a part of their own: each takes some 20 KiB.
const SHOWN: usize = 60;

pub(super) fn head(out: &mut Markup, node: &NodeReport) {
    let saved = node.unshared_bytes.saturating_sub(node.store_bytes);
    let hit = sum(node.mounts.iter().map(|mount| mount.hit_bytes));
    let missed = sum(node.mounts.iter().map(|mount| mount.fallthrough_bytes));
    let tiles = [
        (
            numbers::count(node.images.len() as u64),
            "images with boot images",
        ),
        (numbers::count(node.boot_images), "boot images in the store"),
        (numbers::bytes(node.store_bytes), "taken by the store"),
        (numbers::bytes(saved), "saved by sharing blocks"),
        (numbers::count(node.mounts.len() as u64), "mounts now"),
        (ratio(hit, missed), "of reads that reached a daemon hit"),
    ];
    out.tag("ul", &[("class", "tiles")], |out| {
        for (number, words) in &tiles {
            out.tag("li", &[], |out| {
                out.leaf("b", &[], number);
                out.leaf("span", &[], words);
            });
        }
    });
    out.tag("dl", &[], |out| {
        out.leaf("dt", &[], "Store");
        out.leaf("dd", &[], &numbers::clipped(&node.store, 400));
    });
    fill(out, node);
}

fn ratio(hit: u64, missed: u64) -> String {
    numbers::percent(hit, hit.saturating_add(missed))
}

/// How full the store is, and what it would take without sharing.
fn fill(out: &mut Markup, node: &NodeReport) {
    if node.unshared_bytes == 0 {
        return;
    }
    let words = format!(
        "The store takes {} of at most {}. The boot images would take {} if they shared no blocks.",
        numbers::bytes(node.store_bytes),
        numbers::bytes(node.store_max_bytes),
        numbers::bytes(node.unshared_bytes)
    );
    let all = node.unshared_bytes.max(node.store_bytes);
    out.tag("figure", &[], |out| {
        chart::picture(out, 22, &words, |out| {
            let place = Bar::new((0.0, 1.0), 2.0, 18.0);
            chart::bar(out, "track", place);
            let taken = numbers::real(node.store_bytes) / numbers::real(all);
            chart::bar(out, "all", Bar { to: taken, ..place });
        });
        out.leaf("figcaption", &[], &words);
    });
}

pub(super) fn images(out: &mut Markup, node: &NodeReport) {
    if node.images.is_empty() {
        super::nothing(
            out,
            "The store has no boot images: bootimg record makes one.",
        );
        return;
    }
    let columns = [
        Column("Image", Alignment::Wide),
        Column("Layers", Alignment::Right),
        Column("Read by a boot", Alignment::Right),
        Column("Of the image", Alignment::Left),
        Column("Ready after", Alignment::Right),
        Column("Own in the store", Alignment::Right),
        Column("Shared", Alignment::Right),
        Column("Mounts", Alignment::Right),
        Column("Hit ratio", Alignment::Right),
        Column("Recorded", Alignment::Left),
    ];
    table::table(out, "All images", &columns, |out| {
        for (index, image) in node.images.iter().take(LISTED).enumerate() {
            table::row(out, |out| cells(out, index, image));
        }
    });
    table::more(out, node.images.len() as u64, LISTED, "image");
}

fn cells(out: &mut Markup, index: usize, image: &ImageReport) {
    let name = numbers::clipped(&image.name, 120);
    out.tag("td", &[("class", "name")], |out| {
        if index < SHOWN {
            out.leaf("a", &[("href", &format!("#{}", anchor(index)))], &name);
        } else {
            out.text(&name);
        }
    });
    table::count(out, image.layers.len() as u64);
    let read = image.touched_bytes();
    table::bytes(out, read);
    table::share(out, "all", read, image.source_bytes().unwrap_or(0));
    let ready: Vec<f64> = image
        .recording
        .ready_ms
        .iter()
        .map(|ms| numbers::real(*ms))
        .collect();
    match median(&ready) {
        Some(ms) => table::number(out, ms, &numbers::time(ms)),
        None => table::number(out, -1.0, "–"),
    }
    table::bytes(out, sum(image.layers.iter().map(|layer| layer.own_bytes)));
    table::bytes(
        out,
        sum(image.layers.iter().map(|layer| layer.shared_bytes)),
    );
    table::count(out, image.mounts.len() as u64);
    let of = |bytes: fn(&MountReport) -> u64| sum(image.mounts.iter().map(bytes));
    let (hit, missed) = (
        of(|mount| mount.hit_bytes),
        of(|mount| mount.fallthrough_bytes),
    );
    let share = numbers::real(hit) / numbers::real(hit.saturating_add(missed).max(1));
    table::number(out, share, &ratio(hit, missed));
    table::words(out, &numbers::moment(image.recording.recorded_at));
}

/// Names come from outside and may be equal when written as an anchor: numbers are not.
fn anchor(index: usize) -> String {
    format!("image-{index}")
}

pub(super) fn each(out: &mut Markup, node: &NodeReport) {
    for (index, image) in node.images.iter().take(SHOWN).enumerate() {
        let id = anchor(index);
        out.tag(
            "article",
            &[("id", &id), ("aria-label", &image.name)],
            |out| {
                out.leaf("h3", &[], &numbers::clipped(&image.name, 200));
                facts::tiles(out, image);
                ways::section(out, &image.measured, Detail::Brief);
                timeline::section(out, image, Detail::Brief);
                reads::section(out, image, Detail::Brief);
            },
        );
    }
    table::more(out, node.images.len() as u64, SHOWN, "image");
    if node.images.is_empty() {
        super::nothing(out, "There are none.");
    }
}
