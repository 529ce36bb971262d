//! Layout: heights of bands, places of labels, steps of axes.

use super::Plot;

/// Height of a line of small text, in pixels: labels keep this distance.
pub(super) const LINE: f64 = 12.0;

/// A band's place on the picture, in pixels from the top of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Band {
    pub(super) top: f64,
    pub(super) height: f64,
    /// Bytes that the marks of the band have: how much it matters.
    pub(super) weight: f64,
    /// Bytes of the file that the band shows: up to the last mark. The rest is not
    /// worth the space.
    pub(super) bytes: f64,
}

impl Band {
    pub(super) fn middle(self) -> f64 {
        self.top + self.height / 2.0
    }
}

/// Shares a height among the rows. A file that was read much gets more, but not in proportion:
/// the square root keeps small files visible beside large ones.
pub(super) fn bands(plot: &Plot, height: f64) -> Vec<Band> {
    let mut bands = vec![Band::default(); plot.rows.len()];
    for mark in &plot.marks {
        if let Some(band) = bands.get_mut(mark.row) {
            band.weight += real(mark.len);
            band.bytes = band.bytes.max(real(mark.offset.saturating_add(mark.len)));
        }
    }
    let count = real(bands.len() as u64).max(1.0);
    let least = (height / count * 0.4).min(2.0);
    let shared = height - least * count;
    let roots: f64 = bands.iter().map(|band| band.weight.sqrt()).sum();
    let mut top = 0.0;
    for band in &mut bands {
        band.top = top;
        band.height = least + shared * band.weight.sqrt() / roots.max(1.0);
        top += band.height;
    }
    bands
}

/// Chooses the rows that get a label: those that matter most first, as long as no two labels come
/// too close to each other.
pub(super) fn labelled(bands: &[Band]) -> Vec<usize> {
    let mut by_weight: Vec<usize> = (0..bands.len()).collect();
    by_weight.sort_by(|a, b| bands[*b].weight.total_cmp(&bands[*a].weight).then(a.cmp(b)));
    let mut places: std::collections::BTreeMap<i64, f64> = std::collections::BTreeMap::new();
    let mut chosen = Vec::new();
    for row in by_weight {
        let y = bands[row].middle();
        // Places are kept by the line they fall into, so that only neighbours need a look.
        let slot = whole(y / LINE);
        let near = places
            .range(slot - 1..=slot + 1)
            .any(|(_, other)| (other - y).abs() < LINE);
        if !near {
            places.insert(slot, y);
            chosen.push(row);
        }
    }
    chosen.sort_unstable();
    chosen
}

/// Returns round numbers from 0 to `end`, about `count` of them.
pub(super) fn ticks(end: f64, count: f64) -> Vec<f64> {
    let raw = (end / count).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= raw)
        .unwrap_or(raw);
    steps(end, step)
}

/// Returns round numbers of bytes from 0 to `end`, about `count` of them: powers of two.
pub(super) fn byte_ticks(end: f64, count: f64) -> Vec<f64> {
    let raw = (end / count).max(4096.0);
    steps(end, 2_f64.powf(raw.log2().ceil()))
}

fn steps(end: f64, step: f64) -> Vec<f64> {
    // Whatever rounding does, nobody needs more.
    const MOST: usize = 100;
    let at = |index: u32| f64::from(index) * step;
    (0..)
        .map(at)
        .take_while(|tick| *tick <= end)
        .take(MOST)
        .collect()
}

/// Returns an amount of bytes with a unit that suits it.
pub(super) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return if bytes == 0 {
            "0".to_owned()
        } else {
            format!("{bytes} B")
        };
    }
    let mut amount = real(bytes) / 1024.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        unit = larger;
    }
    if amount.fract() < 0.05 || amount >= 100.0 {
        format!("{amount:.0} {unit}")
    } else {
        format!("{amount:.1} {unit}")
    }
}

#[expect(clippy::cast_precision_loss, reason = "a picture needs four digits")]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast saturates, and pixels are few"
)]
pub(super) fn whole(pixels: f64) -> i64 {
    pixels.floor() as i64
}
