//! docs/engines.md names tests that there are.

use std::fs;
use std::path::Path;

/// Shorter words with an underscore are not names of tests.
const SHORTEST: usize = 16;

#[test]
fn each_cell_of_the_table_names_a_test_or_says_no() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(here.join("../../docs/engines.md")).unwrap();
    let mut tests = String::new();
    for entry in fs::read_dir(here.join("tests")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "rs") {
            tests.push_str(&fs::read_to_string(path).unwrap());
        }
    }
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let mut named = 0;
    for row in rows.filter(|row| !row.starts_with("| feature") && !row.starts_with("| ---")) {
        for cell in row.trim_matches('|').split('|').skip(1) {
            let words = cell.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            let is_name = |word: &&str| word.contains('_') && word.len() >= SHORTEST;
            let names: Vec<&str> = words.filter(is_name).collect();
            let says_no = cell.trim_start().starts_with("no");
            let is_script = cell.contains("scripts/") || cell.trim().is_empty();
            assert!(!names.is_empty() || says_no || is_script, "{cell} in {row}");
            for name in names {
                named += 1;
                let function = format!("fn privileged_{name}()");
                assert!(tests.contains(&function), "there is no test {name}: {row}");
            }
        }
    }
    assert!(named > 20, "the table was not understood");
}
