//! The `limits` of the configuration: how much of the machine the server may use.

use std::num::NonZeroU64;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use blockservice::service::Limits;
use serde::Deserialize;
use serving::load::{Load, LoadWatch, Threshold, Thresholds};

use super::words::FileSize;

/// The fields below `limits`. Absent ones are not limited.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitWords {
    shed: Option<ShedWords>,
    fetch_rate: Option<FileSize>,
    send_rate_of_one: Option<FileSize>,
    blocks_memory: Option<FileSize>,
    blocks_connections_of_one: Option<u32>,
}

/// When load is shed: for each measure the percentages from which on the server is careful, and
/// from which on it fetches nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ShedWords {
    cpu: Option<[u32; 2]>,
    memory: Option<[u32; 2]>,
    io: Option<[u32; 2]>,
    memory_used: Option<[u32; 2]>,
}

impl LimitWords {
    /// Begins to watch how hard the machine is pressed, if load is to be shed.
    pub(crate) fn watch(&self, load: &Arc<Load>) -> anyhow::Result<Option<LoadWatch>> {
        let Some(shed) = &self.shed else {
            return Ok(None);
        };
        let watch = LoadWatch::start(Arc::clone(load), shed.thresholds()?);
        watch.map(Some).context("starting to watch the load")
    }

    /// Returns what the block service allows.
    pub(crate) fn blocks(&self, load: &Arc<Load>) -> anyhow::Result<Limits> {
        let usual = Limits::default();
        let memory = self.blocks_memory.map(|size| size.0);
        let connections = self.blocks_connections_of_one.map(|most| most as usize);
        Ok(Limits {
            memory_bytes: memory.unwrap_or(usual.memory_bytes),
            connections_of_one: connections.unwrap_or(usual.connections_of_one),
            send_rate_of_one: self.send_rate_of_one()?,
            load: Arc::clone(load),
            ..usual
        })
    }

    /// Returns how many bytes may come from registries in a second.
    pub(crate) fn fetch_rate(&self) -> anyhow::Result<Option<NonZeroU64>> {
        rate("fetch_rate", self.fetch_rate)
    }

    /// Returns how many bytes one client may get in a second.
    pub(crate) fn send_rate_of_one(&self) -> anyhow::Result<Option<NonZeroU64>> {
        rate("send_rate_of_one", self.send_rate_of_one)
    }
}

impl ShedWords {
    fn thresholds(&self) -> anyhow::Result<Thresholds> {
        let usual = Thresholds::default();
        Ok(Thresholds {
            cpu: threshold("cpu", self.cpu, usual.cpu)?,
            memory: threshold("memory", self.memory, usual.memory)?,
            io: threshold("io", self.io, usual.io)?,
            memory_used: threshold("memory_used", self.memory_used, usual.memory_used)?,
        })
    }
}

fn threshold(name: &str, said: Option<[u32; 2]>, usual: Threshold) -> anyhow::Result<Threshold> {
    let Some([careful, shedding]) = said else {
        return Ok(usual);
    };
    ensure!(
        0 < careful && careful <= shedding,
        "limits.shed.{name} is {said:?}: two percentages above 0 are needed, the lower one first \
         (more than 100 is never reached)"
    );
    Ok(Threshold { careful, shedding })
}

fn rate(name: &str, said: Option<FileSize>) -> anyhow::Result<Option<NonZeroU64>> {
    let Some(FileSize(bytes)) = said else {
        return Ok(None);
    };
    let rate = NonZeroU64::new(bytes);
    let rate = rate.with_context(|| format!("limits.{name} is 0: omit it for no limit"))?;
    Ok(Some(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> LimitWords {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_not_said_is_not_limited() {
        let nothing = words("{}");
        assert!(nothing.watch(&Arc::default()).unwrap().is_none());
        assert_eq!(nothing.fetch_rate().unwrap(), None);
        assert_eq!(nothing.send_rate_of_one().unwrap(), None);
        let usual = words(r#"{"shed": {}}"#).shed.unwrap();
        assert_eq!(usual.thresholds().unwrap(), Thresholds::default());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(serde_json::from_str::<LimitWords>(r#"{"shedd": {}}"#).is_err());
        let shed = |cpu: &str| {
            words(&format!(r#"{{"shed": {{"cpu": {cpu}}}}}"#))
                .shed
                .unwrap()
        };
        let right = shed("[30, 101]").thresholds().unwrap().cpu;
        assert_eq!((right.careful, right.shedding), (30, 101));
        for bad in ["[0, 10]", "[20, 10]"] {
            let why = shed(bad).thresholds().unwrap_err().to_string();
            assert!(why.contains("limits.shed.cpu"), "{why}");
        }
        let why = words(r#"{"fetch_rate": "0"}"#).fetch_rate().unwrap_err();
        assert!(why.to_string().contains("limits.fetch_rate"), "{why}");
        let rate = words(r#"{"fetch_rate": "10M"}"#).fetch_rate().unwrap();
        assert_eq!(rate.map(NonZeroU64::get), Some(10 << 20));
    }
}
