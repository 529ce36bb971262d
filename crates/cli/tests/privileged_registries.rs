//! From one node's Docker to another's, by way of a registry.

#![cfg(feature = "privileged")]

use lab::dockerd::Dockerd;
use lab::{Lab, json, ok};
use testkit::registries::{Kind, Registry};

/// What the image's boot reads.
const BOOT: &str = "cat /usr/lib/part* /data/* | md5sum";

/// The boot images of an image come before the image does. When Docker has pulled it, its layers
/// are bound to them: nothing is recorded here.
#[test]
fn privileged_docker_serves_what_another_node_recorded() {
    let registry = Registry::start(Kind::Docker);
    let app = format!("{}/some/app:1", registry.host());
    let (lab, other_lab) = (Lab::new(), Lab::new());
    let here = Dockerd::start(&lab, &[]);
    here.import_base(&lab);
    here.build(&lab, "app", "base");
    here.run(&["tag", "app", &app]);
    here.run(&["push", &app]);
    let mut record = lab.bootimg();
    record
        .env("DOCKER_HOST", here.host())
        .args(["record", &format!("docker://{app}")]);
    record.args(["--until", "exit", "--run-args", "--network none"]);
    ok(record.args(["--", "sh", "-c", BOOT]));
    let pushed = json(lab.bootimg().args(["push", &app, "--json"]));
    assert_eq!(pushed["layers"].as_array().unwrap().len(), 2);
    let boot = ["run", "--rm", "--network=none", &app, "sh", "-c", BOOT];
    let sum = here.run(&boot);

    let mut prewarm = other_lab.bootimg();
    let warmed = json(prewarm.args(["prewarm", &app, "--pull", "--json"]));
    assert_eq!(warmed.as_array().unwrap().len(), 2);
    let there = Dockerd::start(&other_lab, &[]);
    there.run(&["pull", &app]);
    ok(&mut there.yolofs(&other_lab, &["attach", &app]));
    assert_eq!(there.served_layers(&other_lab, &app), 2);
    assert_eq!(there.mounts().len(), 2);
    assert_eq!(there.run(&boot), sum);
    for layer in there.status(&other_lab)["layers"].as_array().unwrap() {
        assert!(layer["boot"]["blocks"].as_u64().unwrap() > 0, "{layer:#}");
        assert_eq!(layer["boot"]["stale_blocks"], 0, "{layer:#}");
    }
    ok(&mut there.yolofs(&other_lab, &["detach", "--all"]));
}
