//! docs/api.md: its examples are run, and its table is the one of the routes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use super::routes::{self, ROUTES};
use super::{Api, listen};
use node_api::client::{NodeClient, Received};
use node_api::memory::MemoryNode;

/// One example: a request, and what it is said to be answered.
struct Example {
    method: Method,
    path: String,
    body: String,
    status: u16,
    answer: String,
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    std::fs::read_to_string(path).unwrap()
}

fn examples(page: &str) -> Vec<Example> {
    let blocks = page.split("```http\n").skip(1);
    blocks
        .map(|rest| parse(rest.split_once("```").unwrap().0))
        .collect()
}

fn parse(block: &str) -> Example {
    let (request, answer) = block.split_once("\n\n").unwrap();
    let (line, body) = request.split_once('\n').unwrap_or((request, ""));
    let (method, path) = line.split_once(' ').unwrap();
    let (status, answer) = answer.split_once('\n').unwrap();
    Example {
        method: method.parse().unwrap(),
        path: path.to_owned(),
        body: body.to_owned(),
        status: status.parse().unwrap(),
        answer: answer.trim_end().to_owned(),
    }
}

/// Returns whether an answer is what the page says: a document with these fields, or the same
/// text as far as `...` goes.
fn same(received: &Received, answer: &str) -> bool {
    let text = std::str::from_utf8(&received.body).unwrap().trim_end();
    if let Some(beginning) = answer.strip_suffix("...") {
        return text.starts_with(beginning);
    }
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (json(text), json(answer)) {
        (Some(is), Some(said)) => has(&is, &said),
        _ => text == answer,
    }
}

/// Returns whether a value has all that is said of it; an object may have more fields.
fn has(is: &Value, said: &Value) -> bool {
    match (is, said) {
        (Value::Object(is), Value::Object(said)) => {
            let mut fields = said.iter();
            fields.all(|(name, said)| is.get(name).is_some_and(|is| has(is, said)))
        }
        (Value::Array(is), Value::Array(said)) => {
            is.len() == said.len() && is.iter().zip(said).all(|(is, said)| has(is, said))
        }
        _ => is == said,
    }
}

/// Collects the names of all fields of a document, but not the kinds of requests.
fn fields(document: &Value, names: &mut BTreeSet<String>) {
    match document {
        Value::Array(items) => items.iter().for_each(|item| fields(item, names)),
        Value::Object(object) => {
            for (name, value) in object {
                names.insert(name.clone());
                if name != "requests" {
                    fields(value, names);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_example_is_what_happens() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("node.sock");
    let api = Api::serve(listen(&socket).unwrap(), Arc::new(MemoryNode::default())).unwrap();
    let client = NodeClient::at(&socket);
    let mut wrong = String::new();
    let mut shown = Vec::new();
    let mut names = BTreeSet::new();
    for example in examples(&page()) {
        let Example {
            method, path, body, ..
        } = example;
        let what = format!("{method} {path}");
        let (route, _) = routes::find(&method, path.split('?').next().unwrap()).unwrap();
        shown.push((&route.method, route.path));
        let deadline = Duration::from_secs(60);
        let received = client
            .exchange(deadline, method, &path, body.into())
            .unwrap();
        let text = String::from_utf8_lossy(&received.body);
        if let Ok(document) = serde_json::from_str(&text) {
            fields(&document, &mut names);
        }
        if received.status.as_u16() != example.status || !same(&received, &example.answer) {
            wrong.push_str(&format!("{what}: {} {text}\n", received.status.as_u16()));
        }
    }
    drop(api);
    assert!(wrong.is_empty(), "docs/api.md says otherwise:\n{wrong}");
    let pages = [page(), include_str!("../../../../docs/cli.md").to_owned()].concat();
    names.retain(|name| !pages.contains(&format!("`{name}`")));
    assert!(
        names.is_empty(),
        "neither in docs/api.md nor in docs/cli.md: {names:?}"
    );
    for route in ROUTES {
        let request = (&route.method, route.path);
        assert!(shown.contains(&request), "no example of {request:?}");
    }
}

#[test]
fn the_table_has_every_request() {
    let page = page();
    let documented = page.lines().filter(|line| {
        line.starts_with("| `GET /") || {
            let methods = ["POST", "PUT", "DELETE"];
            methods
                .iter()
                .any(|method| line.starts_with(&format!("| `{method} /")))
        }
    });
    let documented: Vec<_> = documented
        .map(|line| line.split(" | ").take(2).collect::<Vec<_>>().join(" | "))
        .collect();
    let routes: Vec<_> = ROUTES
        .iter()
        .map(|route| {
            let deadline = route.pace.deadline().as_secs();
            format!("| `{} {}` | {deadline} s", route.method, route.path)
        })
        .collect();
    assert_eq!(documented, routes);
}
