//! Sandboxes on a mount: what the first Zygote of a machine reads is recorded once, and is in memory the next time.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::time::Duration;

use lab::{Lab, debian_root, json, ok};
use sandbox::{BaseSpec, Config, ExitStatus, Python, Request, Sandboxes, Stdio, ZygoteSpec};
use serde_json::Value;
use testkit::undisturbed::undisturbed;

const PATIENCE: Duration = Duration::from_secs(60);
const PYTHON: &str = "/usr/bin/python3";

/// Starts the first Zygote of a manager, and a program from it, on a base.
fn first_request(lab: &Lab, base: &Path) {
    let pid = std::process::id();
    let mut config = Config::new(lab.path("sandboxes"), &format!("sandbox-base-test/{pid}"));
    config.first_uid += 0x700_0000;
    config.sandboxes_max = 16;
    let sandboxes = Sandboxes::open(config).unwrap();
    sandboxes
        .add_base(&BaseSpec {
            name: "base".to_owned(),
            root: base.to_owned(),
            hide: Vec::new(),
        })
        .unwrap();
    let modules = ["json", "asyncio", "ssl", "http.client", "sqlite3"];
    sandboxes
        .add_zygote(ZygoteSpec::new("base", PYTHON, &modules))
        .unwrap();
    let mut request = Request::new(
        "base",
        &["-c", "import asyncio, ssl; print(ssl.OPENSSL_VERSION)"],
    );
    request.python = Some(Python {
        interpreter: PYTHON.to_owned(),
        packages: sandbox::Packages::new(),
    });
    let sandbox = sandboxes.create(request, Stdio::Captured).unwrap();
    let exit = sandbox.wait(PATIENCE).unwrap();
    let [out, err] = sandbox.written().unwrap();
    let said = String::from_utf8_lossy(&out.bytes).into_owned();
    assert_eq!(
        exit.status,
        ExitStatus::Code(0),
        "{}",
        String::from_utf8_lossy(&err.bytes)
    );
    assert!(said.starts_with("OpenSSL"), "{said}");
    assert_eq!(sandbox.ancestry().len(), 1);
    sandboxes.end_all(PATIENCE).unwrap();
}

#[test]
fn privileged_the_first_zygote_on_a_recorded_base_reads_nothing() {
    undisturbed(|| {
        let lab = Lab::new();
        let root = debian_root();
        let trace = lab.path("first.trace");
        let recorded = lab.mount(&root, "recorded", &["--record", trace.to_str().unwrap()]);
        first_request(&lab, &recorded);
        lab.umount(&recorded);
        let kept = json(
            lab.bootimg()
                .args(["from-trace", "--json", "--name", "base"])
                .arg("--trace")
                .args([&trace, &root]),
        );
        // An interpreter with its modules takes some megabytes.
        assert!(kept["blocks"].as_u64().unwrap() > 500, "{kept}");

        let mount = lab.mount(&root, "mnt", &["--boot", "base", "--wait-prewarm"]);
        let before = lab.status(&mount);
        first_request(&lab, &mount);
        let after = lab.status(&mount);
        assert_eq!(
            before["served"]["requests"]["read"], after["served"]["requests"]["read"],
            "{after}"
        );
        assert_eq!(after["served"]["fallthrough_bytes"], 0, "{after}");
        lab.umount(&mount);

        // Where the kernel has none of it, each read comes to the daemon, and none goes on to the source.
        let asked = lab.mount(&root, "asked", &["--boot", "base", "--no-inject"]);
        let before = lab.status(&asked);
        first_request(&lab, &asked);
        let after = lab.status(&asked);
        let hits = |status: &Value| status["served"]["hits"].as_u64().unwrap();
        assert!(hits(&after) - hits(&before) >= 100, "{after}");
        assert_eq!(after["served"]["misses"], 0, "{after}");
        assert_eq!(after["served"]["fallthrough_bytes"], 0, "{after}");
        lab.umount(&asked);
        ok(lab.bootimg().args(["verify", "base"]));
    });
}
