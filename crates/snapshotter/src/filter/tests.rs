use std::time::SystemTime;

use super::*;
use crate::snapshot::{Kind, SnapshotId};

fn snapshot(name: &str, kind: Kind, parent: Option<&str>, labels: &[(&str, &str)]) -> Snapshot {
    Snapshot {
        name: name.to_owned(),
        id: SnapshotId(1),
        kind,
        parent: parent.map(str::to_owned),
        labels: labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        created: SystemTime::UNIX_EPOCH,
        updated: SystemTime::UNIX_EPOCH,
        usage: None,
        tier: None,
        shares: None,
        block: None,
        device: None,
    }
}

fn matches(filters: &[&str], snapshot: &Snapshot) -> bool {
    let filters: Vec<String> = filters.iter().map(|f| (*f).to_owned()).collect();
    Filter::parse(&filters).unwrap().matches(snapshot)
}

#[test]
fn selects_as_containerd_does() {
    let top = snapshot(
        "default/7/web",
        Kind::Active,
        Some("default/1/sha256:ab"),
        &[("l", "2"), ("a.b/c", "x y"), ("quote", "say \"hi\"")],
    );
    let yes = [
        "",
        "name==default/7/web",
        "kind==active",
        "kind == active , labels.l",
        "labels.l==2",
        "labels.l!=3",
        "labels.none!=3",
        "labels.\"a.b/c\"==\"x y\"",
        "labels.quote==\"say \\\"hi\\\"\"",
        "labels.\"a.b/c\"==\"x\\x20\\u0079\"",
        "parent==default/1/sha256:ab",
        "parent!=\"\"",
        "name~=/^default\\/\\d+/",
        "name~=|^default/\\\\d+|",
        "name~=web$",
        "parent",
    ];
    for filter in yes {
        assert!(matches(&[filter], &top), "{filter}");
    }
    let no = [
        "name==web",
        "kind==view",
        "kind==active,labels.none",
        "labels.none==\"\"",
        "labels.none",
        "nonsense",
        "nonsense==x",
        "name~=/^web/",
    ];
    for filter in no {
        assert!(!matches(&[filter], &top), "{filter}");
    }
    assert!(matches(&["name==x", "kind==active"], &top), "one of two");
    assert!(matches(&["name==x", ""], &top), "an empty one matches all");
    assert!(matches(&[], &top));
}

#[test]
fn says_where_a_filter_goes_wrong() {
    let bad = [
        ("=", 0),
        ("name=", 4),
        ("name==", 6),
        ("name==a b", 8),
        ("name==a,", 8),
        ("name==\"a", 8),
        ("name==\"\\q\"", 9),
        ("name~=/(/", 9),
        ("labels.", 7),
        ("name==\"\\xff\"", 12),
    ];
    for (filter, at) in bad {
        let error = Filter::parse(&[filter.to_owned()]).unwrap_err();
        assert_eq!(error.at, at, "{filter}: {error}");
    }
}

#[test]
fn bounds_what_a_client_sends() {
    assert!(Filter::parse(&vec!["name".to_owned(); MAX_FILTERS + 1]).is_err());
    assert!(Filter::parse(&["a".repeat(MAX_FILTER_BYTES + 1)]).is_err());
    let huge = format!("name~=/{}/", "(a{1000}){1000}");
    assert!(Filter::parse(&[huge]).is_err());
}
