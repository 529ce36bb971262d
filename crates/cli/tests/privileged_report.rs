//! `bootimg report`, of real boot images and mounts, looked at in a real browser.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod browser;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blocks::Digest;
use bootimg::{Stack, Store, StoreConfig, layer_name};
use serde_json::Value;

use browser::{Browser, Scheme};
use lab::dockerd::Dockerd;
use lab::{Lab, busybox_root, fails, json, noise, ok};

/// A path that is a whole element: a directory with a file in it.
const HOSTILE: &str = "<script>document.title='owned'<";
const HOSTILE_TOO: &str = "<img src=x onerror=document.title='owned'>";
const REFERENCE: &str = "docker.io/library/web:1.0";

/// Boots in every way, as a bench writes them.
const BOOTS: &str = r#"{"samples": [
    {"image": "web", "engine": "docker", "disk": {"contended": 150}, "mode": "native-cold", "ready_ms": 4210, "disk_reads": 812},
    {"image": "web", "engine": "docker", "disk": {"contended": 150}, "mode": "native-cold", "ready_ms": 4590, "disk_reads": 815},
    {"image": "web", "engine": "docker", "disk": {"contended": 150}, "mode": "yolo-style", "ready_ms": 640, "disk_reads": 0, "fuse_requests": {"read": 790}},
    {"image": "web", "engine": "docker", "disk": {"contended": 150}, "mode": "yolofs", "ready_ms": 351, "prepare_ms": 80, "disk_reads": 0, "fuse_requests": {"lookup": 4}},
    {"image": "web", "engine": "docker", "disk": {"contended": 150}, "mode": "native-warm", "ready_ms": 340, "disk_reads": 0},
    {"subject": "<b>other</b>", "mode": "<i>way</i>", "ready_ms": 12}]}"#;

/// A lab with a recorded tree that is mounted, and a container image of two layers, one of which
/// nothing was read of.
struct Recorded {
    lab: Lab,
    mountpoint: PathBuf,
}

impl Recorded {
    fn new() -> Self {
        let lab = Lab::new();
        let root = lab.make_dir("root");
        busybox_root(&root);
        fs::create_dir_all(root.join(HOSTILE)).unwrap();
        fs::write(root.join(HOSTILE).join("script>"), noise(7, 70_000)).unwrap();
        fs::write(root.join(HOSTILE_TOO), noise(8, 20_000)).unwrap();
        let reads = "cat '/<'*'<'/* '/<img'* /usr/lib/part0* > /dev/null";
        let layer = Digest([0xab; 32]);
        for name in ["tree", &layer_name(&layer)] {
            ok(lab
                .bootimg()
                .arg("record")
                .arg(&root)
                .args(["--runs", "2", "--name", name, "--", "/bin/sh", "-c", reads]));
        }
        let store = Store::open(lab.store(), StoreConfig::default()).unwrap();
        let stack = Stack {
            reference: REFERENCE.to_owned(),
            image: Digest([1; 32]),
            manifest: Some(Digest([2; 32])),
            layers: vec![layer, Digest([0xcd; 32])],
            recorded_at: 1_795_260_480,
            ready_ms: vec![812, 799, 840],
            command: vec![HOSTILE_TOO.to_owned()],
        };
        store.put_stack(&stack).unwrap();
        let flags = ["--boot", "tree", "--wait-prewarm"];
        let mountpoint = lab.mount(&root, "mnt", &flags);
        // Not recorded: a miss that the page has to tell.
        fs::read(mountpoint.join("usr/lib/part15")).unwrap();
        fs::write(lab.path("boots.json"), BOOTS).unwrap();
        Self { lab, mountpoint }
    }

    /// Writes the pages of the tree, the container image and the node.
    fn pages(&self) -> [PathBuf; 3] {
        let out = self.lab.make_dir("pages");
        let text = ok(self
            .lab
            .bootimg()
            .args(["report", "tree", "web:1.0", "--node", "--measured"])
            .arg(self.lab.path("boots.json"))
            .arg("--out")
            .arg(&out));
        assert_eq!(text.lines().count(), 3, "{text}");
        ["tree", "docker.io-library-web-1.0", "node"].map(|name| out.join(format!("{name}.html")))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.lab.umount(&self.mountpoint);
        }
    }
}

#[test]
fn privileged_the_data_are_those_of_the_store_and_the_mounts() {
    let recorded = Recorded::new();
    let lab = &recorded.lab;
    let used = || -> Vec<SystemTime> {
        let images = fs::read_dir(lab.store().join("images")).unwrap();
        let modified = |entry: std::io::Result<fs::DirEntry>| entry?.metadata()?.modified();
        images.map(|image| modified(image).unwrap()).collect()
    };
    let before = used();
    let all = json(
        lab.bootimg()
            .args(["report", "tree", REFERENCE, "--node", "--json"]),
    );
    assert_eq!(used(), before, "to look at an image is no use of it");
    let inspected = json(lab.bootimg().args(["inspect", "tree", "--json"]));
    let [tree, stack] = [0, 1].map(|index| &all["images"][index]);
    assert_eq!(tree["name"], "tree");
    assert_eq!(tree["recording"]["runs"], 2);
    assert_eq!(tree["recording"]["ready_ms"], inspected["ready_ms"]);
    let bytes = inspected["blocks"].as_u64().unwrap() * 4096;
    for place in [
        &tree["content"]["bytes"],
        &tree["layers"][0]["touched_bytes"],
    ] {
        assert_eq!(place.as_u64(), Some(bytes));
    }
    let moments = tree["timeline"]["moments"].as_array().unwrap();
    let drawn: u64 = moments
        .iter()
        .map(|moment| moment["layer_bytes"][0].as_u64().unwrap())
        .sum();
    assert_eq!(drawn, bytes);
    let files = tree["content"]["top_files"].as_array().unwrap();
    let largest = &inspected["files"][0];
    assert_eq!(files[0]["path"], largest["path"]);
    assert!(
        files
            .iter()
            .any(|file| file["path"] == format!("{HOSTILE}/script>"))
    );
    let status = lab.status(&recorded.mountpoint);
    let mount = &tree["mounts"][0];
    assert_eq!(
        mount["fallthrough_bytes"],
        status["served"]["fallthrough_bytes"]
    );
    assert!(mount["misses"].as_u64().unwrap() > 0, "{mount}");
    assert_eq!(mount["injected_pages"], status["boot"]["injected_pages"]);
    assert_eq!(stack["name"], REFERENCE);
    assert_eq!(stack["layers"][0]["touched_bytes"].as_u64(), Some(bytes));
    assert_eq!(stack["layers"][1]["boot_image"], Value::Null);
    assert_eq!(stack["recording"]["ready_ms"].as_array().unwrap().len(), 3);
    let node = &all["node"];
    assert_eq!(node["images"].as_array().unwrap().len(), 2);
    assert_eq!(node["boot_images"], 2);
    assert!(
        node["store_bytes"].as_u64() < node["unshared_bytes"].as_u64(),
        "two images share blocks"
    );
}

#[test]
fn privileged_pages_are_whole_in_a_browser() {
    let recorded = Recorded::new();
    let browser = Browser::new(recorded.lab.path("browser"));
    let [tree, stack, node] = recorded.pages();
    let of_image = ["timeline", "reads", "layers", "stability", "misses"];
    check(&browser, &tree, &of_image, 5);
    check(&browser, &stack, &of_image, 6);
    check(
        &browser,
        &node,
        &["images", "measurements", "mounts", "each"],
        5,
    );
}

/// Panics unless a page is whole, wide and narrow, light and dark.
fn check(browser: &Browser, page: &Path, sections: &[&str], charts: usize) {
    for (width, scheme) in [
        (1280, Scheme::Light),
        (400, Scheme::Light),
        (800, Scheme::Dark),
    ] {
        let seen = browser.measure(page, width, scheme);
        let told = format!("{} at {width} pixels, {scheme:?}: {seen:#}", page.display());
        assert_eq!(seen["title"], true, "the title is the page's own: {told}");
        assert!(
            seen["owned"] == 0 || seen["owned"] == false,
            "a name became markup: {told}"
        );
        let found = seen["sections"].as_array().unwrap();
        let ids: Vec<_> = found
            .iter()
            .map(|section| section["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, sections, "{told}");
        assert!(
            found
                .iter()
                .all(|section| section["height"].as_f64().unwrap() > 40.0),
            "{told}"
        );
        assert_eq!(seen["links"], true, "a link leads nowhere: {told}");
        assert_eq!(seen["nameless"], 0, "{told}");
        let drawn = seen["charts"].as_array().unwrap();
        assert_eq!(drawn.len(), charts, "charts: {told}");
        for chart in drawn {
            assert!(
                chart["width"].as_f64().unwrap() > f64::from(width) * 0.7,
                "{chart}: {told}"
            );
            assert!(chart["seen"].as_u64().unwrap() > 0, "{chart}: {told}");
            assert_eq!(chart["outside"], 0, "{chart}: {told}");
        }
        assert!(
            seen["overflow"].as_f64().unwrap() <= 0.0,
            "it is too wide: {told}"
        );
        // WCAG 2.1, level AA, asks for that much between text and its ground.
        assert!(
            seen["contrast"].as_f64().unwrap() >= 4.5,
            "text is too faint: {told}"
        );
        assert_eq!(seen["sorts"], true, "a heading does not sort: {told}");
        assert!(seen["rows"].as_u64().unwrap() > 3, "{told}");
    }
    photograph(browser, page);
}

/// Keeps pictures of a page where people find them, and looks whether anything is on them.
fn photograph(browser: &Browser, page: &Path) {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../report-screenshots");
    fs::create_dir_all(&kept).unwrap();
    let name = page.file_stem().unwrap().to_str().unwrap();
    let picture = |kind: &str| kept.join(format!("{name}-{kind}.png"));
    let [light, dark] = [("light", Scheme::Light), ("dark", Scheme::Dark)]
        .map(|(kind, scheme)| browser.photograph(page, (1280, 2400), scheme, &picture(kind)));
    for picture in [&light, &dark] {
        assert!(
            picture.colours() > 50,
            "{} colours: {name} is blank",
            picture.colours()
        );
    }
    assert!(light.background() > 200, "{}", light.background());
    assert!(dark.background() < 60, "{}", dark.background());
}

#[test]
fn privileged_an_attached_container_image_tells_of_its_layers() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "one", "base");
    // Ready when the program ended: nothing listens, and nothing is left to wait for.
    let mut record = lab.bootimg();
    let path = std::env::var("PATH").unwrap_or_default();
    record
        .env("PATH", format!("/usr/bin:{path}"))
        .env("DOCKER_HOST", docker.host())
        .args(["record", "docker://one", "--runs", "2", "--until", "exit"])
        .arg("--scratch")
        .arg(lab.make_dir("scratch"))
        .args(["--run-args=--network=none", "--", "sh", "-c"])
        .arg("cat /bin/busybox /data/* | md5sum");
    ok(&mut record);
    ok(&mut docker.yolofs(&lab, &["attach", "one"]));
    docker.run(&[
        "run",
        "--rm",
        "--network=none",
        "one",
        "sh",
        "-c",
        "cat /bin/busybox | md5sum",
    ]);
    let image = json(lab.bootimg().args(["report", "one", "--json"]));
    let image = &image["images"][0];
    let id = docker.run(&["image", "inspect", "--format", "{{.Id}}", "one"]);
    assert_eq!(image["digests"][0]["digest"], id.as_str());
    let layers = image["layers"].as_array().unwrap();
    let served = docker.status(&lab)["layers"].as_array().unwrap().clone();
    let mounts = image["mounts"].as_array().unwrap();
    assert_eq!(mounts.len(), served.len(), "{mounts:#?}");
    for (mount, served) in mounts.iter().zip(&served) {
        assert_eq!(mount["mountpoint"], served["target"]);
        assert_eq!(mount["injected_pages"], served["boot"]["injected_pages"]);
        let name = served["layer"].as_str().unwrap();
        assert!(layers.iter().any(|layer| layer["name"] == name), "{name}");
    }
    let touched = layers
        .iter()
        .map(|layer| layer["touched_bytes"].as_u64().unwrap());
    assert_eq!(Some(touched.sum()), image["content"]["bytes"].as_u64());
    let page = lab.path("one.html");
    ok(lab.bootimg().args(["report", "one", "--out"]).arg(&page));
    let browser = Browser::new(lab.path("browser"));
    let seen = browser.measure(&page, 1280, Scheme::Light);
    assert!(seen["overflow"].as_f64().unwrap() <= 0.0, "{seen:#}");
    photograph(&browser, &page);
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
    let image = json(lab.bootimg().args(["report", "one", "--json"]));
    assert_eq!(image["images"][0]["mounts"], Value::Array(Vec::new()));
}

#[test]
fn privileged_what_cannot_be_reported_is_said() {
    let recorded = Recorded::new();
    let lab = &recorded.lab;
    let bootimg = |args: &[&str]| {
        let mut command = lab.bootimg();
        command
            .current_dir(lab.make_dir("here"))
            .arg("report")
            .args(args);
        command
    };
    let error = fails(1, &mut bootimg(&["nobody"]));
    assert!(
        error.contains("looking for nobody") && error.contains("bootimg ls"),
        "{error}"
    );
    let error = fails(1, &mut bootimg(&["/etc/hostname"]));
    assert!(error.contains("/etc/hostname"), "{error}");
    let error = fails(1, &mut bootimg(&["tree", "--measured", "/etc/hostname"]));
    assert!(
        error.contains("reading the measurements in /etc/hostname"),
        "{error}"
    );
    let error = fails(1, &mut bootimg(&["tree", "--node", "--out", "-"]));
    assert!(
        error.contains("2 pages do not fit standard output"),
        "{error}"
    );
    let error = fails(
        1,
        &mut bootimg(&["tree", "--out", "/nonexistent/page.html"]),
    );
    assert!(error.contains("writing /nonexistent/page.html"), "{error}");
    assert_eq!(
        fs::read_dir(lab.path("here")).unwrap().count(),
        0,
        "no page was written"
    );
    let page = ok(&mut bootimg(&["tree", "--out", "-"]));
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    ok(&mut bootimg(&["tree"]));
    assert_eq!(
        fs::read_to_string(lab.path("here/tree.html")).unwrap(),
        page
    );
}
