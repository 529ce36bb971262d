//! What missed: how the mounts do that use the image now.

use super::chart::{self, Bar};
use super::markup::Markup;
use super::numbers;
use super::table::{self, Alignment, Column};
use crate::mount::MountReport;

/// Most mounts that are shown.
const SHOWN: usize = 100;
/// Above this, in thousandths, a boot went so far beyond its recording that a new one pays.
const RECORD_ANEW_PERMILLE: u64 = 200;
/// Most kinds of requests that are named.
const KINDS: usize = 24;

/// Whose mounts they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Those of one image.
    Image,
    /// All of a node.
    Node,
}

pub(super) fn section(out: &mut Markup, mounts: &[MountReport], of: Of) {
    if mounts.is_empty() {
        super::nothing(
            out,
            match of {
                Of::Image => "It is not mounted now, so there is nothing that could miss.",
                Of::Node => "Nothing is mounted.",
            },
        );
        return;
    }
    let columns = [
        Column("Mount", Alignment::Wide),
        Column("Verdict", Alignment::Left),
        Column("From the boot image", Alignment::Right),
        Column("Missed", Alignment::Right),
        Column("Hit ratio", Alignment::Left),
        Column("Pages injected", Alignment::Right),
        Column("Evicted", Alignment::Right),
        Column("Stale", Alignment::Right),
    ];
    let caption = match of {
        Of::Image => "The mounts that use it now",
        Of::Node => "All mounts",
    };
    table::table(out, caption, &columns, |out| {
        for mount in mounts.iter().take(SHOWN) {
            table::row(out, |out| cells(out, mount));
        }
    });
    table::more(out, mounts.len() as u64, SHOWN, "mount");
    let words = "What the page cache has, nobody hears of: only reads that reached the daemon are \
        hits or misses. Evicted pages were injected, dropped by the kernel and asked for again. \
        Stale is content of files that changed since the recording.";
    out.leaf("p", &[("class", "soft")], words);
    if of == Of::Image {
        for mount in mounts.iter().take(SHOWN) {
            one(out, mount);
        }
    }
}

fn cells(out: &mut Markup, mount: &MountReport) {
    table::name(out, &mount.mountpoint);
    let (class, text) = verdict(mount);
    out.leaf("td", &[("class", class)], &text);
    table::bytes(out, mount.hit_bytes);
    table::bytes(out, mount.fallthrough_bytes);
    let asked = mount.hit_bytes.saturating_add(mount.fallthrough_bytes);
    if asked == 0 {
        table::number(out, 2.0, "no reads");
    } else {
        table::share(out, "all", mount.hit_bytes, asked);
    }
    table::count(out, mount.injected_pages);
    table::count(out, mount.evicted_pages);
    table::bytes(out, mount.stale_bytes);
}

/// Says how a mount does, the worst first.
fn verdict(mount: &MountReport) -> (&'static str, String) {
    if mount.state != "serving" {
        ("bad", numbers::clipped(&mount.state, 40))
    } else if mount.damaged_reads > 0 {
        ("bad", "damaged: see bootimg verify".to_owned())
    } else if mount.boot_image.is_none() {
        ("soft", "no boot image".to_owned())
    } else if mount.stale_files > 0 {
        (
            "bad",
            format!(
                "{} changed: record again",
                numbers::things(mount.stale_files, "file")
            ),
        )
    } else if mount.divergence_permille > RECORD_ANEW_PERMILLE {
        ("bad", "far from its recording: record again".to_owned())
    } else if mount.fallthrough_bytes > 0 {
        ("soft", "some reads missed".to_owned())
    } else {
        ("good", "as recorded".to_owned())
    }
}

/// What there is to say of one mount besides its row.
fn one(out: &mut Markup, mount: &MountReport) {
    out.tag("h3", &[], |out| {
        out.leaf("code", &[], &numbers::clipped(&mount.mountpoint, 160));
    });
    let asked = mount.hit_bytes.saturating_add(mount.fallthrough_bytes);
    if asked > 0 {
        served(out, mount, asked);
    }
    out.tag("dl", &[], |out| {
        let mut fact = |name: &str, value: &str| {
            out.leaf("dt", &[], name);
            out.leaf("dd", &[], value);
        };
        fact("Source", &numbers::clipped(&mount.source, 400));
        fact("Prewarm", &mount.prewarm);
        fact("Hits", &reads(mount.hits, mount.hit_bytes));
        fact("Misses", &reads(mount.misses, mount.fallthrough_bytes));
        let permille = mount.divergence_permille;
        fact(
            "Divergence",
            &format!(
                "{}.{} % of the boot image's bytes were read from the source",
                permille / 10,
                permille % 10
            ),
        );
        if mount.stale_files > 0 {
            let bytes = numbers::bytes(mount.stale_bytes);
            fact(
                "Stale files",
                &format!("{} ({bytes})", numbers::count(mount.stale_files)),
            );
        }
        if mount.diverted_files > 0 {
            fact(
                "Changed while mounted",
                &numbers::things(mount.diverted_files, "file"),
            );
        }
        if mount.damaged_reads > 0 {
            fact("Damaged reads", &numbers::count(mount.damaged_reads));
        }
        let counts = mount
            .requests
            .iter()
            .filter(|(_, count)| **count > 0)
            .take(KINDS);
        let counts: Vec<_> = counts
            .map(|(kind, count)| format!("{kind} {}", numbers::count(*count)))
            .collect();
        let counts = counts.join(", ");
        fact("Requests", if counts.is_empty() { "none" } else { &counts });
    });
}

fn reads(runs: u64, bytes: u64) -> String {
    format!(
        "{} in {} of blocks",
        numbers::bytes(bytes),
        numbers::things(runs, "run")
    )
}

fn served(out: &mut Markup, mount: &MountReport, asked: u64) {
    let hit = numbers::real(mount.hit_bytes) / numbers::real(asked);
    let words = format!(
        "Of what the daemon was asked for, {} came from the boot image, {} from the source.",
        numbers::bytes(mount.hit_bytes),
        numbers::bytes(mount.fallthrough_bytes)
    );
    out.tag("figure", &[], |out| {
        chart::picture(out, 18, &words, |out| {
            let place = Bar::new((0.0, hit), 0.0, 18.0);
            chart::bar(out, "all", place);
            chart::bar(
                out,
                "wait",
                Bar {
                    from: hit,
                    to: 1.0,
                    ..place
                },
            );
        });
        out.leaf("figcaption", &[], &words);
    });
}
