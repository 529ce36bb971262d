//! The metrics of the node, in the format of Prometheus.
//!
//! There is one table of metrics of the node and its mounts, and one of its devices, and each entry says how its value is found: what is not in
//! a table cannot be written. docs/observability.md shows the same; a test compares both.
//!
//! The number of series is bounded. Labels are mount points and names of devices, of which at most
//! [`MOUNTS_MAX`] each are listed, and words from short lists of our own. No process id is a label: each restart would
//! leave a series behind.

mod devices;
mod encode;
mod pins;
mod process;
mod services;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use node_api::device::DeviceView;
use node_api::mount_state::MountState;
use node_api::view::{MountView, NodeView};
use pinning::talk::PinStatus;
use process::Memory;

/// Mounts with series of their own, the first by mount point. With some forty series for each,
/// more would burden the collector; how many are left out is a metric, too.
const MOUNTS_MAX: usize = 1024;

/// All that a page of metrics is made of.
#[derive(Debug)]
struct Seen {
    node: NodeView,
    mounts: Vec<MountView>,
    devices: Vec<DeviceView>,
    /// What the process that locks pages of the host's own files says, if there is one.
    pins: Option<PinStatus>,
    /// Answers of the API by status.
    answers: BTreeMap<u16, u64>,
    /// Panics of the node's own work that were caught.
    panics: u64,
    node_memory: Memory,
    workers_memory: Memory,
}

/// What a metric is, beside its value.
#[derive(Debug)]
struct Metric {
    name: &'static str,
    kind: Kind,
    /// What one of it is; `1` for ratios and for yes or no.
    unit: &'static str,
    /// In the order in which samples give their values.
    labels: &'static [&'static str],
    help: &'static str,
    /// The question that the metric answers.
    question: &'static str,
    read: Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only grows, and begins at 0 again with the process that counts.
    Counter,
    /// A value that rises and falls.
    Gauge,
}

#[cfg(test)]
impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// How values are found.
#[derive(Debug)]
enum Read {
    /// Once.
    Node(fn(&Seen) -> Vec<Sample>),
    /// For each mount; the first label, `mountpoint`, comes by itself.
    Mount(fn(&MountView) -> Vec<Sample>),
    /// For each device; the only label, `device`, comes by itself.
    Device(fn(&DeviceView) -> Option<u64>),
    /// Once, if a process locks pages.
    Pins(fn(&PinStatus) -> u64),
}

/// A value with its labels.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    labels: Vec<String>,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Count(u64),
    /// A number with a fraction.
    Ratio(f64),
}

/// Returns the page for Prometheus.
#[must_use]
pub(crate) fn page(
    node: NodeView,
    mounts: Vec<MountView>,
    devices: Vec<DeviceView>,
    pins: Option<PinStatus>,
    answers: BTreeMap<u16, u64>,
) -> String {
    let seen = Seen {
        node_memory: process::memory([node.pid]),
        workers_memory: process::memory(node.workers.iter().map(|worker| worker.pid)),
        node,
        mounts,
        devices,
        pins,
        answers,
        panics: host::caught::panics(),
    };
    encode::page(seen)
}

impl Seen {
    /// Returns the mounts that have series of their own: one for each mount point, and none that
    /// is unmounted and still in use, because another may have its place. Series that are there
    /// twice make Prometheus refuse the page.
    fn listed(&self) -> impl Iterator<Item = &MountView> {
        let mut places = HashSet::new();
        let there = self
            .mounts
            .iter()
            .filter(|mount| mount.status.state != MountState::Leaving);
        let once =
            there.filter(move |mount| places.insert(mount.status.mountpoint.to_string_lossy()));
        once.take(MOUNTS_MAX)
    }

    /// Returns what is read of each device, of which at most [`MOUNTS_MAX`] have series of their own.
    fn of_devices(&self, read: fn(&DeviceView) -> Option<u64>) -> Vec<Sample> {
        let listed = self.devices.iter().take(MOUNTS_MAX);
        let samples = listed.filter_map(|device| {
            Some(Sample {
                labels: vec![device.name.clone()],
                value: Value::Count(read(device)?),
            })
        });
        samples.collect()
    }
}

/// Returns every metric there is.
fn all() -> impl Iterator<Item = &'static Metric> {
    let mounts = table::METRICS.iter().chain(services::SERVICE_METRICS);
    mounts.chain(devices::METRICS).chain(pins::METRICS)
}

impl Metric {
    fn samples(&self, seen: &Seen) -> Vec<Sample> {
        let read = match self.read {
            Read::Node(read) => return read(seen),
            Read::Device(read) => return seen.of_devices(read),
            Read::Pins(read) => return pins::samples(seen.pins.as_ref(), read),
            Read::Mount(read) => read,
        };
        let mut samples = Vec::new();
        for mount in seen.listed() {
            for mut sample in read(mount) {
                let mountpoint = mount.status.mountpoint.to_string_lossy().into_owned();
                sample.labels.insert(0, mountpoint);
                samples.push(sample);
            }
        }
        samples
    }
}
