//! What lies on the tiers, as one SVG: a bar for each tier, with a piece for each copy.

use super::{ObjectStatus, Status, TierStatus};
use host::size::Size;

const WIDTH: u64 = 900;
const LEFT: u64 = 16;
/// Width of a bar that is full.
const BAR: u64 = WIDTH - 2 * LEFT;
const BAR_HEIGHT: u64 = 34;
/// From one tier to the next, with its heading.
const ROW: u64 = 78;
/// A piece narrower than this has no name in it, only one that appears under the pointer.
const NAMED_FROM: u64 = 60;
/// A letter of the names, about.
const LETTER: u64 = 7;

/// Okabe and Ito's colours, which everybody can tell apart.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// Draws it; nothing is fetched and nothing runs when it is looked at.
pub(super) fn svg(status: &Status) -> String {
    let rows = status.tiers.len() as u64;
    let height = 20 + rows * ROW;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"><title>Boot images on tiers</title>\n\
         <style>text{{font:12px system-ui,sans-serif;fill:#333}}.n{{fill:#fff}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (tier, row) in status.tiers.iter().zip(0..) {
        draw_tier(&mut out, tier, 12 + row * ROW);
    }
    out.push_str("</svg>\n");
    out
}

fn draw_tier(out: &mut String, tier: &TierStatus, top: u64) {
    let said = match &tier.away {
        Some(_) => "cannot be used".to_owned(),
        None => format!("{} of {}", Size(tier.used_bytes), Size(tier.room_bytes)),
    };
    let kind = tier.kind.unwrap_or("-");
    out.push_str(&format!(
        "<text x=\"{LEFT}\" y=\"{}\">{} ({kind}): {said}, {} copies</text>\n\
         <rect x=\"{LEFT}\" y=\"{}\" width=\"{BAR}\" height=\"{BAR_HEIGHT}\" fill=\"#eee\"/>\n",
        top + 14,
        escape(&tier.name),
        tier.objects.len(),
        top + 22,
    ));
    let mut before = 0;
    for (object, colour) in tier.objects.iter().zip(COLOURS.iter().cycle()) {
        let from = scale(before, tier.room_bytes);
        before += object.own_bytes;
        // A pixel at least, so that whatever is there is seen.
        let width = (scale(before, tier.room_bytes) - from).max(1);
        draw_object(out, object, colour, (LEFT + from, top + 22, width));
    }
    // What several have is there once, behind what each has alone.
    let shared = tier.used_bytes.saturating_sub(before);
    if shared > 0 {
        let from = scale(before, tier.room_bytes);
        let width = (scale(before + shared, tier.room_bytes) - from).max(1);
        out.push_str(&format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{BAR_HEIGHT}\" fill=\"#777\">\
             <title>shared: {}</title></rect>\n",
            LEFT + from,
            top + 22,
            Size(shared),
        ));
    }
}

fn draw_object(out: &mut String, object: &ObjectStatus, colour: &str, at: (u64, u64, u64)) {
    let (x, y, width) = at;
    let name = escape(&object.name);
    let size = Size(object.bytes);
    out.push_str(&format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\">\
         <title>{name}: {size}, heat {:.1}</title></rect>\n",
        object.heat
    ));
    if width >= NAMED_FROM {
        let letters = usize::try_from((width - 8) / LETTER).unwrap_or(0);
        let short: String = object.name.chars().take(letters).collect();
        out.push_str(&format!(
            "<text class=\"n\" x=\"{}\" y=\"{}\">{}</text>\n",
            x + 4,
            y + 21,
            escape(&short)
        ));
    }
}

/// Returns how many pixels so many bytes of a room are, no more than there are.
fn scale(bytes: u64, room: u64) -> u64 {
    let pixels = u128::from(bytes) * u128::from(BAR) / u128::from(room.max(1));
    u64::try_from(pixels).unwrap_or(BAR).min(BAR)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter if letter.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn status(room_bytes: u64, sizes: &[u64]) -> Status {
        let object = |bytes: &u64| ObjectStatus {
            name: "<a&b>".repeat(20),
            boot_image: None,
            object: String::new(),
            bytes: bytes + 5,
            own_bytes: *bytes,
            shared_bytes: 5,
            heat: 1.0,
            pinned: false,
            open: false,
            way: Some("blocks"),
        };
        let tier = TierStatus {
            name: "nvm".to_owned(),
            dir: PathBuf::from("/nvm"),
            away: None,
            kind: Some("nvm"),
            map: None,
            sync: None,
            room_bytes,
            used_bytes: sizes.iter().sum(),
            free_bytes: 0,
            objects: sizes.iter().map(object).collect(),
        };
        let tiers = vec![tier];
        Status { file: None, tiers }
    }

    /// The widths of what is drawn of objects, in pixels.
    fn widths(svg: &str) -> Vec<u64> {
        let rects = svg.split("<rect ").filter(|rect| rect.contains("heat"));
        let width = |rect: &str| {
            rect.split("width=\"")
                .nth(1)?
                .split('"')
                .next()?
                .parse()
                .ok()
        };
        rects.map(|rect| width(rect).unwrap()).collect()
    }

    #[test]
    fn pieces_are_as_wide_as_their_share_and_stay_in_the_bar() {
        assert_eq!(widths(&svg(&status(100, &[50, 25]))), [BAR / 2, BAR / 4]);
        assert_eq!(widths(&svg(&status(u64::MAX, &[1]))), [1]);
        let too_much = widths(&svg(&status(10, &[8, 8, 8])));
        assert!(too_much.iter().sum::<u64>() <= BAR + 1, "{too_much:?}");
        assert_eq!(widths(&svg(&status(0, &[]))), [0; 0]);
    }

    #[test]
    fn names_are_text_and_nothing_else() {
        let drawn = svg(&status(100, &[100]));
        assert!(drawn.contains("&lt;a&amp;b&gt;"), "{drawn}");
        assert!(!drawn.contains("<a&b"), "{drawn}");
    }
}
