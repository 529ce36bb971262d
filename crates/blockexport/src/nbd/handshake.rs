//! The first part of a connection: the client's options, and the description of the device.

use std::io;
use std::time::Instant;

use blocks::{BlockDevice, DeviceAccess};

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::wire::{self, Fields};
use super::{NbdConfig, REQUEST_MAX_BYTES};

/// The longest name that the protocol allows.
const NAME_MAX_BYTES: usize = 4096;
/// A name, some queries for metadata; longer options are refused.
const OPTION_MAX_BYTES: u32 = 64 << 10;
/// No client needs more options than there are kinds of them, twice.
const OPTIONS_MAX: usize = 64;

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Session {
    /// Replies to reads and questions have a structure.
    pub(super) structured: bool,
    /// Whether the client may request the holes.
    pub(super) allocation: bool,
}

/// How a handshake continues after an option.
enum Next {
    Option,
    Transmission,
    End,
}

/// Negotiates with a client until it begins transmission, or leaves (`None`).
pub(super) fn shake_hands(
    incoming: &mut Incoming,
    outgoing: &Outgoing,
    device: &dyn BlockDevice,
    config: &NbdConfig,
) -> io::Result<Option<Session>> {
    let deadline = Instant::now() + config.handshake_deadline;
    outgoing.send(&wire::GREETING, &[])?;
    let mut flags = [0; 4];
    incoming.fill_by(&mut flags, deadline)?;
    let flags = wire::client_flags(flags);
    if flags & wire::CLIENT_FIXED == 0
        || flags & !(wire::CLIENT_FIXED | wire::CLIENT_NO_ZEROES) != 0
    {
        return Err(broken("the client has flags that this server has not"));
    }
    let mut shake = Handshake {
        outgoing,
        device,
        name: &config.name,
        pad: flags & wire::CLIENT_NO_ZEROES == 0,
        session: Session::default(),
    };
    for _ in 0..OPTIONS_MAX {
        let mut head = [0; wire::OPTION_BYTES];
        incoming.fill_by(&mut head, deadline)?;
        let (option, len) = wire::option(&head).ok_or(broken("this is no option"))?;
        if len > OPTION_MAX_BYTES {
            shake.reply(option, wire::REP_ERR_TOO_BIG, &[])?;
            return Err(broken("an option is too long"));
        }
        let mut data = vec![0; len as usize];
        incoming.fill_by(&mut data, deadline)?;
        match shake.answer(option, &data)? {
            Next::Option => {}
            Next::Transmission => return Ok(Some(shake.session)),
            Next::End => return Ok(None),
        }
    }
    Err(broken(
        "the client does not come to an end with its options",
    ))
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

struct Handshake<'a> {
    outgoing: &'a Outgoing,
    device: &'a dyn BlockDevice,
    name: &'a str,
    /// Whether the response to the oldest option ends with zeros.
    pad: bool,
    session: Session,
}

impl Handshake<'_> {
    fn answer(&mut self, option: u32, data: &[u8]) -> io::Result<Next> {
        match option {
            wire::OPT_EXPORT_NAME => {
                if !self.serves(data) {
                    // There is no other way to refuse this option.
                    return Err(broken("there is no export of that name"));
                }
                let mut export = self.export();
                export.resize(export.len() + if self.pad { 124 } else { 0 }, 0);
                self.outgoing.send(&export, &[])?;
                return Ok(Next::Transmission);
            }
            wire::OPT_ABORT => {
                self.reply(option, wire::REP_ACK, &[])?;
                return Ok(Next::End);
            }
            wire::OPT_GO | wire::OPT_INFO => return self.inform(option, data),
            wire::OPT_LIST if data.is_empty() => {
                self.reply(option, wire::REP_SERVER, &wire::listed(self.name))?;
                self.reply(option, wire::REP_ACK, &[])?;
            }
            wire::OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.session.structured = true;
                self.reply(option, wire::REP_ACK, &[])?;
            }
            wire::OPT_LIST_META | wire::OPT_SET_META => self.contexts(option, data)?,
            wire::OPT_LIST | wire::OPT_STRUCTURED_REPLY => {
                self.reply(option, wire::REP_ERR_INVALID, &[])?;
            }
            _ => self.reply(option, wire::REP_ERR_UNSUP, &[])?,
        }
        Ok(Next::Option)
    }

    /// Tells what the device is; with `OPT_GO`, transmission begins.
    fn inform(&self, option: u32, data: &[u8]) -> io::Result<Next> {
        let Some((name, named)) = wanted(data) else {
            self.reply(option, wire::REP_ERR_INVALID, &[])?;
            return Ok(Next::Option);
        };
        if !self.serves(name) {
            self.reply(option, wire::REP_ERR_UNKNOWN, &[])?;
            return Ok(Next::Option);
        }
        let info = |kind, data: &[u8]| self.reply(option, wire::REP_INFO, &wire::info(kind, data));
        info(wire::INFO_EXPORT, &self.export())?;
        let block = self.device.info().block_size;
        let sizes = wire::block_sizes([block, block.max(4096), REQUEST_MAX_BYTES]);
        info(wire::INFO_BLOCK_SIZE, &sizes)?;
        if named {
            info(wire::INFO_NAME, self.name.as_bytes())?;
        }
        self.reply(option, wire::REP_ACK, &[])?;
        Ok(match option {
            wire::OPT_GO => Next::Transmission,
            _ => Next::Option,
        })
    }

    /// Tells which metadata there is, or takes note of what is wanted.
    fn contexts(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let set = option == wire::OPT_SET_META;
        if set {
            self.session.allocation = false;
        }
        let Some((name, queries)) = queries(data).filter(|_| self.session.structured) else {
            return self.reply(option, wire::REP_ERR_INVALID, &[]);
        };
        if !self.serves(name) {
            return self.reply(option, wire::REP_ERR_UNKNOWN, &[]);
        }
        let exact = |query: &&[u8]| *query == wire::ALLOCATION.as_bytes();
        let listed = |query: &&[u8]| exact(query) || *query == b"base:";
        let wanted = if set {
            queries.iter().any(exact)
        } else {
            queries.is_empty() || queries.iter().any(listed)
        };
        if wanted {
            self.reply(option, wire::REP_META, &wire::context())?;
        }
        self.session.allocation |= set && wanted;
        self.reply(option, wire::REP_ACK, &[])
    }

    /// Returns whether a name is the device's; the empty name selects it, too.
    fn serves(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    fn export(&self) -> Vec<u8> {
        let info = self.device.info();
        // Each connection reaches the same device, and a flush covers all that was written before.
        let mut flags = wire::FLAG_HAS_FLAGS | wire::FLAG_MULTI_CONN | wire::FLAG_DF;
        match info.access {
            DeviceAccess::ReadOnly => flags |= wire::FLAG_READ_ONLY,
            DeviceAccess::ReadWrite => {
                flags |= wire::FLAG_FLUSH | wire::FLAG_FUA;
                flags |= if info.trim { wire::FLAG_TRIM } else { 0 };
                flags |= if info.write_zeroes {
                    wire::FLAG_WRITE_ZEROES
                } else {
                    0
                };
            }
        }
        wire::export(info.size, flags)
    }

    fn reply(&self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        self.outgoing
            .send(&wire::option_reply(option, kind, data), &[])
    }
}

/// Decodes which export a client requests, and whether it asks for its name.
fn wanted(data: &[u8]) -> Option<(&[u8], bool)> {
    let mut fields = Fields(data);
    let name = fields.text().filter(|name| name.len() <= NAME_MAX_BYTES)?;
    let infos = fields.u16()?;
    let mut named = false;
    for _ in 0..infos {
        named |= fields.u16()? == wire::INFO_NAME;
    }
    fields.0.is_empty().then_some((name, named))
}

/// Decodes of which export which metadata is asked for.
fn queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut fields = Fields(data);
    let name = fields.text().filter(|name| name.len() <= NAME_MAX_BYTES)?;
    let count = fields.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(fields.text()?);
    }
    fields.0.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_lie_are_refused() {
        // A name longer than the option; more queries than bytes; bytes left over.
        assert_eq!(wanted(&[0, 0, 0, 9, b'x', 0, 0]), None);
        assert_eq!(wanted(&[0, 0, 0, 1, b'x', 0, 0]), Some((&b"x"[..], false)));
        assert_eq!(
            wanted(&[0, 0, 0, 1, b'x', 0, 1, 0, 1]),
            Some((&b"x"[..], true))
        );
        assert_eq!(wanted(&[0, 0, 0, 1, b'x', 0, 0, 0]), None);
        assert_eq!(queries(&[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]), None);
        assert_eq!(queries(&[0xFF; 8]), None);
        assert_eq!(queries(&[0; 8]), Some((&b""[..], vec![])));
    }
}
