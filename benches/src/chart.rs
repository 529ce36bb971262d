//! Line charts as SVG: panels side by side with one scale, as figures of papers have them.

use std::fmt::Write as _;

use crate::report::count;

/// Pixels of a panel, and of the room around it.
const WIDTH: f64 = 230.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const GAP: f64 = 20.0;
const BELOW: f64 = 60.0;
/// Pixels between two entries of the legend.
const LEGEND: f64 = 200.0;

/// Colours that are told apart in print, too, in the order in which they are used.
pub const COLOURS: [&str; 6] = [
    "#b2182b", "#2166ac", "#1b7837", "#e08214", "#762a83", "#888888",
];

/// The vertical axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// From zero to this.
    Linear(f64),
    /// From a value to another, both above zero; values outside are drawn at the border.
    Logarithmic(f64, f64),
}

/// A line of a panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What the legend calls it. Lines of one name have one entry.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// Whether it is what others are compared with, drawn in dashes and without points.
    pub is_reference: bool,
    /// Its height over each mark of the panel, where there is one.
    pub heights: Vec<Option<f64>>,
}

/// One diagram.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What is written above.
    pub title: String,
    /// The marks of the horizontal axis.
    pub marks: Vec<String>,
    /// What is drawn.
    pub lines: Vec<Line>,
}

/// Diagrams beside each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The vertical axis of all.
    pub scale: Scale,
    /// The unit of the heights.
    pub unit: &'static str,
    /// The diagrams.
    pub panels: Vec<Panel>,
}

impl Scale {
    /// Returns a linear scale that has room for all of these heights.
    #[must_use]
    pub fn linear_for(panels: &[Panel]) -> Self {
        let lines = panels.iter().flat_map(|panel| &panel.lines);
        let heights = lines.flat_map(|line| line.heights.iter().flatten());
        let most = heights.fold(0.0_f64, |most, height| most.max(*height));
        // Up to 1, 2 or 5 of a decade.
        let decade = 10.0_f64.powf(most.max(1e-9).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let room = steps.into_iter().find(|step| *step >= most);
        Self::Linear(room.unwrap_or(most))
    }

    /// Returns the share of the height that a value takes.
    fn share(&self, value: f64) -> f64 {
        match *self {
            Self::Linear(most) => (value / most).clamp(0.0, 1.0),
            Self::Logarithmic(low, high) => {
                (value.clamp(low, high) / low).log10() / (high / low).log10()
            }
        }
    }

    /// Returns the values that are marked.
    fn marks(&self) -> Vec<f64> {
        match *self {
            Self::Linear(most) => (0..=4).map(|part| most * f64::from(part) / 4.0).collect(),
            Self::Logarithmic(low, high) => {
                let decades = (0..).map(|power| low * 10_f64.powi(power));
                decades.take_while(|value| *value <= high * 1.001).collect()
            }
        }
    }
}

impl Chart {
    /// Draws it.
    #[must_use]
    pub fn svg(&self) -> String {
        let panels = count(self.panels.len() as u64);
        let names = self.names();
        let legend = LEFT + count(names.len() as u64) * LEGEND;
        let width = (LEFT + panels * (WIDTH + GAP)).max(legend);
        let height = TOP + HEIGHT + BELOW;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for mark in self.scale.marks() {
            let what = format!("{} {}", rounded(mark), self.unit);
            label(&mut text, LEFT - 6.0, self.y(mark) + 4.0, "end", &what);
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let left = LEFT + count(index as u64) * (WIDTH + GAP);
            self.draw(&mut text, panel, left);
        }
        for (index, line) in names.into_iter().enumerate() {
            let (x, at) = (LEFT + count(index as u64) * LEGEND, height - 14.0);
            let places = [(x, at - 4.0), (x + 20.0, at - 4.0)];
            polyline(&mut text, &places, line.colour, line.is_reference);
            label(&mut text, x + 26.0, at, "start", &line.name);
        }
        text.push_str("</svg>\n");
        text
    }

    /// Returns a line for each name, as they come.
    fn names(&self) -> Vec<&Line> {
        let mut names: Vec<&Line> = Vec::new();
        for line in self.panels.iter().flat_map(|panel| &panel.lines) {
            if names.iter().all(|known| known.name != line.name) {
                names.push(line);
            }
        }
        names
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT * (1.0 - self.scale.share(value))
    }

    fn draw(&self, text: &mut String, panel: &Panel, left: f64) {
        let step = WIDTH / count(panel.marks.len().max(2) as u64 - 1);
        let x = |index: usize| left + count(index as u64) * step;
        label(text, left + WIDTH / 2.0, TOP - 12.0, "middle", &panel.title);
        for mark in self.scale.marks() {
            let places = [(left, self.y(mark)), (left + WIDTH, self.y(mark))];
            polyline(text, &places, "#dddddd", false);
        }
        for (index, mark) in panel.marks.iter().enumerate() {
            label(text, x(index), TOP + HEIGHT + 16.0, "middle", mark);
        }
        for line in &panel.lines {
            let heights = line.heights.iter().enumerate();
            let places: Vec<_> = heights
                .filter_map(|(index, height)| Some((x(index), self.y((*height)?))))
                .collect();
            polyline(text, &places, line.colour, line.is_reference);
            let points = places.iter().filter(|_| !line.is_reference);
            for (x, y) in points {
                // Writing to a string does not fail.
                let _written = writeln!(
                    text,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>",
                    line.colour
                );
            }
        }
    }
}

/// Returns a number as a mark has it.
fn rounded(value: f64) -> String {
    if value == 0.0 || value.abs() >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn polyline(text: &mut String, places: &[(f64, f64)], colour: &str, in_dashes: bool) {
    let places: Vec<_> = places
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let dashes = if in_dashes { "4 3" } else { "" };
    let _written = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" \
         stroke-dasharray=\"{dashes}\"/>",
        places.join(" ")
    );
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;");
    let _written = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale) -> Chart {
        let line = |name: &str, heights: &[Option<f64>]| Line {
            name: name.to_owned(),
            colour: COLOURS[0],
            is_reference: name == "floor",
            heights: heights.to_vec(),
        };
        let panel = |title: &str| Panel {
            title: title.to_owned(),
            marks: ["1", "4", "16"].map(str::to_owned).to_vec(),
            lines: vec![
                line("a < b", &[Some(1.0), None, Some(3.0)]),
                line("floor", &[Some(1.0); 3]),
            ],
        };
        Chart {
            scale,
            unit: "s",
            panels: vec![panel("left"), panel("right")],
        }
    }

    #[test]
    fn each_height_is_a_point_of_its_panel_and_each_name_comes_once() {
        let drawn = chart(Scale::Linear(4.0)).svg();
        assert_eq!(drawn.matches("<circle").count(), 4);
        assert_eq!(drawn.matches(">a &lt; b<").count(), 1);
        assert!(drawn.contains(">left<") && drawn.contains(">right<"));
    }

    #[test]
    fn scales_have_room() {
        let panels = chart(Scale::Linear(1.0)).panels;
        assert_eq!(Scale::linear_for(&panels), Scale::Linear(5.0));
        let scale = Scale::Logarithmic(100.0, 10_000.0);
        assert_eq!(scale.marks(), [100.0, 1000.0, 10_000.0]);
        assert!((scale.share(1000.0) - 0.5).abs() < 1e-9);
        assert!((scale.share(1e9) - 1.0).abs() < 1e-9);
    }
}
