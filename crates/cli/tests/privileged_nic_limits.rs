//! What the mirror leaves undone when its machine is pressed, and how quickly it may be. Gates are
//! requests and bytes, as the proxy between mirror and registry has counted them.

#![cfg(feature = "privileged")]

mod nic;
mod tight;

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use lab::{fails, json, ok, until};
use nic::{Mirror, Site, blob, connect, connect_from};
use serde_json::{Value, json as value};
use testkit::registries::Kind;
use tight::Tight;

/// A threshold that is never reached.
const NEVER: [u32; 2] = [1000, 1000];

/// Memory of the control group: enough for a mirror and its clients, and little for its files.
const LITTLE: u64 = 64 << 20;

/// Waits until the status of a mirror says so. Looks less often than `lab::until`: who asks all the
/// time presses the machine, too.
fn until_level(mirror: &Mirror, level: &str) -> Value {
    let start = Instant::now();
    loop {
        let status = json(&mut mirror.ask(&["status", "--json"]));
        if status["load"]["level"] == level {
            return status;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{status}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// Starts a mirror in a control group.
fn inside(tight: &Tight, site: &Site, words: &Value) -> Mirror {
    let config = site.configuration("store", &value!({}), words);
    let nicfetch = tight.enter(env!("CARGO_BIN_EXE_nicfetch"));
    Mirror::start_as(nicfetch, &["--config", &config])
}

#[test]
fn privileged_a_tight_control_group_is_served_from_what_is_here() {
    let site = Site::new(Kind::Docker);
    let tight = Tight::new();
    // Any memory is too much of a limit, as soon as there is one; whoever else uses this machine
    // decides nothing.
    let shed = value!({"cpu": NEVER, "memory": NEVER, "io": NEVER, "memory_used": [1, 2]});
    let limits = value!({"limits": {"shed": shed}});
    let mirror = inside(&tight, &site, &limits);
    let (here, size) = site.long();
    let elsewhere = blob(&site.blobs[1].0);
    mirror.blob(here);
    let tag = "/v2/library/deb/manifests/v1";
    assert_eq!(mirror.get(tag, &[]).status, 200);
    assert_eq!(mirror.metric("nicfetch_mirror_load_level"), 0);

    tight.limit_memory(LITTLE);
    let status = until_level(&mirror, "shedding");
    let reason = status["load"]["reason"].as_str().unwrap();
    assert!(reason.contains("of memory in use"), "{status}");
    assert_eq!(mirror.metric("nicfetch_mirror_load_level"), 2);
    let asked = site.proxy.seen().len();
    // More clients than fit if each had the blob in memory.
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(mirror.blob(here).len() as u64, size));
        }
    });
    assert_eq!(mirror.get(tag, &[]).status, 200);
    assert_eq!(mirror.get(&elsewhere, &[]).status, 404);
    assert_eq!(mirror.head(&elsewhere).status, 404);
    assert_eq!(mirror.get("/v2/library/deb/manifests/v2", &[]).status, 404);
    assert_eq!(mirror.get("/v2/library/deb/tags/list", &[]).status, 404);
    let why = fails(1, &mut mirror.ask(&["prewarm", nic::IMAGE]));
    assert!(why.contains("under load"), "{why}");
    assert_eq!(site.proxy.seen().len(), asked, "the registry is not asked");
    assert_eq!(mirror.metric("nicfetch_mirror_shed_total"), 4);
    assert_eq!(mirror.metric("nicfetch_mirror_put_off_total"), 1);

    tight.lift_limit();
    let status = until_level(&mirror, "normal");
    assert!(status["load"]["reason"].is_null(), "{status}");
    assert_eq!(mirror.get(&elsewhere, &[]).status, 200);
    drop(mirror);
}

#[test]
fn privileged_load_is_shed_when_others_wait_for_the_processor() {
    let site = Site::new(Kind::Docker);
    let tight = Tight::new();
    let shed = value!({"memory": NEVER, "io": NEVER, "memory_used": NEVER});
    let limits = value!({"limits": {"shed": shed}});
    let mirror = inside(&tight, &site, &limits);
    let watched = json(&mut mirror.ask(&["status", "--json"]))["load"]["watched"].clone();
    let measures = watched.as_array().unwrap().contains(&value!("cpu"));
    // A kernel without this says so: nothing is shed there.
    let told = std::fs::read_to_string("/proc/pressure/cpu").is_ok();
    assert_eq!(measures, told, "{watched}");
    if !told {
        mirror.blob(site.long().0);
        return;
    }
    // It may be pressed by others from the beginning on: then it is told to shed even sooner.
    let spinners = tight.spin();
    let status = until_level(&mirror, "shedding");
    let reason = status["load"]["reason"].as_str().unwrap();
    assert!(reason.contains("waiting for a processor"), "{status}");
    assert_eq!(mirror.get(&blob(site.long().0), &[]).status, 404);
    assert_eq!(site.proxy.body_bytes("/blobs/"), 0);
    drop(spinners);
    drop(mirror);
}

/// A rate so low that nothing more comes within the test once something came.
const CRAWL: &str = "10";

#[test]
fn privileged_a_budget_of_bandwidth_holds_for_what_is_fetched() {
    let site = Site::new(Kind::Docker);
    let (digest, size) = site.long();
    let mirror = site.with_words("store", &value!({"limits": {"fetch_rate": CRAWL}}));
    let mut client = connect(mirror.clients);
    write!(client, "GET {} HTTP/1.1\r\nHost: m\r\n\r\n", blob(digest)).unwrap();
    let fetched = || mirror.metric("nicfetch_mirror_fetched_bytes_total");
    until("something to come", || fetched() > 0);
    // Time enough for all of it, many times over.
    for _ in 0..20 {
        ok(&mut mirror.ask(&["status"]));
    }
    assert!(fetched() < size / 4, "{}", fetched());
    assert!(site.proxy.body_bytes(digest) > 0);
}

#[test]
fn privileged_a_budget_of_bandwidth_holds_for_each_address() {
    let site = Site::new(Kind::Docker);
    let (digest, size) = site.long();
    let words = value!({"limits": {"send_rate_of_one": CRAWL}});
    let mirror = site.with_words("store", &words);
    ok(&mut mirror.ask(&["prewarm", nic::IMAGE]));
    let sent = || mirror.metric("nicfetch_mirror_sent_bytes_total");
    let ask = |from: [u8; 4]| {
        let mut client = connect_from(from, mirror.clients);
        write!(client, "GET {} HTTP/1.1\r\nHost: m\r\n\r\n", blob(digest)).unwrap();
        client
    };
    // What goes at once, and has to be paid for before the next.
    let first = ask([127, 0, 0, 1]);
    until("the first client to get something", || sent() > 0);
    let piece = sent();
    assert!(piece < size / 4, "{piece}");
    // Another connection of the same address has to wait for it, too; another address has not.
    let same = ask([127, 0, 0, 1]);
    until("both to be answered", || {
        mirror.metric("nicfetch_mirror_answering") == 2
    });
    let other = ask([127, 0, 0, 2]);
    until("the other address to get something", || sent() > piece);
    for _ in 0..20 {
        ok(&mut mirror.ask(&["status"]));
    }
    assert_eq!(sent(), 2 * piece);
    drop((first, same, other));
}
