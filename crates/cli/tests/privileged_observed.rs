//! What a node tells of itself while it serves: metrics, `yolofs top`, and its API to a client that
//! is not ours.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use lab::service::Service;
use lab::{Lab, busybox_root, noise, ok};

/// Sends a request, and returns the status and the body of the answer.
fn ask(service: &Service<'_>, request: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(service.lab.run_dir().join("node.sock")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let length = body.len();
    let text =
        format!("{request} HTTP/1.1\r\nhost: node\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

fn ask_json(service: &Service<'_>, request: &str, body: &str) -> (u16, Value) {
    let (status, text) = ask(service, request, body);
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// Returns the value of the first series of a metric that has all these labels.
fn metric(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let line = page.lines().find(|line| {
        let rest = line.strip_prefix(name).unwrap_or_default();
        let labelled =
            |(label, value): &(&str, &str)| line.contains(&format!("{label}=\"{value}\""));
        rest.starts_with(['{', ' ']) && labels.iter().all(labelled)
    })?;
    line.rsplit_once(' ').unwrap().1.parse().ok()
}

/// A source whose boot is recorded, and that has changed in one recorded file since.
fn recorded_and_changed(lab: &Lab) -> std::path::PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    ok(lab
        .bootimg()
        .args(["record", "--name", "boot"])
        .arg(&root)
        .args(["--", "sh", "-c", "cat /usr/lib/part0* > /dev/null"]));
    fs::write(root.join("usr/lib/part01"), noise(99, 30_000)).unwrap();
    root
}

#[test]
fn privileged_node_tells_what_happened() {
    let lab = Lab::new();
    let root = recorded_and_changed(&lab);
    let service = Service::start(&lab);
    // One is in the page cache; the other's reads are answered from the boot image one by one.
    let warm = lab.mount(&root, "warm", &["--boot", "boot", "--wait-prewarm"]);
    let read = lab.mount(&root, "read", &["--boot", "boot", "--no-inject"]);
    service.kill_worker(&warm, Signal::SIGKILL);
    let wanted = fs::read(root.join("usr/lib/part02")).unwrap();
    assert_eq!(fs::read(read.join("usr/lib/part02")).unwrap(), wanted);
    assert_eq!(
        fs::read(read.join("usr/lib/part01")).unwrap(),
        noise(99, 30_000)
    );

    let (status, page) = ask(&service, "GET /metrics", "");
    assert_eq!(status, 200);
    let value = |name: &str, labels: &[(&str, &str)]| {
        metric(&page, name, labels).unwrap_or_else(|| panic!("no {name} {labels:?} in\n{page}"))
    };
    assert_eq!(value("yolofs_mounts", &[("state", "serving")]), 2.0);
    assert_eq!(value("yolofs_mounts", &[("state", "failed")]), 0.0);
    assert_eq!(value("yolofs_worker_restarts_total", &[]), 1.0);
    assert_eq!(value("yolofs_workers_outdated", &[]), 0.0);
    assert!(
        value("yolofs_api_requests_total", &[("code", "201")]) == 2.0,
        "{page}"
    );
    let [node, resident, private] = ["node_resident", "workers_resident", "workers_private"]
        .map(|name| value(&format!("yolofs_{name}_bytes"), &[]));
    assert!(node > 0.0 && private > 0.0 && resident > private, "{page}");
    let at = |place: &Path| place.to_str().unwrap().to_owned();
    let (warm_label, read_label) = (at(&warm), at(&read));
    let of_warm = |name: &str| {
        value(
            &format!("yolofs_mount_{name}"),
            &[("mountpoint", &warm_label)],
        )
    };
    let of_read = |name: &str, label: (&str, &str)| {
        let labels = [("mountpoint", read_label.as_str()), label];
        value(&format!("yolofs_mount_{name}"), &labels)
    };
    let any = ("mountpoint", read_label.as_str());
    for name in ["serving", "worker_restarts_total", "stale_files"] {
        assert_eq!(of_warm(name), 1.0, "{name}");
    }
    assert!(of_warm("last_gap_seconds") > 0.0);
    assert_eq!(of_read("info", ("image", "boot")), 1.0);
    assert!(of_read("boot_bytes", any) > 0.0 && of_read("stale_bytes", any) > 0.0);
    assert!(of_read("hits_total", any) > 0.0 && of_read("misses_total", any) > 0.0);
    assert!(of_read("read_bytes_total", ("origin", "boot_image")) >= 4096.0);
    assert!(of_read("read_bytes_total", ("origin", "source")) >= 30_000.0);
    assert!(of_read("requests_total", ("kind", "read")) > 0.0);
    assert!(of_read("divergence_ratio", any) > 0.0);
    assert_eq!(of_read("prewarm", ("state", "off")), 1.0);

    let table = ok(lab.yolofs().args(["top", "--once", "--interval", "0.1"]));
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].contains("2 mounts") && lines[0].contains("1 restart"),
        "{table}"
    );
    assert!(
        lines[2].starts_with(&read_label) && lines[3].starts_with(&warm_label),
        "{table}"
    );
    assert_eq!(table.matches(" serving ").count(), 2, "{table}");
    for place in [&warm, &read] {
        lab.umount(place);
    }
}

#[test]
fn privileged_node_does_what_any_client_asks() {
    let lab = Lab::new();
    let root = recorded_and_changed(&lab);
    let service = Service::start(&lab);
    let place = lab.make_dir("mnt");
    let spec = serde_json::json!({
        "source": root, "mountpoint": place, "store": lab.store(), "boot": "boot", "inject": false,
    })
    .to_string();
    assert_eq!(ask(&service, "GET /readyz", ""), (200, "ok\n".to_owned()));
    let (status, made) = ask_json(&service, "POST /v1/mounts", &spec);
    assert_eq!((status, &made["state"]), (201, &"serving".into()), "{made}");
    assert_eq!(ask(&service, "POST /v1/mounts", &spec).0, 200);
    let path = format!("/v1/mounts/{}", made["id"].as_str().unwrap());
    let (status, warmed) = ask_json(&service, &format!("POST {path}/prewarm"), "");
    assert_eq!(status, 200, "{warmed}");
    assert!(warmed["injected_bytes"].as_u64() > Some(0), "{warmed}");
    let (status, swapped) = ask_json(&service, &format!("PUT {path}/boot"), r#"{"boot": "none"}"#);
    assert_eq!((status, &swapped["boot"]), (200, &Value::Null), "{swapped}");
    let (status, why) = ask_json(&service, &format!("POST {path}/prewarm"), "");
    assert_eq!(
        (status, &why["error"]["code"]),
        (409, &"conflict".into()),
        "{why}"
    );
    let (status, why) = ask_json(&service, &format!("PUT {path}/boot"), r#"{"boot": "nope"}"#);
    assert_eq!(
        (status, &why["error"]["code"]),
        (400, &"invalid".into()),
        "{why}"
    );

    let used = fs::File::open(place.join("usr/lib/part03")).unwrap();
    let (status, why) = ask_json(&service, &format!("DELETE {path}"), "");
    assert_eq!(
        (status, &why["error"]["code"]),
        (409, &"conflict".into()),
        "{why}"
    );
    assert_eq!(
        ask(&service, &format!("DELETE {path}?lazy=true"), "").0,
        204
    );
    let (_, page) = ask(&service, "GET /metrics", "");
    assert_eq!(
        metric(&page, "yolofs_mounts", &[("state", "leaving")]),
        Some(1.0),
        "{page}"
    );
    assert_eq!(
        metric(&page, "yolofs_mounts_unlisted", &[]),
        Some(1.0),
        "{page}"
    );
    drop(used);
    let (status, drained) = ask_json(&service, "POST /v1/drain", "");
    assert_eq!(status, 200, "{drained}");
    assert_eq!(ask(&service, "GET /readyz", "").0, 503);
    assert_eq!(ask(&service, "POST /v1/mounts", &spec).0, 409);
}

#[test]
fn privileged_the_page_for_node_exporter_goes_with_the_node() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let pages = lab.make_dir("pages");
    let page = pages.join("yolofs.prom");
    let script = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = script.join("../../packaging/prometheus/yolofs-textfile");
    let write = || {
        let mut write = Command::new(&script);
        write.arg(lab.run_dir().join("node.sock")).arg(&page);
        lab::output(&mut write).status.success()
    };
    for _ in 0..2 {
        assert!(write());
        let said = fs::read_to_string(&page).unwrap();
        assert!(metric(&said, "yolofs_node_info", &[]).is_some(), "{said}");
        service.stop();
        assert!(!write(), "nobody answers");
        let left = fs::read_dir(&pages).unwrap().count();
        assert_eq!(left, 0, "old figures, or half of new ones, are left");
        assert!(!write(), "nothing is there to be taken away");
        service.start_again();
    }
}
