//! An image's configuration: how its containers start, and which layers it stacks.

use std::collections::BTreeMap;
use std::time::Duration;

use blocks::Digest;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Descriptor, DocumentError, LAYERS_MAX, Manifest, decode, null_is_nothing};

/// Bytes of a configuration that are read. Real ones have some kilobytes.
pub const CONFIG_MAX: u64 = 8 << 20;
/// How long Docker waits for a health check, if the image does not say.
const CHECK_TIME: Duration = Duration::from_secs(30);

/// The configuration of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// How its containers start.
    pub run: RunConfig,
    /// The digests of its layers' uncompressed tars, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// How the containers of an image start: the member `config` of its configuration. Docker adds the
/// health check and the shell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// The program, with the arguments that it always gets.
    #[serde(deserialize_with = "null_is_nothing")]
    pub entrypoint: Vec<String>,
    /// The arguments that a user may replace; without an entry point, program and arguments.
    #[serde(deserialize_with = "null_is_nothing")]
    pub cmd: Vec<String>,
    /// `NAME=VALUE` each.
    #[serde(deserialize_with = "null_is_nothing")]
    pub env: Vec<String>,
    /// `USER[:GROUP]`, names or numbers; empty is root.
    #[serde(deserialize_with = "null_is_nothing")]
    pub user: String,
    /// Where the program starts; empty is `/`.
    #[serde(deserialize_with = "null_is_nothing")]
    pub working_dir: String,
    /// `80/tcp` each, with an empty object.
    #[serde(deserialize_with = "null_is_nothing")]
    pub exposed_ports: BTreeMap<String, Exposed>,
    /// How a container's health is checked.
    pub healthcheck: Option<HealthCheck>,
    /// What the shell form of commands runs in; empty is `/bin/sh -c`.
    #[serde(deserialize_with = "null_is_nothing")]
    pub shell: Vec<String>,
}

/// The value of an exposed port: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exposed {}

impl<'de> Deserialize<'de> for Exposed {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

/// An image's `HEALTHCHECK`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HealthCheck {
    /// `CMD` and a command, `CMD-SHELL` and a line for the shell, or `NONE`.
    #[serde(deserialize_with = "null_is_nothing")]
    pub test: Vec<String>,
    /// Nanoseconds that one check may take; 0 is Docker's default.
    #[serde(rename = "Timeout", deserialize_with = "null_is_nothing")]
    pub timeout_ns: i64,
}

/// The document.
#[derive(Deserialize)]
struct Written {
    #[serde(default, deserialize_with = "null_is_nothing")]
    config: RunConfig,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default, deserialize_with = "null_is_nothing")]
    diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Decodes a configuration as engines write it.
    ///
    /// # Errors
    /// If it is not one, or has no layers or too many.
    pub fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        let written: Written = decode("configuration", bytes)?;
        let (run, diff_ids) = (written.config, written.rootfs.diff_ids);
        let rule = match diff_ids.len() {
            0 => "it has no layer",
            1..=LAYERS_MAX => return Ok(Self { run, diff_ids }),
            _ => "it has more than 500 layers",
        };
        let what = "configuration";
        Err(DocumentError::Rule { what, rule })
    }

    /// Returns the layers of the image, the lowest first: each blob with its diff ID.
    ///
    /// # Errors
    /// If the manifest has not as many layers as the configuration.
    pub fn layers_of<'a>(
        &self,
        manifest: &'a Manifest,
    ) -> Result<impl ExactSizeIterator<Item = (&'a Descriptor, Digest)> + use<'a, '_>, DocumentError>
    {
        self.expect_layers(manifest.layers.len())?;
        Ok(manifest.layers.iter().zip(self.diff_ids.iter().copied()))
    }

    /// Fails unless it has this many layers, which is how many blobs are there.
    ///
    /// # Errors
    /// If it has another number of them.
    pub fn expect_layers(&self, layers: usize) -> Result<(), DocumentError> {
        match self.diff_ids.len() {
            same if same == layers => Ok(()),
            diff_ids => Err(DocumentError::LayerCount { layers, diff_ids }),
        }
    }
}

impl RunConfig {
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

    /// Returns the lowest TCP port that the image exposes.
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
}

impl HealthCheck {
    /// Returns how long one check may take; Docker's default is 30 s.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        match u64::try_from(self.timeout_ns) {
            Ok(nanos) if nanos > 0 => Duration::from_nanos(nanos),
            _ => CHECK_TIME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: Digest = Digest([7; 32]);

    fn decode(run: &str) -> Result<ImageConfig, DocumentError> {
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{run},
            "history":[{{"created_by":"ADD x"}},{{"empty_layer":true}}],
            "rootfs":{{"type":"layers","diff_ids":["{LAYER}"]}}}}"#
        );
        ImageConfig::decode(text.as_bytes())
    }

    fn run(json: &str) -> RunConfig {
        let config = decode(json).unwrap();
        // What an engine prints of an image has the same form.
        let printed: RunConfig = serde_json::from_str(json).unwrap();
        assert_eq!(config.run, printed);
        printed
    }

    #[test]
    fn says_what_docker_wrote() {
        let written = r#"{"Entrypoint":["/entry"],"Cmd":["-g","off"],"Env":["A=b"],"User":"33:33",
            "WorkingDir":"/srv","ExposedPorts":{"80/tcp":{},"443/tcp":{}},"StopSignal":"SIGQUIT",
            "Labels":{"a":"b"},"Healthcheck":{"Test":["CMD","curl","x"],"Interval":5000000000,
            "Timeout":2000000000,"StartPeriod":1000000,"Retries":7}}"#;
        assert_eq!(decode(written).unwrap().diff_ids, [LAYER]);
        let run = run(written);
        assert_eq!(run.argv(&[]), ["/entry", "-g", "off"]);
        assert_eq!(run.env, ["A=b"]);
        assert_eq!(
            (run.user.as_str(), run.working_dir.as_str()),
            ("33:33", "/srv")
        );
        assert!(run.exposed_ports.keys().eq(["443/tcp", "80/tcp"]));
        assert_eq!(run.health_command().unwrap(), ["curl", "x"]);
        assert_eq!(
            run.healthcheck.as_ref().unwrap().timeout(),
            Duration::from_secs(2)
        );
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<RunConfig>(&text).unwrap(), run);
    }

    #[test]
    fn null_means_nothing() {
        let nothing = r#"{"Entrypoint":null,"Cmd":null,"Env":null,"ExposedPorts":null,
            "Labels":null,"Healthcheck":null,"StopSignal":""}"#;
        assert_eq!(run(nothing), RunConfig::default());
        assert_eq!(decode("null").unwrap().run, RunConfig::default());
        let none = ImageConfig::decode(br#"{"config":null,"rootfs":{"diff_ids":null}}"#);
        assert!(matches!(none, Err(DocumentError::Rule { .. })));
    }

    #[test]
    fn checks_have_three_forms() {
        let command = |test: &str, shell: &str| {
            run(&format!(
                r#"{{"Healthcheck":{{"Test":{test}}},"Shell":{shell}}}"#
            ))
            .health_command()
        };
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(command(r#"["CMD","a","b"]"#, "null"), words(&["a", "b"]));
        assert_eq!(
            command(r#"["CMD-SHELL","a || b"]"#, "null"),
            words(&["/bin/sh", "-c", "a || b"])
        );
        assert_eq!(
            command(r#"["CMD-SHELL","a || b"]"#, r#"["/bin/bash","-c"]"#),
            words(&["/bin/bash", "-c", "a || b"])
        );
        for none in [
            r#"["NONE"]"#,
            "[]",
            "null",
            r#"["CMD"]"#,
            r#"["CMD-SHELL"]"#,
        ] {
            assert_eq!(command(none, "null"), None, "{none}");
        }
    }

    #[test]
    fn a_check_without_a_time_has_dockers() {
        for text in ["{}", r#"{"Timeout":0}"#, r#"{"Timeout":-1}"#] {
            let check: HealthCheck = serde_json::from_str(text).unwrap();
            assert_eq!(check.timeout(), Duration::from_secs(30), "{text}");
        }
    }

    #[test]
    fn the_lowest_tcp_port_counts() {
        let run = run(r#"{"ExposedPorts":{"443/tcp":{},"53/udp":{},"80":{},"x/tcp":{}}}"#);
        assert_eq!(run.exposed_tcp_port(), Some(80));
    }

    #[test]
    fn a_command_replaces_cmd_and_not_the_entry_point() {
        let run = run(r#"{"Entrypoint":["e"],"Cmd":["c"]}"#);
        assert_eq!(run.argv(&[]), ["e", "c"]);
        assert_eq!(run.argv(&["x".to_owned()]), ["e", "x"]);
    }

    #[test]
    fn an_image_has_layers_but_not_too_many() {
        let with = |layers: usize| {
            let ids = vec![format!("\"{LAYER}\""); layers].join(",");
            ImageConfig::decode(format!(r#"{{"rootfs":{{"diff_ids":[{ids}]}}}}"#).as_bytes())
        };
        assert!(with(1).is_ok());
        assert!(with(0).is_err());
        assert!(with(1000).is_err());
        let config = with(2).unwrap();
        assert!(config.expect_layers(2).is_ok());
        assert_eq!(
            config.expect_layers(3).unwrap_err().to_string(),
            "the image is invalid: its manifest has 3 layers, and its configuration 2"
        );
    }
}
