//! When a container is ready, on any engine.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::bail;
use engine::Followed;
use oci::RunConfig;

use crate::container_engine::Running;
use crate::line_watch::LineWatch;
use crate::net_probe::NetProbe;
use crate::not_ready::NotReady;
use crate::until::{Checks, Until};
use host::interrupt::Interrupt;

/// How often ports, URLs and silence are looked at; the error of the time to ready they give.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// How often the engine is asked how the container is: the question costs it work, too.
const HEALTH_EVERY: Duration = Duration::from_millis(100);
/// How long a container may live on when its output has ended.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// How many lines of its output go into the message about a container that failed.
const LAST_LINES: usize = 10;
/// How long a boot without a health check and a port has to be quiet.
const QUIET: Duration = Duration::from_secs(2);

/// A condition, and its origin.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) until: Until,
    /// The reason, if the user did not choose it.
    pub(crate) because: Option<&'static str>,
}

/// Chooses when an image counts as ready, if the user does not.
///
/// # Errors
/// If the user requests a health check, and the image has none.
pub(crate) fn choose(wanted: Option<&Until>, config: &RunConfig) -> anyhow::Result<Chosen> {
    let has_check = config.health_command().is_some();
    if let Some(until) = wanted {
        if matches!(until, Until::Healthy(_)) && !has_check {
            bail!("the image has no HEALTHCHECK: wait for something else (`until`)");
        }
        let (until, because) = (until.clone(), None);
        return Ok(Chosen { until, because });
    }
    let (until, because) = if has_check {
        (Until::Healthy(Checks::Often), "the image has a HEALTHCHECK")
    } else if let Some(port) = config.exposed_tcp_port() {
        (Until::Tcp(port), "the image exposes the port")
    } else {
        let why = "the image has neither a HEALTHCHECK nor an exposed port";
        (Until::Quiet(QUIET), why)
    };
    let because = Some(because);
    Ok(Chosen { until, because })
}

/// Waits until a container is ready and returns how long it took.
///
/// `idle` returns the time since the last read from its layers.
///
/// # Errors
/// [`NotReady`] if it ends before, or does not become ready within `timeout`;
/// [`Interrupted`](host::interrupt::Interrupted) on Ctrl-C.
pub(crate) fn wait_ready(
    running: &mut dyn Running,
    until: &Until,
    timeout: Duration,
    interrupt: &Interrupt,
    idle: &dyn Fn() -> Duration,
) -> anyhow::Result<Duration> {
    let started = running.started();
    let mut watch = Watch::default();
    loop {
        interrupt.check()?;
        let (has_line, has_ended) = watch.output(running, until);
        if has_line || (!has_ended && watch.probe(running, until, idle)?) {
            return Ok(match until {
                Until::Quiet(time) => started.elapsed().saturating_sub(*time),
                _ => started.elapsed(),
            });
        }
        if has_ended {
            let at = started.elapsed();
            return match (until, wait_end(running, interrupt)?) {
                (Until::Exit | Until::Quiet(_) | Until::After(_), 0) => Ok(at),
                (_, code) => Err(ended_early(code, until, &watch.lines).into()),
            };
        }
        if started.elapsed() > timeout {
            return Err(too_late(timeout, until, &watch.lines).into());
        }
    }
}

/// What is known of a container that is not ready yet.
#[derive(Debug, Default)]
struct Watch {
    lines: LineWatch,
    network: Option<NetProbe>,
    asked: Option<Instant>,
}

impl Watch {
    /// Passes output on to standard error; returns whether a line of it is the one that is waited
    /// for, and whether this was all.
    fn output(&mut self, running: &mut dyn Running, until: &Until) -> (bool, bool) {
        let wanted = match until {
            Until::Line(regex) => Some(regex),
            _ => None,
        };
        match running.output(PROBE_EVERY) {
            Followed::Bytes(bytes) => {
                // Nobody to show it to is no reason to stop.
                let _shown = std::io::stderr().write_all(&bytes);
                (self.lines.sees(&bytes, wanted), false)
            }
            Followed::Quiet => (false, false),
            Followed::Ended => (false, true),
        }
    }

    fn probe(
        &mut self,
        running: &mut dyn Running,
        until: &Until,
        idle: &dyn Fn() -> Duration,
    ) -> anyhow::Result<bool> {
        match until {
            Until::Quiet(time) => Ok(idle() >= *time),
            Until::After(time) => Ok(running.started().elapsed() >= *time),
            Until::Healthy(_) => {
                let due = self
                    .asked
                    .is_none_or(|asked| asked.elapsed() >= HEALTH_EVERY);
                if due {
                    self.asked = Some(Instant::now());
                }
                Ok(due && running.is_healthy()?)
            }
            Until::Tcp(_) | Until::Http(_) => self.ask_network(running, until),
            Until::Line(_) | Until::Exit | Until::Machine(_) => Ok(false),
        }
    }

    fn ask_network(&mut self, running: &mut dyn Running, until: &Until) -> anyhow::Result<bool> {
        if self.network.is_none()
            && let Some(pid) = running.pid()?
        {
            log::debug!("its first process is {pid}");
            // It may end meanwhile: then so does its output.
            self.network = NetProbe::enter(pid).ok();
        }
        Ok(self
            .network
            .as_ref()
            .is_some_and(|network| network.answers(until)))
    }
}

/// Waits for the exit code of a container whose output has ended.
fn wait_end(running: &mut dyn Running, interrupt: &Interrupt) -> anyhow::Result<i64> {
    let asked = Instant::now();
    while asked.elapsed() < END_PATIENCE {
        interrupt.check()?;
        if let Some(code) = running.exit_code()? {
            return Ok(code);
        }
        std::thread::sleep(HEALTH_EVERY);
    }
    bail!("the container runs, but the engine has closed its output")
}

fn ended_early(code: i64, until: &Until, lines: &LineWatch) -> NotReady {
    let wanted = match until {
        Until::Exit | Until::Quiet(_) | Until::After(_) => "code 0 was wanted".to_owned(),
        other => format!("waited for {other}"),
    };
    let said = said(lines);
    NotReady(format!(
        "the container ended with code {code}: {wanted}; {said}"
    ))
}

fn too_late(timeout: Duration, until: &Until, lines: &LineWatch) -> NotReady {
    let (waited, said) = (timeout.as_secs_f64(), said(lines));
    NotReady(format!(
        "the container was not ready within {waited} s: waited for {until}; give it more time \
         (`timeout`), or wait for something else (`until`); {said}"
    ))
}

fn said(lines: &LineWatch) -> String {
    lines.last_lines(LAST_LINES).map_or_else(
        || "it said nothing".to_owned(),
        |last| format!("the last it said:\n{last}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(json: &str) -> Until {
        let config: RunConfig = serde_json::from_str(json).unwrap();
        choose(None, &config).unwrap().until
    }

    #[test]
    fn an_image_says_when_it_is_ready() {
        let both = r#"{"Healthcheck":{"Test":["CMD","x"]},"ExposedPorts":{"80/tcp":{}}}"#;
        assert!(matches!(chosen(both), Until::Healthy(Checks::Often)));
        let off = r#"{"Healthcheck":{"Test":["NONE"]},"ExposedPorts":{"80/tcp":{}}}"#;
        assert!(matches!(chosen(off), Until::Tcp(80)));
        assert!(matches!(chosen("{}"), Until::Quiet(_)));
        let healthy = Until::Healthy(Checks::AsDocker);
        assert!(choose(Some(&healthy), &RunConfig::default()).is_err());
    }
}
