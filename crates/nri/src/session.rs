//! A session with the runtime: one registration, then a request for each event.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message as _;
use rawio::unix_socket::connect_within;

use crate::error::NriError;
use crate::frames::{Frames, PLUGIN, RUNTIME, frame};
use crate::messages::{
    Configured, Container, Empty, Event, Image, Pod, RegisterPlugin, StateChange, Synchronize,
    Synchronized,
};
use crate::ttrpc::{Kind, Message, Request, Response};

/// How long the runtime may take to answer the registration.
const REGISTERED: Duration = Duration::from_secs(10);
/// How long it may take to take a connection or an answer: it waits for these, two seconds by default.
const TAKEN: Duration = Duration::from_secs(2);
/// Most requests that are kept until the registration is answered: there is one.
const EARLY_MAX: usize = 16;
/// How often it is looked whether the session is to end.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The version of the interface that the messages are of.
const VERSION: &str = "v0.12.3";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The number of the event that a pod's sandbox was made.
const RUN_POD_SANDBOX: i32 = 1;
/// The number of the event that a container is made.
const CREATE_CONTAINER: i32 = 4;
/// The events that are asked for: a bit for each number, from 1.
const WANTED: i32 = 1 << (RUN_POD_SANDBOX - 1) | 1 << (CREATE_CONTAINER - 1);

/// The identity of a plugin at its runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    index: String,
}

impl Identity {
    /// Returns the identity of a plugin: of two with different indexes, the lower is called first. Only its last
    /// two digits count.
    #[must_use]
    pub fn new(name: &str, index: u8) -> Self {
        Self {
            name: name.to_owned(),
            index: format!("{:02}", index % 100),
        }
    }
}

/// Receives the events of pods and containers. The response to the runtime is sent before: the listener delays
/// only the next event, so it must return soon.
pub trait Listener {
    /// Notifies that the sandbox of a pod was made: none of its containers exists yet.
    fn pod_runs(&mut self, pod: &Pod);

    /// Notifies that a container of a pod is about to be made, or existed when the session began.
    fn container_is_made(&mut self, pod: &Pod, image: &Image);
}

/// Why a session ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The runtime ended it.
    Shutdown,
    /// On request.
    Asked,
}

/// A plugin that is registered.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    frames: Frames,
    /// Requests that came before the response to the registration: the runtime does not wait for that.
    early: VecDeque<Message>,
    /// Existing pods that the runtime sends when a session begins.
    pods: HashMap<String, Pod>,
}

impl Session {
    /// Connects to the runtime that listens at `socket`, and registers.
    ///
    /// # Errors
    /// If no process listens there, or the runtime refuses the plugin or does not respond.
    pub fn register(socket: &Path, identity: &Identity) -> Result<Self, NriError> {
        let connect = |source| NriError::Connect {
            socket: socket.to_owned(),
            source,
        };
        let stream = connect_within(socket, TAKEN).map_err(connect)?;
        let timeouts = stream
            .set_read_timeout(Some(LOOK_EVERY))
            .and_then(|()| stream.set_write_timeout(Some(TAKEN)));
        timeouts.map_err(connect)?;
        let mut session = Self {
            stream,
            frames: Frames::default(),
            early: VecDeque::new(),
            pods: HashMap::new(),
        };
        session.ask_to_register(identity)?;
        Ok(session)
    }

    fn ask_to_register(&mut self, identity: &Identity) -> Result<(), NriError> {
        let plugin = RegisterPlugin {
            name: identity.name.clone(),
            index: identity.index.clone(),
            nri_version: VERSION.to_owned(),
        };
        let request = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: plugin.encode_to_vec(),
            timeout_nano: i64::try_from(REGISTERED.as_nanos()).unwrap_or(i64::MAX),
        };
        let call = Message {
            stream: 1,
            kind: Kind::Request,
            payload: request.encode_to_vec(),
        };
        self.send(RUNTIME, &call)?;
        let deadline = Instant::now() + REGISTERED;
        loop {
            match self.frames.next()? {
                Some((RUNTIME, answer)) if answer.kind == Kind::Response => {
                    let answer: Response = decode("the answer to the registration", &answer)?;
                    return match answer.status.filter(|status| status.code != 0) {
                        Some(status) => Err(NriError::Refused {
                            why: status.message,
                        }),
                        None => Ok(()),
                    };
                }
                Some((PLUGIN, request)) if self.early.len() < EARLY_MAX => {
                    self.early.push_back(request);
                }
                Some(_) => {}
                None if Instant::now() >= deadline => {
                    let secs = REGISTERED.as_secs();
                    return Err(NriError::NoAnswer { secs });
                }
                None => self.receive("registering")?,
            }
        }
    }

    /// Responds to the runtime, and passes events to `listener`, until the runtime ends or `is_over` returns true.
    ///
    /// # Errors
    /// If the connection breaks, or a message is invalid.
    pub fn serve(
        &mut self,
        listener: &mut dyn Listener,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Ended, NriError> {
        while !is_over() {
            let early = self.early.pop_front().map(|request| (PLUGIN, request));
            let next = match early {
                Some(early) => Some(early),
                None => self.frames.next()?,
            };
            match next {
                Some((PLUGIN, message)) if message.kind == Kind::Request => {
                    let request: Request = decode("a request", &message)?;
                    if self.answer(message.stream, &request, listener)? {
                        return Ok(Ended::Shutdown);
                    }
                }
                Some(_) => {} // what is said of the registration again, or of streams
                None => self.receive("waiting for events")?,
            }
        }
        Ok(Ended::Asked)
    }

    /// Answers a request; returns whether it was the last.
    fn answer(
        &mut self,
        stream: u32,
        request: &Request,
        listener: &mut dyn Listener,
    ) -> Result<bool, NriError> {
        let payload = request.payload.as_slice();
        let read = |source| NriError::Message {
            what: "the message of an event",
            source,
        };
        let mut event = Event::default();
        let response = match request.method.as_str() {
            "Configure" => Response::done(&Configured { events: WANTED }),
            "Synchronize" => {
                let all = Synchronize::decode(payload).map_err(read)?;
                let more = all.more;
                self.send(
                    PLUGIN,
                    &Message::response(stream, &Response::done(&Synchronized { more })),
                )?;
                self.synchronized(all, listener);
                return Ok(false);
            }
            "RunPodSandbox" | "CreateContainer" => {
                event = Event::decode(payload).map_err(read)?;
                Response::done(&Empty {})
            }
            "StateChange" => {
                let change = StateChange::decode(payload).map_err(read)?;
                event.pod = change.pod.filter(|_| change.event == RUN_POD_SANDBOX);
                Response::done(&Empty {})
            }
            "Shutdown" => Response::done(&Empty {}),
            other => Response::unknown(other),
        };
        // The pod waits for this, and for nothing that is done about it.
        self.send(PLUGIN, &Message::response(stream, &response))?;
        tell(listener, &event);
        Ok(request.method == "Shutdown")
    }

    /// Tells of containers that were there before us.
    fn synchronized(&mut self, all: Synchronize, listener: &mut dyn Listener) {
        self.pods
            .extend(all.pods.into_iter().map(|pod| (pod.id.clone(), pod)));
        for container in &all.containers {
            let pod = self.pods.get(&container.pod);
            if let Some((pod, image)) = pod.zip(container.image.as_ref()) {
                listener.container_is_made(pod, image);
            }
        }
        if !all.more {
            self.pods.clear();
        }
    }

    fn send(&mut self, connection: u32, message: &Message) -> Result<(), NriError> {
        let sent = self.stream.write_all(&frame(connection, message));
        sent.map_err(|source| NriError::Io {
            doing: "answering",
            source,
        })
    }

    /// Reads what there is; nothing within a moment is no error.
    fn receive(&mut self, doing: &'static str) -> Result<(), NriError> {
        let mut part = [0; 16 << 10];
        match self.stream.read(&mut part) {
            Ok(0) => Err(NriError::Closed { doing }),
            Ok(read) => self.frames.push(&part[..read]),
            Err(error) if is_later(&error) => Ok(()),
            Err(source) => Err(NriError::Io { doing, source }),
        }
    }
}

fn tell(listener: &mut dyn Listener, event: &Event) {
    let Some(pod) = &event.pod else { return };
    match &event.container {
        None => listener.pod_runs(pod),
        Some(Container {
            image: Some(image), ..
        }) => listener.container_is_made(pod, image),
        Some(_) => {}
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn decode<M: prost::Message + Default>(
    what: &'static str,
    message: &Message,
) -> Result<M, NriError> {
    M::decode(message.payload.as_slice()).map_err(|source| NriError::Message { what, source })
}
