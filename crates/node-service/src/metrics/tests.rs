//! The page, read back by a parser that knows only the format.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::{Kind, MOUNTS_MAX, all, page};
use host::caught::caught_round;
use node_api::control::NodeControl as _;
use node_api::memory::{MemoryNode, busy_device, busy_mount};
use node_api::mount_state::MountState;
use node_api::nic_status::{NicServiceStatus, NicStatus};
use node_api::view::MountView;
use node_api::view::TierView;
use pinning::talk::PinStatus;

/// A value as it was read: name, labels, value.
type Read = (String, BTreeMap<String, String>, f64);

fn parse(page: &str) -> Vec<Read> {
    let values = page.lines().filter(|line| !line.starts_with('#'));
    values.map(parse_line).collect()
}

fn parse_line(line: &str) -> Read {
    let (head, value) = line.rsplit_once(' ').unwrap();
    let value = value.parse().unwrap();
    let Some((name, rest)) = head.split_once('{') else {
        return (head.to_owned(), BTreeMap::new(), value);
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}').unwrap();
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"").unwrap();
        let (text, after) = unquote(quoted);
        assert!(labels.insert(label.to_owned(), text).is_none(), "{line}");
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    (name.to_owned(), labels, value)
}

/// Returns the text up to the closing quote, and what is behind it.
fn unquote(quoted: &str) -> (String, &str) {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    loop {
        match characters.next().unwrap() {
            (at, '"') => return (text, &quoted[at + 1..]),
            (_, '\\') => match characters.next().unwrap().1 {
                'n' => text.push('\n'),
                plain @ ('\\' | '"') => text.push(plain),
                other => panic!("\\{other} is no escape"),
            },
            (_, plain) => text.push(plain),
        }
    }
}

/// Returns a busy mount that asks a block service.
fn asking_mount(mountpoint: &str) -> MountView {
    let mut mount = busy_mount(mountpoint);
    let service = NicServiceStatus {
        address: "nic:5052".to_owned(),
        asked: true,
        chunks: 31,
        lies: 32,
        stalls: 33,
        ..NicServiceStatus::default()
    };
    mount.status.nic = Some(NicStatus {
        services: vec![service],
        joined: 34,
        hedged: 35,
        overtaken: 37,
        retried: 36,
        ..NicStatus::default()
    });
    mount
}

fn page_of(mounts: Vec<MountView>) -> String {
    let mut node = MemoryNode::default().node();
    node.pid = std::process::id();
    node.draining = true;
    node.worker_restarts = 3;
    node.damaged = vec!["/var/lib/yolofs/node/mounts/x.json".into()];
    node.tiers = vec![TierView {
        name: "nvm".to_owned(),
        away: Some("it is not there".to_owned()),
        room_bytes: 21,
        used_bytes: 22,
        objects: 23,
        moved_bytes: 24,
        failed_moves: 25,
    }];
    for worker in &mut node.workers {
        worker.pid = std::process::id();
        worker.current = false;
    }
    caught_round::<()>("a test", || panic!("part of the test"));
    page(
        node,
        mounts,
        vec![busy_device("web")],
        Some(PinStatus {
            locked_bytes: 41,
            wanted_bytes: 42,
            left_out_bytes: 43,
            followed_files: 44,
            errors: 45,
            ..PinStatus::default()
        }),
        [(200, 7), (404, 1)].into(),
    )
}

#[test]
fn every_metric_is_moved_by_what_it_counts() {
    let many = (0..=MOUNTS_MAX).map(|n| asking_mount(&format!("/mnt/{n:04}")));
    let values = parse(&page_of(many.collect()));
    for metric in all() {
        let mut of_it = values.iter().filter(|(name, ..)| name == metric.name);
        let moved = of_it.clone().any(|(_, _, value)| *value > 0.0);
        assert!(moved, "{} stands still", metric.name);
        let labels: BTreeSet<&str> = metric.labels.iter().copied().collect();
        let as_told =
            of_it.all(|(_, given, _)| given.keys().map(String::as_str).eq(labels.iter().copied()));
        assert!(
            as_told,
            "{} has other labels than the table says",
            metric.name
        );
    }
    let known: BTreeSet<&str> = all().map(|metric| metric.name).collect();
    assert_eq!(known.len(), all().count(), "a name is there twice");
    let listed = values
        .iter()
        .filter(|(name, ..)| name == "yolofs_mount_serving");
    assert_eq!(listed.count(), MOUNTS_MAX);
}

#[test]
fn values_are_those_of_the_status() {
    let values = parse(&page_of(vec![asking_mount("/mnt/a")]));
    let value = |name: &str, label: Option<(&str, &str)>| {
        let found = values.iter().find(|(of, labels, _)| {
            let labelled =
                label.is_none_or(|(key, text)| labels.get(key).is_some_and(|is| is == text));
            of == name && labelled
        });
        found.unwrap_or_else(|| panic!("no {name} {label:?}")).2
    };
    let origin = |name| Some(("origin", name));
    let nvm = Some(("tier", "nvm"));
    let service = Some(("service", "nic:5052"));
    let cases = [
        ("yolofs_node_draining", None, 1.0),
        ("yolofs_node_damaged_records", None, 1.0),
        ("yolofs_workers", None, 1.0),
        ("yolofs_workers_outdated", None, 1.0),
        ("yolofs_worker_restarts_total", None, 3.0),
        ("yolofs_api_requests_total", Some(("code", "404")), 1.0),
        ("yolofs_mounts", Some(("state", "serving")), 1.0),
        ("yolofs_mounts", Some(("state", "failed")), 0.0),
        ("yolofs_mounts_unlisted", None, 0.0),
        ("yolofs_tier_room_bytes", nvm, 21.0),
        ("yolofs_tier_used_bytes", nvm, 22.0),
        ("yolofs_tier_objects", nvm, 23.0),
        ("yolofs_tier_away", nvm, 1.0),
        ("yolofs_tier_moved_bytes_total", nvm, 24.0),
        ("yolofs_tier_failed_moves_total", nvm, 25.0),
        ("yolofs_mount_info", Some(("image", "web")), 1.0),
        ("yolofs_mount_worker_restarts_total", None, 2.0),
        ("yolofs_mount_last_gap_seconds", None, 0.085),
        ("yolofs_mount_requests_total", Some(("kind", "read")), 2.0),
        ("yolofs_mount_hits_total", None, 11.0),
        ("yolofs_mount_misses_total", None, 12.0),
        (
            "yolofs_mount_read_bytes_total",
            origin("boot_image"),
            45_056.0,
        ),
        ("yolofs_mount_read_bytes_total", origin("source"), 49_152.0),
        ("yolofs_mount_divergence_ratio", None, 0.025),
        ("yolofs_mount_diverted_files_total", None, 1.0),
        ("yolofs_mount_late_answers_total", None, 7.0),
        ("yolofs_mount_hung_threads", None, 3.0),
        ("yolofs_mount_boot_bytes", None, 484.0 * 4096.0),
        ("yolofs_mount_stale_bytes", None, 5.0 * 4096.0),
        ("yolofs_mount_stale_files", None, 4.0),
        ("yolofs_mount_damaged_reads_total", None, 6.0),
        ("yolofs_mount_copy_failures_total", None, 8.0),
        ("yolofs_mount_injected_pages_total", None, 484.0),
        ("yolofs_mount_evicted_pages_total", None, 9.0),
        ("yolofs_mount_wasted_bytes", None, 495_616.0),
        ("yolofs_mount_prewarm", Some(("state", "done")), 1.0),
        ("yolofs_mount_service_asked", service, 1.0),
        ("yolofs_mount_service_chunks_total", service, 31.0),
        ("yolofs_mount_service_wrong_chunks_total", service, 32.0),
        ("yolofs_mount_service_stalls_total", service, 33.0),
        ("yolofs_mount_joined_chunks_total", None, 34.0),
        ("yolofs_mount_hedged_chunks_total", None, 35.0),
        ("yolofs_mount_overtaken_chunks_total", None, 37.0),
        ("yolofs_mount_retried_chunks_total", None, 36.0),
        ("yolofs_device_fetched_bytes_total", None, 8.0),
        ("yolofs_device_cached_bytes", None, 9.0),
        ("yolofs_device_joined_chunks_total", None, 10.0),
        ("yolofs_device_hedged_chunks_total", None, 11.0),
        ("yolofs_device_overtaken_chunks_total", None, 14.0),
        ("yolofs_device_retried_chunks_total", None, 12.0),
        ("yolofs_device_stalls_total", None, 13.0),
        ("yolofs_device_pauses_total", None, 15.0),
        ("yolofs_pin_locked_bytes", None, 41.0),
        ("yolofs_pin_wanted_bytes", None, 42.0),
        ("yolofs_pin_refused_bytes", None, 43.0),
        ("yolofs_pin_followed_files_total", None, 44.0),
        ("yolofs_pin_errors_total", None, 45.0),
    ];
    for (name, label, wanted) in cases {
        assert_eq!(value(name, label), wanted, "{name} {label:?}");
    }
}

#[test]
fn what_a_path_may_contain_survives() {
    let odd = "/mnt/\"a b\"\\n{x},=\n\u{e9}";
    let values = parse(&page_of(vec![asking_mount(odd)]));
    let (_, labels, _) = values
        .iter()
        .find(|(name, ..)| name == "yolofs_mount_info")
        .unwrap();
    assert_eq!(labels["mountpoint"], odd);
}

#[test]
fn no_series_is_there_twice() {
    let mut left = asking_mount("/mnt/a");
    left.status.id = "another".to_owned();
    left.status.state = MountState::Leaving;
    let twin = asking_mount("/mnt/b");
    let page = page_of(vec![
        left,
        asking_mount("/mnt/a"),
        asking_mount("/mnt/b"),
        twin,
    ]);
    let mut names = BTreeSet::new();
    for line in page.lines() {
        let (series, _) = line.rsplit_once(' ').unwrap();
        assert!(line.starts_with('#') || names.insert(series), "{line}");
    }
    assert!(
        page.contains("yolofs_mount_serving{mountpoint=\"/mnt/a\"} 1\n"),
        "{page}"
    );
    assert!(
        page.contains("yolofs_mounts{state=\"leaving\"} 1\n"),
        "{page}"
    );
    assert!(page.contains("yolofs_mounts_unlisted 2\n"), "{page}");
}

#[test]
fn what_is_not_known_is_not_made_up() {
    let mut mount = asking_mount("/mnt/a");
    mount.status.state = MountState::Restarting;
    mount.status.served = None;
    mount.status.boot = None;
    mount.last_gap_ms = None;
    let page = page_of(vec![mount]);
    for name in ["hits_total", "boot_bytes", "last_gap_seconds", "prewarm"] {
        assert!(!page.contains(&format!("yolofs_mount_{name}")), "{page}");
    }
    assert!(page.contains("yolofs_mount_serving{mountpoint=\"/mnt/a\"} 0\n"));
    assert!(page.contains("yolofs_mounts{state=\"restarting\"} 1\n"));
}

#[test]
fn names_follow_the_habits() {
    for metric in all() {
        let name = metric.name;
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(
            name.starts_with("yolofs_") && name.chars().all(plain),
            "{name}"
        );
        assert_eq!(
            name.ends_with("_total"),
            metric.kind == Kind::Counter,
            "{name}"
        );
        assert_eq!(name.contains("bytes"), metric.unit == "bytes", "{name}");
        assert_eq!(name.contains("seconds"), metric.unit == "seconds", "{name}");
        assert!(metric.help.ends_with('.'), "{name}");
        assert!(metric.question.contains('?'), "{name}");
    }
}

/// The table as docs/observability.md has it.
fn documented() -> String {
    let mut lines = String::from(
        "| metric | type | unit | labels | what it is | the question it answers |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for metric in all() {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let (name, kind, unit) = (metric.name, metric.kind.word(), metric.unit);
        let (labels, help, question) = (labels.join(", "), metric.help, metric.question);
        lines.push_str(&format!(
            "| `{name}` | {kind} | {unit} | {labels} | {help} | {question} |\n"
        ));
    }
    lines
}

#[test]
fn the_table_is_the_one_in_the_docs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/observability.md");
    let docs = std::fs::read_to_string(&path).unwrap();
    let table = documented();
    let begin = docs.find("| metric |").unwrap();
    let end = docs[begin..]
        .find("\n\n")
        .map_or(docs.len(), |at| begin + at + 1);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, [&docs[..begin], &table, &docs[end..]].concat()).unwrap();
    } else {
        assert_eq!(
            &docs[begin..end],
            table,
            "UPDATE_SNAPSHOTS=1 writes the table anew"
        );
    }
}

#[test]
fn a_node_without_mounts_has_a_page() {
    let node = Arc::new(MemoryNode::default());
    let page = page(
        node.node(),
        node.mounts(),
        node.devices(),
        None,
        BTreeMap::new(),
    );
    assert!(!page.contains("yolofs_pin_locked_bytes "), "{page}");
    assert!(
        page.contains("# TYPE yolofs_workers gauge\nyolofs_workers 1\n"),
        "{page}"
    );
}
