//! Which crates come into the build, on the processors that are built for.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::cargo::cargo;

/// What is built for.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// One version of a crate.
#[derive(Clone, Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) license: Option<String>,
    /// `None` for one of the workspace.
    pub(super) source: Option<String>,
    /// The names of those that it uses.
    pub(super) uses: Vec<String>,
    /// Whether it comes into a program, or into the build of one, and not into tests only.
    pub(super) is_built: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) crates: Vec<Crate>,
}

impl Graph {
    /// Returns the names of those who use a crate.
    pub(super) fn users(&self, name: &str) -> Vec<&str> {
        let users = self.crates.iter();
        let users = users.filter(|user| user.uses.iter().any(|used| used == name));
        users.map(|user| &*user.name).collect()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `dev`, `build` or nothing.
    kind: Option<String>,
}

impl Edge {
    fn is_for_tests(&self) -> bool {
        let mut kinds = self.dep_kinds.iter();
        kinds.all(|kind| kind.kind.as_deref() == Some("dev"))
    }
}

/// Returns what `cargo metadata` resolves.
pub(super) fn load(root: &Path) -> anyhow::Result<Graph> {
    let mut cargo = cargo();
    cargo.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--all-features",
    ]);
    for target in TARGETS {
        cargo.args(["--filter-platform", target]);
    }
    let output = cargo.current_dir(root).output();
    let output = output.context("running cargo metadata")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata failed: {errors}");
    parse(&output.stdout)
}

fn parse(metadata: &[u8]) -> anyhow::Result<Graph> {
    let metadata: Metadata = serde_json::from_slice(metadata).context("reading cargo metadata")?;
    let packages = metadata.packages.into_iter();
    let packages: HashMap<_, _> = packages
        .map(|package| (package.id.clone(), package))
        .collect();
    let package = |id: &str| {
        packages
            .get(id)
            .with_context(|| format!("a crate without data: {id}"))
    };
    let nodes = &metadata.resolve.nodes;
    let own = packages.values().filter(|package| package.source.is_none());
    let built = reached(nodes, own.map(|package| &*package.id).collect());
    let crates = nodes.iter().map(|node| {
        let found = package(&node.id)?;
        let uses = node.deps.iter();
        let uses = uses.map(|edge| Ok(package(&edge.pkg)?.name.clone()));
        Ok(Crate {
            name: found.name.clone(),
            version: found.version.clone(),
            license: found.license.clone(),
            source: found.source.clone(),
            uses: uses.collect::<anyhow::Result<_>>()?,
            is_built: built.contains(&*node.id),
        })
    });
    Ok(Graph {
        crates: crates.collect::<anyhow::Result<_>>()?,
    })
}

/// Returns what these use, and what that uses, without tests.
fn reached<'a>(nodes: &'a [Node], from: Vec<&'a str>) -> HashSet<&'a str> {
    let by_id: HashMap<_, _> = nodes.iter().map(|node| (&*node.id, node)).collect();
    let (mut reached, mut left) = (HashSet::new(), from);
    while let Some(id) = left.pop() {
        if reached.insert(id)
            && let Some(node) = by_id.get(id)
        {
            let edges = node.deps.iter().filter(|edge| !edge.is_for_tests());
            left.extend(edges.map(|edge| &*edge.pkg));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graph_of_this_workspace_has_its_crates_and_those_of_others() {
        let graph = load(&crate::workspace::root().unwrap()).unwrap();
        let fuser = graph.crates.iter().find(|one| one.name == "fuser").unwrap();
        assert!(fuser.source.is_some() && fuser.license.is_some());
        assert_eq!(graph.users("fuser"), ["yolofs"]);
        assert!(fuser.is_built);
        let criterion = graph.crates.iter().find(|one| one.name == "criterion");
        assert!(!criterion.unwrap().is_built, "it is for benchmarks");
        parse(b"{}").unwrap_err();
    }
}
