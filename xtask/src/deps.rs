//! What comes into the build, compared with `deny.toml`: versions, licenses, sources and banned crates, as `cargo deny`
//! does; and known vulnerabilities, given a copy of the database of advisories.

mod advisories;
mod graph;
mod license;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use graph::{Crate, Graph};

/// Where crates may come from; those of the workspace come from nowhere.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The rules of `deny.toml` that are checked here.
#[derive(Debug, Default, Deserialize)]
struct Rules {
    advisories: Ignored,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Default, Deserialize)]
struct Ignored {
    ignore: Vec<Advisory>,
}

#[derive(Debug, Deserialize)]
struct Advisory {
    id: String,
}

#[derive(Debug, Default, Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Bans {
    skip: Vec<Skipped>,
    deny: Vec<Banned>,
}

/// A version that may be there beside another one.
#[derive(Debug, Deserialize)]
struct Skipped {
    name: String,
    version: String,
}

/// A crate that only these may use.
#[derive(Debug, Deserialize)]
struct Banned {
    name: String,
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// A copy of <https://github.com/RustSec/advisory-db>: fail where an advisory applies
    #[arg(long, value_name = "DIR")]
    advisories: Option<PathBuf>,
}

/// Fails, and says where, if a rule is broken.
pub(crate) fn check(root: &Path, options: &Options) -> anyhow::Result<()> {
    let path = root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let rules: Rules = toml::from_str(&text).context("reading deny.toml")?;
    let graph = graph::load(root)?;
    let mut faults = faults(&rules, &graph);
    println!("deps: {} crates, deny.toml", graph.crates.len());
    if let Some(database) = &options.advisories {
        let ignored: Vec<_> = rules.advisories.ignore.iter().map(|one| &*one.id).collect();
        let found = advisories::find(database, &graph, &ignored)?;
        println!(
            "deps: {} advisories, the newest of {}",
            found.known, found.newest
        );
        faults.extend(found.faults);
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

fn faults(rules: &Rules, graph: &Graph) -> Vec<String> {
    let mut faults = duplicates(&rules.bans.skip, graph);
    for Crate {
        name,
        version,
        license,
        source,
        ..
    } in &graph.crates
    {
        let what = format!("{name} {version}");
        match license {
            Some(terms) if license::is_allowed(terms, &rules.licenses.allow) => {}
            Some(terms) => faults.push(format!("{what}: {terms} is no allowed license")),
            None => faults.push(format!("{what}: it names no license")),
        }
        if source.as_ref().is_some_and(|source| source != REGISTRY) {
            faults.push(format!("{what}: it does not come from crates.io"));
        }
    }
    for Banned { name, wrappers } in &rules.bans.deny {
        let users = graph.users(name);
        let others = users
            .into_iter()
            .filter(|user| !wrappers.iter().any(|one| one == user));
        faults.extend(others.map(|user| format!("{user}: it must not use {name}")));
    }
    faults
}

/// Returns what is there in more than one version, and exceptions that are none.
fn duplicates(skipped: &[Skipped], graph: &Graph) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for found in graph.crates.iter().filter(|found| found.is_built) {
        versions
            .entry(&found.name)
            .or_default()
            .push(&found.version);
    }
    let is_of = |version: &str, rule: &str| {
        let rest = version.strip_prefix(rule);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut faults = Vec::new();
    for Skipped { name, version } in skipped {
        let found = versions.get(&**name);
        let is_one = found.is_none_or(|found| found.len() < 2);
        if is_one || !found.is_some_and(|found| found.iter().any(|one| is_of(one, version))) {
            faults.push(format!(
                "{name} {version} in deny.toml: it is not there beside another version"
            ));
        }
    }
    for (name, found) in versions {
        let rules = skipped.iter().filter(|rule| rule.name == name);
        let rules: Vec<_> = rules.map(|rule| &*rule.version).collect();
        let left = found
            .iter()
            .filter(|one| !rules.iter().any(|rule| is_of(one, rule)));
        if left.count() > 1 {
            faults.push(format!(
                "{name} is there in the versions {}",
                found.join(", ")
            ));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, version: &str) -> Crate {
        Crate {
            name: name.to_owned(),
            version: version.to_owned(),
            license: Some("MIT".to_owned()),
            source: Some(REGISTRY.to_owned()),
            uses: Vec::new(),
            is_built: true,
        }
    }

    fn rules() -> Rules {
        toml::from_str(
            r#"
            [advisories]
            ignore = []
            [licenses]
            allow = ["MIT"]
            [bans]
            skip = [{ name = "a", version = "1", reason = "b's" }]
            deny = [{ name = "banned", wrappers = ["wrapper"] }, { name = "never" }]
            "#,
        )
        .unwrap()
    }

    fn said(crates: Vec<Crate>) -> String {
        faults(&rules(), &Graph { crates }).join("\n")
    }

    #[test]
    fn what_is_there_twice_is_in_the_list_or_a_fault() {
        let (a1, a2) = (found("a", "1.2.0"), found("a", "2.0.0"));
        assert_eq!(said(vec![a1.clone(), a2.clone()]), "");
        assert!(
            said(vec![a1.clone(), a2.clone(), found("a", "3.0.0")]).contains("1.2.0, 2.0.0, 3.0.0")
        );
        assert!(
            said(vec![
                a1.clone(),
                a2.clone(),
                found("b", "1.0.0"),
                found("b", "1.1.0")
            ])
            .contains("b is there")
        );
        let tested = Crate {
            is_built: false,
            ..found("b", "1.1.0")
        };
        assert_eq!(
            said(vec![a1.clone(), a2.clone(), found("b", "1.0.0"), tested]),
            ""
        );
        // An exception that nobody needs any more, and one that is another number's.
        assert!(said(vec![a2.clone()]).contains("not there beside another"));
        assert!(said(vec![found("a", "10.0.0"), a2]).contains("not there beside another"));
    }

    #[test]
    fn licenses_sources_and_users_are_those_that_are_allowed() {
        let both = || vec![found("a", "1.2.0"), found("a", "2.0.0")];
        let with = |more: Crate| said([both(), vec![more]].concat());
        let of = |license: Option<&str>| Crate {
            license: license.map(ToOwned::to_owned),
            ..found("b", "1.0.0")
        };
        assert!(with(of(Some("GPL-3.0"))).contains("GPL-3.0 is no allowed license"));
        assert!(with(of(None)).contains("names no license"));
        let source = Some("git+https://example.com/b".to_owned());
        let elsewhere = Crate {
            source,
            ..found("b", "1.0.0")
        };
        assert!(with(elsewhere).contains("not come from crates.io"));
        let user = |name: &str, of: &str| Crate {
            uses: vec![of.to_owned()],
            ..found(name, "1.0.0")
        };
        assert_eq!(with(user("wrapper", "banned")), "");
        assert!(with(user("other", "banned")).contains("other: it must not use banned"));
        assert!(with(user("wrapper", "never")).contains("must not use never"));
    }
}
