//! Starting a source in one exchange: its index, the plan of its boots, and the plan's chunks.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use blocks::{ContentId, ReplayPlan};
use bootimg::{FormatError, decode_plan};
use fetch::StreamId;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep_until;

use super::connection::{StartAnswer, StartRefused, StartRequest};
use super::connections::Connections;
use super::driver::Driver;
use super::flights::Flights;
use super::registered::{Receiver, RegisteredSource};
use super::{Client, ClientError, Remote, Shared};
use crate::plan_order;
use crate::wire::Ask;
use chunks::index::{Index, unpack};
use chunks::links::{Links, LinksError};

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
    /// The number of the source.
    number: u64,
}

/// A plan that the service made of what machines recorded.
#[derive(Clone, Debug)]
pub struct ServedPlan {
    /// The hash of the plan as it came.
    pub id: ContentId,
    /// The plan; its files are those of the source's index.
    pub plan: ReplayPlan,
}

impl ServedPlan {
    /// Reads a plan of a source.
    ///
    /// # Errors
    /// If it is damaged, or that of another index.
    pub fn read(bytes: &[u8], index: &Index) -> Result<Self, FormatError> {
        Ok(Self {
            id: ContentId::of(bytes),
            plan: decode_plan(bytes, &index.id(), index.tree())?,
        })
    }
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
    /// Starts a source: the request travels with the handshake of a connection that is being made. Another service is
    /// asked, too, when the first one fails or is late; the first answer counts.
    /// From a service of an earlier release comes the index only.
    ///
    /// # Errors
    /// If there is no such source, the service has another index than the one that is wanted, or none
    /// answers within `patience`.
    pub fn start_source(
        &self,
        wanted: &Wanted<'_>,
        patience: Duration,
    ) -> Result<Started, ClientError> {
        let deadline = Instant::now() + patience;
        let (told, mut heard) = unbounded_channel();
        let mut asked = vec![self.ask_to_start(0, wanted, &told)];
        let mut failed = None;
        let result = loop {
            let next = Some(asked.len()).filter(|next| *next < self.connections.services());
            let wait = async {
                tokio::select! {
                    answer = heard.recv() => answer.map_or(Heard::Late, Heard::Answer),
                    () = sleep_until(deadline.into()) => Heard::Late,
                    () = self.is_late(&asked, next) => Heard::IsLate,
                }
            };
            match (self.driver.block_on(wait), next) {
                (Some(Heard::Answer((_, Some(Ok(started))))), _) => break Ok(started),
                (Some(Heard::Answer((service, Some(Err(NotStarted::Old))))), _) => {
                    break self.open_of_old(service, wanted, deadline);
                }
                (Some(Heard::Answer((service, Some(Err(NotStarted::Failed(error)))))), next) => {
                    asked[service].is_over = true;
                    failed.get_or_insert(error);
                    match next {
                        Some(next) => asked.push(self.ask_to_start(next, wanted, &told)),
                        None if asked.iter().all(|asked| asked.is_over) => break Err(None),
                        None => {}
                    }
                }
                // The connection was lost: asked again on the next one.
                (Some(Heard::Answer((service, None))), _) => {
                    self.unregister(&asked[service].source);
                    asked[service] = self.ask_to_start(service, wanted, &told);
                }
                (Some(Heard::IsLate), Some(next)) => {
                    asked.push(self.ask_to_start(next, wanted, &told));
                }
                (Some(Heard::Late | Heard::IsLate) | None, _) => break Err(None),
            }
        };
        let number = result.as_ref().map_or(u64::MAX, |started| started.number);
        for asked in asked.iter().filter(|asked| asked.source.number != number) {
            self.unregister(&asked.source);
        }
        result.map_err(|error: Option<ClientError>| {
            error.or(failed).unwrap_or_else(|| self.nobody_answered())
        })
    }

    /// Returns why a source was not started although no service refused.
    fn nobody_answered(&self) -> ClientError {
        let connections = self.connections.iter();
        let up = connections.clone().find(|connection| connection.is_up());
        match (up, self.connections.get(0).address().to_string()) {
            (Some(up), _) => ClientError::Late {
                address: up.address().to_string(),
            },
            (None, address) => ClientError::Away { address },
        }
    }

    /// Waits until a service that is connected is to be asked, because those that were asked are silent: a service
    /// answers before the other connection to it is established.
    async fn is_late(&self, asked: &[Asked], next: Option<usize>) {
        let Some(next) = next else {
            return std::future::pending().await;
        };
        let other = self.connections.demand(next);
        loop {
            let now = Instant::now();
            let patience = other.round_trip().unwrap_or_default() * 2;
            let patience = patience.max(self.shared.config.patience.hedge);
            let is_new = |asked: &Asked| now.duration_since(asked.at) < patience;
            let is_heard = |service: usize| {
                let background = self.connections.background(service);
                let heard = background.heard().filter(|_| background.is_up());
                heard.is_some_and(|heard| now.duration_since(heard) < patience)
            };
            if other.is_up() && !asked.iter().any(is_new) && !(0..asked.len()).any(is_heard) {
                return;
            }
            other.changed().await;
        }
    }

    /// Asks a service to start a source, and has the response reported.
    fn ask_to_start(
        &self,
        service: usize,
        wanted: &Wanted<'_>,
        told: &UnboundedSender<Told>,
    ) -> Asked {
        let source = self.register(wanted.name);
        let waiter = Arc::new(());
        let (answer, answered) = oneshot::channel();
        let told = told.clone();
        let _task = self.driver.spawn(async move {
            // Nobody may wait any more.
            let _told = told.send((service, answered.await.ok()));
        });
        let background = self.connections.background(service);
        let parts = Parts {
            driver: Arc::clone(&self.driver),
            shared: Arc::clone(&self.shared),
            connections: self.connections.clone(),
            connection: background.number(),
            source: Arc::clone(&source),
            id: wanted.id,
            have: wanted.have.clone(),
        };
        let waits = Arc::downgrade(&waiter);
        let begin = move |came: Result<StartAnswer, StartRefused>| {
            // Whoever waited may have left, or another service was faster: then nobody takes the chunks.
            let _waits = waits.upgrade()?;
            match parts.start(came) {
                Ok((started, receiver)) => {
                    answer.send(Ok(started)).ok()?;
                    receiver
                }
                Err(error) => {
                    let _told = answer.send(Err(error));
                    None
                }
            }
        };
        let have = wanted.have.as_ref();
        background.start(StartRequest {
            source: Arc::clone(&source),
            ask: wanted.ask,
            have: have.map_or(ContentId([0; 32]), |index| index.id()),
            rest: None,
            stream: StreamId(self.shared.numbers.fetch_add(1, Relaxed)),
            waiter: Arc::downgrade(&waiter),
            begin: Box::new(begin),
        });
        // The other connection opens it meanwhile, for those who read.
        self.connections.demand(service).open(&source);
        Asked {
            source,
            at: Instant::now(),
            is_over: false,
            _waiter: waiter,
        }
    }

    /// Opens a source of a service that knows no START.
    fn open_of_old(
        &self,
        service: usize,
        wanted: &Wanted<'_>,
        deadline: Instant,
    ) -> Result<Started, Option<ClientError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let asked = self.connections.demand(service);
        let _known = self.wait_for(asked, left);
        let have = wanted.have.clone();
        let have = |id: &ContentId| have.filter(|index| index.id() == *id);
        let (remote, number) = self.open_at(asked, wanted.name, wanted.id, have)?;
        Ok(Started {
            remote,
            plan: None,
            version: 1,
            number,
        })
    }
}

/// What a service said to a START; nothing if the connection was lost.
type Told = (usize, Option<StartResult>);

/// What comes while a START is waited for.
enum Heard {
    Answer(Told),
    /// Those that were asked are silent.
    IsLate,
    /// The deadline is over.
    Late,
}

/// A service that was asked to start a source.
struct Asked {
    source: Arc<RegisteredSource>,
    at: Instant,
    is_over: bool,
    /// `None` when no caller waits for the response any more.
    _waiter: Arc<()>,
}

/// What a source is made of when its START is answered.
struct Parts {
    driver: Arc<Driver>,
    shared: Arc<Shared>,
    connections: Connections,
    /// The number of the one that was asked.
    connection: usize,
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
        let links = answer.links.and_then(|bytes| self.links(&bytes, &index));
        self.source.name_index(index.id());
        // It is open where it was asked for, and on the other connection to the same service.
        let service = self.connections.get(self.connection).service();
        let others = self.connections.iter();
        let others = others.filter(|connection| connection.service() != service);
        others.for_each(|connection| connection.open(&self.source));
        let flights = Flights::new(
            &self.driver,
            &self.shared,
            &self.connections,
            &self.source,
            Arc::clone(&index),
        );
        let mut receiver = None;
        if let (Some((stream, _)), Some(plan)) = (answer.stream, &plan) {
            let order = plan_order(&index, &plan.plan);
            flights.streamed(plan.id, &order, (self.connection, stream));
            let weak: Weak<Flights> = Arc::downgrade(&flights);
            receiver = Some(weak as Weak<dyn Receiver>);
        }
        if let Some(links) = links {
            flights.know_links(links);
        }
        let remote = Remote::new(flights);
        let started = Started {
            remote,
            plan,
            version: 2,
            number: self.source.number,
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

    /// Returns the links of programs; what cannot be used costs speed.
    fn links(&self, bytes: &[u8], index: &Index) -> Option<Links> {
        let links = Links::decode(bytes, index);
        let name = String::from_utf8_lossy(&self.source.name);
        let failed = |error: &LinksError| {
            log::warn!("the links of {name} that the block service sent are not used: {error}");
        };
        links.inspect_err(failed).ok()
    }

    /// Returns the plan; one that cannot be used costs speed.
    fn plan(&self, bytes: &[u8], index: &Index) -> Option<ServedPlan> {
        match ServedPlan::read(bytes, index) {
            Ok(plan) => Some(plan),
            Err(error) => {
                let name = String::from_utf8_lossy(&self.source.name);
                log::warn!("the plan of {name} that the block service sent is not used: {error}");
                None
            }
        }
    }
}
