//! The table of metrics of devices.

use super::{Kind, Metric, Read, Sample, Seen, Value};
use node_api::device::{DeviceStatus, DeviceView};
use node_api::mount_state::MountState;

use Kind::{Counter, Gauge};

/// The states of a device.
const STATES: [MountState; 4] = [
    MountState::Starting,
    MountState::Serving,
    MountState::Restarting,
    MountState::Failed,
];

const fn of_device(
    (name, kind, unit): (&'static str, Kind, &'static str),
    help: &'static str,
    question: &'static str,
    read: fn(&DeviceView) -> Option<u64>,
) -> Metric {
    Metric {
        name,
        kind,
        unit,
        labels: &["device"],
        help,
        question,
        read: Read::Device(read),
    }
}

/// Every metric of devices.
pub(super) static METRICS: &[Metric] = &[
    Metric {
        name: "yolofs_devices",
        kind: Gauge,
        unit: "devices",
        labels: &["state"],
        help: "Block images that are attached, by state.",
        question: "Is every device served?",
        read: Read::Node(by_state),
    },
    of_device(
        ("yolofs_device_serving", Gauge, "1"),
        "1 if the device is served.",
        "Which device is not served?",
        |device| Some(u64::from(device.state == MountState::Serving)),
    ),
    of_device(
        ("yolofs_device_restarts_total", Counter, "restarts"),
        "How often the device's worker was replaced, upgrades not counted.",
        "Which device has workers that crash?",
        |device| Some(device.restarts),
    ),
    of_device(
        ("yolofs_device_size_bytes", Gauge, "bytes"),
        "Size of the device.",
        "How large are disks?",
        |device| served(device, |status| status.size),
    ),
    of_device(
        ("yolofs_device_clients", Gauge, "clients"),
        "Clients that are connected.",
        "Who uses it?",
        |device| served(device, |status| status.clients),
    ),
    of_device(
        ("yolofs_device_requests_total", Counter, "requests"),
        "Requests that were answered, the failed ones included.",
        "How busy is it?",
        |device| served(device, |status| status.requests),
    ),
    of_device(
        ("yolofs_device_errors_total", Counter, "requests"),
        "Requests that failed.",
        "Do clients see errors?",
        |device| served(device, |status| status.errors),
    ),
    of_device(
        ("yolofs_device_read_bytes_total", Counter, "bytes"),
        "Bytes that clients have read.",
        "Who reads so much?",
        |device| served(device, |status| status.bytes_read),
    ),
    of_device(
        ("yolofs_device_written_bytes_total", Counter, "bytes"),
        "Bytes that clients have written, zeroed or trimmed.",
        "Who writes so much?",
        |device| served(device, |status| status.bytes_written),
    ),
    of_device(
        ("yolofs_device_fetched_bytes_total", Counter, "bytes"),
        "Bytes that were fetched for all devices that share the device's cache.",
        "What does the registry send?",
        |device| served(device, |status| status.fetched_bytes),
    ),
    of_device(
        ("yolofs_device_cached_bytes", Gauge, "bytes"),
        "Bytes in the device's cache.",
        "Is the cache full?",
        |device| served(device, |status| status.cached_bytes),
    ),
    of_device(
        ("yolofs_device_joined_chunks_total", Counter, "chunks"),
        "Wanted chunks that were on their way for somebody else already, for all devices that share the device's cache.",
        "How much do devices share?",
        |device| served(device, |status| status.joined),
    ),
    of_device(
        ("yolofs_device_hedged_chunks_total", Counter, "chunks"),
        "Chunks that were requested a second time because they were late, for the same devices.",
        "Is a registry or a mirror slow now and then?",
        |device| served(device, |status| status.hedged),
    ),
    of_device(
        ("yolofs_device_overtaken_chunks_total", Counter, "chunks"),
        "Chunks that were requested once more because a reader waited for them, and they were far behind in a long request, for the same devices.",
        "Do readers wait for what fills the cache?",
        |device| served(device, |status| status.overtaken),
    ),
    of_device(
        ("yolofs_device_retried_chunks_total", Counter, "chunks"),
        "Chunks that were requested again after a failure, for the same devices.",
        "Does a registry or a mirror fail?",
        |device| served(device, |status| status.retried),
    ),
    of_device(
        ("yolofs_device_stalls_total", Counter, "stalls"),
        "How often a registry or a mirror owed something and sent nothing, for the same devices.",
        "Does a registry or a mirror stall?",
        |device| served(device, |status| status.stalls),
    ),
    of_device(
        ("yolofs_device_pauses_total", Counter, "pauses"),
        "How often fetching in the background was paused because the device's cache could not be written, for the same devices.",
        "Is the disk of the cache full?",
        |device| served(device, |status| status.pauses),
    ),
];

fn by_state(seen: &Seen) -> Vec<Sample> {
    let in_state = |state: MountState| {
        let devices = seen.devices.iter().filter(|device| device.state == state);
        Sample {
            labels: vec![state.name().to_owned()],
            value: Value::Count(devices.count() as u64),
        }
    };
    STATES.map(in_state).to_vec()
}

/// A count of a device that is served; nothing is known of another.
fn served(device: &DeviceView, read: fn(&DeviceStatus) -> u64) -> Option<u64> {
    device.served.as_ref().map(read)
}
