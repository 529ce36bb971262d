//! An image's configuration: how its containers start, and which layers it stacks.

use std::collections::BTreeMap;
use std::time::Duration;

use blocks::Digest;
use serde::Deserialize;

use crate::ImageError;
use crate::document::{LAYERS_MAX, decode};

/// Bytes of a configuration. Real ones have some kilobytes.
pub(crate) const CONFIG_MAX: u64 = 8 << 20;
/// What Docker waits between two checks, and for one, if the image does not say.
const CHECK_TIME: Duration = Duration::from_secs(30);
/// Failures in a row that make a container unhealthy, if the image does not say.
const CHECK_RETRIES: u32 = 3;

/// What an image says of the containers made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// The architecture as Go calls it: `amd64`.
    pub architecture: String,
    /// The operating system: `linux`.
    pub os: String,
    /// The program, with the arguments that it always gets.
    pub entrypoint: Vec<String>,
    /// The arguments that a person may replace.
    pub cmd: Vec<String>,
    /// `NAME=value` each.
    pub env: Vec<String>,
    /// `user[:group]`, names or numbers; empty is root.
    pub user: String,
    /// Where the program starts; empty is `/`.
    pub working_dir: String,
    /// How to ask a container whether it is well.
    pub healthcheck: Option<Healthcheck>,
    /// `80/tcp` each, sorted.
    pub exposed_ports: Vec<String>,
    /// The signal that stops it, by name or number.
    pub stop_signal: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// How the image was made, the lowest layer first.
    pub history: Vec<History>,
    /// The layers, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// How to ask a container whether it is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Healthcheck {
    /// What to run in it.
    pub test: HealthTest,
    /// Time between two checks.
    pub interval: Duration,
    /// Time after which a check has failed.
    pub timeout: Duration,
    /// Time in which failures do not count.
    pub start_period: Duration,
    /// Failures in a row that make it unhealthy.
    pub retries: u32,
}

/// The command of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthTest {
    /// A program and its arguments.
    Exec(Vec<String>),
    /// A line for the shell.
    Shell(String),
}

/// One step of how an image was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct History {
    /// What was done.
    pub created_by: String,
    /// Whether it made no layer.
    pub empty_layer: bool,
}

impl ImageConfig {
    /// Decodes a configuration as engines write it.
    ///
    /// # Errors
    /// If it is not one, or has too many layers.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        let written: Written = decode("configuration", bytes)?;
        let rule = |rule| {
            Err(ImageError::Rule {
                what: "configuration",
                rule,
            })
        };
        match written.rootfs.diff_ids.len() {
            0 => return rule("it has no layer"),
            1..=LAYERS_MAX => {}
            _ => return rule("it has more than 500 layers"),
        }
        Ok(written.into())
    }

    /// Returns the command line that a container runs if nobody says otherwise.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        [self.entrypoint.as_slice(), &self.cmd].concat()
    }
}

/// The document. Engines write `null` where they mean nothing.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    os: Option<String>,
    #[serde(default)]
    config: Option<Run>,
    #[serde(default)]
    history: Option<Vec<History>>,
    rootfs: Rootfs,
}

#[derive(Deserialize)]
struct Rootfs {
    diff_ids: Vec<Digest>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Run {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    healthcheck: Option<Check>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
    stop_signal: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

/// Durations are nanoseconds; zero means the default.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Check {
    test: Option<Vec<String>>,
    interval: u64,
    timeout: u64,
    start_period: u64,
    retries: u32,
}

impl From<Written> for ImageConfig {
    fn from(written: Written) -> Self {
        let run = written.config.unwrap_or_default();
        let ports = run.exposed_ports.unwrap_or_default();
        Self {
            architecture: written.architecture.unwrap_or_default(),
            os: written.os.unwrap_or_default(),
            entrypoint: run.entrypoint.unwrap_or_default(),
            cmd: run.cmd.unwrap_or_default(),
            env: run.env.unwrap_or_default(),
            user: run.user.unwrap_or_default(),
            working_dir: run.working_dir.unwrap_or_default(),
            healthcheck: run.healthcheck.and_then(Check::healthcheck),
            exposed_ports: ports.into_keys().collect(),
            stop_signal: run.stop_signal.filter(|signal| !signal.is_empty()),
            labels: run.labels.unwrap_or_default(),
            history: written.history.unwrap_or_default(),
            diff_ids: written.rootfs.diff_ids,
        }
    }
}

impl Check {
    /// Returns `None` for a check that says that there is none.
    fn healthcheck(self) -> Option<Healthcheck> {
        let test = self.test.unwrap_or_default();
        let (how, rest) = test.split_first()?;
        let test = match how.as_str() {
            "CMD" if !rest.is_empty() => HealthTest::Exec(rest.to_vec()),
            "CMD-SHELL" => HealthTest::Shell(rest.first()?.clone()),
            _ => return None, // "NONE": turned off
        };
        let or_default = |nanos: u64| match nanos {
            0 => CHECK_TIME,
            nanos => Duration::from_nanos(nanos),
        };
        Some(Healthcheck {
            test,
            interval: or_default(self.interval),
            timeout: or_default(self.timeout),
            start_period: Duration::from_nanos(self.start_period),
            retries: if self.retries == 0 {
                CHECK_RETRIES
            } else {
                self.retries
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest_of;

    fn decode(run: &str) -> Result<ImageConfig, ImageError> {
        let layer = digest_of(b"layer");
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{run},
            "history":[{{"created_by":"ADD x"}},{{"empty_layer":true}}],
            "rootfs":{{"type":"layers","diff_ids":["{layer}"]}}}}"#
        );
        ImageConfig::decode(text.as_bytes())
    }

    #[test]
    fn says_what_docker_wrote() {
        let config = decode(
            r#"{"Entrypoint":["/entry"],"Cmd":["-g","off"],"Env":["A=b"],"User":"33:33",
            "WorkingDir":"/srv","ExposedPorts":{"80/tcp":{},"443/tcp":{}},"StopSignal":"SIGQUIT",
            "Labels":{"a":"b"},"Healthcheck":{"Test":["CMD","curl","x"],"Interval":5000000000,
            "StartPeriod":1000000,"Retries":7}}"#,
        )
        .unwrap();
        assert_eq!(config.command(), ["/entry", "-g", "off"]);
        assert_eq!(config.exposed_ports, ["443/tcp", "80/tcp"]);
        assert_eq!(config.stop_signal.as_deref(), Some("SIGQUIT"));
        assert_eq!(config.history.len(), 2);
        assert_eq!(config.diff_ids, [digest_of(b"layer")]);
        let check = config.healthcheck.unwrap();
        assert_eq!(
            check.test,
            HealthTest::Exec(vec!["curl".into(), "x".into()])
        );
        assert_eq!(check.interval, Duration::from_secs(5));
        assert_eq!(check.timeout, Duration::from_secs(30));
        assert_eq!(check.start_period, Duration::from_millis(1));
        assert_eq!(check.retries, 7);
    }

    #[test]
    fn null_means_nothing() {
        let config = decode(r#"{"Entrypoint":null,"Cmd":null,"Labels":null,"StopSignal":""}"#);
        let config = config.unwrap();
        assert_eq!(config.command(), [""; 0]);
        assert_eq!((config.healthcheck, config.stop_signal), (None, None));
        assert!(decode("null").is_ok());
    }

    #[test]
    fn checks_have_three_forms() {
        let test = |test: &str| {
            let config = decode(&format!(r#"{{"Healthcheck":{{"Test":{test}}}}}"#));
            config.unwrap().healthcheck.map(|check| check.test)
        };
        assert_eq!(
            test(r#"["CMD-SHELL","a b"]"#),
            Some(HealthTest::Shell("a b".into()))
        );
        assert_eq!(
            test(r#"["CMD","a"]"#),
            Some(HealthTest::Exec(vec!["a".into()]))
        );
        for none in [
            r#"["NONE"]"#,
            "[]",
            "null",
            r#"["CMD"]"#,
            r#"["CMD-SHELL"]"#,
        ] {
            assert_eq!(test(none), None, "{none}");
        }
    }

    #[test]
    fn an_image_has_layers_but_not_too_many() {
        let with = |layers: usize| {
            let id = format!("\"{}\"", digest_of(b"layer"));
            let ids = vec![id; layers].join(",");
            ImageConfig::decode(format!(r#"{{"rootfs":{{"diff_ids":[{ids}]}}}}"#).as_bytes())
        };
        assert!(with(1).is_ok());
        assert!(with(0).is_err());
        assert!(with(1000).is_err());
    }
}
