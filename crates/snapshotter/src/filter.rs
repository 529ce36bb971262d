//! containerd's filters: `kind==active,labels."a.b"~=/^x/`.
//!
//! A filter is a list of selectors, all of which must match; of several filters one must. A
//! selector is a field, and optionally an operator and a value; without them the field must exist.
//! A missing field has the empty value, so `labels.x!=y` matches where there is no `x`.

mod error;
mod scan;

use regex::{Regex, RegexBuilder};

use crate::snapshot::Snapshot;
pub use error::FilterError;
use scan::Scanner;

/// Most filters in a request, and most bytes in one: a client of containerd has a few of some
/// dozen bytes.
const MAX_FILTERS: usize = 64;
const MAX_FILTER_BYTES: usize = 4096;
/// Most bytes that a compiled regular expression may take.
const MAX_REGEX_BYTES: usize = 1 << 20;

#[derive(Debug)]
enum Test {
    Present,
    Equal(String),
    NotEqual(String),
    Matches(Regex),
}

#[derive(Debug)]
struct Selector {
    path: Vec<String>,
    test: Test,
}

/// The filter of a client's request.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// Empty: all of them.
    any: Vec<Vec<Selector>>,
}

impl Filter {
    /// Parses the filters of a request.
    ///
    /// # Errors
    /// If one is not a filter, or they are too many or too long.
    pub(crate) fn parse(filters: &[String]) -> Result<Self, FilterError> {
        if filters.len() > MAX_FILTERS {
            return Err(FilterError {
                filter: String::new(),
                at: 0,
                expected: format!("at most {MAX_FILTERS} filters, not {},", filters.len()),
            });
        }
        // An empty filter matches everything, and so does whatever contains it.
        if filters.iter().any(String::is_empty) {
            return Ok(Self::default());
        }
        let any = filters.iter().map(|filter| selectors(filter));
        Ok(Self {
            any: any.collect::<Result<_, _>>()?,
        })
    }

    /// Returns whether the filter matches `snapshot`.
    #[must_use]
    pub(crate) fn matches(&self, snapshot: &Snapshot) -> bool {
        self.any.is_empty()
            || self
                .any
                .iter()
                .any(|all| all.iter().all(|selector| selector.matches(snapshot)))
    }
}

impl Selector {
    fn matches(&self, snapshot: &Snapshot) -> bool {
        let field = field(snapshot, &self.path);
        let value = field.unwrap_or_default();
        match &self.test {
            Test::Present => field.is_some(),
            Test::Equal(wanted) => field.is_some() && value == wanted,
            Test::NotEqual(unwanted) => value != unwanted,
            Test::Matches(regex) => regex.is_match(value),
        }
    }
}

/// Returns the field at `path`. A label's key has dots, quoted or not.
fn field<'a>(snapshot: &'a Snapshot, path: &[String]) -> Option<&'a str> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "name" => Some(&snapshot.name),
        "parent" => Some(snapshot.parent.as_deref().unwrap_or_default()),
        "kind" => Some(snapshot.kind.word()),
        "labels" => snapshot.labels.get(&rest.join(".")).map(String::as_str),
        _ => None,
    }
}

fn selectors(filter: &str) -> Result<Vec<Selector>, FilterError> {
    if filter.len() > MAX_FILTER_BYTES {
        return Err(FilterError {
            filter: filter.chars().take(80).collect(),
            at: MAX_FILTER_BYTES,
            expected: format!("the end, for a filter has at most {MAX_FILTER_BYTES} bytes,"),
        });
    }
    let mut scanner = Scanner::new(filter);
    let mut all = vec![selector(&mut scanner)?];
    while scanner.eat(",") {
        all.push(selector(&mut scanner)?);
    }
    if scanner.at_end() {
        Ok(all)
    } else {
        Err(scanner.expected("',' or the end"))
    }
}

fn selector(scanner: &mut Scanner<'_>) -> Result<Selector, FilterError> {
    let mut path = vec![scanner.field()?];
    while scanner.eat(".") {
        path.push(scanner.field()?);
    }
    let test = if scanner.eat("==") {
        Test::Equal(scanner.value()?)
    } else if scanner.eat("!=") {
        Test::NotEqual(scanner.value()?)
    } else if scanner.eat("~=") {
        Test::Matches(regex(scanner)?)
    } else if scanner.at_end() || scanner.next_is(',') {
        Test::Present
    } else {
        return Err(scanner.expected("'==', '!=' or '~='"));
    };
    Ok(Selector { path, test })
}

fn regex(scanner: &mut Scanner<'_>) -> Result<Regex, FilterError> {
    let text = scanner.pattern()?;
    RegexBuilder::new(&text)
        .size_limit(MAX_REGEX_BYTES)
        .build()
        .map_err(|_| scanner.expected("a regular expression that is valid and small"))
}

#[cfg(test)]
mod tests;
