//! The service's side: inherited descriptors.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;

use crate::{Result, StoreError};

/// The name of a descriptor that was passed without one, as in `sd_listen_fds(3)`.
const NAMELESS: &str = "unknown";

/// The variables with the descriptors that a program inherits.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    /// `LISTEN_PID`
    pub pid: Option<OsString>,
    /// `LISTEN_FDS`
    pub count: Option<OsString>,
    /// `LISTEN_FDNAMES`
    pub names: Option<OsString>,
}

impl Variables {
    /// Returns the name of each descriptor that is meant for process `pid`.
    fn read(&self, pid: u32) -> Result<Vec<String>> {
        let (Some(told), Some(count)) = (&self.pid, &self.count) else {
            return Ok(Vec::new());
        };
        // Variables go on to children; descriptors do not.
        if number(told) != Some(pid) {
            return Ok(Vec::new());
        }
        let count = number(count)
            .and_then(|count| usize::try_from(count).ok())
            .filter(|count| *count <= MOST)
            .ok_or_else(|| StoreError::Count(count.to_string_lossy().into_owned()))?;
        let names = self.names.as_deref().unwrap_or_default().to_string_lossy();
        let mut names = names.split(':').filter(|name| !name.is_empty());
        let name = |_| names.next().unwrap_or(NAMELESS).to_owned();
        Ok((0..count).map(name).collect())
    }
}

/// More than any process may have open (`fs.nr_open`).
const MOST: usize = 1 << 20;

fn number(text: &OsStr) -> Option<u32> {
    text.to_str()?.parse().ok()
}

/// The descriptors that this program was started with, by name: from a socket unit, or from the
/// store of the service manager.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(String, OwnedFd)>);

impl Inherited {
    /// Takes them; they are closed on exec from now on. Works once in a program's life.
    ///
    /// # Errors
    /// If the variables are invalid, or a descriptor is missing.
    pub fn take(variables: &Variables) -> Result<Self> {
        let names = variables.read(std::process::id())?;
        if names.is_empty() {
            return Ok(Self::default());
        }
        let descriptors = rawio::inherit::take(names.len())
            .map_err(StoreError::step("taking the descriptors of LISTEN_FDS"))?;
        Ok(Self(names.into_iter().zip(descriptors).collect()))
    }

    /// Removes and returns all of one name, in their order.
    pub fn remove(&mut self, name: &str) -> Vec<OwnedFd> {
        let (of_name, rest) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(its_name, _)| its_name == name);
        self.0 = rest;
        of_name
            .into_iter()
            .map(|(_, descriptor)| descriptor)
            .collect()
    }

    /// Returns the names of the remaining ones.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

impl IntoIterator for Inherited {
    type Item = (String, OwnedFd);
    type IntoIter = std::vec::IntoIter<(String, OwnedFd)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pid: &str, count: &str, names: Option<&str>) -> Result<Vec<String>> {
        let variables = Variables {
            pid: Some(pid.into()),
            count: Some(count.into()),
            names: names.map(Into::into),
        };
        variables.read(77)
    }

    #[test]
    fn names_belong_to_descriptors_in_their_order() {
        assert_eq!(read("77", "2", Some("a:b")).unwrap(), ["a", "b"]);
        assert_eq!(read("77", "2", Some("a")).unwrap(), ["a", "unknown"]);
        assert_eq!(read("77", "1", None).unwrap(), ["unknown"]);
        assert_eq!(read("77", "1", Some("a:b")).unwrap(), ["a"]);
    }

    #[test]
    fn what_is_meant_for_another_process_is_left_alone() {
        assert!(read("76", "2", Some("a:b")).unwrap().is_empty());
        assert!(read("", "2", None).unwrap().is_empty());
        assert!(Variables::default().read(77).unwrap().is_empty());
    }

    #[test]
    fn nonsense_is_an_error() {
        for count in ["", "-1", "many", "4294967295"] {
            assert!(read("77", count, None).is_err(), "{count}");
        }
    }
}
