//! A machine that does what it is told on its console, with whole copies on both its memories.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::machine::Boot;

/// The tiers file: a tier on each memory.
pub(super) const TIERS: &str = "[[tier]]
name = \"nvm\"
dir = \"/nvm/tier\"
size = \"32M\"

[[tier]]
name = \"pmem\"
dir = \"/pmem/tier\"
size = \"32M\"
";

/// The first process: a shell that obeys line by line, and says of each how it ended.
///
/// `look N FILE` has a process map a file, and `asked N WORDS` tells it something and says what it
/// answers: nothing, if it ended over it. `looked N` waits for that end, and says its code.
pub(super) const INIT: &str = r#"#!/bin/busybox sh
exec </dev/ttyS0 >/dev/ttyS0 2>/tmp/errors
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin YOLOFS_RUN_DIR=/tmp/run YOLOFS_TIERS=/tiers.toml YOLOFS_STORE=/pmem/store
stty -echo
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for module in libnvdimm nd_btt nd_pmem nfit nd_virtio virtio_pmem fuse; do
    [ ! -e $MODULES/$module.ko ] || insmod $MODULES/$module.ko
done
until [ -e /dev/pmem0 ] && [ -e /dev/pmem1 ]; do sleep 0.02; done
mkdir -p /nvm /pmem /mnt
for disk in pmem0 pmem1; do
    case $(readlink -f /sys/block/$disk/device) in
    *virtio*) place=/pmem ;;
    *) place=/nvm nvdimm=$disk ;;
    esac
    mount -t ext4 -o dax=always /dev/$disk $place
    mkdir -p $place/tier
done
look() {
    mkfifo /tmp/ask$1 /tmp/say$1
    # What the others are asked by is theirs: one that is told no more ends.
    (
        exec 3>&- 4<&- 5>&- 6<&- 7>&- 8<&-
        exec soak __look $2
    ) </tmp/ask$1 >/tmp/say$1 &
    eval "pid$1=$! && exec $((1 + 2 * $1))>/tmp/ask$1 $((2 + 2 * $1))</tmp/say$1"
    rm /tmp/ask$1 /tmp/say$1
    eval "read -r said <&$((2 + 2 * $1))" # that it is mapped
}
asked() {
    said=
    eval "echo $2 >&$((1 + 2 * $1)) && read -r said <&$((2 + 2 * $1))"
    echo "$said"
}
looked() {
    eval "exec $((1 + 2 * $1))>&- $((2 + 2 * $1))<&-"
    eval "wait \$pid$1" 2>/dev/null
    echo $?
}
echo GUEST-READY
while read -r line; do
    eval "$line" && echo GUEST-DONE 0 || echo GUEST-DONE $? $(tail -n 5 /tmp/errors)
done
"#;

/// Has a machine do something, and returns the lines that it says meanwhile.
pub(super) fn ask(boot: &mut Boot, command: &str) -> anyhow::Result<Vec<String>> {
    boot.tell(command)?;
    let mut lines = Vec::new();
    loop {
        let line = boot.must_say()?;
        if let Some(end) = line.strip_prefix("GUEST-DONE ") {
            ensure!(end == "0", "in the machine, {command} ended with {end}");
            return Ok(lines);
        }
        lines.push(line);
    }
}

/// The same, of a command that says one line.
pub(super) fn ask_line(boot: &mut Boot, command: &str) -> anyhow::Result<String> {
    let mut lines = ask(boot, command)?;
    ensure!(lines.len() == 1, "{command} says {lines:?}");
    lines.pop().context("there is one")
}

/// The same, of a command that says JSON, of which it returns the first value.
pub(super) fn ask_json(boot: &mut Boot, command: &str) -> anyhow::Result<Value> {
    let text = ask(boot, command)?.join("\n");
    let json: Value =
        serde_json::from_str(&text).with_context(|| format!("{command} says no JSON: {text}"))?;
    Ok(json.get(0).cloned().unwrap_or(json))
}

/// Waits until it does what it is told.
pub(super) fn ready(boot: &mut Boot) -> anyhow::Result<()> {
    while boot.must_say()? != "GUEST-READY" {}
    Ok(())
}
