//! An image as an engine keeps it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use blocks::Digest;
use serde::{Deserialize, Deserializer, Serialize};

/// An image in an engine's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocalImage {
    /// What it was asked for by, or its first name, or its ID if it has no name.
    pub reference: String,
    /// All names it has.
    pub names: Vec<String>,
    /// The digest of its configuration: Docker's image ID.
    pub image: Digest,
    /// The digest of its manifest, if the engine knows one: of images that came from a registry.
    pub manifest: Option<Digest>,
    /// Its layers, the bottom one first.
    pub layers: Vec<LocalLayer>,
    /// How it is run.
    pub config: ImageConfig,
}

/// A layer in an engine's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocalLayer {
    /// The digest of its uncompressed tar.
    pub diff_id: Digest,
    /// The directory with its files, as overlayfs has them.
    pub dir: PathBuf,
}

/// What an image's configuration says of running it (OCI image specification, `config`). Docker
/// adds the health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    /// What is executed; the command's words follow it.
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// What is executed if there is no entry point, or else its arguments.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// `NAME=VALUE`.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// `USER[:GROUP]`, by name or number; empty is root.
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// Where it starts; empty is `/`.
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    /// `PORT/PROTOCOL`.
    #[serde(deserialize_with = "or_default")]
    pub exposed_ports: BTreeMap<String, serde_json::Value>,
    /// How to see whether it is well.
    pub healthcheck: Option<HealthCheck>,
    /// What the shell form of commands runs in; empty is `/bin/sh -c`.
    #[serde(deserialize_with = "or_default")]
    pub shell: Vec<String>,
    /// Labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
}

/// An image's `HEALTHCHECK`. Times of 0 are Docker's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HealthCheck {
    /// `CMD` and a command, `CMD-SHELL` and a line for the shell, or `NONE`.
    #[serde(deserialize_with = "or_default")]
    pub test: Vec<String>,
    /// Nanoseconds between two checks.
    #[serde(rename = "Interval", deserialize_with = "or_default")]
    pub interval_ns: i64,
    /// Nanoseconds that one check may take.
    #[serde(rename = "Timeout", deserialize_with = "or_default")]
    pub timeout_ns: i64,
    /// Nanoseconds in which failures do not count.
    #[serde(rename = "StartPeriod", deserialize_with = "or_default")]
    pub start_period_ns: i64,
    /// Failures in a row until it is unhealthy.
    #[serde(deserialize_with = "or_default")]
    pub retries: i64,
}

/// The configuration file of an image: `config` and `rootfs` of the OCI image specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ConfigFile {
    /// How the image is run.
    #[serde(default, deserialize_with = "or_default")]
    pub config: ImageConfig,
    /// What it is made of.
    pub rootfs: RootFs,
}

/// The layers in an image's configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct RootFs {
    /// The digests of the uncompressed layers, the bottom one first.
    #[serde(default, deserialize_with = "or_default", alias = "Layers")]
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Returns the command of the health check, if the image has one that is not switched off.
    #[must_use]
    pub fn health_command(&self) -> Option<Vec<String>> {
        let test = &self.healthcheck.as_ref()?.test;
        let (kind, rest) = test.split_first()?;
        match (kind.as_str(), rest) {
            ("CMD", [_, ..]) => Some(rest.to_vec()),
            ("CMD-SHELL", [line, ..]) => {
                let mut command = self.shell.clone();
                if command.is_empty() {
                    command = ["/bin/sh", "-c"].map(str::to_owned).to_vec();
                }
                command.push(line.clone());
                Some(command)
            }
            _ => None,
        }
    }

    /// Returns the lowest TCP port the image says it listens on.
    #[must_use]
    pub fn exposed_tcp_port(&self) -> Option<u16> {
        let tcp = |port: &String| {
            let (number, protocol) = port.split_once('/').unwrap_or((port, "tcp"));
            (protocol == "tcp")
                .then(|| number.parse::<u16>().ok())
                .flatten()
        };
        self.exposed_ports.keys().filter_map(tcp).min()
    }

    /// Returns what is executed when the image is run, with `command` in place of its own if that
    /// is not empty.
    #[must_use]
    pub fn argv(&self, command: &[String]) -> Vec<String> {
        let command = if command.is_empty() {
            &self.cmd
        } else {
            command
        };
        [self.entrypoint.as_slice(), command].concat()
    }
}

impl HealthCheck {
    /// Returns how long one check may take; Docker's default is 30 s.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        match u64::try_from(self.timeout_ns) {
            Ok(nanos) if nanos > 0 => Duration::from_nanos(nanos),
            _ => Duration::from_secs(30),
        }
    }
}

/// Go writes `null` for what is empty.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> ImageConfig {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn null_is_nothing() {
        let config = config(r#"{"Entrypoint":null,"Cmd":null,"Env":null,"ExposedPorts":null}"#);
        assert_eq!(config, ImageConfig::default());
        let file: ConfigFile =
            serde_json::from_str(r#"{"config":null,"rootfs":{"type":"layers","diff_ids":null}}"#)
                .unwrap();
        assert_eq!(file, ConfigFile::default());
    }

    #[test]
    fn health_is_a_command() {
        let command = |test: &str| {
            let json = format!(r#"{{"Healthcheck":{{"Test":{test}}}}}"#);
            config(&json).health_command()
        };
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(command(r#"["CMD","a","b"]"#), words(&["a", "b"]));
        assert_eq!(
            command(r#"["CMD-SHELL","a || b"]"#),
            words(&["/bin/sh", "-c", "a || b"])
        );
        for none in [r#"["NONE"]"#, "[]", "null", r#"["CMD"]"#] {
            assert_eq!(command(none), None, "{none}");
        }
    }

    #[test]
    fn the_lowest_tcp_port_counts() {
        let config = config(r#"{"ExposedPorts":{"443/tcp":{},"53/udp":{},"80":{},"x/tcp":{}}}"#);
        assert_eq!(config.exposed_tcp_port(), Some(80));
    }

    #[test]
    fn a_command_replaces_cmd_and_not_the_entry_point() {
        let config = config(r#"{"Entrypoint":["e"],"Cmd":["c"]}"#);
        assert_eq!(config.argv(&[]), ["e", "c"]);
        assert_eq!(config.argv(&["x".to_owned()]), ["e", "x"]);
    }
}
