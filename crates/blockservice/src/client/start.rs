//! Starting a source in one exchange: its index, the plan of its boots, and the plan's chunks.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use blocks::{ContentId, ReplayPlan};
use bootimg::decode_plan;
use fetch::StreamId;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::connection::{Connection, StartAnswer, StartRefused, StartRequest};
use super::driver::Driver;
use super::flights::Flights;
use super::registered::{Receiver, RegisteredSource};
use super::{Client, ClientError, Remote, Shared};
use crate::plan_order;
use crate::wire::Ask;
use chunks::index::{Index, unpack};

/// The request to start a source.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The name of the source.
    pub name: &'a [u8],
    /// The only index that is taken under this name, if one is.
    pub id: Option<ContentId>,
    /// The index that is here already: it does not travel again.
    pub have: Option<Arc<Index>>,
    /// What the service is to send.
    pub ask: Ask,
}

/// A source that was started.
#[derive(Debug)]
pub struct Started {
    /// The source. The chunks of the plan are being fetched, if they were requested.
    pub remote: Remote,
    /// The plan of its boots; `None` if the service has none or does not send it.
    pub plan: Option<ServedPlan>,
    /// The version of the protocol that the service uses; since version 2 it has plans.
    pub version: u16,
}

/// A plan that the service made of what machines recorded.
#[derive(Clone, Debug)]
pub struct ServedPlan {
    /// The hash of the plan as it came.
    pub id: ContentId,
    /// The plan; its files are those of the source's index.
    pub plan: ReplayPlan,
}

/// Why a source was not started.
#[derive(Debug)]
enum NotStarted {
    /// The service is of an earlier release.
    Old,
    Failed(ClientError),
}

impl From<ClientError> for NotStarted {
    fn from(error: ClientError) -> Self {
        Self::Failed(error)
    }
}

type StartResult = Result<Started, NotStarted>;

impl Client {
    /// Starts a source: the request is sent with the handshake of a connection that is being made. A service
    /// of an earlier release sends the index only.
    ///
    /// # Errors
    /// If there is no such source, the service has another index than the wanted one, or it does not
    /// respond within `patience`.
    pub fn start_source(
        &self,
        wanted: &Wanted<'_>,
        patience: Duration,
    ) -> Result<Started, ClientError> {
        let deadline = Instant::now() + patience;
        loop {
            let source = self.register(wanted.name);
            let (told, heard) = oneshot::channel();
            let waiter = Arc::new(());
            self.ask_to_start(&source, wanted, &waiter, told);
            let heard = async { timeout_at(deadline.into(), heard).await };
            let answer = self.driver.block_on(heard);
            let address = || self.shared.config.address.to_string();
            let failed = match answer {
                Some(Ok(Ok(Ok(started)))) => return Ok(started),
                Some(Ok(Ok(Err(NotStarted::Old)))) => {
                    self.unregister(&source);
                    return self.open_of_old(wanted, deadline);
                }
                Some(Ok(Ok(Err(NotStarted::Failed(error))))) => error,
                // The connection was lost: asked again on the next one.
                Some(Ok(Err(_))) if Instant::now() < deadline => {
                    self.unregister(&source);
                    continue;
                }
                Some(Err(_)) if self.connections[1].is_up() => {
                    ClientError::Late { address: address() }
                }
                Some(_) | None => ClientError::Away { address: address() },
            };
            self.unregister(&source);
            return Err(failed);
        }
    }

    fn ask_to_start(
        &self,
        source: &Arc<RegisteredSource>,
        wanted: &Wanted<'_>,
        waiter: &Arc<()>,
        told: oneshot::Sender<StartResult>,
    ) {
        let parts = Parts {
            driver: Arc::clone(&self.driver),
            shared: Arc::clone(&self.shared),
            connections: self.connections.clone(),
            source: Arc::clone(source),
            id: wanted.id,
            have: wanted.have.clone(),
        };
        let begin = move |answer: Result<StartAnswer, StartRefused>| match parts.start(answer) {
            Ok((started, receiver)) => {
                // Whoever waited may have left: then nobody takes the chunks.
                told.send(Ok(started)).ok()?;
                receiver
            }
            Err(error) => {
                let _told = told.send(Err(error));
                None
            }
        };
        let have = wanted.have.as_ref();
        self.connections[1].start(StartRequest {
            source: Arc::clone(source),
            ask: wanted.ask,
            have: have.map_or(ContentId([0; 32]), |index| index.id()),
            stream: StreamId(self.shared.numbers.fetch_add(1, Relaxed)),
            waiter: Arc::downgrade(waiter),
            begin: Box::new(begin),
        });
        // The other connection opens it meanwhile, for those who read.
        self.connections[0].open(source);
    }

    /// Opens a source of a service that knows no START.
    fn open_of_old(&self, wanted: &Wanted<'_>, deadline: Instant) -> Result<Started, ClientError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let _known = self.wait_until_connected(left);
        let have = wanted.have.clone();
        let remote = self.open(wanted.name, wanted.id, |id| {
            have.filter(|index| index.id() == *id)
        })?;
        Ok(Started {
            remote,
            plan: None,
            version: 1,
        })
    }
}

/// What a source is made of when its START is answered.
struct Parts {
    driver: Arc<Driver>,
    shared: Arc<Shared>,
    connections: [Arc<Connection>; 2],
    source: Arc<RegisteredSource>,
    id: Option<ContentId>,
    have: Option<Arc<Index>>,
}

impl Parts {
    /// Makes the source, and returns it with who takes the chunks of the stream, if one follows.
    fn start(
        self,
        answer: Result<StartAnswer, StartRefused>,
    ) -> Result<(Started, Option<Weak<dyn Receiver>>), NotStarted> {
        let answer = answer.map_err(|refused| match refused {
            StartRefused::Old => NotStarted::Old,
            StartRefused::Refused(code, text) => ClientError::Refused { code, text }.into(),
            StartRefused::Wrong(what) => ClientError::Wrong { what }.into(),
        })?;
        let index = self.index(&answer)?;
        let plan = answer.plan.and_then(|bytes| self.plan(&bytes, &index));
        self.source.name_index(index.id());
        let flights = Flights::new(
            &self.driver,
            &self.shared,
            &self.connections,
            &self.source,
            Arc::clone(&index),
        );
        let mut receiver = None;
        if let (Some((stream, request)), Some(plan)) = (answer.stream, &plan) {
            flights.promised(stream, request, &plan_order(&index, &plan.plan));
            let weak: Weak<Flights> = Arc::downgrade(&flights);
            receiver = Some(weak as Weak<dyn Receiver>);
        }
        let remote = Remote::new(flights);
        let started = Started {
            remote,
            plan,
            version: 2,
        };
        Ok((started, receiver))
    }

    fn index(&self, answer: &StartAnswer) -> Result<Arc<Index>, ClientError> {
        let wrong = |what| ClientError::Wrong { what };
        if self.id.is_some_and(|wanted| wanted != answer.id) {
            return Err(wrong("another index than the one that is wanted"));
        }
        let index = match &answer.index {
            Some((codec, packed, raw_len)) => {
                let bytes = unpack(*codec, packed, *raw_len)?;
                Arc::new(Index::decode(&bytes)?)
            }
            None => self.have.clone().ok_or(wrong("no index"))?,
        };
        if index.id() == answer.id {
            Ok(index)
        } else {
            Err(wrong("an index"))
        }
    }

    /// Returns the plan; one that cannot be used costs speed.
    fn plan(&self, bytes: &[u8], index: &Index) -> Option<ServedPlan> {
        match decode_plan(bytes, &index.id(), index.tree()) {
            Ok(plan) => Some(ServedPlan {
                id: ContentId::of(bytes),
                plan,
            }),
            Err(error) => {
                let name = String::from_utf8_lossy(&self.source.name);
                log::warn!("the plan of {name} that the block service sent is not used: {error}");
                None
            }
        }
    }
}
