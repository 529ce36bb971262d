//! Reading a file of settings, which is TOML. Those of earlier releases were JSON, and are read as well.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::de::DeserializeOwned;

/// The longest file of settings or credentials, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Reads a file of settings or credentials.
///
/// # Errors
/// If it cannot be read, or is too long for one.
pub(super) fn small_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let reading = || format!("reading {}", path.display());
    let length = fs::metadata(path).with_context(reading)?.len();
    ensure!(
        length <= FILE_MAX,
        "{} has {length} bytes, and no file of settings has more than {FILE_MAX}",
        path.display()
    );
    fs::read(path).with_context(reading)
}

/// Parses the text of a file.
///
/// # Errors
/// If it is neither TOML nor JSON, or has fields that are not known.
pub(super) fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> anyhow::Result<T> {
    // No TOML document begins with a brace, and every JSON object does.
    if text.trim_ascii_start().first() == Some(&b'{') {
        let parsed = serde_json::from_slice(text)?;
        log::warn!(
            "{} is JSON, as in earlier releases; a later one will read TOML only",
            path.display()
        );
        return Ok(parsed);
    }
    let text = str::from_utf8(text).context("it is not text in UTF-8")?;
    Ok(toml::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pair {
        name: String,
        number: u32,
    }

    fn pair(text: &str) -> anyhow::Result<Pair> {
        parse(Path::new("pair"), text.as_bytes())
    }

    #[test]
    fn toml_and_json_say_the_same() {
        let toml = pair("# two fields\nname = \"a\"\nnumber = 7\n").unwrap();
        let json = pair(" \n{\"name\": \"a\", \"number\": 7}").unwrap();
        assert_eq!(toml, json);
        for wrong in ["name = \"a\"", "name = a", "{\"name\": \"a\"}", "[name]"] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
        let unknown = pair("name = \"a\"\nnumber = 7\nnumbers = 8\n").unwrap_err();
        assert!(unknown.to_string().contains("numbers"), "{unknown}");
        assert!(parse::<Pair>(Path::new("pair"), b"name = \"\xff\"").is_err());
    }
}
