//! Which registry a block image is of, and as whom it is asked: with the node's own login, since containerd passes that of
//! a pull to nobody.

#![cfg(feature = "privileged")]

mod block_containers;
mod cri;
mod node;

use std::collections::HashMap;
use std::fs;

use block_containers::{NOISE, Source, auth, devices, expected, is_removed, pull, run};
use cri::{Cri, Images, sandbox_config, until_pods_are_possible};
use lab::service::Service;
use lab::{Lab, until};
use node::{Node, archive};
use serde_json::{Value, json};
use testkit::registries::{Kind, Registry, USER};

#[test]
fn privileged_a_container_is_told_which_login_of_a_block_image_is_missing() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let logins = lab.path("logins.json");
    let flags = ["--block-login", logins.to_str().unwrap()];
    let flags = [&flags[..], &["--block-background", "plan"]].concat();
    let node = Node::start_today(&lab, &flags);
    let registry = Registry::start(Kind::DockerWithUsers);
    let source = Source::at(&lab, &archive(&lab, NOISE), registry);
    let (image, host) = (source.image(), source.proxy.host());
    let (name, password) = USER;
    let user = format!("{name}:{password}");
    let pull = ["images", "pull", "--plain-http", "--snapshotter", "yolofs"];
    node.ctr(&[&pull[..], &["--user", &user, &image]].concat());
    let refused = |logins_are: Option<Value>, says: &str| {
        if let Some(content) = logins_are {
            fs::write(&logins, content.to_string()).unwrap();
        }
        let refused = node.try_ctr(&["run", "--rm", &image, "no-login", "/bin/true"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        let _gone = node.try_ctr(&["containers", "rm", "no-login"]);
        assert!(!refused.status.success(), "{said}");
        let file = logins.display().to_string();
        for expected in [says, &file, &host] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        assert!(!said.contains(password), "{said}");
        assert!(devices(&lab).is_empty(), "a device without a login");
    };
    let login = |at: &str, password: &str| json!({"auths": {at: {"auth": auth(name, password)}}});
    refused(None, "no login of");
    // That of another registry is not sent to this one: it is the same registry at another port, and would do.
    refused(
        Some(login(&source.registry.host(), password)),
        "no login of",
    );
    refused(Some(login(&host, "wrong")), "the login of reader at");
    // It would be executed by a worker, which may execute nothing.
    refused(
        Some(json!({"credHelpers": {&*host: "secret"}})),
        "docker-credential-secret",
    );
    fs::write(&logins, login(&host, password).to_string()).unwrap();
    let read = "cat /srv/greeting; md5sum </srv/noise";
    // What the shell needs to read a file is in the cache after this: a page of its program that could not be read
    // would end it with SIGBUS before it has said anything.
    let reads = |file: &str| format!("cat {file} >/dev/null 2>&1 || echo fails");
    let greeting = reads("/srv/greeting /srv/no-such-file");
    assert_eq!(run(&lab, &node, &image, "login-0", &greeting), "fails\n");
    // The password changes while the device is attached: reads fail at once, until the file has the new one.
    source.registry.set_password("changed");
    let noise = reads("/srv/noise");
    assert_eq!(run(&lab, &node, &image, "login-1", &noise), "fails\n");
    fs::write(&logins, login(&host, "changed").to_string()).unwrap();
    assert_eq!(run(&lab, &node, &image, "login-2", read), expected(&lab));
    assert!(!service.said().contains(password), "a password in the log");
    is_removed(&lab, &node, &image);
}

/// The pull has the pod's secret, and the layers need the node's login.
#[test]
fn privileged_a_pod_is_told_which_login_of_a_block_image_is_missing() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let archive = archive(&lab, NOISE);
    let images = Images::new(&lab, &archive);
    let logins = lab.path("logins.json");
    let flags = ["--block-login", logins.to_str().unwrap()];
    let node = Node::start_today_for_pods(&lab, &flags, &images.config_of_today(&lab));
    let cri = Cri::of(&node);
    until_pods_are_possible(&cri);
    let source = Source::at(&lab, &archive, Registry::start(Kind::DockerWithUsers));
    let (image, host) = (source.image(), source.proxy.host());
    let (name, password) = USER;
    cri.pull_as(&image, Some(USER));
    let config = sandbox_config("login-pod", &HashMap::new());
    let sandbox = cri.sandbox(&config);
    let refused = cri.create_in(&sandbox, &config, &image, &HashMap::new());
    let said = refused.unwrap_err().message().to_owned();
    let file = logins.display().to_string();
    for expected in ["no login of", &file, &host] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let login = json!({"auths": {&*host: {"auth": auth(name, password)}}});
    fs::write(&logins, login.to_string()).unwrap();
    let pod = cri.start_in(sandbox, &config, &image, &HashMap::new());
    let read = "cat /srv/greeting; md5sum </srv/noise";
    assert_eq!(pod.exec(read), expected(&lab).trim_end());
    assert!(!service.said().contains(password), "a password in the log");
    pod.remove();
    for image in [&image, &images.pause()] {
        cri.remove_image(image);
    }
    until("all snapshots to go", || node.directories() == 0);
}

/// containerd notes of a layer the host of its registry and the repository, and no port.
#[test]
fn privileged_registries_of_one_host_are_told_from_each_other_by_their_ports() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let node = Node::start_today(&lab, &[]);
    let archive = archive(&lab, NOISE);
    // The same repository, with other layers.
    let sources = [Source::of(&lab, &archive), Source::ext4_of(&lab, &archive)];
    let images: Vec<_> = sources.iter().map(Source::image).collect();
    for image in &images {
        pull(&node, image);
    }
    for (number, image) in images.iter().enumerate() {
        let id = format!("port-{number}");
        assert_eq!(
            run(
                &lab,
                &node,
                image,
                &id,
                "cat /srv/greeting; md5sum </srv/noise"
            ),
            expected(&lab)
        );
    }
    assert_eq!(devices(&lab).len(), 2);
    node.ctr(&["images", "rm", "--sync", &images[0]]);
    is_removed(&lab, &node, &images[1]);
}
