//! The tier that there is without a tiers file, and what `yolofs tier` says of mistakes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::fs;
use std::process::Command;

use serde_json::Value;

use fixture::Fixture;
use lab::{fails, json, ok};

/// `yolofs tier` on the desk's store, with no tiers file named.
fn tier(fixture: &Fixture, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yolofs"));
    command
        .arg("tier")
        .args(args)
        .env("YOLOFS_STORE", fixture.path("store"))
        .env_remove("YOLOFS_TIERS")
        .env_remove("YOLOFS_LOG");
    command
}

fn objects(fixture: &Fixture) -> Vec<Value> {
    let status = json(&mut tier(fixture, &["status", "--json"]));
    assert_eq!(status["file"], Value::Null);
    status["tiers"][0]["objects"].as_array().unwrap().clone()
}

#[test]
fn all_verbs_work_on_the_embedded_default_and_say_that_it_is_that() {
    let fixture = Fixture::with_images();
    let said = ok(&mut tier(&fixture, &["status"]));
    assert!(said.contains("no tiers file"), "{said}");
    assert!(said.contains("nothing was put there yet"), "{said}");

    ok(&mut fixture.bootimg(&["prewarm", "--tier", "disk", "one"]));
    assert_eq!(objects(&fixture)[0]["name"], "one");
    // What was brought there is kept for a start that is to come; what is pinned comes.
    ok(&mut tier(&fixture, &["pin", "two"]));
    let plan = json(&mut tier(&fixture, &["plan", "--json"]));
    let moves: Vec<_> = plan["moves"].as_array().unwrap().iter().collect();
    assert_eq!(
        (moves.len(), moves[0]["move"].as_str(), &moves[0]["name"]),
        (1, Some("promote"), &"two".into())
    );
    let applied = json(&mut tier(&fixture, &["apply", "--json"]));
    assert_eq!(applied[0]["state"], "done");
    assert_eq!(objects(&fixture).len(), 2);
    ok(&mut tier(&fixture, &["evict", "one"]));
    assert_eq!(objects(&fixture)[0]["name"], "two");
    // What nobody wants goes.
    fs::remove_dir_all(fixture.path("store").join("tiers/heat")).unwrap();
    ok(&mut tier(&fixture, &["unpin", "two"]));
    let plan = json(&mut tier(&fixture, &["plan", "--json"]));
    assert_eq!(
        (plan["moves"][0]["move"].as_str(), &plan["moves"][0]["name"]),
        (Some("demote"), &"two".into())
    );
    ok(&mut tier(&fixture, &["pin", "two"]));
    assert!(ok(&mut tier(&fixture, &["apply"])).contains("nothing is to move"));

    let error = fails(1, &mut tier(&fixture, &["evict", "two"]));
    assert!(error.contains("unpin two first"), "{error}");
    ok(&mut tier(&fixture, &["unpin", "two"]));
    ok(&mut tier(&fixture, &["evict", "--all"]));
    assert!(objects(&fixture).is_empty());
}

#[test]
fn what_is_known_of_a_boot_image_goes_with_it() {
    let fixture = Fixture::with_images();
    ok(&mut fixture.bootimg(&["prewarm", "--tier", "disk", "one"]));
    ok(&mut fixture.bootimg(&["rm", "one"]));
    assert_eq!(
        objects(&fixture)[0]["boot_image"],
        Value::Null,
        "nobody knows it"
    );
    let applied = json(&mut tier(&fixture, &["apply", "--json"]));
    assert_eq!(applied[0]["move"], "demote");
    assert!(objects(&fixture).is_empty());
    let known = fixture.path("store").join("tiers/known");
    assert_eq!(fs::read_dir(known).unwrap().count(), 0);
}

#[test]
fn mistakes_are_told_with_what_to_try() {
    let fixture = Fixture::with_images();
    let error = fails(
        1,
        &mut fixture.bootimg(&["prewarm", "--tier", "nvm", "one"]),
    );
    assert!(error.contains("there is only disk"), "{error}");
    let error = fails(1, &mut tier(&fixture, &["pin", "nope"]));
    assert!(error.contains("nope"), "{error}");
    let missing = ["status", "--tiers", "/nonexistent/tiers.toml"];
    let error = fails(1, &mut tier(&fixture, &missing));
    assert!(
        error.contains("no tiers file /nonexistent/tiers.toml"),
        "{error}"
    );
    let file = fixture.path("tiers.toml");
    fs::write(
        &file,
        "[[tier]]\nname = \"a\"\ndir = \"/a\"\nsize = \"x\"\n",
    )
    .unwrap();
    let error = fails(1, tier(&fixture, &["plan"]).arg("--tiers").arg(&file));
    assert!(error.contains("tier a") && error.contains("50%"), "{error}");
    // Whoever only serves does without tiers: the store has everything.
    let verified = fixture
        .bootimg(&["verify", "one", "--tiers"])
        .arg(&file)
        .output();
    assert!(verified.unwrap().status.success());
}
