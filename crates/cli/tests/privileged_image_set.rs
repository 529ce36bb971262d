//! Real programs in real images, by name: recorded until healthy, attached, and started again.

#![cfg(feature = "privileged")]

use std::process::Command;

use lab::dockerd::Dockerd;
use lab::{Lab, images, json, ok, until};
use serde_json::Value;

/// Those that scripts/test.sh makes: a server in C, a store in C, an interpreter.
const NAMES: [&str; 3] = ["nginx", "redis", "python"];

fn load(docker: &Dockerd, name: &str) {
    let layout = images().join("oci");
    assert!(layout.exists(), "run scripts/images/set.sh {NAMES:?}");
    ok(Command::new("skopeo")
        .args(["copy", "--quiet"])
        .arg(format!("oci:{}:{name}", layout.display()))
        .arg(format!("docker-daemon:{name}:latest"))
        .args(["--dest-daemon-host", &docker.host()]));
}

fn sum(layers: &[Value], field: impl Fn(&Value) -> &Value) -> u64 {
    layers
        .iter()
        .filter_map(|layer| field(layer).as_u64())
        .sum()
}

#[test]
fn privileged_real_images_start_from_their_boot_images() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    for name in NAMES {
        load(&docker, name);
        let mut record = lab.bootimg();
        record.env("DOCKER_HOST", docker.host());
        record.args(["record", "--json", "--run-args=--network=none"]);
        let report = json(record.arg(format!("docker://{name}")));
        assert!(!report["layers"].as_array().unwrap().is_empty(), "{report}");
    }
    ok(&mut docker.yolofs(&lab, &["attach", "--all"]));
    until("the layers to be prewarmed", || {
        let status = docker.status(&lab);
        let layers = status["layers"].as_array().unwrap();
        layers
            .iter()
            .all(|layer| layer["boot"]["prewarm"] == "done")
    });
    // Everything that was recorded is in the page cache of the layers' mounts.
    let status = docker.status(&lab);
    let layers = status["layers"].as_array().unwrap();
    let blocks = sum(layers, |layer| &layer["boot"]["blocks"]);
    assert!(blocks > 256, "{status}");
    let injected = sum(layers, |layer| &layer["boot"]["injected_pages"]);
    assert_eq!(injected, blocks, "{status}");
    for name in NAMES {
        docker.run(&["run", "-d", "--name", name, "--network=none", name]);
    }
    for name in NAMES {
        let health = ["inspect", "--format", "{{.State.Health.Status}}", name];
        until("a container to be healthy", || {
            docker.run(&health) == "healthy"
        });
    }
    // How much of that was still there when it was needed is for the benches: memory is shared.
    let status = docker.status(&lab);
    let layers = status["layers"].as_array().unwrap();
    for fault in ["stale_files", "damaged"] {
        assert_eq!(sum(layers, |layer| &layer["boot"][fault]), 0, "{status}");
    }
    for name in NAMES {
        docker.run(&["rm", "-f", name]);
    }
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    assert_eq!(docker.mounts(), [""; 0]);
}
