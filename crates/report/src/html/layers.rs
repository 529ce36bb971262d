//! The cost of each layer.

use super::chart::{self, Bar, OWN_COLOURS, colour};
use super::markup::Markup;
use super::numbers;
use super::table::{self, Alignment, Column};
use crate::image::{ImageReport, LayerReport};
use crate::sum::sum;

/// Most layers that are shown: one more than overlayfs takes in Docker.
const SHOWN: usize = 128;

pub(super) fn section(out: &mut Markup, image: &ImageReport) {
    if image.layers.is_empty() {
        super::nothing(out, "Nothing is known of its layers.");
        return;
    }
    shares(out, image);
    let columns = [
        Column("Layer", Alignment::Left),
        Column("Source", Alignment::Wide),
        Column("Size", Alignment::Right),
        Column("Read", Alignment::Right),
        Column("Of the layer", Alignment::Left),
        Column("Files", Alignment::Right),
        Column("Extents", Alignment::Right),
        Column("Metadata uses", Alignment::Right),
        Column("Own in the store", Alignment::Right),
        Column("Shared", Alignment::Right),
    ];
    table::table(out, "Layers, the bottom one first", &columns, |out| {
        for (index, layer) in image.layers.iter().take(SHOWN).enumerate() {
            table::row(out, |out| cells(out, index, layer));
        }
    });
    table::more(out, image.layers.len() as u64, SHOWN, "layer");
    let words = "Own is what removing the boot image would free; shared are blocks that other boot \
        images have as well. Metadata uses are look-ups, listings and links that a prewarm repeats.";
    out.leaf("p", &[("class", "soft")], words);
}

/// One bar: from which layers the reads come.
fn shares(out: &mut Markup, image: &ImageReport) {
    let all = image.touched_bytes();
    if image.layers.len() < 2 || all == 0 {
        return;
    }
    legend(out, image);
    out.tag("figure", &[], |out| {
        let words = "A bar with what is read of each layer, the bottom one first.";
        chart::picture(out, 22, words, |out| {
            let mut so_far: u64 = 0;
            for (index, layer) in image.layers.iter().take(SHOWN).enumerate() {
                let part = |bytes: u64| numbers::real(bytes) / numbers::real(all);
                let from = part(so_far);
                so_far = so_far.saturating_add(layer.touched_bytes);
                out.tag("g", &[], |out| {
                    let told = format!(
                        "{}: {}",
                        short(&layer.name),
                        numbers::bytes(layer.touched_bytes)
                    );
                    out.leaf("title", &[], &told);
                    let place = Bar::new((from, part(so_far)), 2.0, 18.0);
                    chart::bar(out, colour(index), place);
                });
            }
        });
        out.leaf("figcaption", &[], "What is read, layer by layer.");
    });
}

fn cells(out: &mut Markup, index: usize, layer: &LayerReport) {
    let number = (index as u64).saturating_add(1).to_string();
    out.tag("td", &[("data-value", &number)], |out| {
        out.leaf("i", &[("class", colour(index))], "");
        out.text(&number);
    });
    table::name(out, &layer.name);
    match layer.source_bytes {
        Some(bytes) => table::bytes(out, bytes),
        None => table::number(out, -1.0, "–"),
    }
    table::bytes(out, layer.touched_bytes);
    table::share(
        out,
        colour(index),
        layer.touched_bytes,
        layer.source_bytes.unwrap_or(0),
    );
    for number in [layer.files, layer.extents, layer.touches] {
        table::count(out, number);
    }
    match layer.boot_image {
        Some(_) => {
            table::bytes(out, layer.own_bytes);
            table::bytes(out, layer.shared_bytes);
        }
        None => {
            table::number(out, -1.0, "not recorded");
            table::number(out, -1.0, "–");
        }
    }
}

/// Writes what the colours mean, if there are several.
pub(super) fn legend(out: &mut Markup, image: &ImageReport) {
    if image.layers.len() < 2 {
        return;
    }
    out.tag("ul", &[("class", "legend")], |out| {
        let mut entry = |layer: usize, text: &str| {
            out.tag("li", &[], |out| {
                out.leaf("i", &[("class", colour(layer))], "");
                out.text(text);
            });
        };
        for (index, layer) in image.layers.iter().enumerate().take(OWN_COLOURS) {
            let number = (index as u64).saturating_add(1);
            entry(index, &format!("{number}: {}", short(&layer.name)));
        }
        if image.layers.len() > OWN_COLOURS {
            let others = image.layers[OWN_COLOURS..]
                .iter()
                .map(|layer| layer.touched_bytes);
            let text = format!("layers above: {}", numbers::bytes(sum(others)));
            entry(OWN_COLOURS, &text);
        }
    });
}

/// Returns a name for a legend: of a digest the first digits.
fn short(name: &str) -> String {
    match name.strip_prefix("sha256:") {
        Some(digits) => digits.chars().take(12).collect(),
        None => numbers::clipped(name, 48),
    }
}
