//! Modules that import each other in a circle: none of them can be read, tested or moved alone.
//!
//! Each `use`, and each path that begins with `crate`, `self` or `super`, is followed to the module
//! that defines what it names, through re-exports. A module and those below it count as one idea, so
//! what they import of each other makes no circle.

mod modules;
mod paths;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;

use crate::workspace::Package;
use modules::Modules;

/// Which module imports which, by number.
pub(crate) type Imports = BTreeMap<usize, BTreeSet<usize>>;

/// Fails, and shows the circles, if modules import each other in one.
pub(crate) fn check(packages: &[Package]) -> anyhow::Result<()> {
    let mut faults = Vec::new();
    for package in packages {
        let Some(library) = &package.library else {
            continue;
        };
        let modules = Modules::load(library)?;
        let circles = circles(&modules.imports());
        if !circles.is_empty() {
            faults.push(format!(
                "{}: modules import each other in circles: move what both need to a file of its own\n{}",
                package.name,
                shown(&modules, &circles)
            ));
        }
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    println!("circles: none");
    Ok(())
}

/// Prints the circles of all packages, with one way round through each.
pub(crate) fn report(packages: &[Package]) -> anyhow::Result<()> {
    for package in packages {
        if let Some(library) = &package.library {
            let modules = Modules::load(library)?;
            let circles = circles(&modules.imports());
            if !circles.is_empty() {
                println!("{}\n{}", package.name, shown(&modules, &circles));
            }
        }
    }
    Ok(())
}

fn shown(modules: &Modules, circles: &[BTreeSet<usize>]) -> String {
    let imports = modules.imports();
    let lines = circles.iter().map(|circle| {
        let way = way_round(&imports, circle);
        let way: Vec<_> = way.iter().map(|at| modules.name(*at)).collect();
        format!("  {} modules: {}", circle.len(), way.join(" -> "))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the groups of modules that reach each other, the largest first.
fn circles(imports: &Imports) -> Vec<BTreeSet<usize>> {
    let reached: BTreeMap<usize, BTreeSet<usize>> = imports
        .keys()
        .map(|from| (*from, reachable(imports, *from)))
        .collect();
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    let mut found: Vec<BTreeSet<usize>> = Vec::new();
    for (from, targets) in &reached {
        if !targets.contains(from) || seen.contains(from) {
            continue;
        }
        let circle: BTreeSet<usize> = targets
            .iter()
            .copied()
            .filter(|to| reached.get(to).is_some_and(|back| back.contains(from)))
            .collect();
        seen.extend(&circle);
        found.push(circle);
    }
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

/// Returns what is imported from `from` on, near and far; `from` itself only by a circle.
fn reachable(imports: &Imports, from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        for to in imports.get(&at).into_iter().flatten() {
            if found.insert(*to) {
                next.push(*to);
            }
        }
    }
    found
}

/// Returns a shortest way from the first module of a circle back to it.
fn way_round(imports: &Imports, circle: &BTreeSet<usize>) -> Vec<usize> {
    let Some(first) = circle.first().copied() else {
        return Vec::new();
    };
    let mut ways = std::collections::VecDeque::from([vec![first]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let at = way.last().copied().unwrap_or(first);
        for to in imports.get(&at).into_iter().flatten() {
            if *to == first {
                return [way, vec![first]].concat();
            }
            if circle.contains(to) && seen.insert(*to) {
                ways.push_back([way.clone(), vec![*to]].concat());
            }
        }
    }
    vec![first]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(edges: &[(usize, usize)]) -> Imports {
        let mut imports = Imports::new();
        for (from, to) in edges {
            imports.entry(*from).or_default().insert(*to);
        }
        imports
    }

    #[test]
    fn finds_each_circle_once_and_the_shortest_way_round() {
        let imports = imports(&[
            (1, 2),
            (2, 3),
            (3, 1),
            (3, 2),
            (4, 1),
            (5, 6),
            (6, 5),
            (7, 7),
        ]);
        let found = circles(&imports);
        let expected = [vec![1, 2, 3], vec![5, 6], vec![7]].map(BTreeSet::from_iter);
        assert_eq!(found, expected);
        assert_eq!(way_round(&imports, &found[0]), [1, 2, 3, 1]);
        assert!(circles(&self::imports(&[(1, 2), (2, 3), (1, 3)])).is_empty());
    }

    /// Writes a crate of these files, and returns its circles by name.
    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let modules = Modules::load(&dir.path().join("lib.rs")).unwrap();
        let circles = circles(&modules.imports());
        let names = |circle: &BTreeSet<usize>| circle.iter().map(|at| modules.name(*at)).collect();
        circles.iter().map(names).collect()
    }

    #[test]
    fn a_re_export_leads_to_the_module_that_defines_what_it_names() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "mod inner; pub use inner::Thing; use crate::b::run;",
            ),
            ("a/inner.rs", "pub struct Thing;"),
            ("b.rs", "use crate::a::Thing; pub fn run(_: Thing) {}"),
        ];
        // `b` needs what `a::inner` defines, which needs nothing.
        assert_eq!(circles_of(&files), [[""; 0]; 0]);
    }

    #[test]
    fn two_modules_that_need_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use super::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { let _ = crate::a::A(B); }"),
        ];
        assert_eq!(circles_of(&files), [["a", "b"]]);
    }

    #[test]
    fn a_module_and_its_children_are_one_idea_and_tests_do_not_count() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "mod child; use child::C; pub struct A(C); use crate::b::B;",
            ),
            ("a/child.rs", "use super::A; pub struct C; fn f(_: A) {}"),
            (
                "b.rs",
                "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
            ),
        ];
        assert_eq!(circles_of(&files), [[""; 0]; 0]);
    }
}
