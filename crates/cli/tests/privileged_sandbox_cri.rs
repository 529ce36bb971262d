//! Pods of containerd 2.4 by way of the CRI, whose runtime option `BinaryName` is `sandbox-oci`.
//!
//! Nothing is handed to runc here: where `sandbox-oci` would, it finds a program that fails.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cri;
mod node;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cri::{Cri, Images, until_pods_are_possible};
use lab::{Lab, until};
use node::Node;

/// Has containerd make containers by `sandbox-oci`, which writes down what it is asked, and cannot hand it to runc.
fn by_sandbox_oci(lab: &Lab, config: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_yolofs")).with_file_name("sandbox-oci");
    assert!(
        program.exists(),
        "{} is missing: cargo build -p sandbox-oci",
        program.display()
    );
    let script = lab.path("runtime");
    let text = format!(
        "#!/bin/sh\necho \"$*\" >>{}\nSANDBOX_OCI_RUNC=/bin/false exec {} \"$@\"\n",
        lab.path("asked").display(),
        program.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "{config}[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
         BinaryName = {script:?}\n"
    )
}

#[test]
fn privileged_pods_are_made_without_runc() {
    let lab = Lab::new();
    let images = Images::new(&lab, &node::archive(&lab, 10_000));
    let config = by_sandbox_oci(&lab, &images.config_of_today(&lab));
    let node = Node::start_today_for_pods(&lab, &[], &config);
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let app = images.app();
    cri.pull(&app);
    let pod = cri.pod("first", &app);
    // As containerd has it of a container without privileges.
    assert_eq!(pod.exec("cat /proc/1/comm; id -u"), "sleep\n0");
    assert_eq!(
        pod.exec("grep CapBnd /proc/self/status"),
        "CapBnd:\t00000000a80425fb"
    );
    assert_eq!(
        pod.exec("echo x 2>/dev/null >/proc/sysrq-trigger || echo no"),
        "no"
    );
    // A second one beside it, in a pod of its own.
    let second = cri.pod("second", &app);
    assert_eq!(second.exec("echo mine >/tmp/file; cat /tmp/file"), "mine");
    assert_eq!(pod.exec("ls /tmp/file 2>/dev/null || echo none"), "none");
    second.remove();
    pod.remove();
    cri.remove_image(&app);
    cri.remove_image(&images.pause());
    until("all snapshots to go", || node.directories() == 0);
    // Two containers and two that hold a pod's namespaces.
    let asked = fs::read_to_string(lab.path("asked")).unwrap();
    let count = |command: &str| {
        let is_it = |line: &&str| line.split(' ').any(|word| word == command);
        asked.lines().filter(is_it).count()
    };
    assert_eq!((count("create"), count("start")), (4, 4), "{asked}");
}
