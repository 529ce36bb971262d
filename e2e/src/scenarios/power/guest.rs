//! What runs in the machine, and what it says.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Where boot images are kept: in stores on the NVDIMM and on virtio-pmem, and those of the second
/// as copies on a tier of the first, too.
pub(super) const PLACES: [&str; 3] = ["/nvm/store", "/pmem/store", "/nvm/tier"];

/// The tiers file.
pub(super) const TIERS: &str = "[[tier]]
name = \"nvm\"
dir = \"/nvm/tier\"
size = \"64M\"
";

/// Bytes of the disk image, in pieces as the log of reads has them.
pub(super) const DISK_PIECES: usize = 256;
pub(super) const PIECE: usize = 64 << 10;

/// The first process. It looks at what is there, says so, and then writes until the power is cut.
pub(super) const INIT: &str = r#"#!/bin/busybox sh
# Errors, and bars that show how far something is, are kept from what is reported.
exec </dev/ttyS0 >/dev/ttyS0 2>/tmp/errors
set -e
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin YOLOFS_RUN_DIR=/tmp/run YOLOFS_TIERS=/tiers.toml
trap 'code=$?; tail -n 5 /tmp/errors; echo "POWER-FAILED $code"; poweroff -f' EXIT
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for module in libnvdimm nd_btt nd_pmem nfit nd_virtio virtio_pmem fuse; do
    insmod /modules/$module.ko
done
until [ -e /dev/pmem0 ] && [ -e /dev/pmem1 ]; do sleep 0.02; done
mkdir -p /nvm /pmem /mnt
for disk in pmem0 pmem1; do
    case $(readlink -f /sys/block/$disk/device) in
    *virtio*) place=/pmem ;;
    *) place=/nvm ;;
    esac
    mount -t ext4 -o dax=always /dev/$disk $place
done
echo POWER-PROBE $(yolofs tier probe --bytes 0 --json /nvm /pmem)

# A copy that is there is read and verified; what the cut has kept from the tier comes there now.
on_tier() {
    bootimg prewarm --tier nvm --json $1 >/tmp/tiered
    case $(tr -d ' \n' </tmp/tiered) in
    *'"written_bytes":0}'*) echo POWER-HAS /nvm/tier $1 ;;
    *) echo POWER-KEPT /nvm/tier $1 ;;
    esac
}

mkdir -p /nvm/tier
source_of() { case $1 in tree) echo /tree ;; *) echo /disk.raw ;; esac; }
for store in /nvm/store /pmem/store; do
    export YOLOFS_STORE=$store
    for name in $(bootimg ls | awk 'NR > 1 { print $1 }'); do
        bootimg verify $name --against $(source_of $name) >/dev/null
        echo POWER-HAS $store $name
        if [ $store = /pmem/store ]; then on_tier $name; fi
    done
done

export YOLOFS_STORE=/pmem/store
if [ ! -e /pmem/recorded ]; then
    bootimg record --no-chroot --name tree /tree -- \
        sh -c 'cat $YOLOFS_MNT/warm/*/* $YOLOFS_MNT/bin/* >/dev/null' >/dev/null
    echo POWER-KEPT $YOLOFS_STORE tree
    on_tier tree
    touch /pmem/recorded
    sync
fi
yolofs mount --standalone --boot tree --wait-prewarm /tree /mnt
find /mnt -type f -exec sha256sum {} +
echo POWER-STATUS $(yolofs status --json /mnt)
yolofs umount /mnt
echo POWER-LOOKED

number=0
while :; do
    for store in /nvm/store /pmem/store; do
        number=$((number + 1))
        for piece in 0 1 2 3 4 5 6 7; do
            offset=$(((POWER_BOOT * 61 + number * 17 + piece * 29) % 256 * 65536))
            echo "blk_co_preadv blk 0x1 bs 0x2 offset $offset bytes 65536 flags 0x0"
        done >/tmp/log
        export YOLOFS_STORE=$store
        echo POWER-WRITES $store boot$POWER_BOOT-$number
        bootimg from-trace /disk.raw --qemu /tmp/log --name boot$POWER_BOOT-$number >/dev/null
        echo POWER-KEPT $store boot$POWER_BOOT-$number
        if [ $store = /pmem/store ]; then on_tier boot$POWER_BOOT-$number; fi
    done
done
"#;

/// What was reported to be kept, by store.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<String, BTreeSet<String>>);

impl Kept {
    pub(super) fn add(&mut self, store: String, name: String) {
        self.0.entry(store).or_default().insert(name);
    }

    /// Returns the first that is not among `others`.
    pub(super) fn missing_in(&self, others: &Self) -> Option<(&str, &str)> {
        let all = self.0.iter().flat_map(|(store, names)| {
            let names = names.iter().map(String::as_str);
            names.map(move |name| (store.as_str(), name))
        });
        let is_there = |store: &str, name: &str| {
            let there = others.0.get(store);
            there.is_some_and(|names| names.contains(name))
        };
        all.into_iter().find(|(store, name)| !is_there(store, name))
    }

    /// Returns how many there are in a store.
    pub(super) fn count(&self, store: &str) -> usize {
        self.0.get(store).map_or(0, BTreeSet::len)
    }
}

/// A line of the machine's.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// What both directories are as tiers.
    Probe(Value),
    /// A boot image was found and is what its source has.
    Has(String, String),
    /// A boot image begins to be written.
    Writes,
    /// A boot image was written, and reported to be kept.
    Kept(String, String),
    /// The SHA-256 of a file of the mount, by its path below that.
    Sum(String, String),
    /// What the mount served, and how.
    Status(Value),
    /// All that was there has been looked at.
    Looked,
    /// Something else: the kernel's words, or an error.
    Other(String),
}

impl Said {
    pub(super) fn of(line: &str) -> Self {
        let known = match line.split_once(' ') {
            Some(("POWER-PROBE", json)) => serde_json::from_str(json).ok().map(Self::Probe),
            Some(("POWER-STATUS", json)) => serde_json::from_str(json).ok().map(Self::Status),
            Some(("POWER-WRITES", _)) => Some(Self::Writes),
            Some(("POWER-HAS", what)) => named(what).map(|(store, name)| Self::Has(store, name)),
            Some(("POWER-KEPT", what)) => named(what).map(|(store, name)| Self::Kept(store, name)),
            None if line == "POWER-LOOKED" => Some(Self::Looked),
            Some((digest, path)) if digest.len() == 64 => {
                let path = path.trim_start().strip_prefix("/mnt/");
                path.map(|path| Self::Sum(digest.to_owned(), path.to_owned()))
            }
            _ => None,
        };
        known.unwrap_or_else(|| Self::Other(line.to_owned()))
    }
}

fn named(what: &str) -> Option<(String, String)> {
    let (store, name) = what.split_once(' ')?;
    Some((store.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let digest = "ab".repeat(32);
        let (store, name) = pair("/nvm/store", "boot1-2");
        assert_eq!(
            Said::of("POWER-KEPT /nvm/store boot1-2"),
            Said::Kept(store, name)
        );
        let (sum, path) = pair(&digest, "warm/d0/f1");
        assert_eq!(
            Said::of(&format!("{digest}  /mnt/warm/d0/f1")),
            Said::Sum(sum, path)
        );
        assert_eq!(Said::of("POWER-STATUS [1, 2]"), Said::Status([1, 2].into()));
        // A line that the cut has cut is no word of it.
        for torn in ["POWER-KEPT /nvm/store", "POWER-STATUS [1,", "POWER-LOO"] {
            assert_eq!(Said::of(torn), Said::Other(torn.to_owned()));
        }
    }

    #[test]
    fn what_is_missing_is_found() {
        let mut kept = Kept::default();
        let mut found = Kept::default();
        kept.add("/nvm/store".to_owned(), "a".to_owned());
        assert_eq!(kept.missing_in(&found), Some(("/nvm/store", "a")));
        found.add("/pmem/store".to_owned(), "a".to_owned());
        assert_eq!(kept.missing_in(&found), Some(("/nvm/store", "a")));
        found.add("/nvm/store".to_owned(), "a".to_owned());
        assert_eq!(kept.missing_in(&found), None);
        assert_eq!(
            (kept.count("/nvm/store"), kept.count("/pmem/store")),
            (1, 0)
        );
    }
}
