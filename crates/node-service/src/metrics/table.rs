//! The table of metrics, but for those of block services. Names follow Prometheus' habits: base units, `_total` for counters.

use super::{Kind, Metric, Read, Sample, Seen, Value};
use node_api::mount_state::MountState;
use node_api::status::{BootStatus, ServedStatus};
use node_api::view::MountView;
use node_api::view::TierView;

use Kind::{Counter, Gauge};

/// Every metric but those of block services.
pub(super) static METRICS: &[Metric] = &[
    Metric {
        name: "yolofs_node_info",
        kind: Gauge,
        unit: "1",
        labels: &["version", "keeper"],
        help: "Always 1; its labels are the version and the keeper of descriptors.",
        question: "What runs here?",
        read: Read::Node(|seen| {
            let version = seen.node.version.clone();
            vec![sample(vec![version, seen.node.keeper.clone()], 1)]
        }),
    },
    Metric {
        name: "yolofs_node_uptime_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &[],
        help: "Time since the node's process started.",
        question: "Was the node restarted?",
        read: Read::Node(|seen| one(seen.node.uptime_seconds)),
    },
    Metric {
        name: "yolofs_node_draining",
        kind: Gauge,
        unit: "1",
        labels: &[],
        help: "1 if the node takes no more mounts.",
        question: "Why are there no new mounts?",
        read: Read::Node(|seen| one(u64::from(seen.node.draining))),
    },
    Metric {
        name: "yolofs_node_damaged_records",
        kind: Gauge,
        unit: "records",
        labels: &[],
        help: "Records that could not be read when the node started, and were left out.",
        question: "Was a mount forgotten?",
        read: Read::Node(|seen| one(seen.node.damaged.len() as u64)),
    },
    Metric {
        name: "yolofs_node_resident_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Memory of the node's process.",
        question: "Does the node grow?",
        read: Read::Node(|seen| one(seen.node_memory.resident_bytes)),
    },
    Metric {
        name: "yolofs_workers",
        kind: Gauge,
        unit: "processes",
        labels: &[],
        help: "Processes that serve mounts.",
        question: "Does anybody serve?",
        read: Read::Node(|seen| one(seen.node.workers.len() as u64)),
    },
    Metric {
        name: "yolofs_workers_outdated",
        kind: Gauge,
        unit: "processes",
        labels: &[],
        help: "Workers that run another program than the node: one from before an upgrade.",
        question: "Has the upgrade reached every mount?",
        read: Read::Node(|seen| {
            let outdated = seen.node.workers.iter().filter(|worker| !worker.current);
            one(outdated.count() as u64)
        }),
    },
    Metric {
        name: "yolofs_workers_resident_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Memory of all workers, pages of files that they share included.",
        question: "How much memory does serving take at most?",
        read: Read::Node(|seen| one(seen.workers_memory.resident_bytes)),
    },
    Metric {
        name: "yolofs_workers_private_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Anonymous memory of all workers: heap and stacks.",
        question: "What does a mount cost, and do workers grow?",
        read: Read::Node(|seen| one(seen.workers_memory.private_bytes)),
    },
    Metric {
        name: "yolofs_worker_restarts_total",
        kind: Counter,
        unit: "restarts",
        labels: &[],
        help: "Workers that died and were replaced, upgrades not counted.",
        question: "Do workers crash?",
        read: Read::Node(|seen| one(seen.node.worker_restarts)),
    },
    Metric {
        name: "yolofs_node_panics_total",
        kind: Counter,
        unit: "panics",
        labels: &[],
        help: "Panics that ended one item or one round of the node's own work; the log says which.",
        question: "Is there a bug?",
        read: Read::Node(|seen| one(seen.panics)),
    },
    Metric {
        name: "yolofs_mounts",
        kind: Gauge,
        unit: "mounts",
        labels: &["state"],
        help: "Mounts by state.",
        question: "Is every mount served?",
        read: Read::Node(mounts_by_state),
    },
    Metric {
        name: "yolofs_mounts_unlisted",
        kind: Gauge,
        unit: "mounts",
        labels: &[],
        help: "Mounts without series of their own: unmounted and still in use, or beyond the first 1024.",
        question: "Do I see all mounts?",
        read: Read::Node(|seen| one((seen.mounts.len() - seen.listed().count()) as u64)),
    },
    Metric {
        name: "yolofs_api_requests_total",
        kind: Counter,
        unit: "requests",
        labels: &["code"],
        help: "Requests that the API has answered, by status.",
        question: "Who is refused, and does the API fail?",
        read: Read::Node(|seen| {
            let by_code = seen.answers.iter();
            by_code
                .map(|(code, count)| sample(vec![code.to_string()], *count))
                .collect()
        }),
    },
    Metric {
        name: "yolofs_tier_room_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["tier"],
        help: "Bytes that copies of boot images may take on the tier; a node without tiers has none.",
        question: "How large is the tier?",
        read: Read::Node(|seen| tiers(seen, |tier| tier.room_bytes)),
    },
    Metric {
        name: "yolofs_tier_used_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["tier"],
        help: "Bytes that they take.",
        question: "Is the tier full?",
        read: Read::Node(|seen| tiers(seen, |tier| tier.used_bytes)),
    },
    Metric {
        name: "yolofs_tier_objects",
        kind: Gauge,
        unit: "copies",
        labels: &["tier"],
        help: "Copies on the tier.",
        question: "How many boots are fast?",
        read: Read::Node(|seen| tiers(seen, |tier| tier.objects)),
    },
    Metric {
        name: "yolofs_tier_away",
        kind: Gauge,
        unit: "1",
        labels: &["tier"],
        help: "1 if the tier cannot be used.",
        question: "Is something not mounted?",
        read: Read::Node(|seen| tiers(seen, |tier| u64::from(tier.away.is_some()))),
    },
    Metric {
        name: "yolofs_tier_moved_bytes_total",
        kind: Counter,
        unit: "bytes",
        labels: &["tier"],
        help: "Bytes that the node has brought to the tier.",
        question: "Do boot images change places all the time?",
        read: Read::Node(|seen| tiers(seen, |tier| tier.moved_bytes)),
    },
    Metric {
        name: "yolofs_tier_failed_moves_total",
        kind: Counter,
        unit: "moves",
        labels: &["tier"],
        help: "Moves to the tier or from it that failed, and are tried again.",
        question: "Does the tier fail?",
        read: Read::Node(|seen| tiers(seen, |tier| tier.failed_moves)),
    },
    Metric {
        name: "yolofs_mount_info",
        kind: Gauge,
        unit: "1",
        labels: &["mountpoint", "id", "source", "mode", "image"],
        help: "Always 1; its labels are the source and the boot image.",
        question: "What is this mount?",
        read: Read::Mount(|mount| {
            let status = &mount.status;
            let image = status.boot.as_ref().map(|boot| boot.image.clone());
            let labels = vec![
                status.id.clone(),
                status.source.to_string_lossy().into_owned(),
                status.mode.name().to_owned(),
                image.unwrap_or_default(),
            ];
            vec![sample(labels, 1)]
        }),
    },
    Metric {
        name: "yolofs_mount_serving",
        kind: Gauge,
        unit: "1",
        labels: &["mountpoint"],
        help: "1 if the mount is served, 0 in any other state.",
        question: "Which mount hangs?",
        read: Read::Mount(|mount| one(u64::from(mount.status.state == MountState::Serving))),
    },
    Metric {
        name: "yolofs_mount_worker_restarts_total",
        kind: Counter,
        unit: "restarts",
        labels: &["mountpoint"],
        help: "How often the mount's worker was replaced, upgrades not counted.",
        question: "Which mount makes its worker crash?",
        read: Read::Mount(|mount| one(mount.restarts)),
    },
    Metric {
        name: "yolofs_mount_last_gap_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &["mountpoint"],
        help: "From the death of the last worker until its successor served; absent without one.",
        question: "How long did users wait when a worker died?",
        read: Read::Mount(|mount| {
            let gap = mount.last_gap_ms.map(|ms| Sample {
                labels: Vec::new(),
                value: Value::Ratio(ms as f64 / 1000.0),
            });
            gap.into_iter().collect()
        }),
    },
    Metric {
        name: "yolofs_mount_requests_total",
        kind: Counter,
        unit: "requests",
        labels: &["mountpoint", "kind"],
        help: "Requests of the kernel, by kind.",
        question: "Which requests could the kernel have answered?",
        read: Read::Mount(|mount| {
            let requests = mount
                .status
                .served
                .iter()
                .flat_map(|served| &served.requests);
            requests
                .map(|(kind, count)| sample(vec![kind.clone()], *count))
                .collect()
        }),
    },
    Metric {
        name: "yolofs_mount_hits_total",
        kind: Counter,
        unit: "runs of blocks",
        labels: &["mountpoint"],
        help: "Runs of blocks that were answered from the boot image.",
        question: "Does the boot image help?",
        read: Read::Mount(|mount| served(mount, |served| served.hits)),
    },
    Metric {
        name: "yolofs_mount_misses_total",
        kind: Counter,
        unit: "runs of blocks",
        labels: &["mountpoint"],
        help: "Runs of blocks that were not in the boot image.",
        question: "How often does a boot wait for the disk?",
        read: Read::Mount(|mount| served(mount, |served| served.misses)),
    },
    Metric {
        name: "yolofs_mount_read_bytes_total",
        kind: Counter,
        unit: "bytes",
        labels: &["mountpoint", "origin"],
        help: "Bytes that reads returned, by origin: boot_image or source.",
        question: "Where does the data come from?",
        read: Read::Mount(|mount| {
            let origin = |name: &str, bytes| sample(vec![name.to_owned()], bytes);
            let both = mount.status.served.iter().flat_map(|served| {
                [
                    origin("boot_image", served.hit_bytes),
                    origin("source", served.fallthrough_bytes),
                ]
            });
            both.collect()
        }),
    },
    Metric {
        name: "yolofs_mount_divergence_ratio",
        kind: Gauge,
        unit: "1",
        labels: &["mountpoint"],
        help: "Bytes from the source for each byte of the boot image; 0 is a boot as recorded.",
        question: "Is it worth recording anew? Above 0.2 it is.",
        read: Read::Mount(|mount| {
            let ratio = mount.status.served.as_ref().map(|served| Sample {
                labels: Vec::new(),
                value: Value::Ratio(served.divergence_permille as f64 / 1000.0),
            });
            ratio.into_iter().collect()
        }),
    },
    Metric {
        name: "yolofs_mount_diverted_files_total",
        kind: Counter,
        unit: "files",
        labels: &["mountpoint"],
        help: "Files that changed while they were mounted.",
        question: "Does someone write to the source?",
        read: Read::Mount(|mount| served(mount, |served| served.diverted_files)),
    },
    Metric {
        name: "yolofs_mount_late_answers_total",
        kind: Counter,
        unit: "questions",
        labels: &["mountpoint"],
        help: "Requests to the source that missed their deadline.",
        question: "Does the source hang?",
        read: Read::Mount(|mount| served(mount, |served| served.late_answers)),
    },
    Metric {
        name: "yolofs_mount_hung_threads",
        kind: Gauge,
        unit: "threads",
        labels: &["mountpoint"],
        help: "Threads that still wait for the source after that.",
        question: "Does the source hang now?",
        read: Read::Mount(|mount| served(mount, |served| served.hung_threads)),
    },
    Metric {
        name: "yolofs_mount_boot_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["mountpoint"],
        help: "Bytes of the boot image that are valid.",
        question: "How large is this boot?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.blocks * BLOCK_BYTES)),
    },
    Metric {
        name: "yolofs_mount_stale_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["mountpoint"],
        help: "Bytes of the boot image left out because their file changed since the recording.",
        question: "How much of the recording is lost?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.stale_blocks * BLOCK_BYTES)),
    },
    Metric {
        name: "yolofs_mount_stale_files",
        kind: Gauge,
        unit: "files",
        labels: &["mountpoint"],
        help: "Files left out of the boot image for that reason.",
        question: "Was the source updated without a new recording?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.stale_files)),
    },
    Metric {
        name: "yolofs_mount_damaged_reads_total",
        kind: Counter,
        unit: "reads",
        labels: &["mountpoint"],
        help: "Reads that met damage in the boot image and went to the source instead.",
        question: "Does the disk under the store rot?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.damaged)),
    },
    Metric {
        name: "yolofs_mount_copy_failures_total",
        kind: Counter,
        unit: "reads",
        labels: &["mountpoint"],
        help: "Reads that a copy on a tier failed, and that were answered from the store instead.",
        question: "Does a tier rot?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.copy_failures)),
    },
    Metric {
        name: "yolofs_mount_injected_pages_total",
        kind: Counter,
        unit: "pages",
        labels: &["mountpoint"],
        help: "Pages that were brought into the page cache.",
        question: "Was the boot in memory before it began?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.injected_pages)),
    },
    Metric {
        name: "yolofs_mount_evicted_pages_total",
        kind: Counter,
        unit: "pages",
        labels: &["mountpoint"],
        help: "Of these, pages that were asked for again because the kernel had dropped them.",
        question: "Is there too little memory for the boot?",
        read: Read::Mount(|mount| boot(mount, |boot| boot.evicted_pages)),
    },
    Metric {
        name: "yolofs_mount_wasted_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["mountpoint"],
        help: "Bytes brought into the page cache that no boot needed, estimated from a sample; \
               absent for mounts without `auto`.",
        question: "How much of the boot image is of no use?",
        read: Read::Mount(|mount| {
            let wasted = mount
                .status
                .boot
                .as_ref()
                .and_then(|boot| boot.wasted_bytes);
            let wasted = wasted.map(|bytes| sample(Vec::new(), bytes));
            wasted.into_iter().collect()
        }),
    },
    Metric {
        name: "yolofs_mount_prewarm",
        kind: Gauge,
        unit: "1",
        labels: &["mountpoint", "state"],
        help: "1 for the state the prewarm is in: off, running, done, cancelled or failed.",
        question: "Is the boot image in memory yet?",
        read: Read::Mount(|mount| {
            let state = mount.status.boot.as_ref();
            state
                .map(|boot| sample(vec![boot.prewarm.name().to_owned()], 1))
                .into_iter()
                .collect()
        }),
    },
];

const BLOCK_BYTES: u64 = 4096;

/// The states of a mount that are always listed, so that a graph of them has no holes.
const STATES: [MountState; 5] = [
    MountState::Starting,
    MountState::Serving,
    MountState::Leaving,
    MountState::Restarting,
    MountState::Failed,
];

fn mounts_by_state(seen: &Seen) -> Vec<Sample> {
    let mut counts: Vec<(MountState, u64)> = STATES.map(|state| (state, 0)).to_vec();
    for mount in &seen.mounts {
        let state = mount.status.state;
        match counts.iter_mut().find(|(name, _)| *name == state) {
            Some((_, count)) => *count += 1,
            None => counts.push((state, 1)),
        }
    }
    let counts = counts.into_iter();
    counts
        .map(|(state, count)| sample(vec![state.name().to_owned()], count))
        .collect()
}

fn sample(labels: Vec<String>, value: u64) -> Sample {
    let value = Value::Count(value);
    Sample { labels, value }
}

fn one(value: u64) -> Vec<Sample> {
    vec![sample(Vec::new(), value)]
}

/// A count of each tier.
fn tiers(seen: &Seen, read: fn(&TierView) -> u64) -> Vec<Sample> {
    let tiers = seen.node.tiers.iter();
    tiers
        .map(|tier| sample(vec![tier.name.clone()], read(tier)))
        .collect()
}

/// A count of a mount that is served; nothing is known of another.
fn served(mount: &MountView, read: fn(&ServedStatus) -> u64) -> Vec<Sample> {
    mount
        .status
        .served
        .iter()
        .flat_map(|it| one(read(it)))
        .collect()
}

/// A count of a mount that has a boot image.
fn boot(mount: &MountView, read: fn(&BootStatus) -> u64) -> Vec<Sample> {
    mount
        .status
        .boot
        .iter()
        .flat_map(|it| one(read(it)))
        .collect()
}
