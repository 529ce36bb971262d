//! The node services that run on this machine: there should be one.

use crate::finding::Finding;
use crate::processes::{Process, running};
use host::run_dir::RUN_DIR_ENV;

/// What `yolofs node` is followed by where it asks a node instead of being one.
const ASKING: [&str; 4] = ["status", "mounts", "swap", "drain"];

/// Checks how many node services run.
#[must_use]
pub fn check() -> Finding {
    let nodes = running("yolofs");
    let nodes: Vec<&Process> = nodes.iter().filter(|process| is_node(process)).collect();
    finding(&without_keepers(&nodes))
}

/// Leaves out whose parent is a node, too: a keeper runs the same program, and so does the node that it keeps.
fn without_keepers<'a>(nodes: &[&'a Process]) -> Vec<&'a Process> {
    let is_one = |pid| nodes.iter().any(|node| Some(node.pid) == pid);
    let nodes = nodes.iter().filter(|node| !is_one(node.parent));
    nodes.copied().collect()
}

fn is_node(process: &Process) -> bool {
    let words = &process.args;
    let node = words.iter().position(|word| word == "node");
    node.is_some_and(|at| {
        !words
            .iter()
            .skip(at)
            .any(|word| ASKING.contains(&word.as_str()))
    })
}

fn finding(nodes: &[&Process]) -> Finding {
    const CHECK: &str = "nodes";
    match nodes {
        [] => Finding::advice(
            CHECK,
            "no node service runs: mounts end with the process that serves them",
            "systemctl enable --now yolofs-node",
        ),
        [one] => Finding::fine(
            CHECK,
            format!("one node service runs (process {})", one.pid),
        ),
        several => {
            let shown: Vec<String> = several
                .iter()
                .map(|node| {
                    let dir = node.flag(&["--run-dir"]).map(str::to_owned);
                    let dir = dir.or_else(|| node.variable(RUN_DIR_ENV));
                    let dir = dir.as_deref().unwrap_or("the default run directory");
                    format!("process {} with {dir}", node.pid)
                })
                .collect();
            Finding::advice(
                CHECK,
                format!("{} node services run: {}", several.len(), shown.join(", ")),
                "each answers for its own mounts only: end all but one (yolofs node drain with its \
                 --run-dir, then stop it)",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    fn process(pid: u32, line: &str) -> Process {
        Process {
            pid,
            parent: None,
            program: None,
            args: line.split(' ').map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_keeper_and_its_node_are_one() {
        let keeper = process(10, "yolofs node");
        let kept = Process {
            parent: Some(10),
            ..process(11, "/usr/bin/yolofs node")
        };
        let other = Process {
            parent: Some(1),
            ..process(12, "yolofs node")
        };
        assert_eq!(without_keepers(&[&keeper, &kept]), [&keeper]);
        assert_eq!(
            without_keepers(&[&keeper, &kept, &other]),
            [&keeper, &other]
        );
    }

    #[test]
    fn two_nodes_are_one_too_many() {
        let one = process(1, "/usr/bin/yolofs node");
        let two = process(2, "yolofs --run-dir /run/other node --state-dir /s");
        assert!(is_node(&one) && is_node(&two));
        for asking in [
            "yolofs node status",
            "yolofs mount /a /b",
            "yolofs node drain --all",
        ] {
            assert!(!is_node(&process(3, asking)), "{asking}");
        }
        assert_eq!(finding(&[&one]).verdict, Verdict::Fine);
        assert_eq!(finding(&[]).verdict, Verdict::Advice);
        let both = finding(&[&one, &two]);
        assert_eq!(both.verdict, Verdict::Advice);
        assert!(
            both.what.contains("process 2 with /run/other"),
            "{}",
            both.what
        );
    }
}
