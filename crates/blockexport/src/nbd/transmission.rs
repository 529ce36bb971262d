//! The second part of a connection: requests and their replies, many at a time.

use std::io;
use std::time::Duration;

use blocks::{BlockDevice, DeviceErrorKind, DeviceInfo, Durability, Space};

use super::handshake::Session;
use super::incoming::{Filled, Incoming, Wait};
use super::outgoing::Outgoing;
use super::wire::{self, Errno, REQUEST_BYTES, Request};
use super::{NbdConfig, REQUEST_MAX_BYTES};
use crate::budget::{Budget, Permit};
use crate::crew;
use crate::export::{Meter, Moved, guarded};

/// How long memory for a request is waited for. Those that have it are served meanwhile, and the
/// device has deadlines of its own.
const MEMORY_PATIENCE: Duration = Duration::from_secs(120);

/// Entries in one answer about what lies where; the client asks again for the rest.
const EXTENTS_MAX: usize = 4096;

/// What a device says of an invalid range, said of other things that are invalid in a request.
const INVALID: DeviceErrorKind = DeviceErrorKind::OutOfBounds;

/// What a connection serves, and within which bounds.
pub(super) struct Transmission<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) session: Session,
    pub(super) budget: &'a Budget,
    pub(super) meter: &'a Meter,
    pub(super) config: &'a NbdConfig,
}

/// A request with its payload, and the memory for it.
struct Job<'a> {
    request: Request,
    payload: Vec<u8>,
    _memory: Option<Permit<'a>>,
}

/// What a request brings back.
enum Answer {
    Done,
    Data(Vec<u8>),
    /// The allocation status, encoded.
    Status(Vec<u8>),
}

impl Transmission<'_> {
    /// Serves requests until the client leaves, and returns the error if it did not leave in order.
    pub(super) fn serve(&self, mut incoming: Incoming, outgoing: &Outgoing) -> io::Result<()> {
        let mut end = Ok(());
        let next = || match self.next(&mut incoming) {
            Ok(job) => job,
            Err(error) => {
                end = Err(error);
                None
            }
        };
        crew::run("nbd", self.config.threads, next, |job: Job| {
            let result = self.perform(&job);
            self.meter.note(match &result {
                Ok(Answer::Data(data)) => Ok(Moved::Read(data.len() as u64)),
                Ok(Answer::Done) if job.request.command != wire::CMD_FLUSH => {
                    Ok(Moved::Written(u64::from(job.request.len)))
                }
                Ok(_) => Ok(Moved::None),
                Err(kind) => Err(*kind),
            });
            if let Err(error) = self.reply(outgoing, &job.request, result) {
                log::debug!("an NBD client takes no replies: {error}");
            }
        });
        end
    }

    /// Receives the next request; `None` if the client leaves.
    fn next<'s>(&'s self, incoming: &mut Incoming) -> io::Result<Option<Job<'s>>> {
        let mut head = [0; REQUEST_BYTES];
        let wait = Wait::Begun(self.config.io_deadline);
        if incoming.fill(&mut head, wait)? == Filled::Ended {
            return Ok(None);
        }
        let Some(request) = Request::decode(&head) else {
            let why = "this is no request";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        };
        let payload_len = match request.command {
            wire::CMD_DISC => return Ok(None),
            wire::CMD_WRITE if request.len > REQUEST_MAX_BYTES => {
                let why = "the payload of a write is too long";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            wire::CMD_WRITE => request.len as usize,
            _ => 0,
        };
        let memory = match request.command {
            // What is too long is refused without memory.
            wire::CMD_READ | wire::CMD_WRITE if request.len <= REQUEST_MAX_BYTES => {
                let bytes = u64::from(request.len);
                let permit = self.budget.take(bytes, MEMORY_PATIENCE);
                Some(permit.ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?)
            }
            _ => None,
        };
        let mut payload = vec![0; payload_len];
        if payload_len > 0 {
            let deadline = std::time::Instant::now() + self.config.io_deadline;
            incoming.fill_by(&mut payload, deadline)?;
        }
        Ok(Some(Job {
            request,
            payload,
            _memory: memory,
        }))
    }

    fn perform(&self, job: &Job) -> Result<Answer, DeviceErrorKind> {
        let Job {
            request, payload, ..
        } = job;
        let allowed = match request.command {
            wire::CMD_READ => wire::CMD_FLAG_DF,
            wire::CMD_WRITE | wire::CMD_TRIM => wire::CMD_FLAG_FUA,
            wire::CMD_WRITE_ZEROES => wire::CMD_FLAG_FUA | wire::CMD_FLAG_NO_HOLE,
            wire::CMD_BLOCK_STATUS => wire::CMD_FLAG_REQ_ONE,
            // Some clients set this one with each request once it is offered.
            _ => wire::CMD_FLAG_FUA,
        };
        if request.flags & !allowed != 0 {
            return Err(INVALID);
        }
        let durability = match request.flags & wire::CMD_FLAG_FUA {
            0 => Durability::Flushed,
            _ => Durability::Durable,
        };
        let range = || request.offset..request.offset.saturating_add(u64::from(request.len));
        let device = self.device;
        match request.command {
            wire::CMD_READ => self.read(request),
            wire::CMD_WRITE if payload.is_empty() => Err(INVALID),
            wire::CMD_WRITE => guarded(|| device.write_at(request.offset, payload, durability))
                .map(|()| Answer::Done),
            wire::CMD_FLUSH => guarded(|| device.flush()).map(|()| Answer::Done),
            wire::CMD_TRIM => guarded(|| device.trim(range(), durability)).map(|()| Answer::Done),
            wire::CMD_WRITE_ZEROES => {
                let space = match request.flags & wire::CMD_FLAG_NO_HOLE {
                    0 => Space::Release,
                    _ => Space::Keep,
                };
                guarded(|| device.write_zeroes(range(), space, durability)).map(|()| Answer::Done)
            }
            wire::CMD_BLOCK_STATUS if self.session.allocation => self.status(request),
            _ => Err(INVALID),
        }
    }

    fn read(&self, request: &Request) -> Result<Answer, DeviceErrorKind> {
        if request.len == 0 || request.len > REQUEST_MAX_BYTES {
            return Err(INVALID);
        }
        let (offset, len) = (request.offset, request.len as usize);
        let (cover, before) = cover(&self.device.info(), offset, u64::from(request.len))?;
        let mut data = vec![0; cover.1];
        guarded(|| self.device.read_at(cover.0, &mut data))?;
        if before > 0 || data.len() != len {
            data = data[before..before + len].to_vec();
        }
        Ok(Answer::Data(data))
    }

    fn status(&self, request: &Request) -> Result<Answer, DeviceErrorKind> {
        let limit = match request.flags & wire::CMD_FLAG_REQ_ONE {
            0 => EXTENTS_MAX,
            _ => 1,
        };
        let end = request.offset.saturating_add(u64::from(request.len));
        let extents = guarded(|| self.device.extents(request.offset..end, limit))?;
        Ok(Answer::Status(wire::status_chunk(request.cookie, &extents)))
    }

    fn reply(
        &self,
        outgoing: &Outgoing,
        request: &Request,
        result: Result<Answer, DeviceErrorKind>,
    ) -> io::Result<()> {
        let cookie = request.cookie;
        let structured = self.session.structured
            && matches!(request.command, wire::CMD_READ | wire::CMD_BLOCK_STATUS);
        match result {
            Ok(Answer::Done) => outgoing.send(&wire::simple_reply(cookie, Ok(())), &[]),
            Ok(Answer::Data(data)) if structured => {
                let head = wire::data_chunk(cookie, request.offset, request.len);
                outgoing.send(&head, &data)
            }
            Ok(Answer::Data(data)) => outgoing.send(&wire::simple_reply(cookie, Ok(())), &data),
            Ok(Answer::Status(chunk)) => outgoing.send(&chunk, &[]),
            Err(kind) if structured => {
                outgoing.send(&wire::error_chunk(cookie, Errno::from(kind)), &[])
            }
            Err(kind) => outgoing.send(&wire::simple_reply(cookie, Err(kind.into())), &[]),
        }
    }
}

/// Returns the whole blocks around a range, as offset and length, and how many bytes of them are
/// before it: clients that did not ask for the block size may read as they like.
fn cover(
    info: &DeviceInfo,
    offset: u64,
    len: u64,
) -> Result<((u64, usize), usize), DeviceErrorKind> {
    let block = u64::from(info.block_size);
    let end = offset.checked_add(len).filter(|end| *end <= info.size);
    let end = end.ok_or(DeviceErrorKind::OutOfBounds)?;
    let start = offset / block * block;
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| DeviceErrorKind::OutOfBounds);
    let len = size(end.next_multiple_of(block) - start)?;
    Ok(((start, len), size(offset - start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_any_alignment_are_covered_by_blocks() {
        let info = DeviceInfo::read_only(4096, 512);
        assert_eq!(cover(&info, 512, 512), Ok(((512, 512), 0)));
        assert_eq!(cover(&info, 513, 1), Ok(((512, 512), 1)));
        assert_eq!(cover(&info, 511, 2), Ok(((0, 1024), 511)));
        assert_eq!(cover(&info, 4095, 2), Err(DeviceErrorKind::OutOfBounds));
        let end = cover(&info, u64::MAX, 2);
        assert_eq!(end, Err(DeviceErrorKind::OutOfBounds));
    }
}
