//! From data to a page.
//!
//! [`markup`] is the only way to write, [`shell`] has the common parts of pages; [`chart`] and [`table`] are
//! the parts of which the sections are made. Each section is a module and answers one question.

mod chart;
mod facts;
mod layers;
mod markup;
mod misses;
mod node;
mod numbers;
mod reads;
mod shell;
mod table;
#[cfg(test)]
mod tests;
mod timeline;
mod ways;

use crate::image::ImageReport;
use crate::node::NodeReport;
use markup::Markup;
use shell::Section;

impl ImageReport {
    /// Returns the page.
    #[must_use]
    pub fn html(&self) -> String {
        image_page(self)
    }
}

impl NodeReport {
    /// Returns the page.
    #[must_use]
    pub fn html(&self) -> String {
        node_page(self)
    }
}

/// How much to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    /// The image has the page to itself.
    Full,
    /// It is one of many.
    Brief,
}

/// Writes the page about an image.
fn image_page(image: &ImageReport) -> String {
    let sections = [
        Section::new("timeline", "Timeline"),
        Section::new("reads", "What was read"),
        Section::new("layers", "Cost of each layer"),
        Section::new("stability", "Stability"),
        Section::new("misses", "What missed"),
    ];
    shell::page(
        &image.name,
        "boot report",
        &sections,
        |out, section| match section.id {
            "timeline" => {
                ways::section(out, &image.measured, Detail::Full);
                timeline::section(out, image, Detail::Full);
            }
            "reads" => reads::section(out, image, Detail::Full),
            "layers" => layers::section(out, image),
            "stability" => facts::stability(out, image),
            "misses" => misses::section(out, &image.mounts, misses::Of::Image),
            _ => facts::head(out, image),
        },
    )
}

/// Writes the page about a node.
fn node_page(node: &NodeReport) -> String {
    let sections = [
        Section::new("images", "Images"),
        Section::new("measurements", "Measurements"),
        Section::new("mounts", "Mounts"),
        Section::new("each", "Image by image"),
    ];
    shell::page(
        &node.name,
        "boot images of a node",
        &sections,
        |out, section| match section.id {
            "images" => node::images(out, node),
            "measurements" => ways::section(out, &node.measured, Detail::Full),
            "mounts" => misses::section(out, &node.mounts, misses::Of::Node),
            "each" => node::each(out, node),
            _ => node::head(out, node),
        },
    )
}

/// Says why there is nothing to show.
fn nothing(out: &mut Markup, text: &str) {
    out.leaf("p", &[("class", "nothing")], text);
}
