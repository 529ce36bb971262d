//! The worker's side: passes on the requests of its client, one after the other.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use mounting::nic::{ConnectionRequest, Connector};
use parking_lot::Mutex;

use super::{REQUEST, RESPOND, RESPONSE, SERVICE_SHIFT};

/// Requests that wait: two connections of a client to each service ask for one each, and give up before they ask
/// again.
const WAITING: usize = 16;

/// Has the node make connections.
#[derive(Debug)]
pub(crate) struct NodeConnector {
    requests: SyncSender<ConnectionRequest>,
    link: Arc<Link>,
}

/// The worker's end of the pair; absent until the node has given one.
type Link = Mutex<Option<Arc<OwnedFd>>>;

impl NodeConnector {
    /// Returns one that has no link to a node yet.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (requests, asked) = sync_channel(WAITING);
        let link = Arc::new(Link::default());
        let of_thread = Arc::clone(&link);
        std::thread::Builder::new()
            .name("connections".to_owned())
            .spawn(move || answer_all(&asked, &of_thread))?;
        Ok(Self { requests, link })
    }

    /// Sends requests over this end of a pair from now on, and closes the earlier one.
    pub(crate) fn set_link(&self, link: OwnedFd) {
        *self.link.lock() = Some(Arc::new(link));
    }
}

impl Connector for NodeConnector {
    fn connect(&self, request: ConnectionRequest) {
        match self.requests.try_send(request) {
            Ok(()) => {}
            Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) => {
                request.answer(Err(ErrorKind::WouldBlock.into()));
            }
        }
    }
}

/// Answers requests until all requesters are gone.
fn answer_all(requests: &Receiver<ConnectionRequest>, link: &Link) {
    let mut number = 0_u32;
    for request in requests {
        if request.is_abandoned() {
            continue;
        }
        number = number.wrapping_add(1) % (1 << SERVICE_SHIFT);
        let service = u32::try_from(request.service()).unwrap_or(u32::MAX);
        let current = link.lock().clone();
        let made = match current {
            Some(link) => ask(&link, service << SERVICE_SHIFT | number),
            None => Err(io::Error::new(
                ErrorKind::NotConnected,
                "the node, which connects for this worker, has not said so yet",
            )),
        };
        request.answer(made.map(UnixStream::from));
    }
}

/// Has the node make one connection.
fn ask(link: &OwnedFd, number: u32) -> io::Result<OwnedFd> {
    let request: [u8; REQUEST] = number.to_le_bytes();
    rawio::passing::send(link.as_fd(), &request, &[]).map_err(|error| named(&error))?;
    let deadline = Instant::now() + RESPOND;
    while Instant::now() < deadline {
        let mut response = [0; RESPONSE];
        let received = rawio::passing::receive(link.as_fd(), &mut response);
        let (len, descriptors) = received.map_err(|error| named(&error))?;
        if len != RESPONSE {
            return Err(named(&ErrorKind::BrokenPipe.into()));
        }
        let [a, b, c, d, errno @ ..] = response;
        if [a, b, c, d] != request {
            // It is the response to a request that was given up.
            continue;
        }
        let connection = descriptors.into_iter().next();
        return match (i32::from_le_bytes(errno), connection) {
            (0, Some(connection)) => Ok(connection),
            (0, None) => Err(ErrorKind::InvalidData.into()),
            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
        };
    }
    Err(named(&ErrorKind::WouldBlock.into()))
}

/// Says whose fault it is that there is no response.
fn named(error: &io::Error) -> io::Error {
    let why = match error.kind() {
        ErrorKind::BrokenPipe => "the node has ended; the next one will connect".to_owned(),
        ErrorKind::WouldBlock => "the node did not connect in time".to_owned(),
        _ => format!("asking the node for a connection: {error}"),
    };
    io::Error::new(error.kind(), why)
}
