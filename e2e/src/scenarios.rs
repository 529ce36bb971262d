//! The kinds of harm.

mod changing;
mod clock;
mod crowds;
mod daemon;
mod node;
mod node_crowd;
mod nvm_lost;
mod power;
mod pressure;
mod sources;
mod tiers;

use crate::Scenario;
pub use clock::jump_in_guest;

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "undisturbed",
        what: "no harm: nothing fails, nothing leaks",
        asked: false,
        run: daemon::undisturbed,
    },
    Scenario {
        name: "daemon-killed",
        what: "kill -9 of a standalone daemon: ENOTCONN and nothing else, a clean umount, a new mount",
        asked: false,
        run: daemon::killed,
    },
    Scenario {
        name: "image-damaged",
        what: "bytes of the boot image flipped, before the mount and under it: no read fails or is wrong",
        asked: false,
        run: daemon::image_damaged,
    },
    Scenario {
        name: "source-fails",
        what: "reads of the source give EIO: so do reads of the mount, and no byte is wrong; it heals",
        asked: false,
        run: sources::fails,
    },
    Scenario {
        name: "source-slow",
        what: "reads of the source are held up: nothing fails",
        asked: false,
        run: sources::slow,
    },
    Scenario {
        name: "source-changes",
        what: "files of the source are replaced and cut short: each read is of one version",
        asked: false,
        run: sources::changes,
    },
    Scenario {
        name: "changes-and-kills",
        what: "files change while workers are killed over prewarming them: no old page stays",
        asked: false,
        run: changing::under_killed_workers,
    },
    Scenario {
        name: "tier-fails",
        what: "reads of the medium under a boot image's copy give EIO: the store is read, nothing fails",
        asked: false,
        run: tiers::fails,
    },
    Scenario {
        name: "copy-fails",
        what: "reads of the medium under a whole copy give EIO: so do reads of the file; it heals",
        asked: false,
        run: tiers::whole_fails,
    },
    Scenario {
        name: "store-full",
        what: "no space in the store: recording fails and says so, mounts serve on",
        asked: false,
        run: pressure::store_full,
    },
    Scenario {
        name: "memory-short",
        what: "a daemon in a cgroup with too little memory for the page cache: slower, never wrong",
        asked: false,
        run: pressure::memory_short,
    },
    Scenario {
        name: "many-mounts",
        what: "200 mounts and unmounts, eight at a time: each serves, none is left",
        asked: false,
        run: crowds::many,
    },
    Scenario {
        name: "one-place",
        what: "mounts and unmounts of one place at once: it is mounted once or not at all",
        asked: false,
        run: crowds::one_place,
    },
    Scenario {
        name: "worker-killed",
        what: "kill -9 of the worker again and again: no read fails",
        asked: false,
        run: node::worker_killed,
    },
    Scenario {
        name: "node-killed",
        what: "kill -9 of the node service: no mount is lost, no read fails",
        asked: false,
        run: node::node_killed,
    },
    Scenario {
        name: "keeper-killed",
        what: "kill -9 of the keeper: the node starts another, and survives its own death again",
        asked: false,
        run: node::keeper_killed,
    },
    Scenario {
        name: "node-and-worker-killed",
        what: "kill -9 of both at once: no read fails",
        asked: false,
        run: node::node_and_worker_killed,
    },
    Scenario {
        name: "worker-frozen",
        what: "the worker is stopped for up to a second: reads wait, none fails",
        asked: false,
        run: node::worker_frozen,
    },
    Scenario {
        name: "node-frozen",
        what: "the node is stopped for up to a second: mounts are served on",
        asked: false,
        run: node::node_frozen,
    },
    Scenario {
        name: "upgraded",
        what: "another program under living mounts: no read fails",
        asked: false,
        run: node::upgraded,
    },
    Scenario {
        name: "images-swapped",
        what: "the boot image of a living mount is taken away and brought back, damaged: no byte is wrong",
        asked: false,
        run: node::images_swapped,
    },
    Scenario {
        name: "anything",
        what: "worker, node and keeper are killed and stopped as chance has it: no read fails",
        asked: false,
        run: node::anything,
    },
    Scenario {
        name: "rebooted",
        what: "everything is killed and unmounted, as a reboot does: the next node makes the mounts again",
        asked: false,
        run: node::rebooted,
    },
    Scenario {
        name: "many-node-mounts",
        what: "many mounts of one node, which is killed with all of them: each serves, and is small",
        asked: true,
        run: node_crowd::many,
    },
    Scenario {
        name: "clock-jumps",
        what: "the clock of a virtual machine jumps by up to years under a node in it: no read fails",
        asked: true,
        run: clock::jumps,
    },
    Scenario {
        name: "power-cuts",
        what: "the power of a virtual machine is cut while it writes stores on NVM: what was kept is whole",
        asked: true,
        run: power::cuts,
    },
    Scenario {
        name: "nvm-lost",
        what: "in a virtual machine: poisoned pages under a whole copy on DAX, and the NVDIMM taken out: \
               EIO or SIGBUS, then the source; nothing is wrong",
        asked: true,
        run: nvm_lost::lost,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_described_in_the_docs() {
        let docs = include_str!("../../docs/faults.md");
        for scenario in SCENARIOS {
            assert!(
                docs.contains(&format!("`{}`", scenario.name)),
                "{}",
                scenario.name
            );
        }
    }
}
