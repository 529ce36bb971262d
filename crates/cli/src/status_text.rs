//! The status of mounts, for people.

use std::collections::BTreeMap;

use crate::output::{count, percent, table};
use blocks::Digest;
use diagnosis::mounts::MountVerdict;
use host::size::Size;
use node_api::nic_status::NicStatus;
use node_api::status::{BootStatus, MountStatus, ServedStatus};

/// What is said where there is no mount.
const NOTHING: &str = "nothing is mounted";

/// The container images that layers are of, by the digests of layers.
pub(crate) type LayerImages = BTreeMap<Digest, Vec<String>>;

/// Writes a line for each mount, its verdict first, and what it warns of.
#[must_use]
pub(crate) fn lines(mounts: &[MountStatus], of_layers: &LayerImages) -> String {
    if mounts.is_empty() {
        return NOTHING.to_owned();
    }
    let heading = ["VERDICT", "MOUNT POINT", "BOOT IMAGE", "SOURCE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(mounts.iter().map(|mount| {
        let image = mount
            .boot
            .as_ref()
            .map(|boot| named(&boot.image, of_layers));
        vec![
            MountVerdict::of(mount).to_string(),
            mount.mountpoint.display().to_string(),
            image.unwrap_or_else(|| "-".to_owned()),
            mount.source.display().to_string(),
        ]
    }));
    let mut text = table(&rows);
    for mount in mounts {
        for warning in &mount.warnings {
            text += &format!("warning: {}: {warning}\n", mount.mountpoint.display());
        }
    }
    text
}

/// Returns the digest of the layer that a boot image is of, if it is one's.
pub(crate) fn layer_of(image: &str) -> Option<Digest> {
    let of = image.split_once('@').map_or(image, |(of, _place)| of);
    of.parse().ok()
}

/// Returns the name of a boot image as people say it: that of a layer is a digest.
fn named(image: &str, of_layers: &LayerImages) -> String {
    let Some(layer) = layer_of(image) else {
        return image.to_owned();
    };
    let short = layer.short();
    match of_layers.get(&layer).map(Vec::as_slice) {
        None | Some([]) => format!("layer {short}"),
        Some([image]) => format!("{image} (layer {short})"),
        Some([image, others @ ..]) => {
            format!("{image} and {} more (layer {short})", others.len())
        }
    }
}

/// Writes the status of all mounts for people.
#[must_use]
pub(crate) fn text(mounts: &[MountStatus]) -> String {
    if mounts.is_empty() {
        return NOTHING.to_owned();
    }
    mounts.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(mount: &MountStatus) -> String {
    let head = format!(
        "{} on {} ({}, {}, {})\n",
        mount.source.display(),
        mount.mountpoint.display(),
        mount.mode,
        mount.state,
        mount
            .pid
            .map_or_else(|| "no process".to_owned(), |pid| format!("pid {pid}"))
    );
    let mut rows = Rows::default();
    match &mount.boot {
        Some(boot) => rows.boot(boot),
        None => rows.add("boot image", "none"),
    }
    if let Some(nic) = &mount.nic {
        rows.add("from service", nic_text(nic));
    }
    if let Some(served) = &mount.served {
        match &mount.boot {
            Some(_) => rows.compared(served),
            None => rows.add("from source", Size(served.fallthrough_bytes).to_string()),
        }
        rows.served(served);
    }
    for warning in &mount.warnings {
        rows.add("warning", warning);
    }
    head + &table(&rows.0)
}

/// What is told of a mount, line by line.
#[derive(Default)]
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn add(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(vec![format!("  {name}"), value.into()]);
    }

    fn boot(&mut self, boot: &BootStatus) {
        let id: String = boot.content.chars().take(12).collect();
        let bytes = Size(boot.blocks * 4096);
        let files = count(boot.files, "file");
        self.add(
            "boot image",
            format!("{} ({id}), {bytes} of {files}", boot.image),
        );
        if boot.stale_files > 0 {
            let stale = Size(boot.stale_blocks * 4096);
            let files = boot.stale_files;
            self.add("stale", format!("{files} files, {stale}: record again"));
        }
        if boot.damaged > 0 {
            let reads = boot.damaged;
            self.add("damaged", format!("{reads} reads: see bootimg verify"));
        }
        match (&boot.tier, boot.copy_failures) {
            (None, _) => {}
            (Some(tier), 0) => self.add("tier", tier),
            (Some(tier), failures) => self.add(
                "tier",
                format!("{tier}, {failures} reads failed and went to the store: prewarm it again"),
            ),
        }
        let (injected, evicted) = (boot.injected_pages, boot.evicted_pages);
        self.add(
            "injected",
            format!(
                "{injected} pages, {evicted} evicted (prewarm {})",
                boot.prewarm
            ),
        );
        if let Some(wasted) = boot.wasted_bytes {
            let asked = format!("{} of {}", boot.sampled_asked, boot.sampled_blocks);
            let wasted = Size(wasted);
            self.add(
                "not needed",
                format!("about {wasted} ({asked} held-back blocks were)"),
            );
        }
    }

    /// What came from the boot image, and what did not.
    fn compared(&mut self, served: &ServedStatus) {
        let all = served.hit_bytes + served.fallthrough_bytes;
        let (hit, fell) = (Size(served.hit_bytes), Size(served.fallthrough_bytes));
        self.add("from boot image", format!("{hit} in {} hits", served.hits));
        let share = percent(served.fallthrough_bytes, all);
        self.add(
            "from source",
            format!("{fell} in {} misses ({share})", served.misses),
        );
        let (whole, tenth) = (
            served.divergence_permille / 10,
            served.divergence_permille % 10,
        );
        let first = match &served.first_miss {
            Some(miss) => format!(", first in {} at {}", miss.path, miss.offset),
            None => String::new(),
        };
        self.add("divergence", format!("{whole}.{tenth} %{first}"));
    }

    fn served(&mut self, served: &ServedStatus) {
        if served.diverted_files > 0 {
            self.add(
                "changed files",
                format!("{} while mounted", served.diverted_files),
            );
        }
        let (opens, failed) = (served.copy_opens, served.copies_failed);
        if opens + failed > 0 {
            self.add("whole copies", format!("{opens} opens, {failed} failed"));
        }
        let (late, hung) = (served.late_answers, served.hung_threads);
        if late > 0 {
            self.add(
                "late answers",
                format!("{late} of the source, {hung} threads wait"),
            );
        }
        let counts = served.requests.iter().filter(|(_, count)| **count > 0);
        let counts: Vec<_> = counts
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        self.add("requests", counts.join(", "));
    }
}

/// Writes the block service of a mount as one line.
fn nic_text(nic: &NicStatus) -> String {
    let state = if nic.connected { "asked" } else { "not there" };
    let NicStatus {
        address,
        lies,
        late,
        origin_chunks,
        ..
    } = nic;
    format!(
        "{} in {} chunks, {lies} lies, {late} late, {origin_chunks} from the origin \
         ({address}, {state})",
        Size(nic.bytes),
        nic.chunks
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use node_api::mount_state::{MountMode, MountState};

    fn mount(boot: Option<BootStatus>) -> MountStatus {
        MountStatus {
            id: "1ab2".to_owned(),
            mountpoint: "/mnt".into(),
            source: "/srv".into(),
            source_inode: None,
            mode: MountMode::Lower,
            state: MountState::Serving,
            pid: Some(7),
            boot,
            served: Some(ServedStatus {
                fallthrough_bytes: 8192,
                misses: 2,
                divergence_permille: 205,
                ..ServedStatus::default()
            }),
            nic: None,
            image: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_mount_is_a_line_with_a_verdict() {
        assert_eq!(lines(&[], &LayerImages::new()), "nothing is mounted");
        let mut stale = mount(Some(BootStatus {
            image: "web".to_owned(),
            stale_files: 2,
            ..BootStatus::default()
        }));
        stale.warnings.push("2 of its 9 files changed".to_owned());
        let told = lines(&[mount(None), stale], &LayerImages::new());
        let told: Vec<&str> = told.lines().collect();
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[1].starts_with("no boot image "), "{told:?}");
        assert!(told[2].starts_with("stale: record again "), "{told:?}");
        let words: Vec<_> = told[2].split_whitespace().skip(3).collect();
        assert_eq!(words, ["/mnt", "web", "/srv"]);
        assert_eq!(told[3], "warning: /mnt: 2 of its 9 files changed");
    }

    #[test]
    fn a_layer_is_named_by_its_image() {
        let digest = |byte: &str| format!("sha256:{}", byte.repeat(32));
        let of = |image: String| {
            mount(Some(BootStatus {
                image,
                ..BootStatus::default()
            }))
        };
        let images = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let known = LayerImages::from([
            (digest("ab").parse().unwrap(), images(&["nginx:1.25"])),
            (
                digest("ef").parse().unwrap(),
                images(&["nginx:1.25", "web", "x"]),
            ),
        ]);
        let told = lines(
            &[
                of(digest("ab")),
                of(format!("{}@0123456789ab", digest("ab"))),
                of(digest("cd")),
                of(digest("ef")),
            ],
            &known,
        );
        let told: Vec<&str> = told.lines().skip(1).collect();
        assert!(
            told[0].contains(" nginx:1.25 (layer abababababab) "),
            "{told:?}"
        );
        assert!(
            told[1].contains(" nginx:1.25 (layer abababababab) "),
            "{told:?}"
        );
        assert!(told[2].contains("  layer cdcdcdcdcdcd "), "{told:?}");
        assert!(
            told[3].contains(" nginx:1.25 and 2 more (layer efefefefefef) "),
            "{told:?}"
        );
    }

    #[test]
    fn people_read_of_hits_and_misses_where_there_is_a_boot_image() {
        let told = text(&[mount(Some(BootStatus::default()))]);
        assert!(told.starts_with("/srv on /mnt (lower, serving, pid 7)\n"));
        for expected in ["0 B in 0 hits", "8.0 KiB in 2 misses (100.0 %)", "20.5 %"] {
            assert!(told.contains(expected), "{expected}: {told}");
        }
        let told = text(&[mount(None)]);
        assert!(told.contains("8.0 KiB\n"), "{told}");
        for other in ["hits", "misses", "divergence"] {
            assert!(!told.contains(other), "{other}: {told}");
        }
    }
}
