//! Requests to the kernel about network devices, their addresses and their routes.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily as SocketFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send,
    setsockopt, socket, sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// How long the kernel may take to answer, in seconds. It answers while it is asked, unless it has no memory.
const PATIENCE_SECONDS: i64 = 10;

/// The largest answer at a time: the kernel sends no more than 32 KiB.
const ANSWER_MAX_BYTES: usize = 64 << 10;

/// A socket to the kernel, about the network namespace that it was opened in.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens one for the namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket(
            SocketFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Makes a device.
    pub(super) fn make(&mut self, link: LinkMessage) -> io::Result<()> {
        let new = NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewLink(link), NLM_F_ACK | new)
            .map(drop)
    }

    /// Changes a device.
    pub(super) fn change(&mut self, link: LinkMessage) -> io::Result<()> {
        self.ask(RouteNetlinkMessage::NewLink(link), NLM_F_ACK)
            .map(drop)
    }

    /// Removes a device, if it is there.
    pub(super) fn remove(&mut self, name: &str) -> io::Result<()> {
        let request = RouteNetlinkMessage::DelLink(named(name));
        match self.ask(request, NLM_F_ACK) {
            Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Returns a device.
    pub(super) fn find(&mut self, name: &str) -> io::Result<Option<LinkMessage>> {
        match self.ask(RouteNetlinkMessage::GetLink(named(name)), NLM_F_ACK) {
            Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
            found => Ok(found?.into_iter().find_map(as_link)),
        }
    }

    /// Returns the index of a device.
    pub(super) fn index_of(&mut self, name: &str) -> io::Result<u32> {
        let found = self.find(name)?;
        found
            .map(|link| link.header.index)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Has a program decide what a device takes.
    pub(super) fn filter(&mut self, device: &str, program: BorrowedFd<'_>) -> io::Result<()> {
        /// Of any protocol (`ETH_P_ALL`, in the order of the network), asked first.
        const ALL_PROTOCOLS: u32 = 1 << 16 | 0x0300;
        let index = i32::try_from(self.index_of(device)?).map_err(io::Error::other)?;
        let all = TcHandle {
            minor: 0,
            ..TcHandle::CLSACT
        };
        let mut queue = TcMessage::with_index(index);
        queue.header.handle = all;
        queue.header.parent = TcHandle::CLSACT;
        queue.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
        let new = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewQueueDiscipline(queue), new)?;
        let mut filter = TcMessage::with_index(index);
        filter.header.parent = TcHandle {
            minor: TcHandle::MIN_INGRESS,
            ..all
        };
        filter.header.info = ALL_PROTOCOLS;
        let number = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
        filter.attributes = vec![
            TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgFd(number)),
                TcOption::Bpf(TcFilterBpfOption::ProgName("sandbox".to_owned())),
                TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            ]),
        ];
        self.ask(RouteNetlinkMessage::NewTrafficFilter(filter), new)
            .map(drop)
    }

    /// Returns all devices.
    pub(super) fn list(&mut self) -> io::Result<Vec<LinkMessage>> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let all = self.ask(request, NLM_F_DUMP)?;
        Ok(all.into_iter().filter_map(as_link).collect())
    }

    /// Gives a device an address.
    pub(super) fn add_address(
        &mut self,
        device: u32,
        address: Ipv4Addr,
        prefix: u8,
        broadcast: Ipv4Addr,
    ) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = device;
        message.attributes = vec![
            AddressAttribute::Local(address.into()),
            AddressAttribute::Address(address.into()),
            AddressAttribute::Broadcast(broadcast),
        ];
        let new = NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_ACK | new)
            .map(drop)
    }

    /// Has all that no other route leads to go through a gateway.
    pub(super) fn add_gateway(&mut self, gateway: Ipv4Addr) -> io::Result<()> {
        let to = RouteAttribute::Gateway(RouteAddress::Inet(gateway));
        self.add_route(RouteType::Unicast, 0, vec![to])
    }

    /// Refuses to send to a subnet.
    pub(super) fn forbid(&mut self, network: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let to = RouteAttribute::Destination(RouteAddress::Inet(network));
        self.add_route(RouteType::Prohibit, prefix, vec![to])
    }

    fn add_route(
        &mut self,
        kind: RouteType,
        prefix: u8,
        attributes: Vec<RouteAttribute>,
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: AddressFamily::Inet,
            destination_prefix_length: prefix,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: RouteScope::Universe,
            kind,
            ..RouteHeader::default()
        };
        message.attributes = attributes;
        let new = NLM_F_CREATE | NLM_F_EXCL;
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_ACK | new)
            .map(drop)
    }

    /// Sends a request and returns the answers to it.
    fn ask(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; ANSWER_MAX_BYTES];
        loop {
            let len = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => continue,
                received => received?,
            };
            if read_answers(&buffer[..len], sequence, &mut answers)? == Read::All {
                return Ok(answers);
            }
        }
    }
}

/// Whether there are more answers.
#[derive(PartialEq, Eq)]
enum Read {
    All,
    Some,
}

/// Reads the messages that came together. One that this program does not understand is left out.
fn read_answers(
    mut bytes: &[u8],
    sequence: u32,
    answers: &mut Vec<RouteNetlinkMessage>,
) -> io::Result<Read> {
    while !bytes.is_empty() {
        let head = NetlinkBuffer::new_checked(bytes).map_err(io::Error::other)?;
        let len = usize::try_from(head.length()).map_err(io::Error::other)?;
        let is_ours = head.sequence_number() == sequence;
        let (one, rest) = bytes.split_at(len.min(bytes.len()));
        // The next one begins at a multiple of four.
        let gap = len.next_multiple_of(4) - len;
        bytes = &rest[gap.min(rest.len())..];
        if !is_ours {
            continue;
        }
        match NetlinkMessage::deserialize(one).map(|message| message.payload) {
            Ok(NetlinkPayload::Done(_)) => return Ok(Read::All),
            Ok(NetlinkPayload::Error(error)) => {
                return match error.code {
                    Some(code) => Err(io::Error::from_raw_os_error(-code.get())),
                    None => Ok(Read::All),
                };
            }
            Ok(NetlinkPayload::InnerMessage(answer)) => answers.push(answer),
            Ok(_) => {}
            Err(error) => log::debug!("an answer about network devices is left out: {error}"),
        }
    }
    Ok(Read::Some)
}

/// A message about the device of a name.
pub(super) fn named(name: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link
}

/// A message that raises a device.
pub(super) fn raised(mut link: LinkMessage) -> LinkMessage {
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link
}

fn as_link(message: RouteNetlinkMessage) -> Option<LinkMessage> {
    match message {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    }
}

/// Returns the name of a device.
pub(super) fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        })
}

/// Returns what somebody has written to a device.
pub(super) fn alias_of(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias.as_str()),
            _ => None,
        })
}

/// Returns the bridge that a device is on.
pub(super) fn bridge_of(link: &LinkMessage) -> Option<u32> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Controller(index) => Some(*index),
            _ => None,
        })
}
