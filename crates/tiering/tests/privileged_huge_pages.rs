//! A tmpfs says whether it takes huge pages.

#![cfg(feature = "privileged")]

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tiering::tier::{Kind, Map, detect};

#[test]
fn privileged_memory_in_huge_pages_is_told_from_memory_without() {
    let dir = tempfile::tempdir().unwrap();
    for (options, map) in [
        ("huge=always", Map::HugePages),
        ("huge=never", Map::PageCache),
    ] {
        let options = format!("size=16m,{options}");
        let kind = Some("tmpfs");
        mount(
            kind,
            dir.path(),
            kind,
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .unwrap();
        let found = detect(dir.path());
        umount2(dir.path(), MntFlags::empty()).unwrap();
        let found = found.unwrap();
        assert_eq!((found.kind, found.map), (Kind::Memory, map), "{options}");
    }
}
