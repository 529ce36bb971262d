//! The metrics of the block services that mounts ask.

use super::{Kind, Metric, Read, Sample, Value};
use node_api::nic_status::{NicServiceStatus, NicStatus};
use node_api::view::MountView;

use Kind::{Counter, Gauge};

/// Their part of the table.
pub(super) static SERVICE_METRICS: &[Metric] = &[
    Metric {
        name: "yolofs_mount_service_asked",
        kind: Gauge,
        unit: "1",
        labels: &["mountpoint", "service"],
        help: "1 if reads are asked of this block service now.",
        question: "Which service is away, silent or not believed?",
        read: Read::Mount(|mount| each(mount, |service| u64::from(service.asked))),
    },
    Metric {
        name: "yolofs_mount_service_chunks_total",
        kind: Counter,
        unit: "chunks",
        labels: &["mountpoint", "service"],
        help: "Chunks that came from it.",
        question: "Who brings what is read?",
        read: Read::Mount(|mount| each(mount, |service| service.chunks)),
    },
    Metric {
        name: "yolofs_mount_service_wrong_chunks_total",
        kind: Counter,
        unit: "chunks",
        labels: &["mountpoint", "service"],
        help: "Of these, chunks that were something else; they are not served.",
        question: "Which service lies?",
        read: Read::Mount(|mount| each(mount, |service| service.lies)),
    },
    Metric {
        name: "yolofs_mount_service_stalls_total",
        kind: Counter,
        unit: "stalls",
        labels: &["mountpoint", "service"],
        help: "How often it owed something and sent nothing, so that others were asked.",
        question: "Which service stalls?",
        read: Read::Mount(|mount| each(mount, |service| service.stalls)),
    },
    Metric {
        name: "yolofs_mount_joined_chunks_total",
        kind: Counter,
        unit: "chunks",
        labels: &["mountpoint"],
        help: "Chunks that a reader or a plan wanted while they were on their way already.",
        question: "How much of what is read was asked for before?",
        read: Read::Mount(|mount| all(mount, |nic| nic.joined)),
    },
    Metric {
        name: "yolofs_mount_hedged_chunks_total",
        kind: Counter,
        unit: "chunks",
        labels: &["mountpoint"],
        help: "Chunks that were requested a second time because they were late.",
        question: "Is a block service slow now and then?",
        read: Read::Mount(|mount| all(mount, |nic| nic.hedged)),
    },
    Metric {
        name: "yolofs_mount_overtaken_chunks_total",
        kind: Counter,
        unit: "chunks",
        labels: &["mountpoint"],
        help: "Chunks that were requested once more because a reader waited for them, and they were far behind in a long request.",
        question: "Do readers wait for what fills the cache?",
        read: Read::Mount(|mount| all(mount, |nic| nic.overtaken)),
    },
    Metric {
        name: "yolofs_mount_retried_chunks_total",
        kind: Counter,
        unit: "chunks",
        labels: &["mountpoint"],
        help: "Chunks that were requested again after a failure.",
        question: "Does a block service fail?",
        read: Read::Mount(|mount| all(mount, |nic| nic.retried)),
    },
];

/// A count of all services of a mount together.
fn all(mount: &MountView, read: fn(&NicStatus) -> u64) -> Vec<Sample> {
    let sample = |nic| Sample {
        labels: Vec::new(),
        value: Value::Count(read(nic)),
    };
    mount.status.nic.iter().map(sample).collect()
}

/// A count of each service of a mount.
fn each(mount: &MountView, read: fn(&NicServiceStatus) -> u64) -> Vec<Sample> {
    let services = mount.status.nic.iter().flat_map(|nic| &nic.services);
    let sample = |service: &NicServiceStatus| Sample {
        labels: vec![service.address.clone()],
        value: Value::Count(read(service)),
    };
    services.map(sample).collect()
}
