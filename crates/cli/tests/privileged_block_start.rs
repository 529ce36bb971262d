//! Starts of containers on block images: by the plan of the registry, and by that of the first start.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_containers;
mod node;

use block_containers::{NOISE, Source, devices, is_removed, pull, run};
use blocks::Digest;
use lab::service::{Service, signal_to};
use lab::{Lab, until};
use nix::sys::signal::Signal;
use node::{Node, archive};
use serde_json::Value;
use testkit::registries::{Kind, Registry};

/// Only what is planned or read is fetched, so that bytes can be counted.
const ONLY_PLANS: [&str; 2] = ["--block-background", "plan"];
/// What a start without a plan reads of an image whose large file nobody reads.
const SMALL: u64 = NOISE as u64 / 2;

/// Starts a container that does nothing, and returns the bytes that the registry sent by then. What is in the plan
/// goes on being fetched.
fn started(lab: &Lab, node: &Node<'_>, source: &Source, id: &str) -> u64 {
    run(lab, node, &source.image(), id, "true");
    source.proxy.bytes()
}

/// Forgets what was fetched: no device is there that uses it.
fn clear_cache(node: &Node<'_>) {
    for entry in std::fs::read_dir(node.root().join("blobs")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}

#[test]
fn privileged_the_plan_of_the_registry_is_used_without_naming_it() {
    // The first one has no referrers API, and a tag in its place.
    for kind in [Kind::Docker, Kind::Olareg] {
        let lab = Lab::new();
        let service = Service::start(&lab);
        let node = Node::start_today(&lab, &ONLY_PLANS);
        let source = Source::at(&lab, &archive(&lab, NOISE), Registry::start(kind));
        let image = source.image();
        // There is none: that is no error.
        pull(&node, &image);
        let without = started(&lab, &node, &source, "plan-0");
        assert!(without < SMALL, "{kind:?}: {without} bytes without a plan");
        assert!(
            !service.said().contains("without the plan"),
            "{}",
            service.said()
        );
        is_removed(&lab, &node, &image);
        // One that is of other layers is refused.
        source.push_plan(&[Digest([9; 32])], 1);
        pull(&node, &image);
        let before = source.proxy.bytes();
        let refused = started(&lab, &node, &source, "plan-1") - before;
        assert!(
            refused < SMALL,
            "{kind:?}: {refused} bytes by another's plan"
        );
        let why = "is of other layers";
        assert!(service.said().contains(why), "{}", service.said());
        is_removed(&lab, &node, &image);
        // A newer one is found, whatever else refers to the image.
        source.push_plan(&source.layers(&lab), 2);
        clear_cache(&node);
        pull(&node, &image);
        let before = source.proxy.bytes();
        started(&lab, &node, &source, "plan-2");
        until("what is planned to come", || {
            source.proxy.bytes() - before > NOISE as u64
        });
        assert_eq!(devices(&lab).len(), 1);
        is_removed(&lab, &node, &image);
    }
}

/// What the only device tells of its start and its cache.
fn served(lab: &Lab) -> Value {
    let devices = devices(lab);
    assert_eq!(devices.len(), 1, "{devices:?}");
    devices[0]["served"].clone()
}

fn plan_of(lab: &Lab) -> String {
    let plan = served(lab)["start"]["plan"].clone();
    plan.as_str().unwrap_or_default().to_owned()
}

/// Returns the files of plans.
fn plans(lab: &Lab) -> usize {
    let store = lab.path("store/block-plans");
    std::fs::read_dir(store).map_or(0, Iterator::count)
}

/// Waits for the end of a recording, and returns what became of it.
fn outcome(node: &Node<'_>, id: &str) -> (String, Value) {
    let mut boot = Default::default();
    until("the recording to end", || {
        boot = node.first_boot(id);
        !matches!(&*boot.0, "" | "recording")
    });
    boot
}

const RECORDED: [&str; 5] = [
    ONLY_PLANS[0],
    ONLY_PLANS[1],
    "--auto-record",
    "--until",
    "quiet:1",
];
/// A quarter of the large file, and a program.
const STARTS: &str = "head -c 2000000 /srv/noise | md5sum";

/// Makes a container of that, so that its device is there before it is started.
fn create(node: &Node<'_>, image: &str, id: &str) {
    let create = ["containers", "create", "--snapshotter", "yolofs", image, id];
    node.ctr(&[&create[..], &["/bin/sh", "-c", STARTS]].concat());
}

/// Starts a container that was made, and returns what it says.
fn says(lab: &Lab, node: &Node<'_>, id: &str) -> String {
    let out = lab.path(id);
    let uri = format!("file://{}", out.display());
    node.ctr(&["tasks", "start", "--log-uri", &uri, id]);
    std::fs::read_to_string(&out).unwrap()
}

#[test]
fn privileged_the_first_start_on_a_block_image_is_recorded_and_the_second_planned() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &RECORDED);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    // One that is never started: its device was mounted, and no plan is made of that.
    node.ctr(&[
        "containers",
        "create",
        "--snapshotter",
        "yolofs",
        &image,
        "idle",
    ]);
    assert_eq!(plan_of(&lab), "recording");
    node.ctr(&["containers", "rm", "idle"]);
    let (state, why) = outcome(&node, "idle");
    assert_eq!(state, "failed", "{why}");
    assert_eq!((plans(&lab), &*plan_of(&lab)), (0, "recording"));
    let said = run(&lab, &node, &image, "start-1", STARTS);
    let (state, why) = outcome(&node, "start-1");
    assert_eq!(state, "recorded", "{why}");
    assert_eq!(why["image"], image);
    let first = served(&lab);
    assert_eq!((plans(&lab), &*plan_of(&lab)), (1, "recorded"));
    // A third container on the same device is not recorded, and changes nothing.
    run(&lab, &node, &image, "start-2", "cat /srv/greeting");
    assert_eq!(node.first_boot("start-2").0, "");
    is_removed(&lab, &node, &image);
    // The image comes anew, and nothing is left of it.
    clear_cache(&node);
    pull(&node, &image);
    create(&node, &image, "start-3");
    until("what is planned to come", || plan_of(&lab) == "fetched");
    let planned = served(&lab);
    assert_eq!(says(&lab, &node, "start-3"), said);
    let second = served(&lab);
    let count = |served: &Value, what: &str| served[what].as_u64().unwrap();
    let requests = [&first, &planned, &second].map(|served| count(served, "fetches"));
    let bytes = [&first, &second].map(|served| count(served, "fetched_bytes"));
    println!(
        "requests without a plan, by the plan, and with the start: {requests:?}; bytes {bytes:?}"
    );
    // How many requests bring the plan depends on how fast they come; the start itself waits for none of them.
    assert!(
        (requests[2] - requests[1]) * 10 <= requests[0],
        "{requests:?}"
    );
    assert!(bytes[1] * 10 <= bytes[0] * 11, "{bytes:?}");
    node.ctr(&["containers", "rm", "start-3"]);
    is_removed(&lab, &node, &image);
}

/// Pushes what was recorded with its data, and returns how many bytes these are.
fn push_boot_image(lab: &Lab, source: &Source) -> u64 {
    let image = lab.path("converted/small");
    let push = ["block", "plan", "push", "--json", image.to_str().unwrap()];
    let out = lab.yolofs().args(push).arg(source.image()).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{out:?}");
    let done: Value = serde_json::from_slice(&out.stdout).unwrap();
    done["data_bytes"].as_u64().unwrap()
}

#[test]
fn privileged_a_container_starts_by_the_boot_image_of_the_registry() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &RECORDED);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    let said = run(&lab, &node, &image, "recorded", STARTS);
    let (state, why) = outcome(&node, "recorded");
    assert_eq!(state, "recorded", "{why}");
    is_removed(&lab, &node, &image);
    let data = push_boot_image(&lab, &source);
    // As on a machine that has never seen it.
    clear_cache(&node);
    for plan in std::fs::read_dir(lab.path("store/block-plans")).unwrap() {
        std::fs::remove_file(plan.unwrap().path()).unwrap();
    }
    pull(&node, &image);
    create(&node, &image, "booted");
    until("the boot image to come", || plan_of(&lab) == "fetched");
    let count = |what: &str| served(&lab)[what].as_u64().unwrap();
    let (requests, bytes) = (count("fetches"), count("fetched_bytes"));
    // Nothing of the layers.
    assert_eq!(bytes, data);
    assert_eq!(says(&lab, &node, "booted"), said);
    let more = (count("fetches") - requests, count("fetched_bytes") - bytes);
    println!("{data} bytes of data; requests and bytes of the start beside it: {more:?}");
    assert!(more.1 * 50 <= data, "{more:?} beside {data}");
    node.ctr(&["containers", "rm", "booted"]);
    is_removed(&lab, &node, &image);
}

#[test]
fn privileged_a_recording_on_a_block_image_outlives_node_and_snapshotter() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mut node = Node::start_today(&lab, &[&RECORDED[..4], &["quiet:5"]].concat());
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    // It reads on until it is told to stop.
    let reads = "i=0; while [ ! -e /srv/stop ]; do dd if=/srv/noise of=/dev/null bs=4096 count=1 skip=$i 2>/dev/null; \
                 i=$((i + 8)); sleep 0.2; done; sleep 1000000";
    node.ctr(&[
        "run",
        "-d",
        "--snapshotter",
        "yolofs",
        &image,
        "reads",
        "/bin/sh",
        "-c",
        reads,
    ]);
    assert_eq!(plan_of(&lab), "recording");
    let recorded = || {
        served(&lab)["start"]["recorded_bytes"]
            .as_u64()
            .unwrap_or(0)
    };
    let before = recorded();
    service.kill_node();
    node.kill_snapshotter();
    node.start_snapshotter();
    until("more to be recorded", || recorded() > before);
    node.ctr(&[
        "tasks",
        "exec",
        "--exec-id",
        "stop",
        "reads",
        "/bin/sh",
        "-c",
        ": >/srv/stop",
    ]);
    let (state, why) = outcome(&node, "reads");
    assert_eq!(state, "recorded", "{why}");
    assert_eq!(plans(&lab), 1);
    node.ctr(&["tasks", "rm", "-f", "reads"]);
    node.ctr(&["containers", "rm", "reads"]);
    is_removed(&lab, &node, &image);
}

#[test]
fn privileged_half_a_recording_on_a_block_image_is_not_kept() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &RECORDED);
    let source = Source::new(&lab);
    let image = source.image();
    pull(&node, &image);
    node.ctr(&[
        "run",
        "-d",
        "--snapshotter",
        "yolofs",
        &image,
        "half",
        "/bin/sleep",
        "1000000",
    ]);
    let worker = devices(&lab)[0]["pid"].as_u64().unwrap();
    signal_to(u32::try_from(worker).unwrap(), Signal::SIGKILL);
    let (state, why) = outcome(&node, "half");
    let why = why["why"].as_str().unwrap_or_default().to_owned();
    assert!(
        state == "failed" && why.contains("worker"),
        "{state}: {why}"
    );
    assert_eq!(plans(&lab), 0);
    node.ctr(&["tasks", "rm", "-f", "half"]);
    node.ctr(&["containers", "rm", "half"]);
    is_removed(&lab, &node, &image);
}
