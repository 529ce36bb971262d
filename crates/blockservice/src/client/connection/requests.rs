//! Requests to the service, as frames, with the receivers of the responses.

use super::starting::Starting;
use super::{Command, Connection, OpenRead, Pending, Reads, StartRefused};
use crate::wire::versions::{FORM_SINCE, RESUME_SINCE, START_SINCE};
use crate::wire::{Frame, Message, ReadForm, SKIPS_MAX};
use fetch::{RequestId, StreamId};

/// A frame to write, and the receiver of its response.
#[derive(Debug)]
struct Request {
    frame: Frame,
    pending: Option<Pending>,
}

impl Connection {
    /// Turns commands into frames, and registers the receivers of their responses.
    pub(in crate::client) fn frames(&self, commands: Vec<Command>) -> Vec<Frame> {
        // One after the other: what is said of a stream may follow its START at once.
        let requests = commands.into_iter();
        requests
            .flat_map(|command| {
                let requests = self.requests(command).into_iter();
                requests.map(|request| self.note(request))
            })
            .collect()
    }

    fn requests(&self, command: Command) -> Vec<Request> {
        let mut requests = Vec::new();
        match command {
            Command::Ask(message, data, answer) => {
                let frame = Frame {
                    request: 0,
                    message,
                    data,
                };
                requests.push((frame, Pending::Answer(answer)).into());
            }
            Command::Open(source) => {
                let mut state = self.state.lock();
                if state.handles.contains_key(&source.number)
                    || state.opening.contains_key(&source.number)
                {
                    return requests;
                }
                state.opening.insert(source.number, Vec::new());
                drop(state);
                let name = source.name.clone();
                let frame = Frame::new(0, Message::Open { name });
                requests.push((frame, Pending::Opened(source)).into());
            }
            Command::Start => requests.extend(self.take_starts()),
            Command::Read(reads) => requests.extend(self.read_of(reads)),
            Command::Cancel(source, request) => {
                requests.extend(self.cancel_of(source, request));
            }
            Command::Skip(stream, chunks) => {
                return self.of_stream(stream, &chunks, |chunks| Message::Skip { chunks });
            }
            Command::Promote(stream, chunks) => {
                return self.of_stream(stream, &chunks, |chunks| Message::Promote { chunks });
            }
            Command::CancelStream(stream) => {
                let request = self.request_of(stream);
                requests.extend(request.map(cancel));
            }
            Command::CancelStart(request) => requests.push(cancel(request)),
        }
        requests
    }

    /// Turns what is said of chunks of a stream into requests; none if it is over.
    fn of_stream(
        &self,
        stream: StreamId,
        chunks: &[u32],
        message: fn(Vec<u32>) -> Message,
    ) -> Vec<Request> {
        let Some(request) = self.request_of(stream) else {
            return Vec::new();
        };
        let pieces = chunks.chunks(SKIPS_MAX).map(<[u32]>::to_vec);
        let frames = pieces.map(|chunks| Frame::new(request, message(chunks)));
        frames.map(Request::from).collect()
    }

    /// Returns the number of the START of a stream, unless that is over.
    fn request_of(&self, stream: StreamId) -> Option<u64> {
        let state = self.state.lock();
        let is_its = |pending: &Pending| match pending {
            Pending::Start(starting) => starting.request.stream == stream,
            Pending::Stream(of, _) => *of == stream,
            Pending::Answer(_) | Pending::Opened(_) | Pending::Chunks(_) => false,
        };
        let found = state.pending.iter().find(|(_, pending)| is_its(pending));
        found.map(|(request, _)| *request)
    }

    /// Returns the STARTs that somebody still waits for.
    fn take_starts(&self) -> Vec<Request> {
        let version = self.state.lock().version;
        let starts = std::mem::take(&mut *self.starts.lock());
        let mut requests = Vec::new();
        for start in starts {
            if start.waiter.strong_count() == 0 {
                continue;
            }
            let since = match start.rest {
                Some(_) => RESUME_SINCE,
                None => START_SINCE,
            };
            if version < since {
                let _nobody = (start.begin)(Err(StartRefused::Old));
                continue;
            }
            let starting = Starting::new(start);
            let frame = Frame::new(0, starting.message());
            requests.push((frame, Pending::Start(Box::new(starting))).into());
        }
        requests
    }

    /// Turns reads into a request, unless their source is not open yet.
    fn read_of(&self, reads: Reads) -> Option<Request> {
        let mut state = self.state.lock();
        if let Some(parked) = state.opening.get_mut(&reads.source.number) {
            parked.push(reads);
            return None;
        }
        let handle = state.handles.get(&reads.source.number).copied();
        let version = state.version;
        drop(state);
        let handle = handle.filter(|(_, id)| reads.source.id() == Some(id));
        let Some((handle, _)) = handle else {
            // It could not be opened.
            if let Some(receiver) = reads.source.receiver() {
                receiver.refused(self.number());
            }
            return None;
        };
        let read = Message::Read {
            handle,
            priority: reads.priority,
            form: match version >= FORM_SINCE {
                true => reads.form,
                false => ReadForm::Any,
            },
            deadline_ms: u32::try_from(reads.deadline.as_millis()).unwrap_or(0),
            chunks: reads.chunks.clone(),
        };
        let open = OpenRead {
            source: reads.source,
            request: reads.request,
            chunks: reads.chunks.into_iter().map(Some).collect(),
        };
        Some((Frame::new(0, read), Pending::Chunks(open)).into())
    }

    fn cancel_of(&self, source: u64, request: RequestId) -> Option<Request> {
        let mut state = self.state.lock();
        for parked in state.opening.values_mut() {
            parked.retain(|reads| (reads.source.number, reads.request) != (source, request));
        }
        let is_it = |pending: &Pending| match pending {
            Pending::Chunks(open) => (open.source.number, open.request) == (source, request),
            _ => false,
        };
        let found = state.pending.iter().find(|(_, pending)| is_it(pending));
        let number = *found?.0;
        state.pending.remove(&number);
        Some(Frame::new(number, Message::Cancel).into())
    }

    /// Numbers a request, and registers the receiver of its response.
    fn note(&self, request: Request) -> Frame {
        let Request { mut frame, pending } = request;
        if let Some(pending) = pending {
            let mut state = self.state.lock();
            frame.request = state.next;
            state.next += 1;
            state.pending.insert(frame.request, pending);
        }
        frame
    }
}

fn cancel(request: u64) -> Request {
    Frame::new(request, Message::Cancel).into()
}

impl From<(Frame, Pending)> for Request {
    fn from((frame, pending): (Frame, Pending)) -> Self {
        Self {
            frame,
            pending: Some(pending),
        }
    }
}

impl From<Frame> for Request {
    fn from(frame: Frame) -> Self {
        Self {
            frame,
            pending: None,
        }
    }
}
