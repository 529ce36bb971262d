//! How `yolofs pull` and the snapshotter agree on where layers are staged, over the snapshotter's
//! control socket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use snapshotter::{Lowers, Snapshotter, StagedName};

use super::placing::Placing;
use super::status::{DEADLINE, Request, Response, StagingPlaces, all, socket};
use host::control::call;
use host::run_dir::RunDir;

/// The snapshotter's side.
pub(super) struct Staging<'a, L: Lowers> {
    pub(super) snapshotter: &'a Snapshotter<L>,
    pub(super) placing: &'a Placing,
}

impl<L: Lowers> Staging<'_, L> {
    /// Responds to the requests of a pull; `None` for other requests.
    pub(super) fn answer(&self, ask: &Request) -> Option<Response> {
        Some(match ask {
            Request::Status | Request::Prewarm { .. } => return None,
            Request::Stage { pull } => {
                if let Some(pull) = pull {
                    self.placing.pulls(pull);
                }
                let places = self.snapshotter.staging();
                let usage = self.snapshotter.fast_layers().map(|fast| fast.usage());
                Response::Stage(StagingPlaces {
                    disk: places.disk,
                    fast: places.fast,
                    room: usage.map_or(0, |of| of.max_bytes.saturating_sub(of.used_bytes)),
                })
            }
            Request::Book { name, bytes } => self.book(name, *bytes),
            Request::Known { chains } => Response::Known(self.snapshotter.count_known(chains)),
            Request::Ended { pull } => {
                self.placing.pulled(pull);
                // What it staged and did not need is to go.
                drop(self.snapshotter.staging());
                Response::Heard
            }
        })
    }

    fn book(&self, name: &str, bytes: u64) -> Response {
        let Some(fast) = self.snapshotter.fast_layers() else {
            return Response::Booked(false);
        };
        let booked = StagedName::parse(name).map(|name| fast.book_staged(&name, bytes));
        match booked {
            Some(Ok(booked)) => Response::Booked(booked),
            Some(Err(error)) => Response::Failed(error.to_string()),
            None => Response::Failed(format!("{name:?} is not the name of a staged directory")),
        }
    }
}

/// The pull's side: a client of the snapshotter.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotterClient {
    socket: PathBuf,
}

impl SnapshotterClient {
    /// Finds the snapshotter that containerd reaches at `address`; `None` if no snapshotter of yolofs
    /// responds there.
    ///
    /// # Errors
    /// If the run directory cannot be read.
    pub(crate) fn find(run_dir: &RunDir, address: &Path) -> anyhow::Result<Option<Self>> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let wanted = real(address);
        let found = all(run_dir)?
            .into_iter()
            .find(|status| real(&status.address) == wanted);
        Ok(found.map(|status| Self {
            socket: socket(run_dir, &status.root),
        }))
    }

    /// Returns where layers may be staged, and notifies of a pull in progress, if one is given.
    ///
    /// # Errors
    /// If the snapshotter does not respond.
    pub(crate) fn places(&self, pull: Option<&str>) -> anyhow::Result<StagingPlaces> {
        let pull = pull.map(str::to_owned);
        match self.ask(&Request::Stage { pull })? {
            Response::Stage(places) => Ok(places),
            _ => bail!(
                "the response of the snapshotter is of another kind: it may be of another version"
            ),
        }
    }

    /// Reserves space for a staged layer on the fast place, and returns whether there was enough.
    ///
    /// # Errors
    /// If the snapshotter does not respond.
    pub(crate) fn book(&self, name: &StagedName, bytes: u64) -> anyhow::Result<bool> {
        let name = name.as_str().to_owned();
        match self.ask(&Request::Book { name, bytes })? {
            Response::Booked(booked) => Ok(booked),
            _ => bail!(
                "the response of the snapshotter is of another kind: it may be of another version"
            ),
        }
    }

    /// Returns how many of these layers exist in any namespace, counted from the lowest. None, if the snapshotter is of an
    /// earlier version, which has no answer: they are downloaded then.
    pub(crate) fn count_known(&self, chains: Vec<String>) -> usize {
        match self.ask(&Request::Known { chains }) {
            Ok(Response::Known(count)) => count,
            other => {
                log::debug!("which layers other namespaces have is not known: {other:?}");
                0
            }
        }
    }

    /// Notifies that a pull has ended. If the message is lost, a timeout has the same effect.
    pub(crate) fn ended(&self, pull: &str) {
        let pull = pull.to_owned();
        if let Err(error) = self.ask(&Request::Ended { pull }) {
            log::debug!("the snapshotter does not hear that the pull has ended: {error:#}");
        }
    }

    fn ask(&self, ask: &Request) -> anyhow::Result<Response> {
        match call(&self.socket, ask, DEADLINE).context("asking the snapshotter")? {
            Response::Failed(why) => bail!("the snapshotter refused: {why}"),
            told => Ok(told),
        }
    }
}
